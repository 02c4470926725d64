//! `iobench load --beside COMMAND`: our client and somebody else's in turns, on the same CPU and
//! against the same server.
//!
//! Both are measured by the same yardsticks: answers as the server counts them, per second in the
//! middle of a run, and CPU time over all of a run, starting and ending included.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use crate::cli::LoadArgs;
use crate::client::faults::FaultCounts;
use crate::client::{ClientGroup, Order, Workload};
use crate::compare::slots::{LEAD_NS, warm_up};
use crate::engine::order::slot_order;
use crate::engine::statistics::{Interval, median, ratio_interval};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::load::external::{External, Template};
use crate::load::own_readers;
use crate::output;
use crate::server::process::ServerProcess;
use crate::sys::affinity::wake_promptly;
use crate::sys::clock::now_ns;
use crate::sys::procstat::{CpuReader, TICK_NS};
use crate::sys::signals::Signals;

/// Ours and theirs, in the order of [`slot_order`].
const CLIENTS: usize = 2;
const THEIRS: usize = 0;
/// Runs of each client in a round: A B, then B A.
const PASSES: usize = 2;
/// From a command's first connection to the measured time.
const WARM_UP_NS: u64 = 300_000_000;
/// How long a command may take to connect, and to end after its time.
const START_NS: u64 = 10_000_000_000;
const END_LIMIT: Duration = Duration::from_secs(30);
/// A run that lost more than this part (1/50) of its time to the host says nothing.
const STOLEN_PART: u64 = 50;

/// One run of one client.
#[derive(Debug, Clone, Default)]
struct Measured {
    throughput: f64,
    cpu_us: f64,
    disturbed: bool,
    problems: Vec<String>,
}

/// Medians over a client's runs.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ClientFigures {
    /// Answers per second.
    throughput: Option<f64>,
    /// Microseconds of client CPU per transaction.
    cpu_us: Option<f64>,
}

/// What the comparison says; ratios are ours over theirs.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    server: String,
    command: String,
    server_cpus: Vec<usize>,
    client_cpus: Vec<usize>,
    connections: usize,
    transactions: u32,
    request_bytes: usize,
    response_bytes: usize,
    rounds: u32,
    ours: ClientFigures,
    theirs: ClientFigures,
    throughput_ratio: Option<Interval>,
    cpu_ratio: Option<Interval>,
    pub(crate) valid: bool,
    notes: Vec<String>,
}

/// The two clients and the server between them.
pub(crate) struct Contest<'a> {
    pub(crate) arguments: &'a LoadArgs,
    pub(crate) workload: Workload,
    pub(crate) template: Template,
    pub(crate) server: ServerProcess,
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) client_cpus: Vec<usize>,
    pub(crate) signals: &'a Signals,
}

