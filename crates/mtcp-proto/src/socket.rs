//! Sockets as applications see them: their numbers, their readiness, and what is known of them.

use std::net::SocketAddr;
use std::time::Duration;

/// A connection or a listener. The number of one that is gone never names another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    /// The place in the table; below [`Config::max_sockets`](crate::Config::max_sockets).
    pub index: u32,
    /// Grows each time that the place is used anew.
    pub generation: u32,
}

/// What can be done with a socket, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Readiness(pub u8);

impl Readiness {
    /// Data, or the end of the stream, or (of a listener) a connection can be taken.
    pub const READABLE: Readiness = Readiness(1);
    /// Data can be sent.
    pub const WRITABLE: Readiness = Readiness(2);
    /// The peer has ended its direction (`EPOLLRDHUP`).
    pub const PEER_CLOSED: Readiness = Readiness(4);
    /// Both directions have ended (`EPOLLHUP`).
    pub const CLOSED: Readiness = Readiness(8);
    /// The connection has failed.
    pub const ERROR: Readiness = Readiness(16);
    /// The peer has acknowledged the end of sending, or the connection is over: a change of state
    /// that Linux tells those who wait, though nothing more can be done than before.
    pub const SEND_FINISHED: Readiness = Readiness(32);

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Readiness) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any bit of `other` is set.
    pub const fn intersects(self, other: Readiness) -> bool {
        self.0 & other.0 != 0
    }

    /// The bits of both.
    #[must_use]
    pub const fn with(self, other: Readiness) -> Readiness {
        Readiness(self.0 | other.0)
    }

    /// The bits that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Readiness) -> Readiness {
        Readiness(self.0 & !other.0)
    }
}

/// Which directions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Nothing more is received.
    Receive,
    /// Nothing more is sent.
    Send,
    /// Both.
    Both,
}

/// How data is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// More follows soon: a segment that is not full waits for it, as with [`Options::cork`]
    /// (`MSG_MORE`).
    ///
    /// [`Options::cork`]: crate::Options::cork
    pub more: bool,
    /// The last byte is urgent (`MSG_OOB`).
    pub urgent: bool,
}

/// The last urgent byte that the peer has announced. It stays in its place in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Urgent {
    /// How many bytes of the stream come before it.
    pub position: u64,
    /// The byte, once it has come.
    pub byte: Option<u8>,
}

/// The state of a connection (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A SYN was sent.
    SynSent,
    /// A SYN has come and was answered.
    SynReceived,
    /// Data flows.
    Established,
    /// Our FIN was sent, or waits behind data.
    FinWait1,
    /// Our FIN was acknowledged.
    FinWait2,
    /// The peer's FIN has come.
    CloseWait,
    /// Both FINs are under way.
    Closing,
    /// The peer's FIN has come, and ours waits for its acknowledgement.
    LastAck,
    /// Both sides have ended; late segments may come.
    TimeWait,
    /// There is no connection (any more).
    Closed,
}

/// What is known of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Its number; of a connection that its application has closed, the one it had.
    pub socket: SocketId,
    /// The local end.
    pub local: SocketAddr,
    /// The peer; `None` of a listener.
    pub remote: Option<SocketAddr>,
    /// The state; `Closed` of a listener.
    pub state: State,
    /// Bytes that wait to be received; of a listener, connections that wait to be accepted.
    pub receive_queue: u32,
    /// Bytes that were sent and not acknowledged, or not sent.
    pub send_queue: u32,
    /// The smoothed round-trip time, once there is one.
    pub round_trip: Option<Duration>,
    /// The retransmission time-out.
    pub retransmission_timeout: Duration,
    /// The congestion window, in bytes.
    pub congestion_window: u32,
    /// The slow-start threshold, in bytes.
    pub slow_start_threshold: u32,
    /// The peer's window, in bytes.
    pub send_window: u32,
    /// Our window, in bytes.
    pub receive_window: u32,
    /// The largest segment sent.
    pub maximum_segment: u16,
    /// Data bytes that the application has sent and the peer acknowledged.
    pub bytes_acknowledged: u64,
    /// Data bytes that came in order.
    pub bytes_received: u64,
    /// Segments that were sent again.
    pub retransmissions: u32,
}
