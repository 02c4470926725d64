//! Retry scheduling: operations that would block are parked until an edge, and tried again in
//! turns.

use super::attempt::{attempt, burst};
use super::objects::{Direction, Task};
use super::step::Step;
use super::{EpollDriver, HELPERS};
use crate::driver::{Object, Outcome, Output, Wake};
use std::io;
use std::time::{Duration, Instant};

/// Received bytes after which the outcomes are delivered although more tasks are ready. What the
/// application writes back or parses is still in the level 2 cache then: with 64 connections that
/// echo 64 KiB, a message takes up to twice the CPU time without this limit.
const LEASED_BYTES_MAX: usize = 128 << 10;

impl EpollDriver {
    /// Polls the kernel until there is an outcome, the time has passed or a signal handler ran.
    pub(super) fn look(&mut self, timeout: Option<Duration>) -> io::Result<Wake> {
        let before = self.outcomes.len();
        let once = timeout.is_some_and(|timeout| timeout.is_zero());
        let end = match timeout {
            Some(timeout) if !once => Instant::now().checked_add(timeout),
            _ => None,
        };
        let mut wake = Wake::TimeUp;
        loop {
            let pause = if once { Some(Duration::ZERO) } else { self.pause(end) };
            self.waits += 1;
            self.schedule.looked();
            let Some(events) = self.poller.wait(&self.calls, pause)? else {
                wake = Wake::Signal;
                break;
            };
            self.note(events);
            self.serve();
            let late = || end.is_some_and(|end| Instant::now() >= end);
            if !self.outcomes.is_empty() || once || late() {
                break;
            }
        }
        let brought = (self.outcomes.len() - before) as u64;
        self.batched += brought;
        self.largest_batch = self.largest_batch.max(brought);
        Ok(if self.outcomes.is_empty() { wake } else { Wake::Outcomes })
    }

    /// The longest time for which the driver may sleep.
    fn pause(&self, end: Option<Instant>) -> Option<Duration> {
        if !self.outcomes.is_empty() || !self.ready.is_empty() || self.rung {
            return Some(Duration::ZERO);
        }
        Some(end?.saturating_duration_since(Instant::now()))
    }

    /// Tries an operation that may be ready, and parks what remains of it.
    pub(super) fn turn(&mut self, object: Object, direction: Direction) {
        let Some(entry) = self.objects.get_mut(object) else { return };
        let side = entry.side(direction);
        if !side.ready {
            return;
        }
        let Some(mut task) = side.task.take() else { return };
        let room = self.limit.saturating_sub(self.outcomes.len());
        let turns = burst(&task.operation).min(room);
        for turn in 0..turns {
            match attempt(&self.calls, &self.pools, entry, &mut task) {
                Step::Blocked => {
                    entry.side(direction).ready = false;
                    return self.park(object, direction, task);
                }
                Step::Ended(result) => {
                    self.schedule.worked(result.max(0) as usize);
                    return self.outcomes.push_back(Outcome::plain(task.tag, result));
                }
                Step::Starved => return self.outcomes.push_back(Outcome::starved(task.tag)),
                Step::Brought { result, output, drained } => {
                    self.schedule.worked(result.max(0) as usize);
                    if matches!(output, Output::Lease(_)) {
                        self.leased_bytes += result.max(0) as usize;
                    }
                    if turn > 0 {
                        report_queue(self.outcomes.back_mut(), || true);
                    }
                    let more = task.repeats();
                    self.outcomes.push_back(Outcome { tag: task.tag, result, more, output });
                    if more && turn + 1 == turns {
                        // No connection follows the last one of a turn, so the kernel is asked.
                        let (calls, fd) = (&self.calls, entry.fd());
                        report_queue(self.outcomes.back_mut(), || calls.is_readable(fd));
                    }
                    entry.side(direction).ready = !drained;
                    if !more {
                        return;
                    }
                    if drained {
                        return self.park(object, direction, task);
                    }
                }
            }
        }
        entry.side(direction).task = Some(task);
        self.list(object, direction);
    }

    /// Parks a task until the next edge; registers the endpoint if necessary.
    fn park(&mut self, object: Object, direction: Direction, task: Task) {
        let Some(entry) = self.objects.get_mut(object) else { return };
        if !entry.registered {
            let token = u64::from(object.0);
            if let Err(errno) = self.poller.add(&self.calls, entry.fd(), token) {
                self.outcomes.push_back(Outcome::plain(task.tag, -errno));
                return;
            }
            entry.registered = true;
        }
        entry.side(direction).task = Some(task);
    }

    /// Adds a task to the ready list.
    fn list(&mut self, object: Object, direction: Direction) {
        let Some(entry) = self.objects.get_mut(object) else { return };
        let side = entry.side(direction);
        if !side.listed {
            side.listed = true;
            self.ready.push_back((object, direction));
        }
    }

    /// Tries each task on the ready list once, as long as there is room for outcomes, the cache
    /// holds what they bring, and the kernel need not be polled.
    pub(super) fn serve(&mut self) {
        self.take_finished(self.limit);
        for _ in 0..self.ready.len() {
            let full = self.outcomes.len() >= self.limit || self.leased_bytes >= LEASED_BYTES_MAX;
            if full || self.schedule.is_due() {
                break;
            }
            let Some((object, direction)) = self.ready.pop_front() else { break };
            if let Some(entry) = self.objects.get_mut(object) {
                entry.side(direction).listed = false;
                self.turn(object, direction);
            }
        }
    }

    /// Handles the events of a wait.
    pub(super) fn note(&mut self, events: usize) {
        for index in 0..events {
            let event = self.poller.event(index);
            if event.token == HELPERS {
                self.rung = true;
                continue;
            }
            let object = Object(event.token as u32);
            let Some(entry) = self.objects.get_mut(object) else { continue };
            if event.is_unusual() {
                entry.distrust_short_reads();
            }
            self.report_poll(object, event.bits());
            for (direction, ready) in
                [(Direction::Inbound, event.inbound()), (Direction::Outbound, event.outbound())]
            {
                if !ready {
                    continue;
                }
                let Some(entry) = self.objects.get_mut(object) else { continue };
                let side = entry.side(direction);
                side.ready = true;
                if side.task.is_some() {
                    self.list(object, direction);
                }
            }
        }
    }

    /// Takes the jobs that helper threads have completed, up to `limit` uncollected outcomes.
    pub(super) fn take_finished(&mut self, limit: usize) {
        let Some(helpers) = &self.helpers else { return };
        while self.rung && self.outcomes.len() < limit {
            let Some(finished) = helpers.take_finished() else {
                self.rung = false;
                return;
            };
            self.calls.add(finished.calls);
            self.outcomes.push_back(Outcome::plain(finished.tag, finished.result));
        }
    }
}

/// Records in the outcome of an accept whether the queue has more connections.
fn report_queue(outcome: Option<&mut Outcome>, waits: impl FnOnce() -> bool) {
    if let Some(Outcome { output: Output::Socket { queue_nonempty, .. }, .. }) = outcome {
        *queue_nonempty = waits();
    }
}
