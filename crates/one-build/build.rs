//! Does nothing: without it, cargo would leave out the build-dependencies.

fn main() {}
