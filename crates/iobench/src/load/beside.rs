//! `iobench load --beside COMMAND`: runs iobench's client and an external client in turns, on the
//! same CPU and against the same server.
//!
//! Both are measured in the same way: answers per second as the server counts them, in the middle
//! of a run, and CPU time over all of a run, start and end included.

use std::net::SocketAddr;
use std::time::Duration;

use crate::cli::LoadArgs;
use crate::client::faults::FaultCounts;
use crate::client::warm_up::{LEAD_NS, USUAL_WAIT_NS, warm_up};
use crate::client::{ClientGroup, Order, Workload};
use crate::engine;
use crate::engine::rounds::{Bench, CellShape, Schedule, Slot, Turn};
use crate::engine::sampler::{ClientSide, Sampler, Used, wall_ns};
use crate::engine::slices::SliceCounts;
use crate::engine::statistics::{Interval, median, ratio_interval};
use crate::error::Result;
use crate::load::external::{External, Template};
use crate::results::table::{Column, Table};
use crate::results::{Kind, RoundFigures, Row};
use crate::server::running::Running;
use crate::server::shared::Counters;
use crate::sys::affinity::wake_promptly;
use crate::sys::clock::now_ns;
use crate::sys::procstat::ThreadReader;
use crate::sys::signals::Signals;

/// Number of clients: the subjects of the schedule.
const CLIENTS: usize = 2;
const THEIRS: usize = 0;
/// The name of iobench's client in rows. Names of commands have no blank.
const OURS: &str = "iobench load";
/// Runs of each client in a round: A B, then B A.
const PASSES: usize = 2;
/// Time from a command's first connection to the measured time.
const WARM_UP_NS: u64 = 300_000_000;
/// Longest time for a command to connect, and to end after its time.
const START_NS: u64 = 10_000_000_000;
const END_LIMIT: Duration = Duration::from_secs(30);

/// The result of one run of one client.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measured {
    throughput: f64,
    cpu_us: f64,
    slices: SliceCounts,
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

impl Slot for Measured {
    fn slices(&self) -> SliceCounts {
        self.slices
    }

    fn is_clean(&self) -> bool {
        self.slices.clean > 0
    }

    fn has_failed(&self) -> bool {
        !self.problems.is_empty()
    }
}

/// Compares the two clients on one server.
pub(crate) struct ClientComparison<'a> {
    pub(crate) arguments: &'a LoadArgs,
    pub(crate) workload: Workload,
    pub(crate) template: Template,
    pub(crate) server: Running,
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) client_cpus: Vec<usize>,
    pub(crate) signals: &'a Signals,
}

impl Bench for ClientComparison<'_> {
    type Slot = Measured;

    fn describe(&self, _: usize, subject: usize) -> String {
        if subject == THEIRS { self.template.name().to_owned() } else { OURS.to_owned() }
    }

    fn measure(&mut self, turn: Turn) -> Result<Measured> {
        if turn.subject == THEIRS { self.theirs() } else { self.ours() }
    }
}

