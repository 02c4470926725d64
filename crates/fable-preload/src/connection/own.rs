//! What one end knows for itself. Forked children share it, as they share the socket; the peer does
//! not see it, so it can be trusted.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::lock::Lock;
use crate::sys::Errno;

/// A direction that has not gone over to its ring.
pub(crate) const BEFORE: u32 = 0;
/// A direction that is in its ring.
pub(crate) const INSIDE: u32 = 1;
/// Outgoing only: what the peer left in the ring is being sent again.
pub(crate) const RESENDING: u32 = 2;
/// A direction that is back in TCP, or will never leave it.
pub(crate) const AFTER: u32 = 3;

/// A doorbell was sent for the peer to keep, and bytes may follow.
pub(crate) const WARNED: u32 = 1;
/// A doorbell was sent for the peer to keep, behind all that it had not read.
pub(crate) const ONLY_WARNED: u32 = 2;

/// The words of one end. Zeroed memory is a fresh connection.
#[repr(C)]
pub(crate) struct Own {
    /// Guards all that concerns the incoming direction. Taken before `writer` if both are.
    pub(crate) reader: Lock,
    /// Guards all that concerns the outgoing direction.
    pub(crate) writer: Lock,
    nonblocking: AtomicU32,
    left: AtomicU32,
    failed: AtomicU32,
    /// Processes that have the connection. Who is killed stays counted.
    pub(crate) holders: AtomicU32,
    /// Threads that sleep for this connection in any process.
    pub(crate) asleep: AtomicU32,

    pub(crate) incoming: AtomicU32,
    pub(crate) received: AtomicU64,
    pub(crate) read: AtomicU64,
    pub(crate) discarded: AtomicU64,
    pub(crate) ended: AtomicU32,
    /// Whether it was settled how the end of a peer is told that announced none.
    judged: AtomicU32,
    /// Whether bytes were written for a peer that had been killed, which resets the connection.
    pub(crate) late_bytes: AtomicU32,
    /// An error of the socket that a call of ours met, for the application's next call.
    error: AtomicU32,
    pub(crate) shut_read: AtomicU32,

    pub(crate) outgoing: AtomicU32,
    pub(crate) sent: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) counted: AtomicU64,
    pub(crate) rung: AtomicU64,
    pub(crate) resend_from: AtomicU64,
    pub(crate) shut_write: AtomicU32,
    /// SO_SNDBUF, if the application has set it.
    pub(crate) send_bytes: AtomicU32,
    pub(crate) nodelay: AtomicU32,
    pub(crate) cork: AtomicU32,
    /// While bytes are being sent again: 1, and SO_LINGER of the application.
    pub(crate) linger: [AtomicU32; 3],
    /// Whether a doorbell lies at the peer that it keeps until it has followed this end: 0, or
    /// [`WARNED`] or [`ONLY_WARNED`].
    pub(crate) warned: AtomicU32,
    /// Doorbells that the peer was ever asked for.
    pub(crate) asked: AtomicU64,
}

impl Own {
    /// Whether the socket has O_NONBLOCK.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed) != 0
    }

    /// Follows fcntl(2) and ioctl(2).
    pub(crate) fn set_nonblocking(&self, yes: bool) {
        self.nonblocking.store(u32::from(yes), Ordering::Relaxed);
    }

    /// Whether this end is back in TCP for good, in all processes that share it.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire) != 0
    }

    /// This end is back in TCP for good.
    pub(crate) fn set_left(&self) {
        self.left.store(1, Ordering::Release);
    }

    /// Whether this is the first time that the end of the peer's stream is seen.
    pub(crate) fn note_end(&self) -> bool {
        self.ended.store(1, Ordering::Relaxed);
        self.judged.swap(1, Ordering::Relaxed) == 0
    }

    /// The kernel has told an error of the socket, which it does once.
    pub(crate) fn keep_error(&self, errno: c_int) {
        self.error.store(errno as u32, Ordering::Relaxed);
    }

    /// Whether there is an error for the application's next call.
    pub(crate) fn has_error(&self) -> bool {
        self.error.load(Ordering::Relaxed) != 0
    }

    /// The error for the application, once.
    pub(crate) fn take_error(&self) -> Option<Errno> {
        if !self.has_error() {
            return None;
        }
        let errno = self.error.swap(0, Ordering::Relaxed);
        (errno != 0).then_some(Errno(errno as c_int))
    }

    /// Whether the peer said something that cannot be.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn fail(&self) {
        self.failed.store(1, Ordering::Relaxed);
    }
}

/// Reads a word that the lock of its direction guards.
pub(crate) fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// Writes a word that the lock of its direction guards.
pub(crate) fn set(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

/// Raises a word that the lock of its direction guards.
pub(crate) fn add(word: &AtomicU64, value: u64) -> u64 {
    let sum = get(word) + value;
    set(word, sum);
    sum
}
