//! Runs one slot: starts two processes under the load, samples them from outside, and discards the
//! disturbed slices as `compare` does.

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use clap::ValueEnum;
use ipcload::{Line, SliceReport};

use crate::client::slices::Slicing;
use crate::engine::rounds::Slot as Measured;
use crate::engine::sampler::{Border, ClientSide, Sampler, ServerSide, Sides, Used, findings};
use crate::engine::slices::{Finding, SliceCounts, least_clean};
use crate::error::{Context, Error, Result};
use crate::figures::{self, Times, new_times};
use crate::ipc::placement::Pair;
use crate::ipc::plan::{Slot, WARM_UP_NS};
use crate::server::process::end_within;
use crate::sys::clock::now_ns;
use crate::sys::cpuclock;
use crate::sys::signals::{Signals, interrupt, wait_for_any_within};

/// Time-out of a line from the processes; longer than their own time-outs.
const LINE_TIMEOUT_NS: u64 = 30_000_000_000;
/// Longest time for the processes to end after they were asked to.
const END_TIMEOUT_NS: u64 = 5_000_000_000;
/// The complaint about a slot without messages.
const NO_MESSAGE: &str =
    "in a round no message arrived: try a longer --duration or a quieter machine";
/// Longest line that is read.
const LINE_BYTES_MAX: usize = 64 << 20;

/// The outcome of one slot.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlotOutcome {
    /// Over the clean slices; absent if these were too few.
    pub(crate) figures: Option<Figures>,
    /// Over all slices.
    pub(crate) rough: Option<Figures>,
    pub(crate) slices: SliceCounts,
    /// Why the slot cannot be used.
    pub(crate) complaint: Option<String>,
}

impl SlotOutcome {
    /// Returns the outcome of a slot that failed.
    pub(crate) fn failed(complaint: String) -> SlotOutcome {
        SlotOutcome { complaint: Some(complaint), ..SlotOutcome::default() }
    }
}

impl Measured for SlotOutcome {
    fn slices(&self) -> SliceCounts {
        self.slices
    }

    fn is_clean(&self) -> bool {
        self.figures.is_some()
    }

    fn has_failed(&self) -> bool {
        self.complaint.is_some()
    }
}

/// A slot's figures over some of its slices.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figures {
    /// Messages, or round trips, per second.
    pub(crate) messages_s: f64,
    /// CPU time per message or round trip of the first and of the second process, in microseconds.
    pub(crate) cpu_us: [f64; 2],
    /// Histogram of the round trips, encoded by `figures::encode`; empty for one-way.
    pub(crate) latencies: String,
}

/// Runs and samples pairs of processes; one for the whole run.
pub(crate) struct Watcher<'a> {
    signals: &'a Signals,
    interrupted: OwnedFd,
}

/// The two processes as they announced themselves, and their samplers.
struct Watched {
    processes: [u32; 2],
    sampler: Sampler,
}

impl Watched {
    fn new(pair: Pair, processes: [u32; 2], helpers: bool) -> Result<Watched> {
        let [client_cpu, server_cpu] = pair.cpus;
        let [client, server] = processes.map(|process| process as i32);
        // With helper threads, the threads of an end wait for each other.
        let client_side = ClientSide { cpus: vec![client_cpu], owned: true, roaming: helpers };
        let cpus = vec![server_cpu];
        let server_side = ServerSide { cpus, threads: vec![server], alone: !helpers };
        let sampler = Sampler::new(&client_side, &[client], Some(&server_side))?;
        Ok(Watched { processes, sampler })
    }

    fn watch(&mut self, signals: &Signals, start_ns: u64, slicing: Slicing) -> Result<Vec<Border>> {
        let processes = self.processes;
        self.sampler.watch(signals, start_ns, slicing, || {
            let [client_ns, server_ns] =
                processes.map(|process| cpuclock::process_ns(process).unwrap_or(0));
            Used { client_ns: Some(client_ns), server_ns }
        })
    }
}

