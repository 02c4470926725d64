//! The name daemon of FABLE, and what its command line does.

pub mod cluster;
pub mod cluster_link;
