//! `iobench ceiling`: what TCP in user space costs by itself. Two stacks of this process talk over
//! memory, so every row is a bound that no device below can exceed.
//!
//! The clients are those of `compare`, which check every byte, and the server is its server; only
//! what carries the packets is another.

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
use crate::client::slices::{Slicing, Tally, add_open};
use crate::client::sockets::Ending;
use crate::client::sockets::stack::StackSockets;
use crate::client::{ClientGroup, Order};
use crate::compare::plan::SLICE_NS;
use crate::compare::slots::{LEAD_NS, add_latencies, warm_up};
use crate::engine::environment::Environment;
use crate::engine::json_file::JsonFile;
use crate::engine::statistics::median;
use crate::engine::table::{figure, lay_out};
use crate::error::{Error, Result};
use crate::figures::{Percentiles, Times, encode, new_times};
use crate::output;
use crate::results::{Document, ExperimentRecord, Histograms, Kind, RoundFigures, Row};
use crate::server::shared::Page;
use crate::stack::{self, PORT};
use crate::sys::affinity::allowed_cpus;
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::procstat::ThreadReader;
use crate::sys::signals::Signals;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
/// The first of the clients' addresses.
const FIRST_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 1);
/// So many that at any rate a port rests longer than the second after which RFC 6191 lets it be
/// used anew.
const CLIENT_ADDRESSES: u32 = 32;
/// The network of both.
const PREFIX_BITS: u8 = 16;
/// How long the server may take to see that all its clients have closed.
const DRAIN_NS: u64 = 5_000_000_000;

/// One row to be.
#[derive(Debug, Clone, Copy)]
struct Cell {
    threads: u8,
    transactions: u32,
    message_bytes: usize,
}

/// What one round of a row brought.
struct Round {
    throughput: f64,
    cpu_us: f64,
    latencies: Times,
    notes: Vec<String>,
}

/// Measures and prints; true if every row is valid.
pub(crate) fn run(arguments: &CeilingArgs) -> Result<bool> {
    let (begun_ns, signals) = (now_ns(), Signals::block());
    let cpus = arguments.cpus.clone().map_or_else(allowed_cpus, Ok)?;
    let limits = Limits::raise()?;
    let json = arguments.json.as_deref().map(JsonFile::prepare).transpose()?;
    let environment = Environment::gather(&limits, 0)?;
    let cells = cells(arguments);
    let most_threads = usize::from(arguments.threads.iter().copied().max().unwrap_or(1));
    if cpus.len() < most_threads {
        return Err(Error::setup(
            format!("{most_threads} threads do not fit on {} CPUs", cpus.len()),
            "choose --threads 1, or name more --cpus",
        ));
    }
    let mut rounds: Vec<Vec<Round>> = cells.iter().map(|_| Vec::new()).collect();
    for _ in 0..arguments.rounds {
        for (cell, rounds) in cells.iter().zip(&mut rounds) {
            rounds.push(measure(cell, arguments, &cpus, &signals)?);
        }
    }
    let rows = cells.iter().zip(&rounds);
    let rows = rows.map(|(cell, rounds)| row(cell, arguments, &cpus, rounds));
    let experiment = ExperimentRecord {
        name: "ceiling".to_owned(),
        title: "TCP in user space by itself: both ends in one process, over memory".to_owned(),
        source: None,
        scale: "default".to_owned(),
        // The command, which stands with the environment, is the whole experiment.
        file: String::new(),
    };
    let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
    let results = rows.collect::<Result<_>>()?;
    let baseline = label(cells[0].threads);
    let document = Document::new(environment, experiment, elapsed_s, baseline, results);
    output::print(&render(&document, arguments.ending));
    if let Some(json) = json {
        json.write(&document)?;
    }
    Ok(document.results.iter().all(|row| row.valid))
}

fn cells(arguments: &CeilingArgs) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &message_bytes in &arguments.message_bytes {
        for &transactions in &arguments.transactions.0 {
            let cell = |&threads| Cell { threads, transactions, message_bytes };
            cells.extend(arguments.threads.iter().map(cell));
        }
    }
    cells
}

