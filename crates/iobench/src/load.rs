//! `iobench load`: the client alone, against any echo server.

use std::net::TcpStream;
use std::time::Duration;

use serde::Serialize;

use crate::cli::LoadArgs;
use crate::client::ClientGroup;
use crate::client::connection::Workload;
use crate::client::slices::{FaultCounts, Slicing, Tally, describe_stalled, new_total_latencies};
use crate::compare::environment::Environment;
use crate::compare::report::{JsonFile, LatencyUs};
use crate::compare::slots::{add_latencies, warm_up};
use crate::error::{Context, Result};
use crate::output;
use crate::sys::affinity::{allowed_cpus, wake_promptly};
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::procstat::ThreadReader;
use crate::sys::signals::Signals;
use crate::sys::socket::{CongestionControl, RawAddress};

/// Lead before the measurement, so that all threads have heard of it.
const LEAD_NS: u64 = 15_000_000;
/// Slices are only a means here: one histogram each, so long runs take longer slices.
const MOST_SLICES: u64 = 400;
const SHORTEST_SLICE_NS: u64 = 25_000_000;
/// A client thread that is busier than this may be what was measured.
const BUSY: f64 = 0.95;

/// What the client saw.
#[derive(Debug, Serialize)]
struct Outcome {
    connect: String,
    transactions: u32,
    message_bytes: usize,
    connections: usize,
    duration_s: f64,
    throughput: f64,
    latency_us: Option<LatencyUs>,
    client_busy: f64,
    errors: u64,
    valid: bool,
    notes: Vec<String>,
    /// Totals from first connect to last close, warm-up included.
    accounts: Totals,
}

#[derive(Debug, Default, Serialize)]
struct Totals {
    transactions: u64,
    connections: u64,
    bytes_sent: u64,
    bytes_received: u64,
}

/// The JSON file.
#[derive(Serialize)]
struct Document<'a> {
    environment: &'a Environment,
    result: &'a Outcome,
}

/// Loads the server and prints what came of it; true if nothing went wrong.
pub(crate) fn run(arguments: &LoadArgs) -> Result<bool> {
    let signals = Signals::block();
    let limits = Limits::raise()?;
    limits.check_connections(arguments.connections)?;
    let json = arguments.json.as_deref().map(JsonFile::prepare).transpose()?;
    let environment = Environment::gather(&limits, 0)?;
    let target = arguments.connect;
    TcpStream::connect_timeout(&target, Duration::from_secs(5)).context(
        format!("connect to {target}"),
        "start an echo server there, for instance `iobench serve --server epoll`",
    )?;
    let outcome = measure(arguments, &signals)?;
    output::print(&describe(&outcome));
    if let Some(json) = json {
        json.write(&Document { environment: &environment, result: &outcome })?;
    }
    Ok(outcome.valid)
}

fn measure(arguments: &LoadArgs, signals: &Signals) -> Result<Outcome> {
    let cpus = match &arguments.cpus {
        Some(cpus) => cpus.clone(),
        None => allowed_cpus()?,
    };
    let duration_ns = arguments.duration.as_nanos() as u64;
    let slice_ns = (duration_ns / MOST_SLICES).max(SHORTEST_SLICE_NS);
    let workload = Workload {
        transactions: arguments.transactions,
        message_bytes: arguments.message_bytes,
        congestion: CongestionControl::pick(),
        slicing: Slicing::divide(duration_ns, slice_ns),
    };
    let clients = ClientGroup::start(&cpus, arguments.connections, &workload)?;
    let readers: Vec<ThreadReader> = clients
        .thread_ids()
        .into_iter()
        .map(|thread| ThreadReader::new(std::process::id(), thread))
        .collect::<Result<_>>()?;
    let run_ns = || -> u64 { readers.iter().map(|reader| reader.read().run_ns).sum() };
    clients.begin_slot(RawAddress::new(arguments.connect));
    warm_up(&clients, signals)?;
    let prompt = wake_promptly();
    let start_ns = now_ns() + LEAD_NS;
    clients.measure_from(start_ns);
    signals.sleep_until(start_ns)?;
    let before_ns = run_ns();
    signals.sleep_until(start_ns + workload.slicing.total_ns())?;
    let used_ns = run_ns() - before_ns;
    drop(prompt);
    let tallies = clients.finish_slot()?;
    let available_ns = workload.slicing.total_ns() * cpus.len() as u64;
    let client_busy = used_ns as f64 / available_ns as f64;
    Ok(evaluate(arguments, &tallies, workload.slicing, client_busy))
}

fn evaluate(
    arguments: &LoadArgs,
    tallies: &[Tally],
    slicing: Slicing,
    client_busy: f64,
) -> Outcome {
    let mut latencies = new_total_latencies();
    let mut faults = FaultCounts::default();
    let mut accounts = Totals::default();
    let (mut measured, mut stalled) = (0, 0);
    for tally in tallies {
        faults.add(&tally.faults);
        stalled += tally.stalled;
        accounts.transactions += tally.transactions;
        accounts.connections += tally.connections;
        accounts.bytes_sent += tally.bytes_sent;
        accounts.bytes_received += tally.bytes_received;
        for slice in &tally.slices {
            measured += slice.transactions;
            add_latencies(&mut latencies, &slice.latencies);
        }
    }
    let duration_s = slicing.total_ns() as f64 / 1e9;
    let mut notes = faults.describe();
    if stalled > 0 {
        notes.push(describe_stalled(stalled));
    }
    if measured == 0 {
        notes.push("no transaction was completed while it was measured".to_owned());
    }
    let valid = notes.is_empty();
    if client_busy >= BUSY {
        notes.push(format!(
            "the clients were busy {:.0} % of the time: they may be the limit, not the server",
            client_busy * 100.0
        ));
    }
    Outcome {
        connect: arguments.connect.to_string(),
        transactions: arguments.transactions,
        message_bytes: arguments.message_bytes,
        connections: arguments.connections,
        duration_s,
        throughput: measured as f64 / duration_s,
        latency_us: LatencyUs::of(&latencies),
        client_busy,
        errors: faults.total() + stalled,
        valid,
        notes,
        accounts,
    }
}

fn describe(outcome: &Outcome) -> String {
    let mut text = format!(
        "{}: {:.0} transactions/s over {:.1} s, {} errors, clients {:.0} % busy\n",
        outcome.connect,
        outcome.throughput,
        outcome.duration_s,
        outcome.errors,
        outcome.client_busy * 100.0
    );
    if let Some(latency) = outcome.latency_us {
        text.push_str(&format!(
            "latency in us: p25 {:.0}, p50 {:.0}, p75 {:.0}, p99 {:.0}, p99.9 {:.0}, max {:.0}\n",
            latency.p25, latency.p50, latency.p75, latency.p99, latency.p999, latency.max
        ));
    }
    let mark = if outcome.valid { "note" } else { "INVALID" };
    for note in &outcome.notes {
        text.push_str(&format!("{mark}: {note}\n"));
    }
    text
}
