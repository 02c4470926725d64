//! Signals while a call sleeps: kept back, watched for, and let through.

use crate::outcome::{self, Outcome};
use crate::table::{self, Kind};
use core::ffi::c_int;
use libc::sigset_t;
use preload::signals::{all, contains, exchange_mask, members, pending, restarts, without};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// No signal is delivered to this thread as long as this lives: between looking and sleeping none
/// may get lost that the application expects to end its wait.
pub(crate) struct BlockedSignals(pub(crate) sigset_t);

impl BlockedSignals {
    pub(crate) fn all() -> BlockedSignals {
        BlockedSignals(exchange_mask(&all()))
    }

    /// Delivers what is pending and was not blocked before this. True: what was handled ends a
    /// call that can be restarted (signal(7)), as its handler was installed without `SA_RESTART`.
    pub(crate) fn let_through(&self) -> bool {
        let pending = pending();
        let due = || members(&pending).filter(|signal| !contains(&self.0, *signal));
        let ends = due().any(|signal| restarts(signal) == Some(false));
        // Only those: of others that come meanwhile it is not known yet what they end.
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

/// Becomes readable when a signal is pending that its thread does not block but for us.
pub(crate) struct SignalWatch {
    descriptor: OwnedFd,
    blocked: sigset_t,
}

impl SignalWatch {
    /// For a thread that blocks these signals itself.
    pub(crate) fn new(blocked: &sigset_t) -> Outcome<SignalWatch> {
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the set is valid, and no descriptor is to change.
        let fd = unsafe { libc::signalfd(-1, &without(all(), members(blocked)), flags) };
        let fd = table::hide(outcome::check(fd)?);
        // SAFETY: the descriptor is new and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(SignalWatch { descriptor, blocked: *blocked })
    }

    /// Whether it was made for a thread that blocks the same.
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
