//! The daemon that keeps names and flows.

fn main() {}
