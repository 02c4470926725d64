//! The private state of one end. Forked children share it, as they share the socket; the peer
//! cannot see it, so its values are trusted.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys::Errno;
use preload::lock::Lock;

/// A direction that has not switched to its ring.
pub(crate) const BEFORE: u32 = 0;
/// A direction that is in its ring.
pub(crate) const INSIDE: u32 = 1;
/// Outgoing only: the bytes that the peer left in the ring are being sent again.
pub(crate) const RESENDING: u32 = 2;
/// A direction that has returned to TCP, or will never leave it.
pub(crate) const AFTER: u32 = 3;

/// The peer keeps a doorbell in its stream, and bytes may follow it.
pub(crate) const WARNED: u32 = 1;
/// The peer keeps a doorbell in its stream, after all bytes that it had not read.
pub(crate) const ONLY_WARNED: u32 = 2;

/// The words of one end. Zeroed memory is a new connection.
#[repr(C)]
pub(crate) struct OwnState {
    /// Guards the state of the incoming direction. If both locks are needed, it is taken first.
    pub(crate) reader: Lock,
    /// Guards the state of the outgoing direction.
    pub(crate) writer: Lock,
    nonblocking: AtomicU32,
    left: AtomicU32,
    failed: AtomicU32,
    /// The number of processes that have the connection. A killed process stays counted.
    pub(crate) holders: AtomicU32,
    /// Threads that sleep for this connection in any process.
    pub(crate) asleep: AtomicU32,

    pub(crate) incoming: AtomicU32,
    pub(crate) received: AtomicU64,
    pub(crate) read: AtomicU64,
    pub(crate) discarded: AtomicU64,
    pub(crate) ended: AtomicU32,
    /// Whether it is decided how to report the end of a peer that has not announced it.
    judged: AtomicU32,
    /// Whether a reset found the peer alive: 0 while that was not asked.
    pub(crate) peer_lives: AtomicU32,
    /// Whether bytes were written for a peer that had been killed, which resets the connection.
    pub(crate) late_bytes: AtomicU32,
    /// A socket error that a call of the library got, for the application's next call.
    error: AtomicU32,
    pub(crate) shut_read: AtomicU32,

    pub(crate) outgoing: AtomicU32,
    pub(crate) sent: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) counted: AtomicU64,
    pub(crate) rung: AtomicU64,
    /// How much was sent through TCP before the ring.
    pub(crate) switched_at: AtomicU64,
    /// Where the direction went back to TCP, if it did.
    pub(crate) returned_at: AtomicU64,
    pub(crate) resend_from: AtomicU64,
    pub(crate) shut_write: AtomicU32,
    /// SO_SNDBUF, if the application has set it.
    pub(crate) send_bytes: AtomicU32,
    pub(crate) nodelay: AtomicU32,
    pub(crate) cork: AtomicU32,
    /// While bytes are being sent again: 1, and the application's SO_LINGER.
    pub(crate) linger: [AtomicU32; 3],
    /// Whether the peer keeps a doorbell in its stream until it has followed this end: 0, or
    /// [`WARNED`] or [`ONLY_WARNED`].
    pub(crate) warned: AtomicU32,
    /// The number of doorbells that this end has ever asked for.
    pub(crate) asked: AtomicU64,
}

impl OwnState {
    /// Returns whether the socket has O_NONBLOCK.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed) != 0
    }

    /// Records a change of O_NONBLOCK by fcntl(2) or ioctl(2).
    pub(crate) fn set_nonblocking(&self, yes: bool) {
        self.nonblocking.store(u32::from(yes), Ordering::Relaxed);
    }

    /// Returns whether this end has returned to TCP permanently, in all processes that share it.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire) != 0
    }

    /// Records that this end has returned to TCP permanently.
    pub(crate) fn set_left(&self) {
        self.left.store(1, Ordering::Release);
    }

    /// Records the end of the peer's stream. Returns whether this is the first time.
    pub(crate) fn note_end(&self) -> bool {
        self.ended.store(1, Ordering::Relaxed);
        self.judged.swap(1, Ordering::Relaxed) == 0
    }

    /// Keeps an error of the socket, because the kernel reports it only once.
    pub(crate) fn keep_error(&self, errno: c_int) {
        self.error.store(errno as u32, Ordering::Relaxed);
    }

    /// Returns whether there is an error for the application's next call.
    pub(crate) fn has_error(&self) -> bool {
        self.error.load(Ordering::Relaxed) != 0
    }

    /// Takes the error for the application.
    pub(crate) fn take_error(&self) -> Option<Errno> {
        if !self.has_error() {
            return None;
        }
        let errno = self.error.swap(0, Ordering::Relaxed);
        (errno != 0).then_some(Errno(errno as c_int))
    }

    /// Returns whether the peer wrote an impossible value.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) != 0
    }

    /// Records that the peer wrote an impossible value.
    pub(crate) fn fail(&self) {
        self.failed.store(1, Ordering::Relaxed);
    }
}

/// Reads a word, which the lock of its direction must guard.
pub(crate) fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// Writes a word, which the lock of its direction must guard.
pub(crate) fn set(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

/// Increases a word, which the lock of its direction must guard. Returns the new value.
pub(crate) fn add(word: &AtomicU64, value: u64) -> u64 {
    let sum = get(word) + value;
    set(word, sum);
    sum
}
