//! Tests of hosts that share their names through a real etcd. Each host is a network namespace with
//! a member of the cluster in it; etcd has its own namespace, and a bridge connects them.

mod clocks;
mod connections;
mod daemons;
mod etcd;
mod etcd_load;
mod hosts;
mod multipath;
mod names;
mod network;
mod orders;
mod outages;
mod programs;
mod protected_etcd;
mod quorum;
mod survival;
mod zone_secret;
mod zone_size;
