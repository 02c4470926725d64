//! Hosts that share their names through a real etcd. Each host is a network namespace with a
//! member of the cluster in it; etcd has one of its own, and a bridge joins them.

mod clocks;
#[path = "../common/mod.rs"]
mod common;
mod connections;
mod daemons;
mod etcd;
mod hosts;
mod multipath;
mod names;
mod network;
mod orders;
mod outages;
mod programs;
mod quorum;
mod survival;
