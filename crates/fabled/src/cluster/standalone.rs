//! The cluster of a single host, without etcd.

use std::os::fd::BorrowedFd;

use fable::Name;
use fable::protocol::{Access, FlowId, Peer, Role};
use fable::transport::TlsKeys;

use super::authority::{Authority, AuthorityError};
use crate::cluster_link::{Cluster, ClusterError, ClusterEvent, RemoteName, Ticket};

/// A cluster with this host only.
#[derive(Default)]
pub struct Standalone {
    host: String,
    /// Made at the first request for keys, which most hosts never get.
    authority: Option<Authority>,
}

impl Standalone {
    /// Makes the cluster of the host with this name.
    pub fn new(host: String) -> Standalone {
        Standalone { host, authority: None }
    }

    fn own_keys(&mut self, flow: FlowId, role: Role) -> Result<TlsKeys, AuthorityError> {
        let authority = match self.authority.take() {
            Some(authority) => authority,
            None => Authority::in_memory(&self.host)?,
        };
        let authority = self.authority.insert(authority);
        authority.issue(flow, role, vec![authority.certificate().to_vec()])
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

    fn keys(&mut self, flow: FlowId, role: Role, host: &str) -> Result<TlsKeys, ClusterError> {
        if host != self.host {
            let reason = format!("this daemon does not know {host}: start it with --etcd");
            return Err(ClusterError { reason });
        }
        self.own_keys(flow, role).map_err(|error| ClusterError { reason: error.to_string() })
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
    fn the_two_ends_on_one_host_get_keys_that_fit() {
        let mut host = Standalone::new("here".to_owned());
        let leader = host.keys(FlowId(1), Role::Leader, "here").unwrap();
        let follower = host.keys(FlowId(1), Role::Follower, "here").unwrap();
        assert_eq!(leader.authorities, follower.authorities);
        assert_ne!(leader.peer_name, follower.peer_name);
        let refused = host.keys(FlowId(1), Role::Leader, "there").unwrap_err();
        assert!(refused.reason.contains("--etcd"), "{refused}");
    }
}
