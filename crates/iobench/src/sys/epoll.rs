//! epoll for servers and clients.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::error::{Context, Result};
use crate::sys::borrow;

/// An epoll instance. The caller chooses tokens; events contain them.
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> Result<Epoll> {
        epoll::create(CreateFlags::CLOEXEC)
            .context("create an epoll instance", "raise the limit of open files (ulimit -n)")
            .map(Epoll)
    }

    pub(crate) fn add(&self, fd: RawFd, token: u64, interest: libc::c_int) -> io::Result<()> {
        Ok(epoll::add(&self.0, borrow(fd), EventData::new_u64(token), flags(interest))?)
    }

    pub(crate) fn modify(&self, fd: RawFd, token: u64, interest: libc::c_int) -> io::Result<()> {
        Ok(epoll::modify(&self.0, borrow(fd), EventData::new_u64(token), flags(interest))?)
    }

    /// Fills `events` and returns their number; an interrupted wait returns 0. Uses epoll_wait(2),
    /// as servers in C do; rustix would call epoll_pwait(2).
    pub(crate) fn wait(&self, events: &mut [libc::epoll_event], timeout_ms: i32) -> usize {
        let capacity = events.len() as libc::c_int;
        // SAFETY: `events` is valid for writes of `capacity` entries.
        let count = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), capacity, timeout_ms)
        };
        usize::try_from(count).unwrap_or(0)
    }
}

fn flags(interest: libc::c_int) -> EventFlags {
    EventFlags::from_bits_retain(interest as u32)
}

/// Returns a buffer for the events of one wait.
pub(crate) fn event_buffer(capacity: usize) -> Vec<libc::epoll_event> {
    vec![libc::epoll_event { events: 0, u64: 0 }; capacity]
}
