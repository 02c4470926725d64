//! Waits for a few descriptors with ppoll(2).

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Most descriptors: an interface has two or three, and there is an alarm.
const MAX_DESCRIPTORS: usize = 8;

/// The descriptors that a sleeper waits for.
pub(super) struct Wanted {
    entries: [libc::pollfd; MAX_DESCRIPTORS],
    length: usize,
}

impl Default for Wanted {
    fn default() -> Wanted {
        let none = libc::pollfd { fd: -1, events: 0, revents: 0 };
        Wanted { entries: [none; MAX_DESCRIPTORS], length: 0 }
    }
}

impl Wanted {
    /// Adds a descriptor. Beyond the limit it is ignored: no interface has so many.
    pub(super) fn add(&mut self, descriptor: RawFd, events: libc::c_short) {
        if let Some(entry) = self.entries.get_mut(self.length) {
            *entry = libc::pollfd { fd: descriptor, events, revents: 0 };
            self.length += 1;
        }
    }

    /// Whether the descriptor that was added as number `index` is ready.
    pub(super) fn is_ready(&self, index: usize) -> bool {
        self.entries.get(index).is_some_and(|entry| entry.revents != 0)
    }

    /// Sleeps with nanosecond resolution (ppoll(2)); a signal or a lack of memory ends the sleep
    /// without an error.
    pub(super) fn poll(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let time = limit.map(|limit| libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let count = self.length as libc::nfds_t;
        // SAFETY: `length` entries are valid, and the time is null or lives until the end of the
        // call.
        let woken =
            unsafe { libc::ppoll(self.entries.as_mut_ptr(), count, time, std::ptr::null()) };
        if woken >= 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error if error.raw_os_error() == Some(libc::ENOMEM) => Ok(()),
            error => Err(error),
        }
    }
}
