//! The name daemon of FABLE, and what its command line does.

pub mod cluster_link;
pub mod policy;
