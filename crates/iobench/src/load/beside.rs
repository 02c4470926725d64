//! `iobench load --beside COMMAND`: our client and somebody else's in turns, on the same CPU and
//! against the same server.
//!
//! Both are measured by the same yardsticks: answers as the server counts them, per second in the
//! middle of a run, and CPU time over all of a run, starting and ending included.

use std::net::SocketAddr;
use std::time::Duration;

use crate::cli::LoadArgs;
use crate::client::faults::FaultCounts;
use crate::client::{ClientGroup, Order, Workload};
use crate::compare::slots::{LEAD_NS, warm_up};
use crate::engine::order::slot_order;
use crate::engine::statistics::{Interval, median, ratio_interval};
use crate::error::Result;
use crate::load::external::{External, Template};
use crate::load::own_readers;
use crate::output;
use crate::results::{Kind, RoundFigures, Row};
use crate::server::process::ServerProcess;
use crate::sys::affinity::wake_promptly;
use crate::sys::clock::now_ns;
use crate::sys::procstat::{CpuReader, TICK_NS};
use crate::sys::signals::Signals;

/// Ours and theirs, in the order of [`slot_order`].
const CLIENTS: usize = 2;
const THEIRS: usize = 0;
/// As its row names it: no command's name has a blank.
const OURS: &str = "iobench load";
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

impl Measured {
    fn throughput(&self) -> f64 {
        self.throughput
    }

    fn cpu_us(&self) -> f64 {
        self.cpu_us
    }
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
    /// Runs all rounds; the rows are theirs, the baseline, and ours.
    pub(crate) fn run(&mut self, rounds: u32) -> Result<[Row; CLIENTS]> {
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
        Ok(self.rows(&ours, &theirs))
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

    fn rows(&self, ours: &[Vec<Measured>], theirs: &[Vec<Measured>]) -> [Row; CLIENTS] {
        let mut notes: Vec<String> = Vec::new();
        for problem in ours.iter().chain(theirs).flatten().flat_map(|run| &run.problems) {
            if !notes.contains(problem) {
                notes.push(problem.clone());
            }
        }
        let planned = ours.len() * PASSES;
        let clean = pairs(ours, theirs, Measured::throughput, false).concat().len();
        let rough = clean < planned.div_ceil(2).max(2);
        if rough {
            notes.push(format!(
                "only {clean} of {planned} pairs of runs were undisturbed, so the ratios are of \
                 all pairs; repeat with more --rounds or on a quieter machine"
            ));
        }
        let ratio = |figure| ratio_interval(&pairs(ours, theirs, figure, rough));
        let theirs = Row {
            throughput_ratio: Some(Interval::ONE),
            client_cpu_ratio: Some(Interval::ONE),
            ..self.row(self.template.name(), theirs, &notes)
        };
        let ours = Row {
            throughput_ratio: ratio(Measured::throughput),
            client_cpu_ratio: ratio(Measured::cpu_us),
            ..self.row(OURS, ours, &notes)
        };
        [theirs, ours]
    }

    /// A client's row without ratios.
    fn row(&self, client: &str, rounds: &[Vec<Measured>], notes: &[String]) -> Row {
        let runs: Vec<&Measured> = rounds.iter().flatten().collect();
        let of_round = |runs: &Vec<Measured>| {
            let runs: Vec<&Measured> = runs.iter().collect();
            RoundFigures {
                throughput: middle(&runs, Measured::throughput),
                client_cpu_us: middle(&runs, Measured::cpu_us),
                valid: runs.iter().all(|run| !run.disturbed && run.problems.is_empty()),
                ..RoundFigures::default()
            }
        };
        let exchange = self.workload.exchange;
        Row {
            connections: self.arguments.connections,
            transactions: self.arguments.transactions,
            cores: self.server_cpus.len(),
            server_cpus: self.server_cpus.clone(),
            client_cpus: self.client_cpus.clone(),
            throughput: middle(&runs, Measured::throughput),
            client_cpu_us: middle(&runs, Measured::cpu_us),
            valid: notes.is_empty(),
            notes: notes.to_vec(),
            rounds: rounds.iter().map(of_round).collect(),
            ..Row::empty(client, exchange.workload(), Kind::Closed, exchange)
        }
    }
}

/// Median over the runs that have the figure.
fn middle(runs: &[&Measured], figure: fn(&Measured) -> f64) -> Option<f64> {
    let figures = runs.iter().map(|run| figure(run)).filter(|figure| *figure > 0.0);
    median(&figures.collect::<Vec<_>>())
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

/// The rows for people.
pub(crate) fn describe(rows: &[Row; CLIENTS], server: &str) -> String {
    let [theirs, ours] = rows;
    let mut text = format!(
        "{server} on CPU {:?}, clients in turns on CPU {:?}: {} connections, {}-byte requests, \
         {}-byte answers, {} rounds\n{:<14}{:>10}{:>10}\n",
        ours.server_cpus,
        ours.client_cpus,
        ours.connections,
        ours.request_bytes,
        ours.response_bytes,
        ours.rounds.len(),
        "client",
        "k/s",
        "CPU us",
    );
    for row in [ours, theirs] {
        let thousands = row.throughput.map_or(f64::NAN, |value| value / 1e3);
        let cpu_us = row.client_cpu_us.unwrap_or(f64::NAN);
        text.push_str(&format!("{:<14}{thousands:>10.1}{cpu_us:>10.2}\n", row.subject));
    }
    let ratio = |interval: Option<Interval>| match interval {
        None => "unknown".to_owned(),
        Some(Interval { estimate, low, high }) => format!("x{estimate:.3} [{low:.3}, {high:.3}]"),
    };
    text.push_str(&format!(
        "{OURS} against {}: throughput {}, client CPU per transaction {} (median over rounds [95 % \
         interval])\n",
        theirs.subject,
        ratio(ours.throughput_ratio),
        ratio(ours.client_cpu_ratio)
    ));
    for note in &ours.notes {
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
        let throughput = |all| pairs(&ours, &theirs, Measured::throughput, all);
        assert_eq!(throughput(false), [vec![2.0], vec![6.0]]);
        assert_eq!(throughput(true), [vec![2.0, 9.0], vec![6.0]]);
    }
}
