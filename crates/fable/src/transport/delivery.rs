//! Tracks which messages of a path are delivered: the peer can read them even if this process ends.
//!
//! Shared memory, pipes and UNIX sockets deliver at once what they take. What a network connection
//! has taken stays in this kernel until the peer's kernel acknowledges it. Closing the socket
//! before that, with unread input, resets the connection and discards all of it (RFC 1122,
//! 4.2.2.13). Such a socket is therefore kept as a [`Remainder`], which reads and discards input
//! until the peer has everything.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};

use socket2::Socket;

use crate::socket;

/// With at least this many entries, the delivered ones are looked for and removed.
const MESSAGES_MIN: usize = 1024;

/// The most bytes that one call discards.
const DISCARD_BYTES_MAX: usize = 1 << 20;

/// The messages that were committed and are not delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undelivered {
    /// The number of messages, including one of which only a part is missing.
    pub messages: u64,
    /// The sum of their lengths.
    pub bytes: u64,
}

impl std::ops::AddAssign for Undelivered {
    fn add_assign(&mut self, other: Undelivered) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

/// The positions in a stream of bytes at which the messages end whose delivery is not known.
#[derive(Debug)]
pub(crate) struct Deliveries {
    ends: VecDeque<(u64, u32)>,
    look_at: usize,
}

impl Deliveries {
    /// Creates an empty list.
    pub(super) fn new() -> Deliveries {
        Deliveries { ends: VecDeque::new(), look_at: MESSAGES_MIN }
    }

    /// Records a committed message of `bytes` bytes, which ends at this position of the stream.
    #[inline]
    pub(super) fn committed(&mut self, end: u64, bytes: usize) {
        self.ends.push_back((end, u32::try_from(bytes).unwrap_or(u32::MAX)));
    }

    /// Returns whether there are enough entries for a call of [`Deliveries::forget`].
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.ends.len() >= self.look_at
    }

    /// Removes the messages before this position, which are delivered.
    pub(super) fn forget(&mut self, delivered: u64) {
        while self.ends.front().is_some_and(|(end, _)| *end <= delivered) {
            self.ends.pop_front();
        }
        // Each check costs a system call: while little is delivered, do not check at every message.
        self.look_at = (2 * self.ends.len()).max(MESSAGES_MIN);
    }

    /// Returns the messages that end behind this position.
    pub(super) fn undelivered(&mut self, delivered: u64) -> Undelivered {
        self.forget(delivered);
        let bytes = self.ends.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
        Undelivered { messages: self.ends.len() as u64, bytes }
    }
}

/// Returns how many bytes the peer's kernel has not acknowledged; 0 for sockets without
/// acknowledgements.
pub(super) fn unacknowledged(socket: &Socket) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the number outlives the call, and the descriptor is the socket's. `SIOCOUTQ` is the
    // same request as `TIOCOUTQ`, see tcp(7).
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done < 0 { 0 } else { u64::try_from(bytes).unwrap_or(0) }
}

/// The socket of a path whose flow is closed, kept until the peer has everything that was
/// committed.
#[derive(Debug)]
pub struct Remainder {
    socket: Socket,
    deliveries: Deliveries,
    /// The position up to which the stream was handed to the kernel.
    sent: u64,
    /// 1 if the end of the stream is acknowledged like a byte, else 0.
    end_bytes: u64,
    has_discarded: bool,
    half_close: HalfClose,
    /// Whether the peer has ended its own direction.
    has_ended: bool,
    is_over: bool,
}

/// Whether a peer that has ended its own direction may go on reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HalfClose {
    /// A flow does not: it ends its direction of a socket when it closes the flow.
    Never,
    /// A foreign program may.
    Possible,
}

impl Remainder {
    /// Ends the sending direction of a network connection after `sent` bytes of its stream. The
    /// socket is a duplicated descriptor; without one, undelivered messages stay in the transport
    /// and are counted as lost.
    pub(super) fn new(
        socket: Socket,
        deliveries: Deliveries,
        sent: u64,
        half_close: HalfClose,
    ) -> Remainder {
        // Fails if the connection has ended already. The end is acknowledged like a byte.
        let end_bytes = u64::from(socket.shutdown(Shutdown::Write).is_ok());
        Remainder {
            socket,
            deliveries,
            sent,
            end_bytes,
            has_discarded: false,
            half_close,
            has_ended: false,
            is_over: false,
        }
    }

    /// Reads and discards what the peer has sent. Never blocks.
    pub(crate) fn discard(&mut self) {
        if self.has_ended {
            // After the peer's end `recv` reports no failure, and another call may have taken the
            // error: a connection without a peer address is over.
            self.is_over |= self.socket.peer_addr().is_err();
            return;
        }
        let mut room = [0_u8; 16 << 10];
        for _ in 0..DISCARD_BYTES_MAX / room.len() {
            match socket::receive(&self.socket, &mut room).map_err(|error| error.kind()) {
                Ok(0) => {
                    self.has_ended = true;
                    self.is_over = self.half_close == HalfClose::Never;
                }
                Ok(_) => {
                    self.has_discarded = true;
                    continue;
                }
                Err(io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => self.is_over = true,
            }
            return;
        }
    }

    /// Returns whether the connection has failed or the peer has closed it, so that no
    /// acknowledgement can follow.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns whether the peer has sent something that the application has not read.
    pub(crate) fn has_discarded(&self) -> bool {
        self.has_discarded
    }

    /// Returns what the peer's kernel has not acknowledged.
    pub(crate) fn undelivered(&mut self) -> Undelivered {
        let missing = unacknowledged(&self.socket).saturating_sub(self.end_bytes);
        self.deliveries.undelivered(self.sent.saturating_sub(missing))
    }

    /// Returns a descriptor that becomes readable when there is input to discard, or when the peer
    /// has ended. It is negative after the peer's end, because the socket is always readable from
    /// then on.
    pub(crate) fn descriptor(&self) -> RawFd {
        if self.has_ended { -1 } else { self.socket.as_raw_fd() }
    }
}
