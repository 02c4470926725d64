//! `iobench ceiling`: measures the cost of user-level TCP itself. Two stacks of this process
//! exchange packets through memory, so every row is an upper limit for any device.
//!
//! The clients are those of `compare`, which check every byte, and the server is its server; only
//! the device differs.

mod ends;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ::mtcp::Mtcp;
use ::mtcp::config::Config;
use ::mtcp::device::memory::MemoryOptions;

use crate::ceiling::ends::{BothEnds, ServerThread};
use crate::cli::ceiling::CeilingArgs;
use crate::client::connections::Connections;
use crate::client::faults::FaultCounts;
use crate::client::protocol::echo::Echo;
use crate::client::slices::{SLICE_NS, Slicing, Tally, add_latencies, add_open};
use crate::client::sockets::Ending;
use crate::client::sockets::stack::StackSockets;
use crate::client::warm_up::{LEAD_NS, USUAL_WAIT_NS, warm_up};
use crate::client::{ClientGroup, Order};
use crate::engine;
use crate::engine::environment::Environment;
use crate::engine::placement::Placement;
use crate::engine::rounds::{Bench, CellShape, Rounds, Schedule, Slot, Turn};
use crate::engine::sampler::{ClientSide, Disturbance, Sampler, TOLERATED, Used, disturbance};
use crate::engine::slices::SliceCounts;
use crate::engine::statistics::median;
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::figures::{Percentiles, Times, encode, new_times};
use crate::results::files::ResultFiles;
use crate::results::table::{Column, Table, transactions};
use crate::results::{Document, ExperimentRecord, Histograms, Kind, RoundFigures, Row};
use crate::server::shared::Page;
use crate::stack::{self, PORT};
use crate::sys::affinity::allowed_cpus;
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
/// The first of the clients' addresses.
const FIRST_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 1);
/// Number of client addresses: enough that at any rate a port stays unused for longer than the
/// second after which RFC 6191 allows its reuse.
const CLIENT_ADDRESSES: u32 = 32;
/// The prefix length of the network of both ends.
const PREFIX_BITS: u8 = 16;
/// Longest wait until the server has seen that all its clients have closed.
const DRAIN_NS: u64 = 5_000_000_000;
/// Time of a slot beside its measured part: two stacks start and end.
const SLOT_OVERHEAD_NS: u64 = 100_000_000;

/// The parameters of a row, without the number of threads.
#[derive(Debug, Clone, Copy)]
struct Cell {
    transactions: u32,
    message_bytes: usize,
}

/// The result of one round of a row.
#[derive(Clone)]
struct Round {
    throughput: f64,
    cpu_us: f64,
    latencies: Times,
    disturbance: Disturbance,
    notes: Vec<String>,
}

impl Slot for Round {
    fn slices(&self) -> SliceCounts {
        self.disturbance.counts()
    }

    fn is_clean(&self) -> bool {
        self.disturbance.reasons(TOLERATED).is_empty()
    }

    fn has_failed(&self) -> bool {
        !self.notes.is_empty()
    }
}

/// Runs each slot with new stacks.
struct CeilingBench<'a> {
    arguments: &'a CeilingArgs,
    cells: &'a [Cell],
    cpus: &'a [usize],
    signals: &'a Signals,
}

impl Bench for CeilingBench<'_> {
    type Slot = Round;

    fn describe(&self, cell: usize, subject: usize) -> String {
        let Cell { transactions, message_bytes } = self.cells[cell];
        let label = label(self.arguments.threads[subject]);
        format!("{label}, {message_bytes} B, {transactions} per connection")
    }

    fn measure(&mut self, turn: Turn) -> Result<Round> {
        let (cell, threads) = (self.cells[turn.cell], self.arguments.threads[turn.subject]);
        measure(cell, threads, self.arguments, self.cpus, self.signals)
    }
}