impl Contest<'_> {
    /// Runs all rounds.
    pub(crate) fn run(&mut self, rounds: u32) -> Result<Report> {
        let mut runs: [Vec<Vec<Measured>>; CLIENTS] = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            output::note(&format!("round {} of {rounds}", round + 1));
            runs.iter_mut().for_each(|rounds| rounds.push(Vec::with_capacity(PASSES)));
            for pass in 0..PASSES {
                for client in slot_order(CLIENTS, THEIRS, round as usize, pass) {
                    let measured = if client == THEIRS { self.theirs() } else { self.ours() }?;
                    runs[client][round as usize].push(measured);
                }
            }
        }
        let [theirs, ours] = runs;
        Ok(self.report(rounds, &ours, &theirs))
    }

    fn ours(&mut self) -> Result<Measured> {
        let connections = self.arguments.connections;
        let clients = ClientGroup::start(&self.client_cpus, connections, &self.workload)?;
        let readers = own_readers(&clients)?;
        let before = self.server.counters();
        clients.begin_slot(Order::new(self.server.address(), true));
        warm_up(&clients, self.signals)?;
        let start_ns = now_ns() + LEAD_NS;
        clients.measure_from(start_ns);
        let mut measured = self.watch(start_ns)?;
        let tallies = clients.finish_slot()?;
        let cpu_ns: u64 = readers.iter().map(|reader| reader.read().run_ns).sum();
        let mut faults = FaultCounts::default();
        tallies.iter().for_each(|tally| faults.add(&tally.faults));
        measured.problems.extend(faults.describe());
        self.finish(&mut measured, before.bytes_sent, cpu_ns)?;
        Ok(measured)
    }

    fn theirs(&mut self) -> Result<Measured> {
        let before = self.server.counters();
        let measured_ns = self.workload.slicing.total_ns();
        // Whole seconds, with the warm-up and some time to spare.
        let seconds = (measured_ns + 2 * WARM_UP_NS).div_ceil(1_000_000_000);
        let address: SocketAddr = self.server.address();
        let mut command = External::start(&self.template, address, seconds, &self.client_cpus)?;
        let deadline_ns = now_ns() + START_NS;
        while self.server.counters().accepted == before.accepted
            && !command.has_ended()
            && now_ns() < deadline_ns
        {
            self.signals.sleep_ms(1)?;
        }
        let mut measured = self.watch(now_ns() + WARM_UP_NS)?;
        let name = self.template.name();
        if command.has_ended() {
            measured.problems.push(format!("{name} ended before its time was over"));
        }
        let limit = END_LIMIT + Duration::from_secs(seconds);
        let mut cpu_ns = 0;
        match command.wait(limit, self.signals)? {
            None => measured.problems.push(format!("{name} did not end in time")),
            Some(ended) => {
                cpu_ns = ended.cpu_ns;
                if !ended.status.success() {
                    measured.problems.push(format!("{name} failed ({})", ended.status));
                }
            }
        }
        drop(command);
        self.finish(&mut measured, before.bytes_sent, cpu_ns)?;
        Ok(measured)
    }

    /// The rate of answers in the measured time, which begins at `start_ns`.
    fn watch(&self, start_ns: u64) -> Result<Measured> {
        let mut cpus = CpuReader::new(&[self.server_cpus.as_slice(), &self.client_cpus].concat())?;
        let _prompt = wake_promptly();
        self.signals.sleep_until(start_ns)?;
        let (from_ns, from, ticks) = (now_ns(), self.server.counters(), cpus.read());
        self.signals.sleep_until(start_ns + self.workload.slicing.total_ns())?;
        let (to_ns, to) = (now_ns(), self.server.counters());
        let stolen_ns = (cpus.read().steal - ticks.steal) * TICK_NS;
        let answers = self.answers(to.bytes_sent - from.bytes_sent);
        Ok(Measured {
            throughput: answers * 1e9 / (to_ns - from_ns) as f64,
            disturbed: stolen_ns > (to_ns - from_ns) / STOLEN_PART,
            ..Measured::default()
        })
    }

    /// Waits until the server has done with the run, and divides the client's CPU time.
    fn finish(&mut self, measured: &mut Measured, sent_before: u64, cpu_ns: u64) -> Result<()> {
        if !self.server.drain(self.signals)? {
            measured.problems.push(match self.server.ended() {
                Some(status) => format!("the server process ended ({status})"),
                None => "the server kept connections that the client had closed".to_owned(),
            });
        }
        let answers = self.answers(self.server.counters().bytes_sent - sent_before);
        if answers < 1.0 || measured.throughput <= 0.0 || cpu_ns == 0 {
            measured.problems.push("nothing was answered while it was measured".to_owned());
        } else {
            measured.cpu_us = cpu_ns as f64 / 1e3 / answers;
        }
        Ok(())
    }

    fn answers(&self, bytes_sent: u64) -> f64 {
        bytes_sent as f64 / self.workload.exchange.response_bytes as f64
    }

    fn report(&self, rounds: u32, ours: &[Vec<Measured>], theirs: &[Vec<Measured>]) -> Report {
        let mut notes: Vec<String> = Vec::new();
        for problem in ours.iter().chain(theirs).flatten().flat_map(|run| &run.problems) {
            if !notes.contains(problem) {
                notes.push(problem.clone());
            }
        }
        let planned = rounds as usize * PASSES;
        let clean = pairs(ours, theirs, |run| run.throughput, false).concat().len();
        let rough = clean < planned.div_ceil(2).max(2);
        if rough {
            notes.push(format!(
                "only {clean} of {planned} pairs of runs were undisturbed, so the ratios are of \
                 all pairs; repeat with more --rounds or on a quieter machine"
            ));
        }
        let ratio = |figure| ratio_interval(&pairs(ours, theirs, figure, rough));
        let Exchange { request_bytes, response_bytes } = self.workload.exchange;
        Report {
            server: self.arguments.server.clone().unwrap_or_default(),
            command: self.arguments.beside.clone().unwrap_or_default(),
            server_cpus: self.server_cpus.clone(),
            client_cpus: self.client_cpus.clone(),
            connections: self.arguments.connections,
            transactions: self.arguments.transactions,
            request_bytes,
            response_bytes,
            rounds,
            ours: ClientFigures::of(ours),
            theirs: ClientFigures::of(theirs),
            throughput_ratio: ratio(|run| run.throughput),
            cpu_ratio: ratio(|run| run.cpu_us),
            valid: notes.is_empty(),
            notes,
        }
    }
}

