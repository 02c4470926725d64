//! Wakes a sleeping thread.

use crate::outcome::{self, Outcome};
use crate::table::{self, Kind};
use core::ffi::c_int;
use preload::real;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes one sleeping thread, through an eventfd.
pub(crate) struct Waker {
    event: OwnedFd,
    rung: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> Outcome<Waker> {
        // SAFETY: the call takes only numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        let fd = table::hide(outcome::check(fd)?);
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Waker { event: unsafe { OwnedFd::from_raw_fd(fd) }, rung: AtomicBool::new(false) })
    }

    pub(crate) fn wake(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: the call reads eight bytes of `one`.
            unsafe { real::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Clears the eventfd. Must be called with the lock held, so that no other thread signals it in
    /// the meantime.
    pub(crate) fn clear(&self) {
        if self.rung.swap(false, Ordering::AcqRel) {
            let mut room = [0u8; 8];
            // SAFETY: there is room for eight bytes.
            unsafe { real::read(self.event.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
        }
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> c_int {
        self.event.as_raw_fd()
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        table::set(self.event.as_raw_fd(), Kind::Plain);
    }
}
