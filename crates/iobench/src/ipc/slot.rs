//! One slot: two processes under the load, watched from outside, with the disturbed slices thrown
//! away as `compare` does.

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use clap::ValueEnum;
use ipcload::{Line, SliceReport};

use crate::client::slices::Slicing;
use crate::compare::slots::{DELAY_PART, LATE_NS, is_used_by_others, least_clean};
use crate::engine::outcome::SliceCounts;
use crate::error::{Context, Error, Result};
use crate::figures::{self, Times, new_times};
use crate::ipc::placement::Pair;
use crate::ipc::plan::{Slot, WARM_UP_NS};
use crate::server::process::end_within;
use crate::sys::affinity::{thread_id, wake_promptly};
use crate::sys::clock::now_ns;
use crate::sys::cpuclock;
use crate::sys::procstat::{CpuReader, CpuTicks, ThreadReader, ThreadTimes, softirq_threads};
use crate::sys::signals::{Signals, wait_for_any_within};

/// The processes give up by themselves before.
const LINE_TIMEOUT_NS: u64 = 30_000_000_000;
/// How long they may take to end once they are told.
const END_TIMEOUT_NS: u64 = 5_000_000_000;
/// What a slot without figures says.
const NO_MESSAGE: &str =
    "no message arrived while it was measured: try a longer --duration or a quieter machine";
/// Longest line that is read.
const LINE_BYTES_MAX: usize = 64 << 20;

/// What one slot says.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlotOutcome {
    /// Of the clean slices; absent when they were too few.
    pub(crate) figures: Option<Figures>,
    /// Of all slices.
    pub(crate) rough: Option<Figures>,
    pub(crate) slices: SliceCounts,
    /// Why the slot is worth nothing.
    pub(crate) complaint: Option<String>,
}

impl SlotOutcome {
    pub(crate) fn failed(complaint: String) -> SlotOutcome {
        SlotOutcome { complaint: Some(complaint), ..SlotOutcome::default() }
    }
}

/// A slot's figures over some of its slices.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figures {
    /// Messages, or round trips, per second.
    pub(crate) messages_s: f64,
    /// CPU of the first and of the second process for each, in microseconds.
    pub(crate) cpu_us: [f64; 2],
    /// Times of round trips, as `figures::encode` writes them; empty for one way.
    pub(crate) latencies: String,
}

/// Watches a pair of CPUs; made once for a run.
pub(crate) struct Watcher<'a> {
    pair: Pair,
    cpus: CpuReader,
    softirq: Vec<ThreadReader>,
    own: ThreadReader,
    signals: &'a Signals,
    interrupted: OwnedFd,
}

/// The state of everything at a slice's border.
#[derive(Debug, Clone, Copy, Default)]
struct Border {
    at_ns: u64,
    ticks: CpuTicks,
    threads: [ThreadTimes; 2],
    /// CPU time of the two processes, helpers included.
    processes_ns: [u64; 2],
    softirq_ns: u64,
    own_ns: u64,
}

/// The two processes as they were announced.
struct Watched {
    processes: [u32; 2],
    threads: [ThreadReader; 2],
    helpers: bool,
}