/// Measures and prints; true if every row is valid.
pub(crate) fn run(arguments: &CeilingArgs) -> Result<bool> {
    let (begun_ns, signals) = (now_ns(), Signals::block());
    let placement = Placement::choose(1, &allowed_cpus()?, &arguments.measure.cpus())?;
    // The first is the CPU of both ends if they share a thread.
    let mut cpus = vec![placement.client_cpus[0], placement.server_cpus[0]];
    cpus.dedup();
    let limits = Limits::raise()?;
    let files = ResultFiles::prepare(&arguments.measure.output)?;
    let seed = arguments.measure.seed.unwrap_or(begun_ns % 1_000_000);
    let environment = Environment::gather(&limits, seed)?;
    let cells = cells(arguments);
    let most_threads = usize::from(arguments.threads.iter().copied().max().unwrap_or(1));
    if cpus.len() < most_threads {
        return Err(Error::setup(
            format!("{most_threads} threads do not fit on {} CPUs", cpus.len()),
            "choose --threads 1, or let --server-cpus and --client-cpus differ",
        ));
    }
    let slot_ns = arguments.duration().as_nanos() as u64 + SLOT_OVERHEAD_NS;
    let shape = CellShape { subjects: arguments.threads.len(), baseline: 0, slot_ns };
    let schedule = Schedule {
        cells: vec![shape; cells.len()],
        rounds: arguments.rounds(),
        passes: 1,
        seed,
        deadline_ns: None,
    };
    schedule.announce(format_args!("{} rows", cells.len() * arguments.threads.len()));
    let (cells, cpus) = (&cells, &cpus);
    let mut bench = CeilingBench { arguments, cells, cpus, signals: &signals };
    let measured = engine::rounds::run(&schedule, &mut bench)?;
    let mut results = Vec::new();
    for (cell, subjects) in cells.iter().zip(&measured.outcomes) {
        for (&threads, rounds) in arguments.threads.iter().zip(subjects) {
            results.push(row(*cell, threads, arguments, cpus, rounds)?);
        }
    }
    let experiment = ExperimentRecord {
        name: "ceiling".to_owned(),
        title: "TCP in user space by itself: both ends in one process, over memory".to_owned(),
        source: None,
        scale: "default".to_owned(),
        // The environment contains the command, which determines the whole experiment.
        file: String::new(),
    };
    let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
    let baseline = label(arguments.threads[0]);
    let document = Document::new(environment, experiment, elapsed_s, baseline, results);
    files.publish(&describe(&document, arguments.ending), &document)?;
    Ok(document.results.iter().all(|row| row.valid))
}

fn cells(arguments: &CeilingArgs) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &message_bytes in &arguments.message_bytes {
        for &transactions in &arguments.transactions.0 {
            cells.push(Cell { transactions, message_bytes });
        }
    }
    cells
}

/// Creates both stacks, the server's first.
fn stacks() -> Result<(Mtcp, Mtcp)> {
    let at = |first: Ipv4Addr, count: u32| {
        let address =
            |index| (IpAddr::from(Ipv4Addr::from_bits(first.to_bits() + index)), PREFIX_BITS);
        Config { addresses: (0..count).map(address).collect(), ..stack::settings(1) }
    };
    let (server, clients) = (at(SERVER, 1), at(FIRST_CLIENT, CLIENT_ADDRESSES));
    Mtcp::pair(server, clients, MemoryOptions::default())
        .map_err(|error| Error::setup(format!("cannot start two stacks: {error}"), "run again"))
}

/// Creates the clients' sockets, for the calling thread.
fn client(mtcp: &Mtcp, ending: Ending) -> Result<StackSockets> {
    let mut sockets = stack::context(mtcp, 0)?;
    sockets
        .init_rss(FIRST_CLIENT.into(), CLIENT_ADDRESSES, None)
        .map_err(stack::failed("choose the clients' addresses"))?;
    StackSockets::new(sockets, ending)
}

/// Measures one round of one row, with new stacks.
fn measure(
    cell: Cell,
    threads: u8,
    arguments: &CeilingArgs,
    cpus: &[usize],
    signals: &Signals,
) -> Result<Round> {
    let (server, clients) = stacks()?;
    let (server, clients) = (Arc::new(server), Arc::new(clients));
    let ending = arguments.ending;
    let slicing = Slicing::divide(arguments.duration().as_nanos() as u64, SLICE_NS);
    let page = Arc::new(Page::create(1)?);
    let (cpu, connections) = (&cpus[..1], arguments.connections);
    let sockets = move |_| client(&clients, ending);
    let echo = move |index| Echo::new(cell.message_bytes, cell.transactions, index);
    let helper = match threads {
        1 => None,
        _ => Some(ServerThread::start(server.clone(), cpus[1], page.clone())?),
    };
    let group = if helper.is_some() {
        ClientGroup::start_speaking(cpu, connections, slicing, sockets, echo)?
    } else {
        let page = page.clone();
        ClientGroup::start_with(cpu, connections, move |index, share| {
            let near = Connections::new(sockets(index)?, echo(index), share, slicing);
            BothEnds::new(near, &server, page.clone())
        })?
    };
    let mut ids = group.thread_ids();
    ids.extend(helper.as_ref().map(ServerThread::id));
    let used = &cpus[..ids.len()];
    let mut round = load(&group, &ids, used, slicing, signals)?;
    if !drained(&page, signals)? {
        round.notes.push("the server kept connections that the clients had closed".to_owned());
    }
    // Before the clients' stack is dropped, which also drops the device.
    if let Some(failure) = helper.and_then(ServerThread::end) {
        round.notes.push(failure);
    }
    if page.totals().errors > 0 {
        round.notes.push(format!("the server counted {} errors", page.totals().errors));
    }
    Ok(round)
}

