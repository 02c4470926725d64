//! Signals as something to read (signalfd(2)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// To end; with the signal's name.
    Stop(&'static str),
    /// To read the policy again.
    Reload,
}

/// `SIGTERM`, `SIGINT` and `SIGHUP`, blocked for this thread and those that it starts, and readable
/// instead. Dropping gives the thread its signals back.
pub struct Signals {
    descriptor: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    /// Blocks the signals.
    ///
    /// # Errors
    /// The kernel's, if there is no descriptor left.
    pub fn catch() -> io::Result<Signals> {
        // SAFETY: a signal set is plain data, valid when zeroed, and initialised next.
        let (mut set, mut before): (libc::sigset_t, libc::sigset_t) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: the sets outlive the calls, and the signals exist.
        unsafe {
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::sigaddset(&raw mut set, libc::SIGHUP);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
        }
        // SAFETY: the set outlives the call.
        let number =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours.
        Ok(Signals { descriptor: unsafe { OwnedFd::from_raw_fd(number) }, before })
    }

    /// What the signal that came asks for.
    pub(super) fn take(&self) -> Wish {
        // SAFETY: plain data, valid when zeroed.
        let mut signal: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes at most the size of the structure.
        unsafe {
            let bytes = size_of::<libc::signalfd_siginfo>();
            libc::read(self.descriptor.as_raw_fd(), (&raw mut signal).cast(), bytes);
        }
        match signal.ssi_signo.cast_signed() {
            libc::SIGHUP => Wish::Reload,
            libc::SIGINT => Wish::Stop("SIGINT"),
            _ => Wish::Stop("SIGTERM"),
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the set is the one that the kernel gave us.
        unsafe {
            let before = &raw const self.before;
            libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut());
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
