//! `iobench load`: the client alone, against any server with answers of a constant size, or against
//! one of ours in a process and on a CPU of its own, and there beside another client if wanted.

mod beside;
pub(crate) mod external;
pub(crate) mod target;

use serde::Serialize;

use crate::cli::LoadArgs;
use crate::client::faults::FaultCounts;
use crate::client::slices::{Slicing, Tally, add_open};
use crate::client::{ClientGroup, Order, Workload};
use crate::compare::slots::{LEAD_NS, add_latencies, warm_up};
use crate::disturbance::{Border, Disturbance, Observer, ServerSide, TOLERATED, disturbance};
use crate::engine::environment::Environment;
use crate::engine::json_file::JsonFile;
use crate::engine::placement::Placement;
use crate::error::Result;
use crate::figures::{Percentiles, new_times};
use crate::load::beside::Contest;
use crate::load::external::Template;
use crate::load::target::{Target, exchange, own_launch};
use crate::output;
use crate::server::process::ServerProcess;
use crate::server::running::Running;
use crate::sys::affinity::wake_promptly;
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::procstat::ThreadReader;
use crate::sys::signals::Signals;
use crate::sys::socket::CongestionControl;

/// Slices are only a means here: one histogram each, so long runs take longer slices.
const MOST_SLICES: u64 = 400;
const SHORTEST_SLICE_NS: u64 = 25_000_000;
/// Slices of time that are judged for disturbance, at most and of this length at least.
const MOST_BORDERS: u64 = 400;
const BORDER_NS: u64 = 100_000_000;
/// A client thread that is busier than this may be what was measured.
const BUSY: f64 = 0.95;
const DEFAULT_ROUNDS: u32 = 5;

/// What the client saw.
#[derive(Debug, Serialize)]
struct Outcome {
    connect: String,
    /// `closed`: every connection sends its next request when it has the answer.
    r#loop: &'static str,
    transactions: u32,
    /// Of an echo, where both sizes are the same.
    message_bytes: Option<usize>,
    request_bytes: usize,
    response_bytes: usize,
    connections: usize,
    duration_s: f64,
    throughput: f64,
    latency_us: Option<Percentiles>,
    client_busy: f64,
    disturbance: Disturbance,
    errors: u64,
    valid: bool,
    /// Why it is not valid, then remarks.
    notes: Vec<String>,
    /// How many notes say why it is not valid.
    #[serde(skip)]
    reasons: usize,
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
struct Document<'a, R> {
    environment: &'a Environment,
    result: &'a R,
}

/// Loads the server and prints what came of it; true if nothing went wrong.
pub(crate) fn run(arguments: &LoadArgs) -> Result<bool> {
    let signals = Signals::block();
    let limits = Limits::raise()?;
    limits.check_connections(arguments.connections)?;
    let json = arguments.json.as_deref().map(JsonFile::prepare).transpose()?;
    let environment = Environment::gather(&limits, 0)?;
    if let Some(command) = &arguments.beside {
        let template = Template::new(command)?;
        let name = template.name().to_owned();
        let mut contest = contest(arguments, template, &signals)?;
        let report = contest.run(arguments.rounds.unwrap_or(DEFAULT_ROUNDS))?;
        output::print(&beside::describe(&report, &name));
        if let Some(json) = json {
            json.write(&Document { environment: &environment, result: &report })?;
        }
        return Ok(report.valid);
    }
    let target = Target::reach(arguments, &signals)?;
    let outcome = measure(arguments, &target, &signals)?;
    output::print(&describe(&outcome));
    if let Some(json) = json {
        json.write(&Document { environment: &environment, result: &outcome })?;
    }
    Ok(outcome.valid)
}

/// Our client has one thread for each CPU named, and one if none is.
fn contest<'a>(
    arguments: &'a LoadArgs,
    template: Template,
    signals: &'a Signals,
) -> Result<Contest<'a>> {
    let (launch, placement) = own_launch(arguments)?;
    let server = ServerProcess::start(&launch, signals)?;
    let Placement { server_cpus, mut client_cpus } = placement;
    if arguments.cpus.is_none() {
        client_cpus.truncate(1);
    }
    let workload = workload(arguments);
    Ok(Contest { arguments, workload, template, server, server_cpus, client_cpus, signals })
}

fn workload(arguments: &LoadArgs) -> Workload {
    let duration_ns = arguments.duration.as_nanos() as u64;
    let slice_ns = (duration_ns / MOST_SLICES).max(SHORTEST_SLICE_NS);
    Workload {
        transactions: arguments.transactions,
        exchange: exchange(arguments),
        congestion: CongestionControl::pick(),
        slicing: Slicing::divide(duration_ns, slice_ns),
    }
}