impl ClientFigures {
    fn of(runs: &[Vec<Measured>]) -> ClientFigures {
        let middle = |figure: fn(&Measured) -> f64| {
            median(&runs.iter().flatten().map(figure).filter(|&f| f > 0.0).collect::<Vec<_>>())
        };
        ClientFigures { throughput: middle(|run| run.throughput), cpu_us: middle(|run| run.cpu_us) }
    }
}

/// Ours over theirs of the same round and pass, by round.
fn pairs(
    ours: &[Vec<Measured>],
    theirs: &[Vec<Measured>],
    figure: fn(&Measured) -> f64,
    disturbed_too: bool,
) -> Vec<Vec<f64>> {
    let of_round = |(ours, theirs): (&Vec<Measured>, &Vec<Measured>)| {
        ours.iter()
            .zip(theirs)
            .filter(|(ours, theirs)| disturbed_too || !(ours.disturbed || theirs.disturbed))
            .map(|(ours, theirs)| (figure(ours), figure(theirs)))
            .filter(|&(ours, theirs)| ours > 0.0 && theirs > 0.0)
            .map(|(ours, theirs)| ours / theirs)
            .collect()
    };
    ours.iter().zip(theirs).map(of_round).collect()
}

/// The report for people.
pub(crate) fn describe(report: &Report, name: &str) -> String {
    let mut text = format!(
        "{} on CPU {:?}, clients in turns on CPU {:?}: {} connections, {}-byte requests, {}-byte \
         answers, {} rounds\n{:<14}{:>10}{:>10}\n",
        report.server,
        report.server_cpus,
        report.client_cpus,
        report.connections,
        report.request_bytes,
        report.response_bytes,
        report.rounds,
        "client",
        "k/s",
        "CPU us",
    );
    for (name, figures) in [("iobench load", report.ours), (name, report.theirs)] {
        let thousands = figures.throughput.map_or(f64::NAN, |value| value / 1e3);
        let cpu_us = figures.cpu_us.unwrap_or(f64::NAN);
        text.push_str(&format!("{name:<14}{thousands:>10.1}{cpu_us:>10.2}\n"));
    }
    let ratio = |interval: Option<Interval>| match interval {
        None => "unknown".to_owned(),
        Some(Interval { estimate, low, high }) => format!("x{estimate:.3} [{low:.3}, {high:.3}]"),
    };
    text.push_str(&format!(
        "iobench load against {name}: throughput {}, client CPU per transaction {} (median over \
         rounds [95 % interval])\n",
        ratio(report.throughput_ratio),
        ratio(report.cpu_ratio)
    ));
    for note in &report.notes {
        text.push_str(&format!("INVALID: {note}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(throughput: f64, disturbed: bool) -> Measured {
        Measured { throughput, cpu_us: 1.0, disturbed, problems: Vec::new() }
    }

    #[test]
    fn pairs_are_of_the_same_pass_and_undisturbed() {
        let ours = [vec![run(2.0, false), run(9.0, true)], vec![run(0.0, false), run(6.0, false)]];
        let theirs = [vec![run(1.0, false), run(1.0, false)], vec![run(1.0, false); 2]];
        let throughput = |run: &Measured| run.throughput;
        assert_eq!(pairs(&ours, &theirs, throughput, false), [vec![2.0], vec![6.0]]);
        assert_eq!(pairs(&ours, &theirs, throughput, true), [vec![2.0, 9.0], vec![6.0]]);
    }
}
