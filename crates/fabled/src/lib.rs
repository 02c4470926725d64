//! The name daemon of FABLE, and what its command line does.
//!
//! [`daemon`] keeps names and flows (section 3.1 of the paper), [`policy`] decides which transport
//! a flow uses, [`cluster_link`] is what the daemon wants of other hosts, and [`commands`] is the
//! command line that talks to a daemon.

pub mod cluster_link;
pub mod daemon;
mod flows;
mod machine;
pub mod policy;
mod process;
mod registry;
mod text;