/// Readers of the client threads' times.
fn own_readers(clients: &ClientGroup) -> Result<Vec<ThreadReader>> {
    let readers = clients.thread_ids().into_iter();
    readers.map(|thread| ThreadReader::new(std::process::id(), thread)).collect()
}

fn measure(arguments: &LoadArgs, target: &Target, signals: &Signals) -> Result<Outcome> {
    let workload = workload(arguments);
    let client_cpus = &target.client.cpus;
    let clients = ClientGroup::start(client_cpus, arguments.connections, &workload)?;
    let server = target.server.as_ref();
    let side = server.map(|server| ServerSide::of(server, &target.server_cpus));
    let mut observer = Observer::new(&target.client, &clients.thread_ids(), side.as_ref())?;
    let total_ns = workload.slicing.total_ns();
    let borders = Slicing::divide(total_ns, BORDER_NS.max(total_ns / MOST_BORDERS));
    clients.begin_slot(Order::new(target.address, target.server.is_some()));
    warm_up(&clients, signals)?;
    let prompt = wake_promptly();
    let start_ns = now_ns() + LEAD_NS;
    clients.measure_from(start_ns);
    let mut seen: Vec<Border> = Vec::with_capacity(borders.count + 1);
    for number in 0..=borders.count as u64 {
        signals.sleep_until(start_ns + number * borders.length_ns)?;
        seen.push(observer.border(server.map_or(0, Running::cpu_time_ns)));
    }
    drop(prompt);
    let tallies = clients.finish_slot()?;
    let watched = Watch {
        client_busy: client_busy(&seen, client_cpus.len()),
        disturbance: disturbance(&seen, observer.sides()),
    };
    Ok(evaluate(arguments, target, &tallies, workload.slicing, &watched))
}

/// What was seen of a measurement from outside.
struct Watch {
    client_busy: f64,
    disturbance: Disturbance,
}

fn client_busy(borders: &[Border], cpus: usize) -> f64 {
    let (Some(first), Some(last)) = (borders.first(), borders.last()) else { return 0.0 };
    let run_ns = |border: &Border| border.client.threads.iter().map(|t| t.run_ns).sum::<u64>();
    let available_ns = last.at_ns.saturating_sub(first.at_ns) * cpus as u64;
    run_ns(last).saturating_sub(run_ns(first)) as f64 / available_ns.max(1) as f64
}

fn evaluate(
    arguments: &LoadArgs,
    target: &Target,
    tallies: &[Tally],
    slicing: Slicing,
    watched: &Watch,
) -> Outcome {
    let Watch { client_busy, disturbance } = *watched;
    let mut latencies = new_times();
    let mut faults = FaultCounts::default();
    let mut accounts = Totals::default();
    let mut measured = 0;
    for tally in tallies {
        faults.add(&tally.faults);
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
    add_open(&mut latencies, tallies.iter().flat_map(|t| t.open_ages_ns.iter().copied()));
    let mut notes = faults.describe();
    if measured == 0 {
        notes.push("no transaction was completed while it was measured".to_owned());
    }
    notes.extend(disturbance.reasons(TOLERATED));
    let reasons = notes.len();
    if client_busy >= BUSY {
        notes.push(format!(
            "the clients were busy {:.0} % of the time: they may be the limit, not the server",
            client_busy * 100.0
        ));
    }
    let exchange = exchange(arguments);
    Outcome {
        connect: target.address.to_string(),
        r#loop: "closed",
        transactions: arguments.transactions,
        message_bytes: exchange.is_echo().then_some(exchange.request_bytes),
        request_bytes: exchange.request_bytes,
        response_bytes: exchange.response_bytes,
        connections: arguments.connections,
        duration_s,
        throughput: measured as f64 / duration_s,
        latency_us: Percentiles::of(&latencies),
        client_busy,
        disturbance,
        errors: faults.total(),
        valid: reasons == 0,
        notes,
        reasons,
        accounts,
    }
}

fn describe(outcome: &Outcome) -> String {
    let mut text = format!(
        "{}: closed loop on {} connections: {:.0} transactions/s over {:.1} s, {} errors, clients \
         {:.0} % busy\n",
        outcome.connect,
        outcome.connections,
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
    for (number, note) in outcome.notes.iter().enumerate() {
        let mark = if number < outcome.reasons { "INVALID" } else { "note" };
        text.push_str(&format!("{mark}: {note}\n"));
    }
    text
}
