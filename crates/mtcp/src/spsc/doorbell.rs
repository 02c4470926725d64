//! Lets a thread sleep without missing a message, and wakes it by a system call only if it sleeps.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU8, Ordering, fence};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU8, Ordering, fence};

/// Wakes a sleeping thread: an eventfd, or loom's model of one.
pub(crate) trait Signal {
    /// Wakes the sleeper, now or when it next goes to sleep.
    fn wake(&self);
}

const AWAKE: u8 = 0;
const SLEEPS_SHORT: u8 = 1;
const SLEEPS_LONG: u8 = 2;

/// The kind of a thread's sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// For a short time, after which the thread checks its queues. Messages that can wait so long
    /// do not wake it ([`Doorbell::ring_lazily`]).
    Short,
    /// Until the thread is woken.
    Long,
}

/// Notifies one thread of new messages. A sender rings after it has published a message. The owner
/// checks its queues once more between [`Doorbell::lie_down`] and sleeping. One of the two then
/// sees the other's write (Dekker's two flags), because each writes first and reads after a fence.
#[derive(Debug)]
pub(crate) struct Doorbell<S> {
    state: AtomicU8,
    signal: S,
}

impl<S: Signal> Doorbell<S> {
    pub(crate) fn new(signal: S) -> Doorbell<S> {
        Doorbell { state: AtomicU8::new(AWAKE), signal }
    }

    /// Notifies the owner of a message that was published before.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        self.wake_from(SLEEPS_SHORT);
    }

    /// Notifies the owner of a message that can wait until a short sleep ends: wakes it only from a
    /// long sleep.
    pub(crate) fn ring_lazily(&self) {
        fence(Ordering::SeqCst);
        self.wake_from(SLEEPS_LONG);
    }

    fn wake_from(&self, lightest: u8) {
        // The load keeps the cache line shared while the owner is awake.
        if self.state.load(Ordering::Relaxed) >= lightest
            && self.state.swap(AWAKE, Ordering::Relaxed) != AWAKE
        {
            self.signal.wake();
        }
    }

    /// Whether the owner is awake; it may go to sleep at any time.
    pub(crate) fn is_awake(&self) -> bool {
        self.state.load(Ordering::Relaxed) == AWAKE
    }

    /// Announces that the owner is about to sleep; it must then check its queues once more and
    /// sleep only if they are empty.
    pub(crate) fn lie_down(&self, sleep: Sleep) {
        let state = if sleep == Sleep::Short { SLEEPS_SHORT } else { SLEEPS_LONG };
        self.state.store(state, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Records that the owner is awake.
    pub(crate) fn get_up(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
    }

    pub(crate) fn signal(&self) -> &S {
        &self.signal
    }
}

/// An eventfd (see eventfd(2)): readable after a wake-up until it is cleared.
#[derive(Debug)]
pub(crate) struct EventDescriptor(OwnedFd);

impl EventDescriptor {
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(crate) fn new() -> io::Result<EventDescriptor> {
        // SAFETY: eventfd takes only numbers.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(EventDescriptor(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Takes all wake-ups.
    pub(crate) fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the buffer is valid for its eight bytes. EAGAIN means that there was no wake-up.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl Signal for EventDescriptor {
    fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer is valid for its eight bytes. A full counter wakes the thread as well.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

impl AsFd for EventDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