/// Both stacks, the server's first.
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

/// The clients' end, for the calling thread.
fn client(mtcp: &Mtcp, ending: Ending) -> Result<StackSockets> {
    let mut sockets = stack::context(mtcp, 0)?;
    sockets
        .init_rss(FIRST_CLIENT.into(), CLIENT_ADDRESSES, None)
        .map_err(stack::failed("choose the clients' addresses"))?;
    StackSockets::new(sockets, ending)
}

/// One round of one row, with fresh stacks.
fn measure(
    cell: &Cell,
    arguments: &CeilingArgs,
    cpus: &[usize],
    signals: &Signals,
) -> Result<Round> {
    let (server, clients) = stacks()?;
    let (server, clients) = (Arc::new(server), Arc::new(clients));
    let (cell, ending) = (*cell, arguments.ending);
    let slicing = Slicing::divide(arguments.duration.as_nanos() as u64, SLICE_NS);
    let page = Arc::new(Page::create(1)?);
    let (cpu, connections) = (&cpus[..1], arguments.connections);
    let sockets = move |_| client(&clients, ending);
    let echo = move |index| Echo::new(cell.message_bytes, cell.transactions, index);
    let helper = match cell.threads {
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
    let mut threads = group.thread_ids();
    threads.extend(helper.as_ref().map(ServerThread::id));
    let mut round = load(&group, &threads, slicing, signals)?;
    if !drained(&page, signals)? {
        round.notes.push("the server kept connections that the clients had closed".to_owned());
    }
    // Before the clients' stack goes, which takes the device along.
    if let Some(failure) = helper.and_then(ServerThread::end) {
        round.notes.push(failure);
    }
    if page.totals().errors > 0 {
        round.notes.push(format!("the server counted {} errors", page.totals().errors));
    }
    Ok(round)
}

/// Waits until the server has closed what it has accepted; false if it does not.
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
    slicing: Slicing,
    signals: &Signals,
) -> Result<Round> {
    let own = std::process::id();
    let readers = threads.iter().map(|&thread| ThreadReader::new(own, thread));
    let readers: Vec<ThreadReader> = readers.collect::<Result<_>>()?;
    let used_ns = || -> u64 { readers.iter().map(|reader| reader.read().run_ns).sum() };
    group.begin_slot(Order::new((SERVER, PORT).into(), true));
    warm_up(group, signals)?;
    let start_ns = now_ns() + LEAD_NS;
    group.measure_from(start_ns);
    signals.sleep_until(start_ns)?;
    let before_ns = used_ns();
    signals.sleep_until(start_ns + slicing.total_ns())?;
    let cpu_ns = used_ns() - before_ns;
    Ok(evaluate(&group.finish_slot()?, slicing, cpu_ns))
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
        notes,
    }
}

fn label(threads: u8) -> String {
    if threads == 1 { "mtcp, 1 thread".to_owned() } else { format!("mtcp, {threads} threads") }
}

fn row(cell: &Cell, arguments: &CeilingArgs, cpus: &[usize], rounds: &[Round]) -> Result<Row> {
    let middle =
        |figure: fn(&Round) -> f64| median(&rounds.iter().map(figure).collect::<Vec<f64>>());
    let mut latencies = new_times();
    let mut notes: Vec<String> = Vec::new();
    for round in rounds {
        // Bounds are equal by construction, so this cannot fail.
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
        server_cpu_us: None,
        valid: round.notes.is_empty(),
    });
    let (server_cpus, client_cpus) = cpus_of(cell, cpus);
    Ok(Row {
        server: label(cell.threads),
        kind: Kind::Closed,
        connections: arguments.connections,
        request_rate: None,
        request_bytes: cell.message_bytes,
        response_bytes: cell.message_bytes,
        transactions: cell.transactions,
        idle: 0,
        cores: 1,
        server_cpus,
        client_cpus,
        work: "none".to_owned(),
        network: Some("memory".to_owned()),
        latency_us: Percentiles::of(&latencies),
        send_lag_us: None,
        transmit_us: None,
        turnaround_us: None,
        receive_lag_us: None,
        accept_us: None,
        throughput: middle(|round| round.throughput),
        server_cpu_us: None,
        cpu_both_us: middle(|round| round.cpu_us),
        system_calls: None,
        gigabytes_per_s: None,
        cpu_s_per_gib: None,
        server_busy: None,
        client_busy: None,
        bound: None,
        throughput_ratio: None,
        cpu_ratio: None,
        cpu_both_ratio: None,
        p50_ratio: None,
        p99_ratio: None,
        valid: notes.is_empty(),
        notes,
        slices: None,
        pairs: None,
        totals: None,
        accounts: None,
        rounds: figures.collect(),
        timeline: Vec::new(),
        histograms: Histograms {
            service: if latencies.is_empty() { None } else { Some(encode(&latencies)?) },
            ..Histograms::default()
        },
    })
}

