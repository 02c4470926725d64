//! Signals while a call sleeps: kept back, watched for, and let through.

use crate::outcome::{self, Outcome};
use crate::table::{self, Kind};
use core::ffi::c_int;
use libc::{sigaction, sigset_t};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// No signal is delivered to this thread as long as this lives: between looking and sleeping none
/// may get lost that the application expects to end its wait.
pub(crate) struct BlockedSignals(pub(crate) sigset_t);

impl BlockedSignals {
    pub(crate) fn all() -> BlockedSignals {
        BlockedSignals(exchange_mask(&full()))
    }

    /// Delivers what is pending and was not blocked before this. True: what was handled ends a
    /// call that can be restarted (signal(7)), as its handler was installed without `SA_RESTART`.
    pub(crate) fn let_through(&self) -> bool {
        let pending = pending();
        let mut mask = full();
        let mut ends = false;
        for signal in (1..=libc::SIGRTMAX()).filter(|signal| contains(&pending, *signal)) {
            if !contains(&self.0, signal) {
                ends |= is_handled_without_restart(signal);
                // SAFETY: a valid set and a signal's number.
                unsafe { libc::sigdelset(&mut mask, signal) };
            }
        }
        // Only those: of others that come meanwhile it is not known yet what they end.
        exchange_mask(&mask);
        exchange_mask(&full());
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
        let fd = unsafe { libc::signalfd(-1, &without(blocked), flags) };
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

fn exchange_mask(mask: &sigset_t) -> sigset_t {
    // SAFETY: both sets are plain data; the call fills the second one.
    unsafe {
        let mut before: sigset_t = zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, &mut before);
        before
    }
}

fn full() -> sigset_t {
    // SAFETY: the call fills the set.
    unsafe {
        let mut set: sigset_t = zeroed();
        libc::sigfillset(&mut set);
        set
    }
}

fn without(signals: &sigset_t) -> sigset_t {
    let mut set = full();
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| contains(signals, *signal)) {
        // SAFETY: a valid set and a signal's number.
        unsafe { libc::sigdelset(&mut set, signal) };
    }
    set
}

fn pending() -> sigset_t {
    // SAFETY: the call fills the set.
    unsafe {
        let mut set: sigset_t = zeroed();
        libc::sigpending(&mut set);
        set
    }
}

fn contains(set: &sigset_t, signal: c_int) -> bool {
    // SAFETY: a valid set; numbers that are no signal's are answered by an error.
    unsafe { libc::sigismember(set, signal) == 1 }
}

fn is_handled_without_restart(signal: c_int) -> bool {
    // SAFETY: a null action changes nothing, and the call fills the other.
    let action = unsafe {
        let mut action: sigaction = zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action);
        action
    };
    let is_handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    is_handled && action.sa_flags & libc::SA_RESTART == 0
}
