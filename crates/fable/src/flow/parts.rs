//! Parts, timeouts, events and statistics of a flow.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::control::Reporter;
use crate::identity::{FlowId, Peer, Role, Trust};
use crate::kind::Kind;
use crate::name::Name;
use crate::transport::PathOptions;

/// Timeouts of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// The longest wait for the first path, and for the answer to each offer of a later one.
    pub offer: Duration,
    /// The longest wait of `drop` until the kernel or the peer has taken the committed messages.
    pub linger: Duration,
    /// After the peer's end: the longest wait for the next message that the peer's kernel still
    /// delivers. That delivery ends by itself, unless another process has the peer's sockets too,
    /// or the network is down. After this end's own end: the longest wait for the next
    /// acknowledgement of the peer's kernel; six times this value in all.
    pub grace: Duration,
    /// The longest silence of the peer's host, if that is another one.
    pub silence: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            offer: Duration::from_secs(5),
            linger: Duration::from_secs(1),
            grace: Duration::from_secs(10),
            silence: Duration::from_secs(10),
        }
    }
}

/// The parts from which a flow is opened.
pub struct FlowParts {
    /// The flow's identifier in the cluster.
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
    /// Whether the peer trusts this end. Only the leader gets the peer's declaration. The leader
    /// decides for the follower, which sets [`Trust::Trusted`].
    pub peer_trust: Trust,
    /// Whether only protected transports may be used beyond this host.
    pub protected: bool,
    /// The transport that a leader offers first.
    pub first: Kind,
    /// The reason for that choice.
    pub reason: String,
    /// The options of the paths.
    pub path: PathOptions,
    /// The flow's timeouts.
    pub timeouts: Timeouts,
    /// The object that reports to the daemon.
    pub reporter: Arc<dyn Reporter>,
    /// Counts messages that were committed and could not be delivered before the flow was closed.
    pub undelivered: Arc<AtomicU64>,
}

/// The settings with which an endpoint opens its flows.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowSettings {
    pub(crate) trust: Trust,
    pub(crate) path: PathOptions,
    pub(crate) timeouts: Timeouts,
    /// Counts messages that the flows could not deliver.
    pub(crate) undelivered: Arc<AtomicU64>,
}

/// An event of a flow (section 3.1.4 of the paper).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowEvent {
    /// New write buffers belong to a new epoch. Release and commit the older ones soon.
    Moved {
        /// The new epoch.
        epoch: u32,
        /// Its transport.
        transport: Kind,
        /// The reason for the move.
        reason: String,
    },
    /// A move failed; the flow continues on its present transport.
    MoveFailed {
        /// The requested transport.
        transport: Kind,
        /// The reason for the failure.
        reason: String,
    },
}

/// The counters of a flow, as this end counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages committed.
    pub messages_sent: u64,
    /// Bytes of those messages.
    pub bytes_sent: u64,
    /// Messages read.
    pub messages_received: u64,
    /// Bytes of those messages.
    pub bytes_received: u64,
    /// The number of times that this end has slept.
    pub sleeps: u64,
    /// The number of times that this end has begun to write to another path.
    pub moves: u64,
    /// The longest time that this end could not send because of a move, in nanoseconds.
    pub pause_max_ns: u64,
    /// The sum of those times.
    pub pause_total_ns: u64,
    /// Messages that are committed and not delivered yet, as [`crate::Flow::close`] defines it.
    pub undelivered: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{documented, field_names};

    #[test]
    fn every_counter_is_in_the_reference() {
        assert_eq!(documented("counters.md", "Flows"), field_names(&Statistics::default()));
    }
}