/// Waits until the server has closed all that it accepted; false if it does not.
fn drained(page: &Page, signals: &Signals) -> Result<bool> {
    let deadline_ns = now_ns() + DRAIN_NS;
    loop {
        let totals = page.totals();
        if totals.accepted > 0 && totals.accepted == totals.closed {
            return Ok(true);
        }
        if now_ns() > deadline_ns {
            return Ok(false);
        }
        signals.sleep_ms(2)?;
    }
}

fn load(
    group: &ClientGroup,
    threads: &[i32],
    cpus: &[usize],
    slicing: Slicing,
    signals: &Signals,
) -> Result<Round> {
    // Both ends belong to this process, and are sampled as one side.
    let both = ClientSide { cpus: cpus.to_vec(), owned: true, roaming: false };
    let mut sampler = Sampler::new(&both, threads, None)?;
    group.begin_slot(Order::new((SERVER, PORT).into(), true));
    warm_up(group, signals, USUAL_WAIT_NS)?;
    let start_ns = now_ns() + LEAD_NS;
    group.measure_from(start_ns);
    let borders = sampler.watch(signals, start_ns, slicing, Used::default)?;
    let ends = borders.first().zip(borders.last());
    let cpu_ns = ends.map_or(0, |(first, last)| last.client.run_ns(&first.client));
    let round = evaluate(&group.finish_slot()?, slicing, cpu_ns);
    Ok(Round { disturbance: disturbance(&borders, sampler.sides()), ..round })
}

fn evaluate(tallies: &[Tally], slicing: Slicing, cpu_ns: u64) -> Round {
    let (mut latencies, mut transactions) = (new_times(), 0);
    let mut faults = FaultCounts::default();
    for tally in tallies {
        faults.add(&tally.faults);
        for slice in &tally.slices {
            transactions += slice.transactions;
            add_latencies(&mut latencies, &slice.latencies);
        }
    }
    add_open(&mut latencies, tallies.iter().flat_map(|t| t.open_ages_ns.iter().copied()));
    let mut notes = faults.describe();
    notes.extend(tallies.iter().find_map(|tally| tally.failure.clone()));
    if transactions == 0 {
        notes.push("no transaction was completed while it was measured".to_owned());
    }
    Round {
        throughput: transactions as f64 * 1e9 / slicing.total_ns() as f64,
        cpu_us: cpu_ns as f64 / 1e3 / transactions.max(1) as f64,
        latencies,
        disturbance: Disturbance::default(),
        notes,
    }
}

fn label(threads: u8) -> String {
    if threads == 1 { "mtcp, 1 thread".to_owned() } else { format!("mtcp, {threads} threads") }
}

