//! Handles signals while a call sleeps: blocks them, detects pending ones, and delivers them.

use crate::outcome::{self, Outcome};
use crate::table::{self, Kind};
use core::ffi::c_int;
use libc::sigset_t;
use preload::signals::{all, contains, exchange_mask, members, pending, restarts, without};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Blocks all signals of this thread while it exists: a signal that the application expects to end
/// its wait must not be lost between the check and the sleep.
pub(crate) struct BlockedSignals(pub(crate) sigset_t);

impl BlockedSignals {
    /// Blocks all signals.
    pub(crate) fn all() -> BlockedSignals {
        BlockedSignals(exchange_mask(&all()))
    }

    /// Delivers the pending signals that were not blocked before. Returns true if one of them ends
    /// a call that can be restarted (signal(7)), because its handler was installed without
    /// `SA_RESTART`.
    pub(crate) fn let_through(&self) -> bool {
        let pending = pending();
        let due = || members(&pending).filter(|signal| !contains(&self.0, *signal));
        let ends = due().any(|signal| restarts(signal) == Some(false));
        // Only those: for other signals that arrive in the meantime it is not known yet whether
        // they end the call.
        exchange_mask(&without(all(), due()));
        exchange_mask(&all());
        ends
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        exchange_mask(&self.0);
    }
}

/// A descriptor that becomes readable when a signal is pending that only this library has blocked
/// in its thread.
pub(crate) struct SignalWatch {
    descriptor: OwnedFd,
    blocked: sigset_t,
}

impl SignalWatch {
    /// Creates a watch for a thread that blocks these signals itself.
    pub(crate) fn new(blocked: &sigset_t) -> Outcome<SignalWatch> {
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the set is valid, and -1 requests a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &without(all(), members(blocked)), flags) };
        let fd = table::hide(outcome::check(fd)?);
        // SAFETY: the descriptor is new and has no other owner.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(SignalWatch { descriptor, blocked: *blocked })
    }

    /// Returns whether it was created for a thread that blocks the same signals.
    pub(crate) fn suits(&self, blocked: &sigset_t) -> bool {
        (1..=libc::SIGRTMAX())
            .all(|signal| contains(&self.blocked, signal) == contains(blocked, signal))
    }
}

impl AsRawFd for SignalWatch {
    fn as_raw_fd(&self) -> c_int {
        self.descriptor.as_raw_fd()
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        table::set(self.as_raw_fd(), Kind::Plain);
    }
}
