//! States the channel's guarantees: which ends and errors are allowed when, and what happens to
//! writes that were submitted before their handle ended or that an error has cut.

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
    /// The connection exists; always true unless the channel connects.
    pub(crate) is_connected: bool,
    /// The channel has written something.
    pub(crate) has_written: bool,
    /// The channel has aborted its end, which resets a TCP connection.
    pub(crate) is_aborted: bool,
    /// A request has reported a broken connection, which the kernel reports once.
    pub(crate) error_told: bool,
}

/// The command of a request, which determines the event of its completion.
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
    /// Returns whether it takes data, which may be lost with it.
    pub(crate) fn takes_data(self) -> bool {
        let reads = matches!(self, What::Read | What::ReadVectored | What::ReceiveMessage);
        reads || matches!(self, What::Receive | What::ReceiveFrom)
    }

    /// Returns whether it returns data; a peek leaves the data in the socket.
    pub(crate) fn reads(self) -> bool {
        self.takes_data() || self == What::Peek
    }

    pub(crate) fn writes(self) -> bool {
        let sends = matches!(self, What::SendTo | What::SendFile | What::SendMessage);
        sends || matches!(self, What::Write | What::WriteVectored)
    }

    /// Returns whether `cancel_direction` reaches the request.
    pub(crate) fn is_in_direction(self, inbound: bool) -> bool {
        if inbound {
            self.reads() || self == What::Watch
        } else {
            self.writes() || matches!(self, What::Connect | What::Disconnect)
        }
    }
}

/// Returns whether a read may end with 0 bytes.
pub(crate) fn may_end(kind: LinkKind, state: &State) -> bool {
    let peer = state.peer_ended || state.peer_closed || state.peer_reset;
    kind == LinkKind::File || peer || state.own_read_ended || !state.is_connected
}

/// Returns whether an end of the stream hides that the connection was reset. The kernel reports a
/// reset once, so an end after the error is correct.
pub(crate) fn hides_reset(kind: LinkKind, state: &State) -> bool {
    kind.is_tcp()
        && state.peer_reset
        && state.is_connected
        && !state.error_told
        && !state.peer_ended
        && !state.own_read_ended
        && !state.own_write_ended
}

/// Returns whether an operation may fail with this error (`ECANCELED` aside).
pub(crate) fn may_fail(kind: LinkKind, what: What, state: &State, errno: i32) -> bool {
    let broken = state.peer_closed || state.peer_reset || state.peer_ended;
    let own = state.own_read_ended || state.own_write_ended;
    match errno {
        // A reset that follows the peer's end is reported as EPIPE.
        libc::EPIPE if what == What::Connect => broken,
        libc::EPIPE => what.writes() && (broken || own || !state.is_connected),
        libc::ECONNRESET => broken || own,
        libc::ENOTCONN => broken || own || !state.is_connected,
        libc::EIO => kind == LinkKind::Tty && state.peer_closed,
        libc::ECONNREFUSED if kind.is_datagrams() => state.peer_closed,
        libc::ECONNREFUSED => kind.is_connecting() && !state.is_connected,
        // An attempt that was cancelled continues in the kernel: the next one finds it failed, in
        // progress, or done.
        libc::ECONNABORTED => kind.is_connecting() && !state.is_connected,
        libc::EISCONN | libc::EALREADY => what == What::Connect,
        // It was shut down while such an attempt was in progress.
        libc::EINVAL => what == What::Connect && own && !state.is_connected,
        _ => false,
    }
}

/// Returns what is known of a write that failed: the error may follow a partial write.
pub(crate) fn delivery_of_failed_write() -> Delivery {
    Delivery::Unknown
}

/// Returns whether a successful write may be short: only a cancelled one.
pub(crate) fn may_be_short(was_cancelled: bool) -> bool {
    was_cancelled
}

/// Returns what happens to writes that are pending when the handle is closed: they are written, as
/// long as nothing fails. Aborting discards them.
pub(crate) fn delivery_of_writes_at_close(state: &State, bytes: usize, ending: Ending) -> Delivery {
    let fails = state.own_write_ended || !state.is_connected || state.peer_closed;
    match ending {
        Ending::Close if !fails => Delivery::Known(bytes),
        // The writes of a descriptor are withdrawn at any point.
        _ => Delivery::Unknown,
    }
}

/// How a handle ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Close,
    Abort,
    Unregister,
}

/// Returns whether a handle that was closed may have this completion: only [`What::Close`] may
/// come.
pub(crate) fn may_complete_after_close(what: What) -> bool {
    what == What::Close
}

/// The events of poll(2) that may be reported without a request.
pub(crate) const POLL_ALWAYS: u32 = (libc::POLLERR | libc::POLLHUP) as u32;

/// Bytes in front of the payload in the buffer of a received datagram.
pub(crate) const DATAGRAM_HEADER_BYTES: usize = 144;

/// Returns whether bytes of the peer may be lost without a fault of the channel: a terminal that is
/// hung up drops them, a UNIX datagram socket drops them when a send finds the peer closed, TCP
/// resets the connection when it gets data for a closed socket, and a reset or a shutdown ends the
/// stream at its present position.
pub(crate) fn may_lose_inbound(kind: LinkKind, state: &State) -> bool {
    let by_peer =
        kind.is_datagrams() || kind == LinkKind::Tty || (kind.is_tcp() && state.has_written);
    let own = state.own_read_ended || state.own_write_ended;
    state.peer_reset || own || (by_peer && state.peer_closed)
}

/// Returns whether written bytes may not reach a peer that reads: TCP resets the connection, with
/// the bytes in transit, when the channel closes with unread data, gets data after it has shut
/// reading down, or aborts.
pub(crate) fn may_lose_outbound(kind: LinkKind, state: &State) -> bool {
    state.closed_unread || (kind.is_tcp() && (state.own_read_ended || state.is_aborted))
}
