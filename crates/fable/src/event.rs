//! Descriptors that tell of events: eventfd(2) and epoll(7).
//!
//! Like all that may have to do with sockets, epoll is asked for by the C library's functions,
//! before which a preload library may stand; eventfds, pipes and memory are rustix's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::EventfdFlags;

use crate::error::{Error, Result};

/// A new eventfd: non-blocking, close-on-exec.
pub(crate) fn event_descriptor() -> Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).map_err(Error::system("eventfd"))
}

/// Makes an eventfd readable.
pub(crate) fn ring(bell: &OwnedFd) {
    // A bell that is full has rung.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Makes an eventfd unreadable.
pub(crate) fn silence(bell: &OwnedFd) {
    // One that is silent already says so.
    let _ = rustix::io::read(bell, &mut [0_u8; 8]);
}

/// An epoll set, close-on-exec.
#[derive(Debug)]
pub(crate) struct EpollSet(OwnedFd);

impl EpollSet {
    /// An empty one.
    ///
    /// # Errors
    /// That of `epoll_create1`.
    pub(crate) fn new() -> io::Result<EpollSet> {
        // SAFETY: a plain system call.
        let descriptor = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours.
        Ok(EpollSet(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Adds, changes or takes out a descriptor; `key` comes back with its events.
    ///
    /// # Errors
    /// That of `epoll_ctl`.
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
