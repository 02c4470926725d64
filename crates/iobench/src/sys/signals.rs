//! Handles Ctrl-C without signal handlers: the signals are blocked in all threads and the main
//! thread waits for them while it sleeps, so every interruption happens where the program can clean
//! up.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::sys::signals::SignalSet;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::error::{Context, Error, Result};
use crate::sys::clock::now_ns;

/// Whether one of the signals has ended this process's run.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Returns whether a signal has ended the run, so that its results are partial.
pub(crate) fn was_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Notes that a signal ends the run; returns the error.
pub(crate) fn interrupt() -> Error {
    INTERRUPTED.store(true, Ordering::Relaxed);
    Error::Interrupted
}

/// The signals that end a run: SIGINT, SIGTERM and SIGHUP.
pub(crate) struct Signals(SignalSet);

impl Signals {
    /// Blocks the signals in the calling thread. Call before any other thread starts: the mask is
    /// inherited.
    pub(crate) fn block() -> Signals {
        let set = SignalSet::of(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
        set.block();
        Signals(set)
    }

    /// Sleeps until `deadline_ns` of CLOCK_MONOTONIC; fails at once with `Interrupted` after a
    /// signal.
    pub(crate) fn sleep_until(&self, deadline_ns: u64) -> Result<()> {
        loop {
            let left_ns = deadline_ns.saturating_sub(now_ns());
            if self.0.wait_within(Duration::from_nanos(left_ns)).is_some() {
                return Err(interrupt());
            }
            if left_ns == 0 {
                return Ok(());
            }
        }
    }

    pub(crate) fn sleep_ms(&self, duration_ms: u64) -> Result<()> {
        self.sleep_until(now_ns() + duration_ms * 1_000_000)
    }

    /// Returns a descriptor that becomes readable when one of the signals arrives.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        self.0
            .descriptor(0)
            .context("create a signal descriptor", "raise the limit of open files (ulimit -n)")
    }
}

/// Unblocks all signals in the calling thread; for a child between fork and exec, whose program
/// would otherwise inherit the blocked signals.
pub(crate) fn unblock_all() {
    SignalSet::of(&[]).block_only();
}

/// Makes the kernel kill the calling process when its parent ends; for a child after the fork.
pub(crate) fn die_with(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before the signal was requested.
    match getppid() {
        Some(own) if own.as_raw_pid() as u32 == parent => Ok(()),
        _ => Err(Errno::SRCH.into()),
    }
}

/// An event counter: once raised it stays readable for threads that poll it; reading it takes one
/// from the counter.
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> Result<Event> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)
            .context("create an event descriptor", "raise the limit of open files (ulimit -n)")
            .map(Event)
    }

    /// Makes the event readable for all threads.
    pub(crate) fn raise(&self) {
        // More than there will ever be readers, and small enough that repeated calls do not block.
        let many = 1_u64 << 32;
        let _ = rustix::io::write(&self.0, &many.to_ne_bytes());
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Sleeps until one of the descriptors is readable or hung up; returns the index of the first such
/// one.
pub(crate) fn wait_for_any(descriptors: &[RawFd]) -> usize {
    loop {
        if let Some(place) = wait_for_any_within(descriptors, -1) {
            return place;
        }
    }
}

/// Does the same with a time limit; negative means none. May return `None` early.
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