impl ClientComparison<'_> {
    /// Runs all rounds; returns the row of the external client, which is the baseline, and that of
    /// iobench's.
    pub(crate) fn run(&mut self, rounds: u32, seed: u64) -> Result<[Row; CLIENTS]> {
        let slot_ns = self.workload.slicing.total_ns() + 2 * WARM_UP_NS;
        let cells = vec![CellShape { subjects: CLIENTS, baseline: THEIRS, slot_ns }];
        let schedule = Schedule { cells, rounds, passes: PASSES, seed, deadline_ns: None };
        schedule.announce("2 clients");
        let measured = engine::rounds::run(&schedule, self)?;
        let clients = &measured.outcomes[0];
        Ok(self.rows(&clients[1 - THEIRS], &clients[THEIRS]))
    }

    fn ours(&mut self) -> Result<Measured> {
        let connections = self.arguments.connections;
        let clients = ClientGroup::start(&self.client_cpus, connections, &self.workload)?;
        let threads = clients.thread_ids();
        let readers = threads.iter().map(|&id| ThreadReader::new(std::process::id(), id));
        let readers: Vec<ThreadReader> = readers.collect::<Result<_>>()?;
        let before = self.counters();
        clients.begin_slot(Order::new(self.server.address(), true));
        warm_up(&clients, self.signals, USUAL_WAIT_NS)?;
        let start_ns = now_ns() + LEAD_NS;
        clients.measure_from(start_ns);
        let mut measured = self.watch(start_ns, &threads, || None)?;
        let tallies = clients.finish_slot()?;
        let cpu_ns: u64 = readers.iter().map(|reader| reader.read().run_ns).sum();
        let mut faults = FaultCounts::default();
        tallies.iter().for_each(|tally| faults.add(&tally.faults));
        measured.problems.extend(faults.describe());
        self.finish(&mut measured, before.bytes_sent, cpu_ns)?;
        Ok(measured)
    }

    fn theirs(&mut self) -> Result<Measured> {
        let before = self.counters();
        let measured_ns = self.workload.slicing.total_ns();
        // Whole seconds, with the warm-up and some time to spare.
        let seconds = (measured_ns + 2 * WARM_UP_NS).div_ceil(1_000_000_000);
        let address: SocketAddr = self.server.address();
        let mut command = External::start(&self.template, address, seconds, &self.client_cpus)?;
        let deadline_ns = now_ns() + START_NS;
        while self.counters().accepted == before.accepted
            && !command.has_ended()
            && now_ns() < deadline_ns
        {
            self.signals.sleep_ms(1)?;
        }
        let used_ns = || Some(command.cpu_time_ns());
        let mut measured = self.watch(now_ns() + WARM_UP_NS, &[], used_ns)?;
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

    /// Measures the rate of answers in the measured time, which begins at `start_ns`. The client is
    /// either threads of this process, or another program, whose CPU time so far is given.
    fn watch(
        &self,
        start_ns: u64,
        threads: &[i32],
        used_ns: impl Fn() -> Option<u64>,
    ) -> Result<Measured> {
        let cpus = self.client_cpus.clone();
        let client = ClientSide { cpus, owned: true, roaming: false };
        let side = self.server.side(&self.server_cpus);
        let mut sampler = Sampler::new(&client, threads, Some(&side))?;
        let mut border =
            || sampler.border(Used { client_ns: used_ns(), server_ns: self.server.cpu_time_ns() });
        let _prompt = wake_promptly();
        self.signals.sleep_until(start_ns)?;
        let (from, sent) = (border(), self.counters().bytes_sent);
        self.signals.sleep_until(start_ns + self.workload.slicing.total_ns())?;
        let (borders, sent) = ([from, border()], self.counters().bytes_sent - sent);
        Ok(Measured {
            throughput: self.answers(sent) * 1e9 / wall_ns(&borders) as f64,
            slices: SliceCounts::of_whole(&borders, sampler.sides(), 1),
            ..Measured::default()
        })
    }

    /// Returns the counters of the server, which is one of iobench's.
    fn counters(&self) -> Counters {
        self.server.counters().unwrap_or_default()
    }

    /// Waits until the server has finished the run's requests, and computes CPU time per answer.
    fn finish(&mut self, measured: &mut Measured, sent_before: u64, cpu_ns: u64) -> Result<()> {
        if !self.server.drain(self.signals)? {
            measured.problems.push(match self.server.ended() {
                Some(status) => format!("the server process ended ({status})"),
                None => "the server kept connections that the client had closed".to_owned(),
            });
        }
        let answers = self.answers(self.counters().bytes_sent - sent_before);
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
                "only {clean} of {planned} pairs of runs were undisturbed, so ratios, if any, are \
                 of all pairs; repeat with more --rounds or on a quieter machine"
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

    /// Returns a client's row without ratios.
    fn row(&self, client: &str, rounds: &[Vec<Measured>], notes: &[String]) -> Row {
        let runs: Vec<&Measured> = rounds.iter().flatten().collect();
        let of_round = |runs: &Vec<Measured>| {
            let runs: Vec<&Measured> = runs.iter().collect();
            RoundFigures {
                throughput: middle(&runs, Measured::throughput),
                client_cpu_us: middle(&runs, Measured::cpu_us),
                valid: runs.iter().all(|run| run.is_clean() && run.problems.is_empty()),
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

/// Returns the median over the runs that have the figure.
fn middle(runs: &[&Measured], figure: fn(&Measured) -> f64) -> Option<f64> {
    let figures = runs.iter().map(|run| figure(run)).filter(|figure| *figure > 0.0);
    median(&figures.collect::<Vec<_>>())
}

/// Returns the ratios of iobench's client to the external one in the same round and pass, by round.
fn pairs(
    ours: &[Vec<Measured>],
    theirs: &[Vec<Measured>],
    figure: fn(&Measured) -> f64,
    disturbed_too: bool,
) -> Vec<Vec<f64>> {
    let of_round = |(ours, theirs): (&Vec<Measured>, &Vec<Measured>)| {
        ours.iter()
            .zip(theirs)
            .filter(|(ours, theirs)| disturbed_too || (ours.is_clean() && theirs.is_clean()))
            .map(|(ours, theirs)| (figure(ours), figure(theirs)))
            .filter(|&(ours, theirs)| ours > 0.0 && theirs > 0.0)
            .map(|(ours, theirs)| ours / theirs)
            .collect()
    };
    ours.iter().zip(theirs).map(of_round).collect()
}

/// Returns the rows as a table.
pub(crate) fn table<'a>(rows: &'a [Row; CLIENTS], server: &'a str) -> Table<'a> {
    let heading = move |row: &Row| {
        format!(
            "{server} on CPU {:?}, clients in turns on CPU {:?}: {} connections, {}-byte requests, \
             {}-byte answers, {} rounds",
            row.server_cpus,
            row.client_cpus,
            row.connections,
            row.request_bytes,
            row.response_bytes,
            row.rounds.len(),
        )
    };
    let columns = vec![
        Column::left("client", |row| row.subject.clone()),
        Column::figure("k/s", 1, |row| row.throughput.map(|rate| rate / 1e3)),
        Column::figure("CPU us", 2, |row| row.client_cpu_us),
        Column::ratio("throughput ratio", |row| row.throughput_ratio).decimals(3),
        Column::ratio("CPU ratio", |row| row.client_cpu_ratio).decimals(3),
    ];
    let legend = format!(
        "Ratios: {OURS} against {}, mean over rounds [95 % interval]. CPU is the client's, per \
         transaction.\n",
        rows[THEIRS].subject
    );
    Table::new(rows, columns, heading, legend)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(throughput: f64, disturbed: bool) -> Measured {
        let slices = SliceCounts { clean: (!disturbed).into(), ..SliceCounts::default() };
        Measured { throughput, cpu_us: 1.0, slices, problems: Vec::new() }
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
