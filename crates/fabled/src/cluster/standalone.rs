//! The cluster of a single host, without etcd.

use std::os::fd::BorrowedFd;

use fable::Name;
use fable::protocol::{Access, FlowId, Peer, Role};
use fable::transport::TlsKeys;

use super::random;
use super::records::SECRET_BYTES;
use super::zone_secret::flow_keys;
use crate::cluster_link::{Cluster, ClusterError, ClusterEvent, RemoteName, Ticket};

/// A cluster with this host only.
#[derive(Default)]
pub struct Standalone {
    host: String,
    /// Made at the first request for keys, which most hosts never get.
    secret: Option<[u8; SECRET_BYTES]>,
}

impl Standalone {
    /// Makes the cluster of the host with this name.
    pub fn new(host: String) -> Standalone {
        Standalone { host, secret: None }
    }
}

impl Cluster for Standalone {
    fn host(&self) -> &str {
        &self.host
    }

    fn has_others(&self) -> bool {
        false
    }

    fn publish(&mut self, _name: &Name, _owner: &Peer, _access: &Access) {}

    fn withdraw(&mut self, _name: &Name) {}

    fn find(&self, _name: &Name) -> Vec<RemoteName> {
        Vec::new()
    }

    fn names(&self) -> Vec<RemoteName> {
        Vec::new()
    }

    fn ticket(&mut self, _ticket: &Ticket, _host: &str) -> Result<String, ClusterError> {
        let reason = "this daemon knows no other hosts: start it with --etcd".to_owned();
        Err(ClusterError { reason })
    }

    fn keys(&mut self, flow: FlowId, role: Role) -> Result<TlsKeys, ClusterError> {
        flow_keys(self.secret.get_or_insert_with(random), flow, role)
    }

    fn poll_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn take_events(&mut self) -> Vec<ClusterEvent> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_daemon_has_its_own_keys_and_keeps_them() {
        let [mut one, mut other] = [(); 2].map(|()| Standalone::new("here".to_owned()));
        let keys = one.keys(FlowId(1), Role::Leader).unwrap();
        assert_eq!(one.keys(FlowId(1), Role::Leader).unwrap(), keys);
        assert_ne!(other.keys(FlowId(1), Role::Leader).unwrap(), keys);
    }
}