impl<'a> Watcher<'a> {
    pub(crate) fn new(signals: &'a Signals) -> Result<Watcher<'a>> {
        Ok(Watcher { signals, interrupted: signals.descriptor()? })
    }

    /// Runs `command` with the options of this slot.
    pub(crate) fn run(
        &self,
        command: Command,
        slot: &Slot,
        slicing: Slicing,
    ) -> Result<SlotOutcome> {
        let mut running = Running::start(command, slot, slicing)?;
        let (processes, helpers, start_ns) = match running.line(&self.interrupted)? {
            Ok(Line::Ready { processes, helpers, start_ns }) => (processes, helpers, start_ns),
            other => return Ok(SlotOutcome::failed(complaint_in(other))),
        };
        let Ok(mut watched) = Watched::new(slot.pair, processes, helpers) else {
            // One of the processes has ended; the next line says why.
            return Ok(SlotOutcome::failed(complaint_in(running.line(&self.interrupted)?)));
        };
        let borders = watched.watch(self.signals, start_ns, slicing)?;
        match running.line(&self.interrupted)? {
            Ok(Line::Done { slices, complaint: None }) if slices.len() == slicing.count => {
                evaluate(watched.sampler.sides(), start_ns, slicing, &borders, &slices)
            }
            other => Ok(SlotOutcome::failed(complaint_in(other))),
        }
    }
}

fn evaluate(
    sides: Sides,
    start_ns: u64,
    slicing: Slicing,
    borders: &[Border],
    slices: &[SliceReport],
) -> Result<SlotOutcome> {
    let mut outcome = SlotOutcome::default();
    let (mut clean, mut all) = (Sums::new(), Sums::new());
    let findings = findings(borders, sides, Some((start_ns, slicing)));
    for ((pair, slice), finding) in borders.windows(2).zip(slices).zip(findings) {
        outcome.slices.count(finding);
        all.add(&pair[0], &pair[1], slice, slicing.length_ns);
        if finding == Finding::Clean {
            clean.add(&pair[0], &pair[1], slice, slicing.length_ns);
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

/// Returns the complaint about a measurement whose process wrote this line instead of figures.
fn complaint_in(line: Result<Line, String>) -> String {
    match line {
        Ok(Line::Done { complaint: Some(complaint), .. }) => complaint,
        Ok(_) => "the measuring process did not report the slices that were asked for; build \
                  iobench and iobench-external from the same sources"
            .to_owned(),
        Err(complaint) => complaint,
    }
}

/// Sums over slices.
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
        let used = |border: &Border| [border.used.client_ns.unwrap_or(0), border.used.server_ns];
        for (sum, (to, from)) in self.cpu_ns.iter_mut().zip(used(to).into_iter().zip(used(from))) {
            *sum += to.saturating_sub(from);
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
            .context("start a process to measure in", "mount /proc, and raise `ulimit -u`")?;
        let (lifeline, stdout) = (child.stdin.take(), child.stdout.take());
        let stdout =
            stdout.ok_or_else(|| Error::setup("a pipe is missing", "report this as a bug"))?;
        Ok(Running { child, lifeline, stdout, buffer: Vec::new() })
    }

    /// Returns the next line, or a description of why there is none.
    fn line(&mut self, interrupted: &OwnedFd) -> Result<Result<Line, String>> {
        let deadline_ns = now_ns() + LINE_TIMEOUT_NS;
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let broken = |error| {
                    format!(
                        "the report of the measuring process cannot be read ({error}); build \
                         iobench and iobench-external from the same sources"
                    )
                };
                return Ok(serde_json::from_slice(&line).map_err(broken));
            }
            let left_ms = deadline_ns.saturating_sub(now_ns()) / 1_000_000;
            let descriptors = [self.stdout.as_raw_fd(), interrupted.as_raw_fd()];
            match wait_for_any_within(&descriptors, left_ms as i32) {
                Some(0) => {}
                Some(_) => return Err(interrupt()),
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
