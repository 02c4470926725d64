//! What the daemon wants of a cluster.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;

use fable::Name;
use fable::protocol::{Access, FlowId, Peer, Role, Trust};
use fable::transport::TlsKeys;
use serde::{Deserialize, Serialize};

/// The other hosts, as the daemon's loop sees them. No method waits for the network: names are
/// looked up in a local copy, and what is to be told to others is queued.
pub trait Cluster: Send {
    /// This host's name in the cluster.
    fn host(&self) -> &str;

    /// Whether there can be other hosts at all. Then instances that the daemon chooses carry the
    /// host's name, so that two hosts do not choose the same.
    fn has_others(&self) -> bool;

    /// Makes a name of this host known. Whether that succeeded comes as an event.
    fn publish(&mut self, name: &Name, owner: &Peer, access: &Access);

    /// Takes a name back.
    fn withdraw(&mut self, name: &Name);

    /// The names of other hosts that fit: exactly this one, or every instance if it has none.
    fn find(&self, name: &Name) -> Vec<RemoteName>;

    /// All names of other hosts.
    fn names(&self) -> Vec<RemoteName>;

    /// A signed ticket that lets the bearer connect to a name on `host`, as one line without its
    /// end.
    ///
    /// # Errors
    /// [`ClusterError`] if nothing can be signed now.
    fn ticket(&mut self, ticket: &Ticket, host: &str) -> Result<String, ClusterError>;

    /// The keys of this end of a flow whose other end is on `peer_host` (which may be this host).
    ///
    /// # Errors
    /// [`ClusterError`] if there is no authority, or that of the other host is unknown.
    fn keys(&mut self, flow: FlowId, role: Role, peer_host: &str) -> Result<TlsKeys, ClusterError>;

    /// Readable when [`Cluster::take_events`] has something; the same for life. `None` if there
    /// never is anything.
    fn poll_descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// What has happened since the last call. Makes the descriptor unreadable.
    fn take_events(&mut self) -> Vec<ClusterEvent>;
}

/// A name on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteName {
    /// The full name.
    pub name: Name,
    /// Who has it; `owner.host` is the host.
    pub owner: Peer,
    /// Where that host's daemon listens.
    pub addresses: Vec<SocketAddr>,
    /// The registration's epoch.
    pub epoch: i64,
}

/// What a ticket says, apart from its signature, its target host and its expiry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The flow.
    pub flow: FlowId,
    /// The full name that is connected to.
    pub name: Name,
    /// Who connects.
    pub peer: Peer,
    /// Whether that one trusts the other end.
    pub trust: Trust,
    /// Whether only protected transports may be used.
    pub protected: bool,
}

/// What happened elsewhere.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClusterEvent {
    /// A process of another host connects; the ticket is genuine, and its line is consumed.
    Connection {
        /// The connection behind the ticket; blocking or not does not matter.
        stream: TcpStream,
        /// What was signed.
        ticket: Ticket,
    },
    /// A name of this host is known to the others.
    Published {
        /// The name.
        name: Name,
        /// Its registration's epoch.
        epoch: i64,
    },
    /// A name of this host could not be published, because another host has it. It goes on here.
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
    /// The cluster cannot be reached; what was known of it is still used.
    Down {
        /// Why.
        reason: String,
    },
}

/// Why something that needs the cluster cannot be had. The reason says what would help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ClusterError {
    /// Cause and remedy.
    pub reason: String,
}
