//! Receives signals through a descriptor (signalfd(2)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::signals::SignalSet;

/// The request that a signal makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalRequest {
    /// To stop; with the signal's name.
    Stop(&'static str),
    /// To read the policy again.
    Reload,
}

/// `SIGTERM`, `SIGINT` and `SIGHUP`: blocked for this thread and the threads that it starts, and
/// readable from a descriptor. Dropping restores the thread's signal mask.
pub struct Signals {
    descriptor: OwnedFd,
    before: SignalSet,
}

impl Signals {
    /// Blocks the signals.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn catch() -> io::Result<Signals> {
        let set = SignalSet::of(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]);
        let descriptor = set.descriptor(libc::SFD_NONBLOCK)?;
        Ok(Signals { descriptor, before: set.block() })
    }

    /// Returns the request of the signal that has arrived. `None` if it could not be read: the
    /// descriptor stays readable.
    pub(super) fn take(&self) -> Option<SignalRequest> {
        let mut signal = [0; size_of::<libc::signalfd_siginfo>()];
        rustix::io::read(&self.descriptor, &mut signal).ok()?;
        // A `signalfd_siginfo` begins with the signal's number.
        match signal.first_chunk().copied().map(i32::from_ne_bytes)? {
            libc::SIGHUP => Some(SignalRequest::Reload),
            libc::SIGINT => Some(SignalRequest::Stop("SIGINT")),
            _ => Some(SignalRequest::Stop("SIGTERM")),
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.before.block_only();
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_no_request() {
        let signals = Signals::catch().unwrap();
        assert_eq!(signals.take(), None, "no signal has arrived");
    }
}