fn row(
    cell: Cell,
    threads: u8,
    arguments: &CeilingArgs,
    cpus: &[usize],
    rounds: &Rounds<Round>,
) -> Result<Row> {
    let rough = Round::are_rough(rounds);
    let rounds: Vec<&Round> = rounds.iter().flatten().collect();
    let shown = || rounds.iter().filter(|round| rough || round.is_clean());
    let middle =
        |figure: fn(&Round) -> f64| median(&shown().map(|round| figure(round)).collect::<Vec<_>>());
    let mut latencies = new_times();
    let mut notes: Vec<String> = Vec::new();
    if rough {
        let clean = rounds.iter().filter(|round| round.is_clean()).count();
        notes.push(format!(
            "only {clean} of {} rounds were undisturbed, so the figures are of all: stop other \
             programs or name other CPUs",
            rounds.len()
        ));
    }
    for round in shown() {
        // All histograms have the same bounds, so this cannot fail.
        let _ = latencies.add(&round.latencies);
        for note in &round.notes {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
    }
    let figures = rounds.iter().map(|round| RoundFigures {
        latency_us: Percentiles::of(&round.latencies),
        throughput: Some(round.throughput),
        cpu_both_us: Some(round.cpu_us),
        valid: round.notes.is_empty() && round.is_clean(),
        ..RoundFigures::default()
    });
    let (server_cpus, client_cpus) = cpus_of(threads, cpus);
    let exchange = Exchange::echo(cell.message_bytes);
    Ok(Row {
        connections: arguments.connections,
        transactions: cell.transactions,
        server_cpus,
        client_cpus,
        network: Some("memory".to_owned()),
        latency_us: Percentiles::of(&latencies),
        throughput: middle(|round| round.throughput),
        cpu_both_us: middle(|round| round.cpu_us),
        valid: notes.is_empty(),
        notes,
        rounds: figures.collect(),
        histograms: Histograms {
            service: if latencies.is_empty() { None } else { Some(encode(&latencies)?) },
            ..Histograms::default()
        },
        ..Row::empty(&label(threads), "echo", Kind::Closed, exchange)
    })
}

/// Returns the CPU of the server's end and that of the clients'.
fn cpus_of(threads: u8, cpus: &[usize]) -> (Vec<usize>, Vec<usize>) {
    match threads {
        1 => (cpus[..1].to_vec(), cpus[..1].to_vec()),
        _ => (cpus[1..2].to_vec(), cpus[..1].to_vec()),
    }
}

/// Connections per second of CPU time, both ends included.
fn connections_per_cpu_second(row: &Row) -> Option<f64> {
    let transactions = f64::from(row.transactions);
    row.cpu_both_us.filter(|_| row.transactions > 0).map(|us| 1e6 / us / transactions)
}

/// Returns the whole report.
fn describe(document: &Document, ending: Ending) -> String {
    let ends = match ending {
        Ending::Fin => "closed by both ends",
        Ending::Reset => "ended by RST",
    };
    let columns = vec![
        Column::left("threads", |row| row.subject.clone()),
        Column::right("trans", |row| transactions(row.transactions)),
        Column::right("bytes", |row| row.request_bytes.to_string()),
        Column::figure("k/s", 1, |row| row.throughput.map(|rate| rate / 1e3)),
        Column::figure("CPU us", 2, |row| row.cpu_both_us),
        Column::figure("conn/CPU s", 0, |row| connections_per_cpu_second(row)),
        Column::figure("p50 us", 0, |row| row.p50_us()),
        Column::figure("p99 us", 0, |row| row.p99_us()),
    ];
    let title = &document.experiment.title;
    let heading =
        |_: &Row| format!("{title}; connections are {ends}, and all checked byte by byte");
    let legend = "CPU is that of both ends together, per transaction; rates are medians\n";
    let table = Table::new(&document.results, columns, heading, legend);
    format!("{}\n\n{table}", document.environment.describe())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    use crate::cli::{Cli, Command};

    fn arguments(words: &[&str]) -> CeilingArgs {
        let cli = Cli::parse_from([&["iobench", "ceiling"], words].concat());
        let Command::Ceiling(arguments) = cli.command else { panic!("ceiling was asked for") };
        arguments
    }

    #[test]
    fn every_combination_has_a_cell() {
        let cells = cells(&arguments(&["--message-bytes", "1,9", "--transactions", "1,0"]));
        let shown: Vec<_> = cells.iter().map(|c| (c.message_bytes, c.transactions)).collect();
        assert_eq!(shown, [(1, 1), (1, 0), (9, 1), (9, 0)]);
    }

    #[test]
    fn rates_are_for_a_second_of_cpu() {
        let latencies = new_times();
        let (disturbance, notes) = (Disturbance::default(), Vec::new());
        let round = Round { throughput: 100_000.0, cpu_us: 4.0, latencies, disturbance, notes };
        let cell = Cell { transactions: 2, message_bytes: 64 };
        let row = row(cell, 2, &arguments(&[]), &[3, 5], &vec![vec![round]]).unwrap();
        assert_eq!(connections_per_cpu_second(&row), Some(125_000.0));
        assert_eq!((&row.server_cpus[..], &row.client_cpus[..]), (&[5][..], &[3][..]));
        assert!(row.valid);
    }
}
