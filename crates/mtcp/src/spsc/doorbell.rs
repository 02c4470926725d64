//! Sleeping without missing a message, and waking without a system call for those that are awake.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// What gets a sleeper up. An eventfd, but for the model that loom checks.
pub(crate) trait Signal {
    /// Wakes the sleeper, now or when it next goes to sleep.
    fn wake(&self);
}

/// The doorbell of one thread. Whoever leaves something for it rings afterwards; the thread looks
/// once more between [`Doorbell::lie_down`] and sleeping. One of the two then sees the other
/// (Dekker's two flags), because each writes first and reads behind a fence.
#[derive(Debug)]
pub(crate) struct Doorbell<S> {
    sleeping: AtomicBool,
    signal: S,
}

impl<S: Signal> Doorbell<S> {
    pub(crate) fn new(signal: S) -> Doorbell<S> {
        Doorbell { sleeping: AtomicBool::new(false), signal }
    }

    /// Tells the owner of something that was published before.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        // The load keeps the cache line shared while the owner is awake.
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            self.signal.wake();
        }
    }

    /// The owner is about to sleep; it must look at its queues once more and sleep only if they are
    /// empty.
    pub(crate) fn lie_down(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner is awake.
    pub(crate) fn get_up(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    pub(crate) fn signal(&self) -> &S {
        &self.signal
    }
}

/// An eventfd (see eventfd(2)): readable while it was woken and not cleared.
#[derive(Debug)]
pub(crate) struct EventDescriptor(OwnedFd);

impl EventDescriptor {
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(crate) fn new() -> io::Result<EventDescriptor> {
        // SAFETY: eventfd takes plain numbers.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(EventDescriptor(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Takes all wake-ups.
    pub(crate) fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the buffer is valid for its eight bytes. EAGAIN: there was none.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl Signal for EventDescriptor {
    fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer is valid for its eight bytes. A full counter wakes as well.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

impl AsFd for EventDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
