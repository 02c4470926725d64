//! Hosts that share their names through a real etcd. Each host is a network namespace with a
//! member of the cluster in it; etcd has one of its own, and a bridge joins them.

mod connections;
mod etcd;
mod hosts;
mod names;
mod network;
mod outages;
