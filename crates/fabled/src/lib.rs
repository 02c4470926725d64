//! The name daemon of FABLE, `fabled`, and the command `fable`, which queries it and runs programs.
//!
//! # Modules
//!
//! - [`daemon`]: registers names and tracks flows (section 3.1 of the paper), in one thread.
//! - [`policy`]: decides which transport a flow uses, without I/O or clock.
//! - [`cluster`]: shares names with other hosts through etcd, or serves a host without others.
//! - [`cluster_link`]: the interface between the daemon and a cluster.
//! - [`options`]: the daemon's command line.
//! - [`commands`]: the commands of `fable` that send requests to a daemon.
//! - [`sandbox`]: what the daemon may do when it is set up.
//! - [`run`]: `fable run`, which needs no daemon.
//! - `registry`, `owners`, `flows`: the tables of names, of the owners of services, and of flows.
//! - `quota`, [`log_quota`]: limit what each user makes the daemon hold and log.
//! - `process`: the process behind a socket.
//! - `text`: makes text from other processes safe for terminals and logs.

pub mod cluster;
pub mod cluster_link;
pub mod commands;
pub mod daemon;
#[cfg(test)]
mod error_tests;
mod flows;
pub mod log_quota;
pub mod options;
mod owners;
pub mod policy;
mod process;
mod quota;
mod registry;
pub mod run;
pub mod sandbox;
mod text;
