//! The name daemon of FABLE, and what its command line does.
//!
//! [`daemon`] keeps names and flows (section 3.1 of the paper), [`policy`] decides which transport
//! a flow uses, [`cluster_link`] is what the daemon wants of other hosts, [`cluster`] how etcd
//! brings it and what a host without others does, [`options`] is the daemon's command line, and
//! [`commands`] that of `fable`, which talks to a daemon; [`run`] is `fable run`, which needs none.

pub mod cluster;
pub mod cluster_link;
pub mod commands;
pub mod daemon;
mod flows;
mod machine;
pub mod options;
pub mod policy;
mod process;
mod registry;
pub mod run;
mod text;
