//! The interface between the daemon and a cluster.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;

use fable::Name;
use fable::protocol::{Access, FlowId, Peer, Role, Trust};
use fable::transport::TlsKeys;
use serde::{Deserialize, Serialize};

/// The other hosts, as the daemon's loop uses them. No method waits for the network: names are
/// looked up in a local copy, and changes are queued.
pub trait Cluster: Send {
    /// Returns this host's name in the cluster.
    fn host(&self) -> &str;

    /// Returns whether there can be other hosts. If so, instances that the daemon chooses contain
    /// the host's name, so that two hosts do not choose the same.
    fn has_others(&self) -> bool;

    /// Publishes a name of this host. An event reports whether that succeeded.
    fn publish(&mut self, name: &Name, owner: &Peer, access: &Access);

    /// Withdraws a name.
    fn withdraw(&mut self, name: &Name);

    /// Returns the matching names of other hosts: exactly this one, or every instance if it has
    /// none.
    fn find(&self, name: &Name) -> Vec<RemoteName>;

    /// Returns all names of other hosts.
    fn names(&self) -> Vec<RemoteName>;

    /// Makes a signed ticket with which a process can connect to a name on `host`, as one line
    /// without its end.
    ///
    /// # Errors
    /// [`ClusterError`] if the ticket cannot be signed now.
    fn ticket(&mut self, ticket: &Ticket, host: &str) -> Result<String, ClusterError>;

    /// Makes the keys of this end of a flow. They fit those of the other end, which another daemon
    /// of the cluster may make.
    ///
    /// # Errors
    /// [`ClusterError`] if this host has not joined yet, and so has no secret.
    fn keys(&mut self, flow: FlowId, role: Role) -> Result<TlsKeys, ClusterError>;

    /// Returns a descriptor that is readable when [`Cluster::take_events`] has something; it never
    /// changes. `None` if there are never any events.
    fn poll_descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Takes the events since the last call. Makes the descriptor unreadable.
    fn take_events(&mut self) -> Vec<ClusterEvent>;
}

/// A name on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteName {
    /// The full name.
    pub name: Name,
    /// The process that has it; `owner.host` is the host.
    pub owner: Peer,
    /// The addresses of that host's daemon.
    pub addresses: Vec<SocketAddr>,
    /// The registration's epoch.
    pub epoch: i64,
}

/// The content of a ticket, except its signature, its target host and its expiry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The flow.
    pub flow: FlowId,
    /// The full name of the endpoint to connect to.
    pub name: Name,
    /// The process that connects.
    pub peer: Peer,
    /// Whether that process trusts the other end.
    pub trust: Trust,
    /// Whether only protected transports may be used.
    pub protected: bool,
}

/// An event of the cluster.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClusterEvent {
    /// A process of another host has connected; its ticket is genuine, and the ticket's line is
    /// consumed.
    Connection {
        /// The connection after the ticket, blocking or non-blocking.
        stream: TcpStream,
        /// The content of the ticket.
        ticket: Ticket,
    },
    /// A name of this host is known to the others.
    Published {
        /// The name.
        name: Name,
        /// Its registration's epoch.
        epoch: i64,
    },
    /// A name of this host could not be published, because another host has it. It stays valid
    /// here.
    NameConflict {
        /// The name.
        name: Name,
        /// The host that has it.
        holder: String,
    },
    /// A name of another host appeared.
    NameFound {
        /// The name.
        name: Name,
        /// Its host.
        host: String,
    },
    /// A name of another host is gone.
    NameGone {
        /// The name.
        name: Name,
    },
    /// The cluster can be reached.
    Up,
    /// The cluster cannot be reached; the last known records are still used.
    Down {
        /// The reason.
        reason: String,
    },
}

/// Why an operation that needs the cluster failed. The reason includes a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ClusterError {
    /// Cause and remedy.
    pub reason: String,
}