/// The CPU of the server's end and that of the clients'.
fn cpus_of(cell: &Cell, cpus: &[usize]) -> (Vec<usize>, Vec<usize>) {
    match cell.threads {
        1 => (cpus[..1].to_vec(), cpus[..1].to_vec()),
        _ => (cpus[1..2].to_vec(), cpus[..1].to_vec()),
    }
}

/// Connections that a second of CPU carries, both ends included.
fn connections_per_cpu_second(row: &Row) -> Option<f64> {
    let transactions = f64::from(row.transactions);
    row.cpu_both_us.filter(|_| row.transactions > 0).map(|us| 1e6 / us / transactions)
}

fn render(document: &Document, ending: Ending) -> String {
    let ends = match ending {
        Ending::Fin => "closed by both ends",
        Ending::Reset => "ended by RST",
    };
    let mut text = format!(
        "{}\n\n{}; connections are {ends}, and all checked byte by byte\n",
        document.environment.describe(),
        document.experiment.title
    );
    let headings = ["threads", "trans", "bytes", "k/s", "CPU us", "conn/CPU s", "p50 us", "p99 us"];
    let mut lines = vec![headings.map(str::to_owned).to_vec()];
    for row in &document.results {
        let transactions = match row.transactions {
            0 => "persist".to_owned(),
            count => count.to_string(),
        };
        let mut line = vec![
            row.server.clone(),
            transactions,
            row.request_bytes.to_string(),
            figure(row.throughput.map(|rate| rate / 1e3), 1),
            figure(row.cpu_both_us, 2),
            figure(connections_per_cpu_second(row), 0),
            figure(row.latency_us.map(|latency| latency.p50), 0),
            figure(row.latency_us.map(|latency| latency.p99), 0),
        ];
        if !row.valid {
            line.push(format!("INVALID: {}", row.notes.join("; ")));
        }
        lines.push(line);
    }
    lay_out(&mut text, &lines);
    text.push_str("CPU is that of both ends together, per transaction; rates are medians\n");
    text
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
    fn every_combination_has_a_row() {
        let cells = cells(&arguments(&["--message-bytes", "1,9", "--transactions", "1,0"]));
        let shown: Vec<_> =
            cells.iter().map(|c| (c.message_bytes, c.transactions, c.threads)).collect();
        let one = [(1, 1, 1), (1, 1, 2), (1, 0, 1), (1, 0, 2)];
        let nine = one.map(|(_, transactions, threads)| (9, transactions, threads));
        assert_eq!(shown, [one, nine].concat());
    }

    #[test]
    fn rates_are_for_a_second_of_cpu() {
        let latencies = new_times();
        let round = Round { throughput: 100_000.0, cpu_us: 4.0, latencies, notes: Vec::new() };
        let cell = Cell { threads: 2, transactions: 2, message_bytes: 64 };
        let row = row(&cell, &arguments(&[]), &[3, 5], &[round]).unwrap();
        assert_eq!(connections_per_cpu_second(&row), Some(125_000.0));
        assert_eq!((&row.server_cpus[..], &row.client_cpus[..]), (&[5][..], &[3][..]));
        assert!(row.valid);
    }
}
