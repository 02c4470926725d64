//! Ends a run: reads the unread bytes, closes one side after the other, and checks how each stream
//! ends.

use crate::host::Request;
use crate::model::Checked;
use crate::plan::Plan;
use crate::protocol::{Call, Reply};
use crate::rules::Rule;
use crate::run::{Pace, Run, Step};
use crate::script::Verb;
use fuzzkit::Failure;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long the reference waits for bytes that do not arrive.
const REFERENCE_WAIT: Duration = Duration::from_millis(5);
/// The end of a stream that was never connected.
const NOT_CONNECTED: &str = "errno 107";
/// Bytes of one read.
const READ_BYTES: i64 = 256 << 10;

impl Run<'_> {
    pub(crate) fn finish(&mut self) -> Checked {
        self.end_polls()?;
        self.drain()?;
        self.await_ends()?;
        self.final_step()?;
        for child in [2, 3] {
            if self.model.processes[child].is_live {
                self.end(child, false)?;
            }
        }
        self.close_all(0)?;
        self.final_step()?;
        self.drain()?;
        self.look_at_ends()?;
        self.close_all(1)?;
        self.final_step()
    }

    /// Interrupts the calls that wait for events, because they would hold what is closed next.
    fn end_polls(&mut self) -> Checked {
        let polls = |plan: &Plan| matches!(plan.op.verb, Verb::Poll | Verb::EpollWait);
        let mut ids: Vec<usize> = self.waiting.keys().copied().collect();
        ids.retain(|id| polls(&self.waiting[id].plan));
        for id in ids {
            let process = self.waiting[&id].plan.op.process;
            self.pair.ask(process, &Request::new(Call::Interrupt, &[id as i64]))?;
        }
        self.final_step()
    }

    fn final_step(&mut self) -> Checked {
        self.outcome.steps.push(Step::default());
        self.collect(self.outcome.steps.len() - 1)
    }

    /// Closes the descriptors of a process.
    fn close_all(&mut self, process: usize) -> Checked {
        let slots = std::mem::take(&mut self.model.processes[process].slots);
        if self.model.processes[process].is_live {
            let open: Vec<i64> = slots.iter().flatten().map(|slot| slot.fd).collect();
            self.pair.ask(process, &Request::new(Call::Reset, &open))?;
        }
        Ok(())
    }

    /// Reads until all written bytes have arrived, or no more arrive.
    fn drain(&mut self) -> Checked {
        let wait = if self.expected.is_some() { self.pace.limit } else { REFERENCE_WAIT };
        let mut until = Instant::now() + wait;
        loop {
            let (mut moves, mut is_whole) = (false, true);
            for connection in 0..self.model.connections.len() {
                for side in [0, 1] {
                    let count = self.read_more((connection, side))?;
                    moves |= count > 0;
                    let has_reader = self.model.ends(connection)[side].is_some();
                    let direction = self.model.incoming((connection, side));
                    let lacks = direction.read < direction.written && !direction.is_unchecked;
                    let has_ended = self.outcome.ends.contains_key(&(connection, side));
                    let is_open = lacks && has_reader && !has_ended;
                    is_whole &= !(is_open || direction.has_writer);
                }
            }
            if moves {
                until = Instant::now() + wait;
                // A call that waited for room continues.
                let last = self.outcome.steps.len() - 1;
                if !self.waiting.is_empty() {
                    self.release(last)?;
                }
                continue;
            }
            if is_whole || Instant::now() > until {
                return Ok(());
            }
            sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the ends that the reference has seen by now: the first process closes its sides
    /// next, and sees no more ends.
    fn await_ends(&mut self) -> Checked {
        self.outcome.first_ends = self.outcome.ends.keys().copied().collect();
        let Some(expected) = self.expected else { return Ok(()) };
        for end in &expected.first_ends {
            let begin = Instant::now();
            let has_come = |run: &Run<'_>| {
                let Some(connection) = run.model.connections.get(end.0) else { return true };
                // The peers of a killed process are reset once the kernel has freed its device.
                let limit = if connection.lacks_stack { Pace::SLOW.limit } else { run.pace.limit };
                let is_over =
                    run.has_diverged || connection.has_diverged || begin.elapsed() > limit;
                is_over || run.outcome.ends.contains_key(end)
            };
            while !has_come(self) {
                self.read_more(*end)?;
                sleep(Duration::from_micros(500));
            }
        }
        Ok(())
    }

    /// Records calls that have returned meanwhile, without comparing when they did.
    fn release(&mut self, at: usize) -> Checked {
        let expected = self.expected.take();
        let result = self.collect(at);
        self.expected = expected;
        result
    }

    /// Reads once from a side, without waiting; returns the number of bytes.
    fn read_more(&mut self, end: (usize, usize)) -> Checked<usize> {
        if self.model.incoming(end).has_reader || self.outcome.ends.contains_key(&end) {
            return Ok(0);
        }
        let Some((process, at)) = self.model.ends(end.0)[end.1] else { return Ok(0) };
        let Some(slot) = self.model.slot(process, at) else { return Ok(0) };
        let flags = i64::from(libc::MSG_DONTWAIT);
        let request = Request::new(Call::Read, &[slot.fd, READ_BYTES, 1, flags]);
        let Reply::Done(answer) = self.pair.ask(process, &request)? else { return Ok(0) };
        let place = format!("at the end, connection {} side {}", end.0, end.1);
        let result = self.model.incoming(end).take(&answer.bytes, false);
        self.place(result, &place)?;
        if answer.result == 0 {
            let result = self.model.incoming(end).end();
            self.place(result, &place)?;
            self.outcome.ends.insert(end, "a good end".to_string());
        } else if answer.result < 0 && answer.errno != i64::from(libc::EAGAIN) {
            self.outcome.ends.insert(end, format!("errno {}", answer.errno));
        }
        Ok(answer.result.max(0) as usize)
    }

    /// Compares how the streams end at the second process, whose peer has closed all its
    /// descriptors.
    fn look_at_ends(&mut self) -> Checked {
        let Some(expected) = self.expected else { return Ok(()) };
        for (end, wanted) in &expected.ends {
            let until = Instant::now() + self.pace.limit;
            while !self.outcome.ends.contains_key(end) && Instant::now() < until {
                self.read_more(*end)?;
                sleep(Duration::from_micros(500));
            }
            let found = self.outcome.ends.get(end).map_or("no end", String::as_str);
            let connection = &self.model.connections[end.0];
            if found == wanted {
                continue;
            }
            if self.has_diverged || connection.has_diverged || connection.is_crowded {
                self.outcome.rules.used(Rule::DivergedState);
                continue;
            }
            let is_broken = found.starts_with("errno");
            let rules = [
                (is_broken && connection.lacks_killed, Rule::UnreadOfKilled),
                (is_broken && connection.lacks_shut, Rule::UnreadOfShut),
                (is_broken && connection.has_late_bytes, Rule::WriteToKilled),
                (is_broken && connection.lacks_stack, Rule::StackEnded),
                (found == NOT_CONNECTED && self.model.is_told_and_given(end.0), Rule::AfterReset),
                // Bytes that were held back had not arrived, so they were not unread.
                (self.model.holds_at_end(end.0), Rule::HeldBack),
                (self.model.lags_at_shut(end.0), Rule::HeldBack),
            ];
            if let Some((_, rule)) = rules.into_iter().find(|(holds, _)| *holds) {
                self.outcome.rules.used(rule);
                continue;
            }
            self.find_end(*end, wanted, found.to_string());
        }
        Ok(())
    }

    fn find_end(&mut self, end: (usize, usize), wanted: &str, found: String) {
        let class = format!("end of stream: plain [{wanted}], other [{found}]");
        let text = format!("what comes to side {} of connection {}", end.1, end.0);
        self.watch.note(|| format!("DIFFERENT {class}: {text}"));
        self.outcome.differences.push(Failure::new(class, text));
    }
}
