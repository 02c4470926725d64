//! What a flow is made of, and what it says to the application.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::control::Reporter;
use crate::identity::{FlowId, Peer, Role, Trust};
use crate::kind::Kind;
use crate::name::Name;
use crate::transport::PathOptions;

/// How long a flow waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For the first path, and for the answer to each offer of a later one.
    pub offer: Duration,
    /// For write buffers of an old epoch: those that are committed later are copied over.
    pub drain: Duration,
    /// In `drop`, until the kernel or the peer has taken what is committed.
    pub linger: Duration,
    /// After the peer's end, for the next of what its kernel still delivers. It ends by itself,
    /// unless somebody else has the peer's sockets, too, or the network is down. After this end's
    /// own, for the peer's kernel to acknowledge more; six times that in all.
    pub grace: Duration,
    /// For a sign of life of the peer's host, if that is another one.
    pub silence: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            offer: Duration::from_secs(5),
            drain: Duration::from_millis(100),
            linger: Duration::from_secs(1),
            grace: Duration::from_secs(10),
            silence: Duration::from_secs(10),
        }
    }
}

/// Everything that a flow is made of.
pub struct FlowParts {
    /// Its name in the cluster.
    pub id: FlowId,
    /// The endpoint's full name.
    pub name: Name,
    /// Which end this is.
    pub role: Role,
    /// The other end.
    pub peer: Peer,
    /// The control link: a `SOCK_SEQPACKET` socket if the peer is local, else a TCP socket.
    pub link: OwnedFd,
    /// Whether the peer is on this host.
    pub local: bool,
    /// The memory of the flow's [page](crate::page).
    pub page: OwnedFd,
    /// Whether this end trusts the peer.
    pub own_trust: Trust,
    /// Whether the peer trusts this end. Only the leader is told; a follower, for whom the leader
    /// decides this, says [`Trust::Trusted`].
    pub peer_trust: Trust,
    /// Whether only protected transports may be used beyond this host.
    pub protected: bool,
    /// What a leader offers first.
    pub first: Kind,
    /// Why.
    pub reason: String,
    /// Memory of the paths.
    pub path: PathOptions,
    /// How long to wait for what.
    pub timeouts: Timeouts,
    /// Who tells the daemon.
    pub reporter: Arc<dyn Reporter>,
    /// Counts messages that were committed and could not be delivered before the flow was closed.
    pub undelivered: Arc<AtomicU64>,
}

/// How the flows of an endpoint are opened.
#[derive(Clone, Debug)]
pub(crate) struct FlowSettings {
    pub(crate) trust: Trust,
    pub(crate) path: PathOptions,
    pub(crate) timeouts: Timeouts,
    /// What its flows could not deliver.
    pub(crate) undelivered: Arc<AtomicU64>,
}

/// Something that happened to a flow (section 3.1.4 of the paper).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowEvent {
    /// New write buffers belong to a new epoch. Release and commit the older ones soon.
    Moved {
        /// The new epoch.
        epoch: u32,
        /// Its transport.
        transport: Kind,
        /// Why.
        reason: String,
    },
    /// A move did not come about; the flow goes on as it was.
    MoveFailed {
        /// What was wanted.
        transport: Kind,
        /// Why not.
        reason: String,
    },
}

/// What a flow has done so far, as this end counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages committed.
    pub messages_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Messages acquired.
    pub messages_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// How often this end has slept.
    pub sleeps: u64,
    /// How often the direction from this end has moved to another path.
    pub moves: u64,
    /// The longest time that this end could not send because of a move, in nanoseconds.
    pub pause_max_ns: u64,
    /// The sum of those times.
    pub pause_total_ns: u64,
    /// Messages committed that are not delivered yet, in the sense of [`crate::Flow::close`].
    pub undelivered: u64,
}
