//! Closes flows: sends what is committed, waits for its delivery, and counts what is not delivered.

use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::core::Core;
use super::lingering;
use super::path::Path;
use crate::agent::Agent;
use crate::clock::deadline_after;
use crate::control::driver;
use crate::error::{Error, Result};
use crate::page::Counter;
use crate::transport::{Direction, Record, Remainder, Undelivered};

/// The longest sleep of a closing flow before it checks again for input to discard, and for
/// acknowledgements of the peer's kernel, which no descriptor reports.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The most messages that are discarded in a row.
const DISCARDED_MAX: usize = 4096;

/// What a closing flow waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitFor {
    /// The delivery of everything.
    Delivered,
    /// That closing the socket loses nothing: the kernel delivers what a connection has taken,
    /// unless it has unread input.
    Handover,
}

impl Core {
    /// Closes the flow, see [`super::Flow::close`]. Must not be called twice.
    pub(super) fn close(&self, timeout: Duration, wait_for: WaitFor) -> Result<()> {
        self.is_closed.set(true);
        let deadline = deadline_after(timeout);
        let outcome = self.send_rest(deadline);
        let mut remainders = self.end_paths();
        await_acknowledgements(&mut remainders, deadline, wait_for);
        let lost = self.lost();
        let mut under_way = Undelivered::default();
        remainders.iter_mut().for_each(|remainder| under_way += remainder.undelivered());
        self.undelivered.fetch_add(lost.messages, Ordering::Relaxed);
        self.hand_over(remainders);
        self.close_control(&outcome, lost);
        let (mut all, is_dead) = (lost, matches!(outcome, Err(Error::PeerDied)));
        all += under_way;
        if all != Undelivered::default() {
            return Err(Error::Undelivered { messages: all.messages, bytes: all.bytes });
        }
        // Delivered messages stay delivered when the peer closes afterwards.
        if is_dead { Ok(()) } else { outcome }
    }

    /// Closes without an end record: committed messages that were not sent are lost.
    pub(super) fn abandon(&self) {
        self.close_control(&Ok(()), Undelivered::default());
    }

    /// Returns the committed messages that are not delivered at this moment.
    pub(super) fn undelivered(&self) -> Undelivered {
        let mut sum = self.waiting();
        let state = self.state.borrow();
        for path in state.senders() {
            sum += path.inner.borrow_mut().transport.undelivered();
        }
        sum
    }

    /// Returns the committed messages that have no room in any path.
    fn waiting(&self) -> Undelivered {
        let mut sum = Undelivered::default();
        let state = self.state.borrow();
        for (bytes, _) in state.backlog.iter().filter(|(_, record)| *record == Record::Data) {
            sum += Undelivered { messages: 1, bytes: bytes.len() as u64 };
        }
        sum
    }

    /// Returns the messages that will never be delivered, after the paths have ended.
    fn lost(&self) -> Undelivered {
        let mut lost = self.undelivered();
        if self.state.borrow().peer_gone.is_some()
            && let Some(unread) = self.unread_by_dead_peer()
        {
            lost = unread;
        }
        lost
    }

    /// Returns what a dead peer on this host has not read, if it recorded that.
    fn unread_by_dead_peer(&self) -> Option<Undelivered> {
        let peer = self.role.other();
        let is_local = self.control.as_ref().is_some_and(|(shared, _)| shared.local);
        let read = |counter| self.counters.read(peer, counter);
        let (messages, bytes) = (read(Counter::MessagesReceived)?, read(Counter::BytesReceived)?);
        is_local.then(|| Undelivered {
            messages: self.counters.messages_sent.get().saturating_sub(messages),
            bytes: self.counters.bytes_sent.get().saturating_sub(bytes),
        })
    }

    /// Sends the committed messages and the end record, as far as the peer takes them before the
    /// deadline. Discards the peer's input meanwhile: otherwise two ends that both wait for room
    /// would wait for each other.
    fn send_rest(&self, deadline: Instant) -> Result<()> {
        self.finish()?;
        loop {
            let sent = self.flush_all(&mut self.state.borrow_mut())?;
            self.state.borrow().check()?;
            if self.state.borrow().peer_gone.is_some() {
                return Err(Error::PeerDied);
            }
            if sent {
                return Ok(());
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(Error::TimedOut);
            }
            self.discard_input();
            self.sleep(Direction::Write, Some(deadline.min(now + LOOK_EVERY)))?;
        }
    }

    fn discard_input(&self) {
        for _ in 0..DISCARDED_MAX {
            // A lasting error appears again in the calls that report it.
            let discard = |slot, path: Rc<Path>| path.inner.borrow_mut().transport.release(slot);
            if !matches!(self.read_now(discard), Ok(Some(()))) {
                return;
            }
        }
    }

    fn end_paths(&self) -> Vec<Remainder> {
        let state = self.state.borrow();
        let mut paths: Vec<&Rc<Path>> = Vec::new();
        for path in state.senders().chain(&state.ahead).chain([&state.reading]) {
            if !paths.iter().any(|known| Rc::ptr_eq(known, path)) {
                paths.push(path);
            }
        }
        paths.iter().filter_map(|path| path.inner.borrow_mut().transport.end()).collect()
    }

    /// Gives connections that must not be closed yet to the agent.
    fn hand_over(&self, remainders: Vec<Remainder>) {
        for remainder in remainders {
            let counter = Arc::clone(&self.undelivered);
            lingering::keep(remainder, &self.peer, self.timeouts.grace, counter);
        }
    }

    fn close_control(&self, outcome: &Result<()>, lost: Undelivered) {
        let mut state = self.state.borrow_mut();
        state.write_ended = true;
        self.stop_watching();
        let Some((shared, link)) = &self.control else { return };
        let mut reason = match (outcome, state.peer_gone) {
            (_, Some(_)) => "the peer is gone".to_owned(),
            (Ok(()), None) => "closed".to_owned(),
            (Err(error), None) => format!("closed: {error}"),
        };
        if lost.messages > 0 {
            let Undelivered { messages, bytes } = lost;
            reason.push_str(&format!("; {messages} messages ({bytes} bytes) were not delivered"));
        }
        shared.tell_closed();
        shared.reporter.ended(self.id, &reason);
        let link = Arc::clone(link);
        if let Ok(agent) = Agent::get() {
            agent.run(move || driver::lock(&link).abandon());
        }
    }
}

/// Discards input until the peer has everything that `wait_for` requires, or the deadline.
fn await_acknowledgements(remainders: &mut [Remainder], deadline: Instant, wait_for: WaitFor) {
    loop {
        remainders.iter_mut().for_each(Remainder::discard);
        let is_waited_for = |remainder: &mut Remainder| {
            !remainder.is_over()
                && (wait_for == WaitFor::Delivered || remainder.has_discarded())
                && remainder.undelivered() != Undelivered::default()
        };
        let waiting = remainders.iter_mut().filter_map(|remainder| {
            let descriptor = remainder.descriptor();
            is_waited_for(remainder).then_some(descriptor)
        });
        let mut entries: Vec<_> = waiting.map(entry).collect();
        let now = Instant::now();
        if entries.is_empty() || now >= deadline {
            return;
        }
        // If poll(2) fails, the loop checks again without a sleep.
        let _ = crate::poll::wait(&mut entries, Some(deadline.min(now + LOOK_EVERY)));
    }
}

fn entry(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
