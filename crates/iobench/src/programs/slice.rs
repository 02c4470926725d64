//! One slice: a client from its start to its end, with what both sides used.

use std::time::Duration;

use crate::compare::slots::is_used_by_others;
use crate::engine::outcome::SliceCounts;
use crate::error::Result;
use crate::ipc::placement::Pair;
use crate::load::external::{Run, run_to_end};
use crate::programs::link::Evidence;
use crate::programs::server::Server;
use crate::programs::{Amount, Cell, Printed, Program};
use crate::results::ReportedLatency;
use crate::sys::clock::now_ns;
use crate::sys::procstat::{CpuReader, CpuTicks, TICK_NS, ThreadReader, softirq_threads};
use crate::sys::signals::Signals;

/// How long a client may take beyond the time that it was meant to.
const END_LIMIT: Duration = Duration::from_secs(30);
/// A slice that lost more than this part (1/50) of its time to the host says nothing.
const STOLEN_PART: u64 = 50;

/// What one slice says.
#[derive(Debug, Clone, Default)]
pub(crate) struct SliceOutcome {
    /// Nothing if the client failed.
    pub(crate) figures: Option<Figures>,
    /// One slice, counted where it belongs.
    pub(crate) slices: SliceCounts,
    /// Connections that left the kernel's TCP, where that was wanted.
    pub(crate) upgraded: Option<u64>,
    /// Why the slice is worth nothing.
    pub(crate) complaint: Option<String>,
}

impl SliceOutcome {
    pub(crate) fn is_clean(&self) -> bool {
        self.slices.clean > 0
    }
}

/// Of one slice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    pub(crate) operations: u64,
    pub(crate) operations_s: f64,
    pub(crate) latency: ReportedLatency,
    /// CPU time for each operation.
    pub(crate) server_cpu_us: f64,
    pub(crate) client_cpu_us: f64,
    /// Both sides together, with a backend and the kernel's threads that finish the network's
    /// work.
    pub(crate) cpu_both_us: f64,
}

/// Runs clients of one program on one pair of CPUs.
pub(crate) struct Slicer<'a> {
    program: &'a dyn Program,
    pair: Pair,
    signals: &'a Signals,
    cpus: CpuReader,
    softirq: Vec<ThreadReader>,
}

/// The state of everything before and after.
struct Border {
    at_ns: u64,
    ticks: CpuTicks,
    server_ns: u64,
    backend_ns: u64,
    softirq_ns: u64,
    answered: Option<u64>,
}

impl<'a> Slicer<'a> {
    pub(crate) fn new(
        program: &'a dyn Program,
        pair: Pair,
        signals: &'a Signals,
    ) -> Result<Slicer<'a>> {
        let cpus = CpuReader::new(&pair.distinct())?;
        let softirq = softirq_threads(&pair.distinct());
        Ok(Slicer { program, pair, signals, cpus, softirq })
    }

    /// Loads the server once.
    pub(crate) fn measure(
        &mut self,
        server: &mut Server,
        cell: &Cell,
        amount: Amount,
    ) -> Result<SliceOutcome> {
        let words = server.client_command(self.program, cell, amount)?;
        let counts = match server.count() {
            Ok(counts) => counts,
            Err(complaint) => return Ok(failed(complaint)),
        };
        let limit = amount.duration * 2 + END_LIMIT;
        let mut before = self.sample(server);
        before.answered = self.program.answered(&server.target(), cell.operation);
        // What that cost the server is not the client's doing.
        before.server_ns = server.process.cpu_time_ns();
        let entered = server.enter_client()?;
        let run = run_to_end(&words, &[self.pair.cpus[1]], limit, self.signals)?;
        drop(entered);
        let lives = server.process.drain(self.signals)?;
        let mut after = self.sample(server);
        after.answered = self.program.answered(&server.target(), cell.operation);
        if !lives {
            let output = server.process.describe_output();
            return Ok(failed(format!("the server ended{output}")));
        }
        let printed = match self.judge(&run, cell, amount, &before, &after) {
            Ok(printed) => printed,
            Err(complaint) => return Ok(failed(complaint)),
        };
        let client_ns = run.ended.map_or(0, |ended| ended.cpu_ns);
        let outcome = self.evaluate(&printed, client_ns, &before, &after);
        let wanted = self.program.connections(cell, &printed);
        Ok(match server.judge(&counts, wanted) {
            Ok(Evidence { connections, complaint }) => {
                SliceOutcome { upgraded: connections, complaint, ..outcome }
            }
            Err(complaint) => SliceOutcome { complaint: Some(complaint), ..outcome },
        })
    }

    fn sample(&mut self, server: &Server) -> Border {
        Border {
            at_ns: now_ns(),
            ticks: self.cpus.read(),
            server_ns: server.process.cpu_time_ns(),
            backend_ns: server.backend_cpu_time_ns(),
            softirq_ns: self.softirq.iter().map(|thread| thread.read().run_ns).sum(),
            answered: None,
        }
    }

    /// What the client printed, if the server agrees.
    fn judge(
        &self,
        run: &Run,
        cell: &Cell,
        amount: Amount,
        before: &Border,
        after: &Border,
    ) -> Result<Printed, String> {
        let Some(ended) = run.ended else {
            return Err("the client did not end in time".to_owned());
        };
        if !ended.status.success() {
            let last = run.text.lines().last().unwrap_or("it said nothing");
            return Err(format!("the client failed ({}): {last}", ended.status));
        }
        let printed = self.program.parse(&run.text, cell, amount)?;
        if let Some((before, after)) = before.answered.zip(after.answered) {
            let answered = after.saturating_sub(before);
            // A client may ask for more until it notices that it has enough.
            let most = printed.operations + u64::from(cell.connections) * u64::from(cell.pipeline);
            if !(printed.operations..=most).contains(&answered) {
                let asked = printed.operations;
                return Err(format!("the server counted {answered} operations, not {asked}"));
            }
        }
        Ok(printed)
    }

    fn evaluate(
        &self,
        printed: &Printed,
        client_ns: u64,
        before: &Border,
        after: &Border,
    ) -> SliceOutcome {
        let server_ns = after.server_ns.saturating_sub(before.server_ns);
        let softirq_ns = after.softirq_ns.saturating_sub(before.softirq_ns);
        let wall_ns = after.at_ns.saturating_sub(before.at_ns);
        let stolen_ns = after.ticks.steal.saturating_sub(before.ticks.steal) * TICK_NS;
        let backend_ns = after.backend_ns.saturating_sub(before.backend_ns);
        let ours_ns = server_ns + client_ns + backend_ns + softirq_ns;
        let cpus = self.pair.distinct().len();
        let mut slices = SliceCounts::default();
        if stolen_ns > wall_ns / STOLEN_PART {
            slices.stolen = 1;
        } else if is_used_by_others(&before.ticks, &after.ticks, ours_ns, wall_ns, cpus) {
            slices.delayed = 1;
        } else {
            slices.clean = 1;
        }
        let each_us = |ns: u64| ns as f64 / 1e3 / printed.operations.max(1) as f64;
        let figures = Figures {
            operations: printed.operations,
            operations_s: printed.operations_s,
            latency: printed.latency,
            server_cpu_us: each_us(server_ns),
            client_cpu_us: each_us(client_ns),
            cpu_both_us: each_us(ours_ns),
        };
        SliceOutcome { figures: Some(figures), slices, ..SliceOutcome::default() }
    }
}

fn failed(complaint: String) -> SliceOutcome {
    SliceOutcome { complaint: Some(complaint), ..SliceOutcome::default() }
}
