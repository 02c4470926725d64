//! The referee for network I/O architectures.

fn main() {}