impl<'a> Watcher<'a> {
    pub(crate) fn new(pair: Pair, signals: &'a Signals) -> Result<Watcher<'a>> {
        Ok(Watcher {
            pair,
            cpus: CpuReader::new(&pair.distinct())?,
            softirq: softirq_threads(&pair.distinct()),
            own: ThreadReader::new(std::process::id(), thread_id())?,
            signals,
            interrupted: signals.descriptor()?,
        })
    }

    pub(crate) fn pair(&self) -> Pair {
        self.pair
    }

    /// Runs `command` with the options of this slot.
    pub(crate) fn run(
        &mut self,
        command: Command,
        slot: &Slot,
        slicing: Slicing,
    ) -> Result<SlotOutcome> {
        let mut running = Running::start(command, slot, slicing)?;
        let (processes, helpers, start_ns) = match running.line(&self.interrupted)? {
            Ok(Line::Ready { processes, helpers, start_ns }) => (processes, helpers, start_ns),
            other => return Ok(SlotOutcome::failed(complaint_in(other))),
        };
        let thread = |process: u32| ThreadReader::new(process, process as i32);
        let (Ok(one), Ok(other)) = (thread(processes[0]), thread(processes[1])) else {
            // One of them has ended; what comes next says why.
            return Ok(SlotOutcome::failed(complaint_in(running.line(&self.interrupted)?)));
        };
        let watched = Watched { processes, threads: [one, other], helpers };
        let prompt = wake_promptly();
        let mut borders = Vec::with_capacity(slicing.count + 1);
        for border in 0..=slicing.count as u64 {
            self.signals.sleep_until(start_ns + border * slicing.length_ns)?;
            borders.push(self.sample(&watched));
        }
        drop(prompt);
        match running.line(&self.interrupted)? {
            Ok(Line::Done { slices, complaint: None }) if slices.len() == slicing.count => {
                self.evaluate(&watched, start_ns, slicing, &borders, &slices)
            }
            other => Ok(SlotOutcome::failed(complaint_in(other))),
        }
    }

    fn sample(&mut self, watched: &Watched) -> Border {
        let process_ns = |process| cpuclock::process_ns(process).unwrap_or(0);
        Border {
            at_ns: now_ns(),
            processes_ns: watched.processes.map(process_ns),
            threads: [watched.threads[0].read(), watched.threads[1].read()],
            ticks: self.cpus.read(),
            softirq_ns: self.softirq.iter().map(|thread| thread.read().run_ns).sum(),
            own_ns: self.own.read().run_ns,
        }
    }

    fn evaluate(
        &self,
        watched: &Watched,
        start_ns: u64,
        slicing: Slicing,
        borders: &[Border],
        slices: &[SliceReport],
    ) -> Result<SlotOutcome> {
        // Where threads wait for each other only the whole slot tells whether others were there.
        let shared = self.pair.cpus[0] == self.pair.cpus[1] || watched.helpers;
        let foreign = shared && self.used_by_others(borders);
        let mut outcome = SlotOutcome::default();
        let (mut clean, mut all) = (Sums::new(), Sums::new());
        for (index, (border, slice)) in borders.windows(2).zip(slices).enumerate() {
            let (from, to) = (&border[0], &border[1]);
            let due_ns = start_ns + index as u64 * slicing.length_ns;
            let late =
                from.at_ns > due_ns + LATE_NS || to.at_ns > due_ns + slicing.length_ns + LATE_NS;
            all.add(from, to, slice, slicing.length_ns);
            if to.ticks.steal != from.ticks.steal {
                outcome.slices.stolen += 1;
            } else if foreign || (!shared && was_delayed(from, to, slicing.length_ns)) {
                outcome.slices.delayed += 1;
            } else if late {
                outcome.slices.late += 1;
            } else {
                outcome.slices.clean += 1;
                clean.add(from, to, slice, slicing.length_ns);
            }
        }
        if outcome.slices.clean as usize >= least_clean(slicing.count) {
            outcome.figures = clean.figures()?;
        }
        outcome.rough = all.figures()?;
        if outcome.rough.is_none() {
            outcome.complaint = Some(NO_MESSAGE.to_owned());
        }
        Ok(outcome)
    }

    fn used_by_others(&self, borders: &[Border]) -> bool {
        let (Some(first), Some(last)) = (borders.first(), borders.last()) else { return false };
        let ours = |border: &Border| {
            border.processes_ns.iter().sum::<u64>() + border.softirq_ns + border.own_ns
        };
        let ours_ns = ours(last).saturating_sub(ours(first));
        let wall_ns = last.at_ns.saturating_sub(first.at_ns);
        let cpus = self.pair.distinct().len();
        is_used_by_others(&first.ticks, &last.ticks, ours_ns, wall_ns, cpus)
    }
}

/// Why a measurement failed whose process said this where figures were expected.
fn complaint_in(line: Result<Line, String>) -> String {
    match line {
        Ok(Line::Done { complaint: Some(complaint), .. }) => complaint,
        Ok(_) => "the measuring process did not report the slices that were asked for; build \
                  iobench and iobench-peers from the same sources"
            .to_owned(),
        Err(complaint) => complaint,
    }
}

/// A process that owns its CPU waited for it, and neither for the kernel's work on its own messages
/// nor for the sampling from here.
fn was_delayed(from: &Border, to: &Border, slice_ns: u64) -> bool {
    let ours_ns = |border: &Border| border.softirq_ns + border.own_ns;
    let limit_ns = slice_ns / DELAY_PART + ours_ns(to).saturating_sub(ours_ns(from));
    let mut threads = from.threads.iter().zip(&to.threads);
    threads.any(|(from, to)| to.delay_ns.saturating_sub(from.delay_ns) > limit_ns)
}

/// Totals over slices.
struct Sums {
    messages: u64,
    time_ns: u64,
    cpu_ns: [u64; 2],
    latencies: Times,
}

impl Sums {
    fn new() -> Sums {
        Sums { messages: 0, time_ns: 0, cpu_ns: [0; 2], latencies: new_times() }
    }

