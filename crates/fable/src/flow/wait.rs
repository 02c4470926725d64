//! Sleeping until a flow can go on: for its peer, and for its agent.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::core::Core;
use super::path::Path;
use crate::clock::{monotonic_ns, timespec};
use crate::error::{Error, Result};
use crate::transport::{Direction, Manner, Wait};

/// How long a ring is looked at in its own way before this thread sleeps in ours.
const SPIN: Duration = Duration::from_micros(50);

/// How long a transport that only spins is left to itself before the agent is asked.
const SPIN_ALONE: Duration = Duration::from_micros(200);

/// Whether the kernel has `futex_waitv` (Linux 5.16); it is asked once.
static WAITS_FOR_TWO_WORDS: AtomicBool = AtomicBool::new(true);

/// `struct futex_waitv` of the kernel.
#[repr(C)]
struct FutexWait {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

const FUTEX2_SIZE_U32: u32 = 2;
const FUTEX2_PRIVATE: u32 = 128;

impl Core {
    /// Tries until it works, and sleeps in between.
    #[inline]
    pub(super) fn wait_for<T>(
        &self,
        direction: Direction,
        timeout: Option<Duration>,
        attempt: impl Fn() -> Result<T>,
    ) -> Result<T> {
        match attempt() {
            Err(Error::WouldBlock) => self.sleep_until(direction, timeout, attempt),
            outcome => outcome,
        }
    }

    #[cold]
    fn sleep_until<T>(
        &self,
        direction: Direction,
        timeout: Option<Duration>,
        attempt: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            self.sleep(direction, deadline)?;
            let outcome = attempt();
            if !matches!(outcome, Err(Error::WouldBlock)) {
                return outcome;
            }
            if deadline.is_some_and(|at| at <= Instant::now()) {
                return Err(Error::TimedOut);
            }
        }
    }

