//! Ctrl-C without handlers: the signals are blocked everywhere and the main thread waits for them
//! while it sleeps, so every interruption arrives at a place that can clean up.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::error::{Context, Error, Result};
use crate::sys::check;
use crate::sys::clock::now_ns;

/// The signals that end a run: SIGINT, SIGTERM and SIGHUP.
pub(crate) struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks the signals in the calling thread. Call before any other thread starts: the mask is
    /// inherited.
    pub(crate) fn block() -> Signals {
        // SAFETY: sigset_t is plain data; sigemptyset below makes it a defined set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is valid for writes and the signal numbers are constants of the platform.
        unsafe {
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
        Signals { set }
    }

    /// Sleeps until `deadline_ns` of CLOCK_MONOTONIC, or fails at once with `Interrupted`.
    pub(crate) fn sleep_until(&self, deadline_ns: u64) -> Result<()> {
        loop {
            let left_ns = deadline_ns.saturating_sub(now_ns());
            let timeout = libc::timespec {
                tv_sec: (left_ns / 1_000_000_000) as libc::time_t,
                tv_nsec: (left_ns % 1_000_000_000) as libc::c_long,
            };
            // SAFETY: the set and the timeout are valid for reads; no siginfo is asked for.
            let signal = unsafe { libc::sigtimedwait(&self.set, std::ptr::null_mut(), &timeout) };
            if signal > 0 {
                return Err(Error::Interrupted);
            }
            if left_ns == 0 {
                return Ok(());
            }
        }
    }

    pub(crate) fn sleep_ms(&self, duration_ms: u64) -> Result<()> {
        self.sleep_until(now_ns() + duration_ms * 1_000_000)
    }

    /// A descriptor that becomes readable when one of the signals arrives.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        // SAFETY: the set is valid for reads.
        let fd = check(unsafe { libc::signalfd(-1, &self.set, libc::SFD_CLOEXEC) })
            .context("create a signal descriptor", "raise the limit of open files (ulimit -n)")?;
        // SAFETY: the descriptor was just created and nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Lets every signal through to the calling thread; for a child between fork and exec, which would
/// hand the blocked signals on to the program.
pub(crate) fn unblock_all() {
    // SAFETY: sigset_t is plain data; sigemptyset below makes it a defined set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for writes and then for reads; both calls are async-signal-safe.
    unsafe {
        libc::sigemptyset(&mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}

/// An event counter: once raised it stays readable, for threads that poll it and for those that
/// read it (which takes one from the counter).
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> Result<Event> {
        // SAFETY: eventfd takes plain numbers.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) })
            .context("create an event descriptor", "raise the limit of open files (ulimit -n)")?;
        // SAFETY: the descriptor was just created and nobody else owns it.
        Ok(Event(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn raise(&self) {
        // More than there will ever be readers; far less than would block after a few raises.
        let many = 1_u64 << 32;
        // SAFETY: eight bytes are read from a live u64.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const many).cast(), 8) };
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Sleeps until one of the descriptors is readable or hung up; the place of the first of those.
pub(crate) fn wait_for_any(descriptors: &[RawFd]) -> usize {
    loop {
        if let Some(place) = wait_for_any_within(descriptors, -1) {
            return place;
        }
    }
}

/// The same for at most so long; the negative is without limit. It may end earlier with nothing.
pub(crate) fn wait_for_any_within(descriptors: &[RawFd], timeout_ms: i32) -> Option<usize> {
    let mut polled: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
        .collect();
    let count = polled.len() as libc::nfds_t;
    // SAFETY: the array is valid for its length.
    unsafe { libc::poll(polled.as_mut_ptr(), count, timeout_ms) };
    polled.iter().position(|polled| polled.revents != 0)
}
