//! What goes in and comes out of a stack besides bytes.

use crate::tcp::State;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A connection or a listener. The number of one that is gone never names another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    /// The place in the table; below [`Config::max_sockets`](super::Config::max_sockets).
    pub index: u32,
    /// Grows each time that the place is used anew.
    pub generation: u32,
}

/// What is known about the checksums of a packet that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing: the stack verifies them.
    Unverified,
    /// The device has verified them, or the packet never left the machine.
    Verified,
    /// The packet is one of this stack's, or of another core's, that was looped back: the checksum
    /// may be partial, and the source is one of the stack's addresses.
    Looped,
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
    /// [`Options::cork`]: super::Options::cork
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

/// Why a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not now; an event tells when. `EAGAIN`.
    #[error("not ready: wait for an event")]
    WouldBlock,
    /// The number names no socket (any more). `EBADF`.
    #[error("no such socket")]
    UnknownSocket,
    /// The address has a listener or connection already. `EADDRINUSE`.
    #[error("the address is in use")]
    AddressInUse,
    /// The address is none of the stack's, or of another family than the remote one.
    /// `EADDRNOTAVAIL`.
    #[error("the address is none of this stack's")]
    AddressNotAvailable,
    /// All ephemeral ports to this destination are in use. `EADDRNOTAVAIL`.
    #[error("no free port: all ephemeral ports to this destination are in use")]
    NoPorts,
    /// The bound on sockets is reached. `ENFILE`.
    #[error("too many sockets: raise max_sockets")]
    TooMany,
    /// The socket does not listen. `EINVAL`.
    #[error("the socket does not listen")]
    NotListening,
    /// The socket is not connected. `ENOTCONN`.
    #[error("the socket is not connected")]
    NotConnected,
    /// This direction was shut down. `EPIPE`.
    #[error("this direction was shut down")]
    Shutdown,
    /// The peer reset the connection. `ECONNRESET`.
    #[error("the peer has reset the connection")]
    Reset,
    /// Nobody listens there. `ECONNREFUSED`.
    #[error("the connection was refused")]
    Refused,
    /// The peer does not answer. `ETIMEDOUT`.
    #[error("the connection timed out")]
    TimedOut,
    /// A router says that there is no way. `EHOSTUNREACH`.
    #[error("the host is unreachable")]
    Unreachable,
    /// The address that the connection was bound to is gone, or the connection was aborted here.
    /// `ECONNABORTED`.
    #[error("the connection was aborted")]
    Aborted,
    /// A setting is out of range. `EINVAL`.
    #[error("{0}")]
    Config(&'static str),
}

/// A packet that the stack has written into the memory of a [`Sink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its length, from the IP header on.
    pub bytes: usize,
    /// The IP destination, whose next hop the device must find.
    pub destination: IpAddr,
    /// If `Some`, the transport checksum is that of the pseudo-header only, and whoever sends the
    /// packet completes it; given only where [`SinkCapabilities::checksum`] allows it.
    pub partial_checksum: Option<PartialChecksum>,
    /// If `Some`, the packet is to be cut into segments with so many bytes of TCP payload; given
    /// only within [`SinkCapabilities::segmentation_bytes`]. Its checksum is then partial.
    pub segment_bytes: Option<u16>,
}

/// Where a checksum is to be completed (as virtio's header has it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// The first byte that is summed, from the beginning of the IP header.
    pub start: u16,
    /// Where the sum goes, from `start`.
    pub offset: u16,
}

/// What a device does with packets on their way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCapabilities {
    /// It completes partial checksums.
    pub checksum: bool,
    /// The longest packet that it cuts into segments by itself; zero if it does not.
    pub segmentation_bytes: u32,
}

/// Where packets go.
pub trait Sink {
    /// What the device does.
    fn capabilities(&self) -> SinkCapabilities;

    /// Room for one packet of at most `bytes`; the same room again if nothing was committed. `None`
    /// if the device is full.
    fn room(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// Sends the packet that was written into the last room.
    fn commit(&mut self, packet: Packet);
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

macro_rules! counters {
    ($($(#[$documentation:meta])* $name:ident),+ $(,)?) => {
        /// What a stack counts, from its beginning on.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$documentation])* pub $name: u64,)+
        }

        impl Counters {
            /// All counts by their names.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }

            /// Adds those of another stack.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counters! {
    /// Packets that came.
    packets_received,
    /// Packets that were sent; one that is cut by the device counts once.
    packets_sent,
    /// TCP segments with data that came.
    data_segments_received,
    /// TCP segments with data that were sent.
    data_segments_sent,
    /// Segments that were sent again, by whatever means.
    retransmissions,
    /// Times that a retransmission timer expired.
    timeouts,
    /// Times that fast recovery began.
    fast_recoveries,
    /// Tail loss probes (RFC 8985, section 7).
    tail_loss_probes,
    /// Window probes.
    window_probes,
    /// Keepalive probes.
    keepalive_probes,
    /// Segments that came out of order.
    out_of_order,
    /// Segments that brought nothing new.
    duplicates,
    /// Connections that were opened here.
    connections_opened,
    /// Connections that were opened by peers.
    connections_accepted,
    /// Connections that ended in order.
    connections_closed,
    /// Connections that the peer reset.
    connections_reset,
    /// Connections that timed out.
    connections_timed_out,
    /// Resets that were sent.
    resets_sent,
    /// Challenge acknowledgements that were sent (RFC 5961).
    challenge_acks_sent,
    /// SYN cookies that were sent.
    cookies_sent,
    /// Connections that came from cookies.
    cookies_accepted,
    /// Connections that left TIME_WAIT early for a new one (RFC 6191).
    time_wait_reused,
    /// Dropped: no packet of IP, or one that is cut off or malformed.
    drop_malformed,
    /// Dropped: a wrong checksum.
    drop_checksum,
    /// Dropped: not for an address of the stack.
    drop_not_ours,
    /// Dropped: another protocol, a fragment, options that are not read.
    drop_unsupported,
    /// Dropped: the owner is another core.
    drop_other_core,
    /// Dropped: a SYN for which there was no room in the backlog.
    drop_backlog,
    /// Dropped: a connection for which there was no room in the table.
    drop_table_full,
    /// Dropped: an old duplicate by its timestamp (PAWS).
    drop_paws,
    /// Dropped: outside the window.
    drop_out_of_window,
    /// Dropped: data for which there was no memory.
    drop_no_memory,
    /// Dropped: an acknowledgement of data that was never sent, or is too old (RFC 5961, section
    /// 5).
    drop_bad_ack,
    /// Dropped: a reset or SYN that does not prove itself (RFC 5961, sections 3 and 4).
    drop_unproven_control,
    /// Dropped: an ICMP message that does not fit a connection.
    drop_icmp,
}