    /// Sleeps until another attempt is worth while, or the deadline.
    pub(super) fn sleep(&self, direction: Direction, deadline: Option<Instant>) -> Result<()> {
        let mut state = self.state.borrow_mut();
        let all_is_sent = self.flush_all(&mut state)?;
        if direction == Direction::Read && state.awaited.is_some() && !state.ahead.is_empty() {
            // The awaited path has just come out of the mailbox, whose bell is silent again.
            return Ok(());
        }
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let limit = [left, self.drain_limit(&state)].into_iter().flatten().min();
        let path = match direction {
            Direction::Read => state.awaited.is_none().then(|| state.reading.clone()),
            Direction::Write => Some(state.bottleneck().clone()),
        };
        // Another call arms the descriptor again.
        self.disarm();
        if let Some(path) = &path
            && (all_is_sent || direction == Direction::Write && state.flushing.is_empty())
        {
            drop(state);
            return self.sleep_on_one(path, direction, limit);
        }
        let mut entries = vec![poll_entry(self.mailbox.bell().as_raw_fd(), libc::POLLIN)];
        // At most so long, for the sake of one of the paths.
        let mut least = None;
        if let Some(path) = &path {
            least = sooner(least, prepare(path, direction, &mut entries)?);
        }
        if direction == Direction::Read && state.wants_room() {
            least = sooner(least, prepare(state.bottleneck(), Direction::Write, &mut entries)?);
        }
        for sender in state.senders() {
            let is_waited_for = direction == Direction::Write
                && path.as_ref().is_some_and(|path| std::rc::Rc::ptr_eq(path, sender));
            let is_full = matches!(sender.inner.borrow_mut().transport.flush(), Ok(false));
            if is_full && !is_waited_for {
                least = sooner(least, prepare(sender, Direction::Write, &mut entries)?);
            }
        }
        self.counters.slept();
        poll(&mut entries, sooner(least, limit))?;
        for sender in state.senders().chain(&path) {
            let mut inner = sender.inner.borrow_mut();
            inner.transport.end_wait(Direction::Write);
            inner.transport.end_wait(Direction::Read);
        }
        if least == Some(Duration::ZERO) {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Sleeps on one path and the agent's word.
    fn sleep_on_one(
        &self,
        path: &Path,
        direction: Direction,
        limit: Option<Duration>,
    ) -> Result<()> {
        let mut inner = path.inner.borrow_mut();
        if path.is_ring() {
            let spin = limit.map_or(SPIN, |limit| limit.min(SPIN));
            if inner.transport.wait(direction, Some(spin))? || self.mailbox.wants_attention() {
                return Ok(());
            }
        }
        let two_words = WAITS_FOR_TWO_WORDS.load(Ordering::Relaxed);
        let manner = if two_words { Manner::Futex } else { Manner::Descriptor };
        let outcome = match inner.transport.prepare_wait(direction, manner)? {
            Wait::Ready => Ok(()),
            Wait::Spin => {
                let spin = limit.map_or(SPIN_ALONE, |limit| limit.min(SPIN_ALONE));
                inner.transport.wait(direction, Some(spin)).map(drop).map_err(Error::from)
            }
            Wait::Futex { word, expected } => {
                self.counters.slept();
                // SAFETY: the transport keeps the word, and the path keeps the transport.
                let word = unsafe { &*word };
                wait_for_two(word, expected, self.mailbox.attention(), limit)
            }
            Wait::Descriptor { descriptor, events } => {
                self.counters.slept();
                let bell = self.mailbox.bell().as_raw_fd();
                let mut entries = [poll_entry(bell, libc::POLLIN), poll_entry(descriptor, events)];
                poll(&mut entries, limit)
            }
        };
        inner.transport.end_wait(direction);
        outcome
    }
}

/// Adds what to poll for, and gives how long a sleep may be that it does not end; `None`: for ever.
fn prepare(
    path: &Path,
    direction: Direction,
    entries: &mut Vec<libc::pollfd>,
) -> Result<Option<Duration>> {
    let mut inner = path.inner.borrow_mut();
    match inner.transport.prepare_wait(direction, Manner::Descriptor) {
        Ok(Wait::Descriptor { descriptor, events }) => {
            entries.push(poll_entry(descriptor, events));
            Ok(None)
        }
        // It has nothing that wakes: it is looked at now and then while others are waited for.
        Ok(Wait::Spin) => Ok(Some(SPIN_ALONE)),
        // What only flushes fails where it is read.
        Ok(_) | Err(crate::error::TransportError::Closed) => Ok(Some(Duration::ZERO)),
        Err(error) => Err(error.into()),
    }
}

fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    [one, other].into_iter().flatten().min()
}

fn poll_entry(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

fn poll(entries: &mut [libc::pollfd], limit: Option<Duration>) -> Result<()> {
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let done = crate::poll::wait(entries, deadline);
    done.map(drop).map_err(Error::system("ppoll"))
}

/// Sleeps while the peer's word is `expected` and the agent's is zero. May return early.
fn wait_for_two(
    peer: &AtomicU32,
    expected: u32,
    attention: &AtomicU32,
    limit: Option<Duration>,
) -> Result<()> {
    let wait = |word: &AtomicU32, value: u32, flags: u32| FutexWait {
        value: value.into(),
        address: word.as_ptr() as u64,
        flags: FUTEX2_SIZE_U32 | flags,
        reserved: 0,
    };
    let words = [wait(peer, expected, 0), wait(attention, 0, FUTEX2_PRIVATE)];
    let mut until = timespec(Duration::ZERO);
    if let Some(limit) = limit {
        until = timespec(Duration::from_nanos(monotonic_ns()).saturating_add(limit));
    }
    let pointer = if limit.is_some() { &raw const until } else { std::ptr::null() };
    // SAFETY: the words are mapped, and everything outlives the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            words.as_ptr(),
            words.len(),
            0,
            pointer,
            libc::CLOCK_MONOTONIC,
        )
    };
    if done >= 0 {
        return Ok(());
    }
    let source = std::io::Error::last_os_error();
    match source.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => {
            // An older kernel, or a sandbox that does not know the call: sleep by descriptors.
            WAITS_FOR_TWO_WORDS.store(false, Ordering::Relaxed);
            Ok(())
        }
        Some(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT) => Ok(()),
        _ => Err(Error::System { call: "futex_waitv", source }),
    }
}
