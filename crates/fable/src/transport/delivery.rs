//! What of a path is delivered: it lies where the peer can read it, whatever becomes of this
//! process.
//!
//! Shared memory and pipes deliver at once what they take, and so does a UNIX socket. What a
//! network connection has taken lies in this kernel until the peer's acknowledges it, and a socket
//! that is closed before, with unread input, resets the connection and throws all of that away
//! (RFC 1122, 4.2.2.13). So such a socket lives on as a [`Remainder`], which reads and discards
//! until the peer has everything.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};

use socket2::Socket;

use crate::socket;

/// Messages whose delivery is not known are looked through when there are this many.
const MESSAGES_MIN: usize = 1024;

/// The most that is discarded in one call.
const DISCARD_BYTES_MAX: usize = 1 << 20;

/// What was committed and is not delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undelivered {
    /// How many messages; one of which a part is missing counts.
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

/// Where in a stream of bytes each message ends whose delivery is not known.
#[derive(Debug)]
pub(crate) struct Deliveries {
    ends: VecDeque<(u64, u32)>,
    look_at: usize,
}

impl Deliveries {
    pub(super) fn new() -> Deliveries {
        Deliveries { ends: VecDeque::new(), look_at: MESSAGES_MIN }
    }

    /// A message of `bytes` was committed, which ends at this position.
    #[inline]
    pub(super) fn committed(&mut self, end: u64, bytes: usize) {
        self.ends.push_back((end, u32::try_from(bytes).unwrap_or(u32::MAX)));
    }

    /// Whether [`Deliveries::forget`] is worth while.
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.ends.len() >= self.look_at
    }

    /// Everything before this position is delivered.
    pub(super) fn forget(&mut self, delivered: u64) {
        while self.ends.front().is_some_and(|(end, _)| *end <= delivered) {
            self.ends.pop_front();
        }
        // A look costs a system call: not at every message as long as little is delivered.
        self.look_at = (2 * self.ends.len()).max(MESSAGES_MIN);
    }

    pub(super) fn undelivered(&mut self, delivered: u64) -> Undelivered {
        self.forget(delivered);
        let bytes = self.ends.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
        Undelivered { messages: self.ends.len() as u64, bytes }
    }
}

/// How many bytes the peer's kernel has not acknowledged; 0 where there is no such thing.
pub(super) fn unacknowledged(socket: &Socket) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the number outlives the call, and the descriptor is the socket's. `SIOCOUTQ` is the
    // same request as `TIOCOUTQ`: tcp(7).
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done < 0 { 0 } else { u64::try_from(bytes).unwrap_or(0) }
}

/// The socket of a path whose flow is closed, until the peer has all that was committed.
#[derive(Debug)]
pub struct Remainder {
    socket: Socket,
    deliveries: Deliveries,
    /// Up to where the stream was handed to the kernel.
    sent: u64,
    /// Behind the stream's bytes, and acknowledged like them.
    end_bytes: u64,
    has_discarded: bool,
    half_close: HalfClose,
    /// The peer has ended its own direction.
    has_ended: bool,
    is_over: bool,
}

/// Whether a peer that has ended its own direction may go on reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HalfClose {
    /// A flow's end does not: it ends its direction of a socket when it closes the flow.
    Never,
    /// A foreign program may.
    Possible,
}

impl Remainder {
    /// Ends the sending direction of a network connection behind `sent` bytes of its stream. The
    /// socket is another descriptor of it: where there is none, what is not delivered stays with
    /// the transport, and is counted as lost.
    pub(super) fn new(
        socket: Socket,
        deliveries: Deliveries,
        sent: u64,
        half_close: HalfClose,
    ) -> Remainder {
        // A connection that has ended already needs no end.
        // The end of the stream is acknowledged like a byte.
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

    /// Reads and throws away what the peer has sent. Never blocks.
    pub(crate) fn discard(&mut self) {
        if self.has_ended {
            // Behind the peer's end `recv` tells of no failure, and another call may have been told
            // of the error already: a connection that is over has no peer.
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

    /// Whether the connection has failed, or the peer has closed it: there is nothing to wait for.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether the peer has sent something that the application has not read.
    pub(crate) fn has_discarded(&self) -> bool {
        self.has_discarded
    }

    /// What the peer's kernel has not acknowledged.
    pub(crate) fn undelivered(&mut self) -> Undelivered {
        let missing = unacknowledged(&self.socket).saturating_sub(self.end_bytes);
        self.deliveries.undelivered(self.sent.saturating_sub(missing))
    }

    /// Becomes readable when there is something to discard, or the peer has ended. Negative when it
    /// has: from then on the socket is always ready.
    pub(crate) fn descriptor(&self) -> RawFd {
        if self.has_ended { -1 } else { self.socket.as_raw_fd() }
    }
}
