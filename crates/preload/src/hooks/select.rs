//! Implements select(2) with poll(2).

use crate::errno::failed;
use core::ffi::{c_int, c_short};
use libc::{fd_set, pollfd};

const WORD_BITS: usize = usize::BITS as usize;
const READABLE: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITABLE: c_short = libc::POLLOUT | libc::POLLWRNORM;

/// The three sets of select(2); they may be longer than `fd_set`.
pub(super) struct Selection {
    sets: [*mut usize; 3],
    list: Vec<pollfd>,
}

impl Selection {
    /// Each set is null or has `count` bits, until the selection ends.
    /// Each set is null or has `count` bits, until the selection is done.
    pub(super) unsafe fn new(count: c_int, sets: [*mut fd_set; 3]) -> Selection {
        let sets = sets.map(|set| set.cast::<usize>());
        let mut list = Vec::new();
        for fd in 0..count.max(0) {
            let mut events = 0;
            for (set, ask) in sets.iter().zip([READABLE, WRITABLE, libc::POLLPRI]) {
                // SAFETY: the caller guarantees this.
                if !set.is_null() && unsafe { has(*set, fd) } {
                    events |= ask;
                }
            }
            if events != 0 {
                list.push(pollfd { fd, events, revents: 0 });
            }
        }
        Selection { sets, list }
    }

    /// Returns the list to poll.
    pub(super) fn list(&self) -> &[pollfd] {
        &self.list
    }

    /// Implements pselect(2); `poll` implements ppoll(2) for the list.
    ///
    /// # Safety
    /// As for [`Selection::new`].
    pub(super) unsafe fn select(mut self, poll: impl FnOnce(&mut [pollfd]) -> c_int) -> c_int {
        let result = poll(&mut self.list);
        if result < 0 {
            return result;
        }
        if self.list.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
            return failed(libc::EBADF);
        }
        let told =
            [READABLE | libc::POLLHUP | libc::POLLERR, WRITABLE | libc::POLLERR, libc::POLLPRI];
        let mut bits = 0;
        for entry in &self.list {
            for (set, tell) in self.sets.iter().zip(told) {
                // SAFETY: the descriptor is within the range that the caller guarantees.
                if set.is_null() || !unsafe { has(*set, entry.fd) } {
                    continue;
                }
                if entry.revents & tell != 0 {
                    bits += 1;
                } else {
                    // SAFETY: the descriptor is within the range that the caller guarantees.
                    unsafe { clear(*set, entry.fd) };
                }
            }
        }
        bits
    }
}

/// # Safety
/// The set has a bit for `fd`.
unsafe fn has(set: *mut usize, fd: c_int) -> bool {
    // SAFETY: the caller guarantees this.
    unsafe { set.add(fd as usize / WORD_BITS).read() >> (fd as usize % WORD_BITS) & 1 != 0 }
}

/// # Safety
/// The set has a bit for `fd`.
unsafe fn clear(set: *mut usize, fd: c_int) {
    // SAFETY: the caller guarantees this.
    unsafe { *set.add(fd as usize / WORD_BITS) &= !(1 << (fd as usize % WORD_BITS)) }
}
