//! Sleeps until a flow can go on, because of its peer or because of its agent.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex::{self, WaitFlags};
use rustix::time::ClockId;

use super::core::Core;
use super::path::Path;
use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::transport::{Direction, Wait, WaitMethod};

/// How long a ring is spun on before the agent's mailbox is checked.
const SPIN_SLICE: Duration = Duration::from_micros(200);

/// Whether the kernel has `futex_waitv` (Linux 5.16). A failure clears it for the process.
static WAITS_FOR_TWO_WORDS: AtomicBool = AtomicBool::new(true);

impl Core {
    /// Repeats an attempt that would block until it succeeds, and sleeps before each.
    #[cold]
    pub(super) fn sleep_until<T>(
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

    /// Sleeps until another attempt may succeed, or until the deadline.
    pub(super) fn sleep(&self, direction: Direction, deadline: Option<Instant>) -> Result<()> {
        let mut state = self.state.borrow_mut();
        let all_is_sent = self.flush_all(&mut state)?;
        if direction == Direction::Read && state.awaited.is_some() && !state.ahead.is_empty() {
            // The awaited path was taken from the mailbox, whose eventfd is clear again.
            return Ok(());
        }
        let deadline = [deadline, state.deadline()].into_iter().flatten().min();
        let limit = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let path = match direction {
            Direction::Read => state.awaited.is_none().then(|| state.reading.clone()),
            Direction::Write => Some(state.bottleneck().clone()),
        };
        // A later call that would have to wait arms the descriptor again.
        self.disarm();
        if let Some(path) = &path
            && (all_is_sent || direction == Direction::Write && state.flushing.is_empty())
        {
            drop(state);
            return self.sleep_on_one(path, direction, limit);
        }
        let mut entries = vec![poll_entry(self.mailbox.bell().as_raw_fd(), libc::POLLIN)];
        // Whether a path can go on at once.
        let mut is_ready = false;
        if let Some(path) = &path {
            is_ready |= prepare(path, direction, &mut entries)?;
        }
        if direction == Direction::Read && state.wants_room() {
            is_ready |= prepare(state.bottleneck(), Direction::Write, &mut entries)?;
        }
        for sender in state.senders() {
            let is_waited_for = direction == Direction::Write
                && path.as_ref().is_some_and(|path| std::rc::Rc::ptr_eq(path, sender));
            let is_full = matches!(sender.inner.borrow_mut().transport.flush(), Ok(false));
            if is_full && !is_waited_for {
                is_ready |= prepare(sender, Direction::Write, &mut entries)?;
            }
        }
        self.counters.slept();
        poll(&mut entries, if is_ready { Some(Duration::ZERO) } else { limit })?;
        for sender in state.senders().chain(&path) {
            let mut inner = sender.inner.borrow_mut();
            inner.transport.end_wait(Direction::Write);
            inner.transport.end_wait(Direction::Read);
        }
        if is_ready {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Sleeps on one path's word and the agent's word.
    fn sleep_on_one(
        &self,
        path: &Path,
        direction: Direction,
        limit: Option<Duration>,
    ) -> Result<()> {
        let mut inner = path.inner.borrow_mut();
        let mut spin = limit.map_or(self.spin, |limit| limit.min(self.spin));
        while path.is_ring() && !spin.is_zero() {
            let slice = spin.min(SPIN_SLICE);
            if inner.transport.wait(direction, Some(slice))? || self.mailbox.wants_attention() {
                return Ok(());
            }
            spin -= slice;
        }
        let two_words = WAITS_FOR_TWO_WORDS.load(Ordering::Relaxed);
        let method = if two_words { WaitMethod::Futex } else { WaitMethod::Descriptor };
        let outcome = match inner.transport.prepare_wait(direction, method)? {
            Wait::Ready => Ok(()),
            Wait::Futex { word, expected } => {
                self.counters.slept();
                // SAFETY: the transport owns the word, and the path owns the transport.
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

/// Adds the descriptors to poll for. Returns true if the path can go on at once.
fn prepare(path: &Path, direction: Direction, entries: &mut Vec<libc::pollfd>) -> Result<bool> {
    let mut inner = path.inner.borrow_mut();
    match inner.transport.prepare_wait(direction, WaitMethod::Descriptor) {
        Ok(Wait::Descriptor { descriptor, events }) => {
            entries.push(poll_entry(descriptor, events));
            Ok(false)
        }
        // A path that is only flushed reports its failure when it is used.
        Ok(_) | Err(crate::error::TransportError::Closed) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn poll_entry(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

fn poll(entries: &mut [libc::pollfd], limit: Option<Duration>) -> Result<()> {
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let done = crate::poll::wait(entries, deadline);
    done.map(drop).map_err(Error::system("ppoll"))
}

/// Sleeps while the peer's word is `expected` and the agent's word is zero. May return early.
fn wait_for_two(
    peer: &AtomicU32,
    expected: u32,
    attention: &AtomicU32,
    limit: Option<Duration>,
) -> Result<()> {
    let wait = |word: &AtomicU32, value: u32, flags: WaitFlags| {
        let mut wait = futex::Wait::new();
        (wait.val, wait.flags) = (value.into(), WaitFlags::SIZE_U32 | flags);
        wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
        wait
    };
    let words = [wait(peer, expected, WaitFlags::empty()), wait(attention, 0, WaitFlags::PRIVATE)];
    // A time beyond the kernel's is no limit.
    let until = limit.and_then(|limit| {
        Duration::from_nanos(monotonic_ns()).saturating_add(limit).try_into().ok()
    });
    let flags = futex::WaitvFlags::empty();
    match futex::waitv(&words, flags, until.as_ref(), ClockId::Monotonic) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
        Err(errno) if sys::is_refusal(errno.raw_os_error()) => {
            // The kernel is older, or a sandbox refuses the call: sleep by descriptors.
            WAITS_FOR_TWO_WORDS.store(false, Ordering::Relaxed);
            Ok(())
        }
        Err(errno) => Err(Error::System { call: "futex_waitv", source: errno.into() }),
    }
}
