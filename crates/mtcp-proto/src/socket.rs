//! Defines sockets as applications see them: identifiers, readiness, shutdown, and connection
//! information.

use std::net::SocketAddr;
use std::time::Duration;

/// Identifies a connection or a listener. The number of a removed one is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    /// The index in the table; below [`Config::max_sockets`](crate::Config::max_sockets).
    pub index: u32,
    /// Increases each time that the index is reused.
    pub generation: u32,
}

/// The readiness of a socket, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Readiness(pub u8);

impl Readiness {
    /// Data, the end of the stream or (on a listener) a connection can be taken.
    pub const READABLE: Readiness = Readiness(1);
    /// Data can be sent.
    pub const WRITABLE: Readiness = Readiness(2);
    /// The peer has ended its direction (`EPOLLRDHUP`).
    pub const PEER_CLOSED: Readiness = Readiness(4);
    /// Both directions have ended (`EPOLLHUP`).
    pub const CLOSED: Readiness = Readiness(8);
    /// The connection has failed.
    pub const ERROR: Readiness = Readiness(16);
    /// The peer has acknowledged the FIN, or the connection has ended. Linux wakes waiting
    /// processes for this change, although it permits no further calls.
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

/// The directions to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// The application receives nothing more.
    Receive,
    /// The application sends nothing more.
    Send,
    /// Both directions.
    Both,
}

/// Flags of a send, see send(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// More data follows soon: a partial segment waits for it, as with [`Options::cork`]
    /// (`MSG_MORE`).
    ///
    /// [`Options::cork`]: crate::Options::cork
    pub more: bool,
    /// The last byte is urgent (`MSG_OOB`).
    pub urgent: bool,
}

/// The last urgent byte that the peer has announced. It stays in its position in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Urgent {
    /// The number of bytes of the stream before it.
    pub position: u64,
    /// The byte, once it has arrived.
    pub byte: Option<u8>,
}

/// The state of a connection (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A SYN was sent.
    SynSent,
    /// A SYN was received and answered.
    SynReceived,
    /// Both directions can carry data.
    Established,
    /// Our FIN was sent, or waits behind data.
    FinWait1,
    /// Our FIN was acknowledged.
    FinWait2,
    /// The peer's FIN was received.
    CloseWait,
    /// Both FINs were sent, and ours is not acknowledged yet.
    Closing,
    /// The peer's FIN was received, and ours is not acknowledged yet.
    LastAck,
    /// Both sides have ended; late segments may still arrive.
    TimeWait,
    /// There is no connection, or no longer one.
    Closed,
}

/// Addresses, state and measurements of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Its number; for a connection that the application has closed, its former number.
    pub socket: SocketId,
    /// The local end.
    pub local: SocketAddr,
    /// The peer; `None` for a listener.
    pub remote: Option<SocketAddr>,
    /// The state; `Closed` for a listener.
    pub state: State,
    /// Bytes that wait to be received; for a listener, connections that wait to be accepted.
    pub receive_queue: u32,
    /// Bytes that the application has sent and the peer has not acknowledged, sent or unsent.
    pub send_queue: u32,
    /// The smoothed round-trip time, once it has been measured.
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
    /// Data bytes that arrived in order.
    pub bytes_received: u64,
    /// Segments that were sent again.
    pub retransmissions: u32,
}
