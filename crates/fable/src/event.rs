//! Descriptors for waiting: eventfd(2) and epoll(7).
//!
//! Epoll is called through the C library's functions, because a preload library may interpose them;
//! the same holds for all calls on sockets. Eventfds, pipes and memory use rustix.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::EventfdFlags;

use crate::error::{Error, Result};

/// Makes an eventfd: non-blocking, close-on-exec.
pub(crate) fn event_descriptor() -> Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).map_err(Error::system("eventfd"))
}

/// Signals an eventfd: makes it readable.
pub(crate) fn ring(bell: &OwnedFd) {
    // EAGAIN means that the counter is full, so the eventfd is readable.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Clears an eventfd: makes it unreadable.
pub(crate) fn silence(bell: &OwnedFd) {
    // EAGAIN means that the counter is zero.
    let _ = rustix::io::read(bell, &mut [0_u8; 8]);
}

/// An epoll set, close-on-exec.
#[derive(Debug)]
pub(crate) struct EpollSet(OwnedFd);

impl EpollSet {
    /// Makes an empty set.
    ///
    /// # Errors
    /// Those of `epoll_create1`.
    pub(crate) fn new() -> io::Result<EpollSet> {
        // SAFETY: a plain system call.
        let descriptor = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(EpollSet(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Adds, changes or removes a descriptor; the set returns `key` with its events.
    ///
    /// # Errors
    /// Those of `epoll_ctl`.
    pub(crate) fn control(
        &self,
        operation: i32,
        descriptor: RawFd,
        events: u32,
        key: u64,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: key };
        // SAFETY: the event outlives the call.
        if unsafe { libc::epoll_ctl(self.as_raw_fd(), operation, descriptor, &raw mut event) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EpollSet {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl From<EpollSet> for OwnedFd {
    fn from(set: EpollSet) -> OwnedFd {
        set.0
    }
}
