//! What the channel promises, in one place: which ends and errors are allowed when, and what
//! becomes of writes that were filed before their handle went or that an error has cut.

use crate::model::Delivery;
use crate::script::LinkKind;

/// What has happened to a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct State {
    /// The peer has ended its direction, closed its end, or reset the connection.
    pub(crate) peer_ended: bool,
    pub(crate) peer_closed: bool,
    pub(crate) peer_reset: bool,
    /// The channel has shut down reading or writing.
    pub(crate) own_read_ended: bool,
    pub(crate) own_write_ended: bool,
    /// Neither the channel nor the fuzzer has a descriptor of the channel's end any more.
    pub(crate) channel_gone: bool,
    /// The channel closed its end with data in it that was not received.
    pub(crate) closed_unread: bool,
    /// The connection exists; always true but where the channel connects.
    pub(crate) is_connected: bool,
    /// The channel has written something.
    pub(crate) has_written: bool,
    /// The channel has aborted its end, which resets a TCP connection.
    pub(crate) is_aborted: bool,
    /// A request has told of a broken connection, which the kernel tells once.
    pub(crate) error_told: bool,
}

/// What a request is for, which decides the event of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum What {
    Read,
    Peek,
    ReadVectored,
    ReceiveMessage,
    Receive,
    ReceiveFrom,
    Write,
    WriteVectored,
    SendTo,
    SendFile,
    SendMessage,
    ReadAt,
    WriteAt,
    Sync,
    Connect,
    Accept,
    Disconnect,
    Poll,
    Watch,
    PeerAddress,
    Close,
}

impl What {
    /// Whether it takes data, which may be lost with it.
    pub(crate) fn takes_data(self) -> bool {
        let reads = matches!(self, What::Read | What::ReadVectored | What::ReceiveMessage);
        reads || matches!(self, What::Receive | What::ReceiveFrom)
    }

    /// Whether it brings data, which a peek leaves there.
    pub(crate) fn reads(self) -> bool {
        self.takes_data() || self == What::Peek
    }

    pub(crate) fn writes(self) -> bool {
        let sends = matches!(self, What::SendTo | What::SendFile | What::SendMessage);
        sends || matches!(self, What::Write | What::WriteVectored)
    }

    /// Which requests `cancel_direction` reaches.
    pub(crate) fn is_in_direction(self, inbound: bool) -> bool {
        if inbound {
            self.reads() || self == What::Watch
        } else {
            self.writes() || matches!(self, What::Connect | What::Disconnect)
        }
    }
}

/// Whether a read may end with 0 bytes.
pub(crate) fn may_end(kind: LinkKind, state: &State) -> bool {
    let peer = state.peer_ended || state.peer_closed || state.peer_reset;
    kind == LinkKind::File || peer || state.own_read_ended || !state.is_connected
}

/// Whether an end of the stream hides that the connection was reset. The kernel tells of a reset
/// once, so an end after the error is right.
pub(crate) fn hides_reset(kind: LinkKind, state: &State) -> bool {
    kind.is_tcp()
        && state.peer_reset
        && state.is_connected
        && !state.error_told
        && !state.peer_ended
        && !state.own_read_ended
        && !state.own_write_ended
}

/// Whether an operation may fail with this error (but for `ECANCELED`).
pub(crate) fn may_fail(kind: LinkKind, what: What, state: &State, errno: i32) -> bool {
    let broken = state.peer_closed || state.peer_reset || state.peer_ended;
    let own = state.own_read_ended || state.own_write_ended;
    match errno {
        // A reset that follows the peer's end is told so.
        libc::EPIPE if what == What::Connect => broken,
        libc::EPIPE => what.writes() && (broken || own || !state.is_connected),
        libc::ECONNRESET => broken || own,
        libc::ENOTCONN => broken || own || !state.is_connected,
        libc::EIO => kind == LinkKind::Tty && state.peer_closed,
        libc::ECONNREFUSED if kind.is_datagrams() => state.peer_closed,
        libc::ECONNREFUSED => kind.is_connecting() && !state.is_connected,
        // An attempt that was cancelled goes on in the kernel: the next one finds it failed, under
        // way, or done.
        libc::ECONNABORTED => kind.is_connecting() && !state.is_connected,
        libc::EISCONN | libc::EALREADY => what == What::Connect,
        // It was shut down while such an attempt was under way.
        libc::EINVAL => what == What::Connect && own && !state.is_connected,
        _ => false,
    }
}

/// What is known of a write that failed: an error may come after a part was written.
pub(crate) fn delivery_of_failed_write() -> Delivery {
    Delivery::Unknown
}

/// Whether a successful write may be short: only one that was cancelled.
pub(crate) fn may_be_short(was_cancelled: bool) -> bool {
    was_cancelled
}

/// What becomes of the writes that were filed and are not complete when the handle is closed: they
/// are written, as long as nothing fails. Aborting discards them.
pub(crate) fn delivery_of_writes_at_close(state: &State, bytes: usize, ending: Ending) -> Delivery {
    let fails = state.own_write_ended || !state.is_connected || state.peer_closed;
    match ending {
        Ending::Close if !fails => Delivery::Known(bytes),
        // A descriptor's writes are withdrawn at any point.
        _ => Delivery::Unknown,
    }
}

/// How a handle goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Close,
    Abort,
    Unregister,
}

/// Whether a completion may come for a handle that was closed: only [`What::Close`] does.
pub(crate) fn may_complete_after_close(what: What) -> bool {
    what == What::Close
}

/// The events of poll(2) that may be told besides those that were asked for.
pub(crate) const POLL_ALWAYS: u32 = (libc::POLLERR | libc::POLLHUP) as u32;

/// What a received datagram's buffer has in front of its payload.
pub(crate) const DATAGRAM_HEADER_BYTES: usize = 144;

/// Whether what the peer wrote may be lost without a fault of the channel's: a terminal that is
/// hung up drops it, a UNIX datagram socket drops it when a send finds the peer gone, TCP resets
/// the connection when it gets data for a socket that is closed, and a reset or a shutdown ends the
/// stream where it is.
pub(crate) fn may_lose_inbound(kind: LinkKind, state: &State) -> bool {
    let by_peer =
        kind.is_datagrams() || kind == LinkKind::Tty || (kind.is_tcp() && state.has_written);
    let own = state.own_read_ended || state.own_write_ended;
    state.peer_reset || own || (by_peer && state.peer_closed)
}

/// Whether what was written may not reach a peer that reads: TCP resets the connection, with what
/// is on its way, when the channel closes with unread data, or gets data after it has shut reading
/// down, or aborts.
pub(crate) fn may_lose_outbound(kind: LinkKind, state: &State) -> bool {
    state.closed_unread || (kind.is_tcp() && (state.own_read_ended || state.is_aborted))
}
