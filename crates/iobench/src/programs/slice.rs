//! Runs one slice: a client from its start to its end, with the CPU time of both sides.

use std::time::Duration;

use crate::engine::rounds::Slot;
use crate::engine::sampler::{Border, ClientSide, Sampler, ServerSide, Sides, Used};
use crate::engine::slices::SliceCounts;
use crate::error::Result;
use crate::ipc::placement::Pair;
use crate::load::external::{Run, run_to_end};
use crate::programs::link::Evidence;
use crate::programs::server::Server;
use crate::programs::{Amount, Cell, Printed, Program};
use crate::results::ReportedLatency;
use crate::sys::signals::Signals;

/// Longest time of a client beyond its intended duration.
const END_LIMIT: Duration = Duration::from_secs(30);

/// The outcome of one slice.
#[derive(Debug, Clone, Default)]
pub(crate) struct SliceOutcome {
    /// `None` if the client failed.
    pub(crate) figures: Option<Figures>,
    /// One slice, counted by its finding.
    pub(crate) slices: SliceCounts,
    /// Connections that did not use the kernel's TCP, if they should not.
    pub(crate) upgraded: Option<u64>,
    /// Why the slice cannot be used.
    pub(crate) complaint: Option<String>,
}

impl Slot for SliceOutcome {
    fn slices(&self) -> SliceCounts {
        self.slices
    }

    fn is_clean(&self) -> bool {
        self.slices.clean > 0
    }

    fn has_failed(&self) -> bool {
        self.complaint.is_some()
    }
}

/// The figures of one slice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    pub(crate) operations: u64,
    pub(crate) operations_s: f64,
    pub(crate) latency: ReportedLatency,
    /// CPU time per operation.
    pub(crate) server_cpu_us: f64,
    pub(crate) client_cpu_us: f64,
    /// Both sides together, with a backend and the kernel's threads that process packets.
    pub(crate) cpu_both_us: f64,
}

/// Runs clients of one program on one pair of CPUs.
pub(crate) struct Slicer<'a> {
    program: &'a dyn Program,
    pair: Pair,
    signals: &'a Signals,
}

impl<'a> Slicer<'a> {
    pub(crate) fn new(program: &'a dyn Program, pair: Pair, signals: &'a Signals) -> Slicer<'a> {
        Slicer { program, pair, signals }
    }

    /// Loads the server once.
    pub(crate) fn measure(
        &self,
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
        let mut sampler = self.sampler()?;
        let answered = self.program.answered(&server.target(), cell.operation);
        // The cost of the server's start does not count for the client.
        let before = sampler.border(used(server, 0));
        let entered = server.enter_client()?;
        let run = run_to_end(&words, &[self.pair.cpus[1]], limit, self.signals)?;
        drop(entered);
        let lives = server.process.drain(self.signals)?;
        let client_ns = run.ended.map_or(0, |ended| ended.cpu_ns);
        let after = sampler.border(used(server, client_ns));
        let answered = answered.zip(self.program.answered(&server.target(), cell.operation));
        if !lives {
            let output = server.process.describe_output();
            return Ok(failed(format!("the server ended{output}")));
        }
        let printed = match self.judge(&run, cell, amount, answered) {
            Ok(printed) => printed,
            Err(complaint) => return Ok(failed(complaint)),
        };
        let outcome = evaluate(&printed, client_ns, &[before, after], sampler.sides());
        let wanted = self.program.connections(cell, &printed);
        Ok(match server.judge(&counts, wanted) {
            Ok(Evidence { connections, complaint }) => {
                SliceOutcome { upgraded: connections, complaint, ..outcome }
            }
            Err(complaint) => SliceOutcome { complaint: Some(complaint), ..outcome },
        })
    }

    /// Returns a sampler; the server's threads may come and go.
    fn sampler(&self) -> Result<Sampler> {
        let [server_cpu, client_cpu] = self.pair.cpus;
        // Backends and the engine threads of stacks may run on the measured CPUs.
        let client = ClientSide { cpus: vec![client_cpu], owned: true, roaming: true };
        let server = ServerSide { cpus: vec![server_cpu], threads: Vec::new(), alone: false };
        Sampler::new(&client, &[], Some(&server))
    }

    /// Parses the client's output, and compares it with the server's counter.
    fn judge(
        &self,
        run: &Run,
        cell: &Cell,
        amount: Amount,
        answered: Option<(u64, u64)>,
    ) -> Result<Printed, String> {
        let Some(ended) = run.ended else {
            return Err("the client did not end in time".to_owned());
        };
        if !ended.status.success() {
            let last = run.text.lines().last().unwrap_or("it printed nothing");
            return Err(format!("the client failed ({}): {last}", ended.status));
        }
        let printed = self.program.parse(&run.text, cell, amount)?;
        if let Some((before, after)) = answered {
            let answered = after.saturating_sub(before);
            // A client may send more requests before it notices that it has sent enough.
            let most = printed.operations + u64::from(cell.connections) * u64::from(cell.pipeline);
            if !(printed.operations..=most).contains(&answered) {
                let asked = printed.operations;
                return Err(format!("the server counted {answered} operations, not {asked}"));
            }
        }
        Ok(printed)
    }
}

/// Returns the CPU time of both sides; that of a backend counts as the clients'.
fn used(server: &Server, client_ns: u64) -> Used {
    let server_ns = server.process.cpu_time_ns();
    Used { client_ns: Some(client_ns + server.backend_cpu_time_ns()), server_ns }
}

fn evaluate(
    printed: &Printed,
    client_ns: u64,
    borders: &[Border; 2],
    sides: Sides,
) -> SliceOutcome {
    let [from, to] = borders;
    let softirq_ns = |border: &Border| border.client.softirq_ns + border.server.softirq_ns;
    let clients_ns = |border: &Border| border.used.client_ns.unwrap_or(0);
    let since = |now: u64, then: u64| now.saturating_sub(then);
    let server_ns = since(to.used.server_ns, from.used.server_ns);
    let both_ns = server_ns
        + since(clients_ns(to), clients_ns(from))
        + since(softirq_ns(to), softirq_ns(from));
    let each_us = |ns: u64| ns as f64 / 1e3 / printed.operations.max(1) as f64;
    let figures = Figures {
        operations: printed.operations,
        operations_s: printed.operations_s,
        latency: printed.latency,
        server_cpu_us: each_us(server_ns),
        client_cpu_us: each_us(client_ns),
        cpu_both_us: each_us(both_ns),
    };
    let slices = SliceCounts::of_whole(borders, sides, 1);
    SliceOutcome { figures: Some(figures), slices, ..SliceOutcome::default() }
}

fn failed(complaint: String) -> SliceOutcome {
    SliceOutcome { complaint: Some(complaint), ..SliceOutcome::default() }
}
