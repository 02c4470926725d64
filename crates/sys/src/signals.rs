//! Blocks signals, and waits for them instead of handling them. See sigprocmask(2).

use std::io;
use std::mem::zeroed;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::time::Duration;

/// A set of signals.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl SignalSet {
    /// The set of these signals (`libc::SIGINT`, …).
    ///
    /// # Panics
    /// For a number that is not a signal.
    pub fn of(signals: &[libc::c_int]) -> SignalSet {
        // SAFETY: sigset_t is plain data, which sigemptyset makes a defined set.
        let mut set: libc::sigset_t = unsafe { zeroed() };
        // SAFETY: `set` is valid for writes.
        unsafe { libc::sigemptyset(&mut set) };
        for &signal in signals {
            // SAFETY: `set` is valid for writes; a number that is no signal only yields an errno.
            let added = unsafe { libc::sigaddset(&mut set, signal) };
            assert_eq!(added, 0, "{signal} is no signal");
        }
        SignalSet(set)
    }

    /// The set of all signals.
    pub fn all() -> SignalSet {
        let mut set = SignalSet::of(&[]);
        // SAFETY: the set is valid for writes.
        unsafe { libc::sigfillset(&mut set.0) };
        set
    }

    /// Returns whether this signal is one of the set.
    fn contains(&self, signal: libc::c_int) -> bool {
        // SAFETY: the set is valid for reads.
        unsafe { libc::sigismember(&self.0, signal) == 1 }
    }

    /// Blocks the signals in the calling thread, and in threads that it starts later. Returns the
    /// previously blocked signals.
    pub fn block(&self) -> SignalSet {
        self.change_mask(libc::SIG_BLOCK)
    }

    /// Makes the calling thread block these signals and no others. May be called between fork and
    /// exec.
    pub fn block_only(&self) {
        self.change_mask(libc::SIG_SETMASK);
    }

    fn change_mask(&self, how: libc::c_int) -> SignalSet {
        let mut before = SignalSet::of(&[]);
        // SAFETY: both sets are valid for the call, which cannot fail for these ways.
        unsafe { libc::pthread_sigmask(how, &self.0, &mut before.0) };
        before
    }

    /// Takes one of the signals, which must be blocked, if it arrives within this time. May return
    /// early without one.
    pub fn wait_within(&self, limit: Duration) -> Option<libc::c_int> {
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: the set and the time are valid for reads; a null pointer means that no details
        // are returned.
        let signal = unsafe { libc::sigtimedwait(&self.0, null_mut(), &limit) };
        (signal > 0).then_some(signal)
    }

    /// Creates a descriptor that becomes readable when one of the signals arrives, which must be
    /// blocked; with flags (`SFD_…`) in addition to `SFD_CLOEXEC`. See signalfd(2).
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn descriptor(&self, flags: libc::c_int) -> io::Result<OwnedFd> {
        // SAFETY: the set is valid for reads.
        match unsafe { libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC | flags) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: the descriptor is new and has no other owner.
            descriptor => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        }
    }
}

/// Keeps writes to pipes without a reader from raising `SIGPIPE` in the calling thread, in a
/// process that does not ignore the signal, until the value is dropped.
pub struct QuietPipe(Option<SignalSet>);

impl QuietPipe {
    /// Blocks the signal, unless the process ignores it.
    pub fn enter() -> QuietPipe {
        // SAFETY: sigaction is plain data, for which zeros are valid.
        let mut present: libc::sigaction = unsafe { zeroed() };
        // SAFETY: the structure is valid for writes; a null pointer changes nothing.
        let asked = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut present) };
        let is_ignored = asked == 0 && present.sa_sigaction == libc::SIG_IGN;
        QuietPipe((!is_ignored).then(|| SignalSet::of(&[libc::SIGPIPE]).block()))
    }
}

impl Drop for QuietPipe {
    /// Takes the signal that a write has raised, and restores the thread's mask.
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // One that was pending before stays so only if the program had blocked the signal.
            if !before.contains(libc::SIGPIPE) {
                SignalSet::of(&[libc::SIGPIPE]).wait_within(Duration::ZERO);
                before.block_only();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    /// Sends a signal to the calling thread alone.
    fn raise(signal: libc::c_int) {
        // SAFETY: raise takes only a number; the signal is blocked, and stays pending for this
        // thread.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    #[test]
    fn a_blocked_signal_is_waited_for() {
        let set = SignalSet::of(&[libc::SIGUSR1, libc::SIGUSR2]);
        let before = set.block();
        assert_eq!(set.wait_within(Duration::ZERO), None);
        raise(libc::SIGUSR2);
        assert_eq!(set.wait_within(Duration::from_secs(30)), Some(libc::SIGUSR2));
        before.block_only();
    }

    #[test]
    fn a_blocked_signal_is_read() {
        let set = SignalSet::of(&[libc::SIGUSR1]);
        let before = set.block();
        let mut descriptor = File::from(set.descriptor(libc::SFD_NONBLOCK).unwrap());
        let mut signal = [0; size_of::<libc::signalfd_siginfo>()];
        assert_eq!(descriptor.read(&mut signal).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        raise(libc::SIGUSR1);
        assert_eq!(descriptor.read(&mut signal).unwrap(), signal.len());
        assert_eq!(signal[..4], libc::SIGUSR1.to_ne_bytes());
        before.block_only();
    }

    #[test]
    #[should_panic(expected = "4711 is no signal")]
    fn what_is_no_signal_is_refused() {
        SignalSet::of(&[4711]);
    }
}
