//! epoll as server and client use it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::error::{Context, Result};
use crate::sys::check;

/// An epoll instance. Tokens are the caller's; events come back with them.
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> Result<Epoll> {
        // SAFETY: epoll_create1 takes a flag and returns a new descriptor.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
            .context("create an epoll instance", "raise the limit of open files (ulimit -n)")?;
        // SAFETY: the descriptor was just created and nobody else owns it.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn add(&self, fd: RawFd, token: u64, interest: libc::c_int) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    pub(crate) fn modify(&self, fd: RawFd, token: u64, interest: libc::c_int) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    fn control(
        &self,
        operation: libc::c_int,
        fd: RawFd,
        token: u64,
        interest: libc::c_int,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest as u32, u64: token };
        // SAFETY: `event` is valid for the call; a bad descriptor only yields an errno.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd, &mut event) }).map(|_| ())
    }

    /// Fills `events` and returns how many there are; an interrupted wait counts as none.
    pub(crate) fn wait(&self, events: &mut [libc::epoll_event], timeout_ms: i32) -> usize {
        let capacity = events.len() as libc::c_int;
        // SAFETY: `events` is valid for writes of `capacity` entries.
        let count = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), capacity, timeout_ms)
        };
        usize::try_from(count).unwrap_or(0)
    }
}

/// Room for the events of one wait.
pub(crate) fn event_buffer(capacity: usize) -> Vec<libc::epoll_event> {
    vec![libc::epoll_event { events: 0, u64: 0 }; capacity]
}
