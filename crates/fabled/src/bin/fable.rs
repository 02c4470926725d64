//! `fable`: run programs over flows, and look at the flows.

fn main() {}