    fn add(&mut self, from: &Border, to: &Border, slice: &SliceReport, slice_ns: u64) {
        self.messages += slice.messages;
        self.time_ns += slice_ns;
        for side in 0..2 {
            self.cpu_ns[side] += to.processes_ns[side].saturating_sub(from.processes_ns[side]);
        }
        for &(value_ns, count) in &slice.latencies {
            self.latencies.saturating_record_n(value_ns, count);
        }
    }

    fn figures(&self) -> Result<Option<Figures>> {
        if self.messages == 0 {
            return Ok(None);
        }
        let messages = self.messages as f64;
        let latencies = match self.latencies.is_empty() {
            true => String::new(),
            false => figures::encode(&self.latencies)?,
        };
        Ok(Some(Figures {
            messages_s: messages * 1e9 / self.time_ns as f64,
            cpu_us: self.cpu_ns.map(|cpu_ns| cpu_ns as f64 / 1e3 / messages),
            latencies,
        }))
    }
}

/// The first process. Dropping it ends both.
struct Running {
    child: Child,
    lifeline: Option<ChildStdin>,
    stdout: ChildStdout,
    buffer: Vec<u8>,
}

impl Running {
    fn start(mut command: Command, slot: &Slot, slicing: Slicing) -> Result<Running> {
        let pattern = slot.pattern.to_possible_value();
        let pattern = pattern.map(|value| value.get_name().to_owned()).unwrap_or_default();
        let [first, second] = slot.pair.cpus;
        let options = [
            ("--pattern", pattern),
            ("--message-bytes", slot.message_bytes.to_string()),
            ("--cpus", format!("{first},{second}")),
            ("--batch", slot.batch.to_string()),
            ("--warm-up-ns", WARM_UP_NS.to_string()),
            ("--slice-ns", slicing.length_ns.to_string()),
            ("--slices", slicing.count.to_string()),
        ];
        for (option, value) in options {
            command.arg(option).arg(value);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .context("start a process to measure in", "mount /proc; see `ulimit -u`")?;
        let (lifeline, stdout) = (child.stdin.take(), child.stdout.take());
        let stdout = stdout.ok_or_else(|| Error::setup("a pipe is missing", "report this"))?;
        Ok(Running { child, lifeline, stdout, buffer: Vec::new() })
    }

    /// The next line, or why there is none.
    fn line(&mut self, interrupted: &OwnedFd) -> Result<Result<Line, String>> {
        let deadline_ns = now_ns() + LINE_TIMEOUT_NS;
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let broken = |error| {
                    format!(
                        "the report of the measuring process cannot be read ({error}); build \
                         iobench and iobench-peers from the same sources"
                    )
                };
                return Ok(serde_json::from_slice(&line).map_err(broken));
            }
            let left_ms = deadline_ns.saturating_sub(now_ns()) / 1_000_000;
            let descriptors = [self.stdout.as_raw_fd(), interrupted.as_raw_fd()];
            match wait_for_any_within(&descriptors, left_ms as i32) {
                Some(0) => {}
                Some(_) => return Err(Error::Interrupted),
                None if left_ms == 0 => return Ok(Err(no_answer())),
                None => continue,
            }
            let mut chunk = [0; 64 << 10];
            let read = self.stdout.read(&mut chunk).unwrap_or(0);
            self.buffer.extend_from_slice(&chunk[..read]);
            if read == 0 || self.buffer.len() > LINE_BYTES_MAX {
                let _ = self.child.kill();
                let status = self.child.wait();
                let status = status.map_or_else(|error| error.to_string(), |s| s.to_string());
                return Ok(Err(format!(
                    "the measuring process ended in the middle ({status}); its last words stand \
                     above, and `dmesg` tells if the kernel ended it"
                )));
            }
        }
    }
}

fn no_answer() -> String {
    format!(
        "the measuring process did not answer within {} s; end other programs that use its CPUs, \
         or report this",
        LINE_TIMEOUT_NS / 1_000_000_000
    )
}

impl Drop for Running {
    fn drop(&mut self) {
        self.lifeline = None;
        end_within(&mut self.child, END_TIMEOUT_NS);
    }
}
