//! `iobench load`: the client alone, against any server with answers of a constant size, or against
//! one of ours in a process and on a CPU of its own, and there beside another client if wanted.

mod beside;
pub(crate) mod external;
mod open;
mod target;

use std::time::Duration;

use crate::cli::LoadArgs;
use crate::client::faults::FaultCounts;
use crate::client::slices::{Slicing, Tally, add_open};
use crate::client::{ClientGroup, Order, Workload};
use crate::compare::slots::{LEAD_NS, add_latencies, warm_up};
use crate::disturbance::{Border, Disturbance, Observer, ServerSide, TOLERATED, disturbance};
use crate::engine::environment::Environment;
use crate::engine::outcome::Accounts;
use crate::engine::placement::Placement;
use crate::error::Result;
use crate::figures::{Percentiles, encode_recorded, new_times};
use crate::load::beside::Contest;
use crate::load::external::Template;
use crate::load::target::{Target, exchange, own_launch};
use crate::output;
use crate::results::files::ResultFiles;
use crate::results::{Document, ExperimentRecord, Histograms, Kind, RoundFigures, Row};
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
struct Outcome {
    row: Row,
    errors: u64,
    /// How many of the row's notes say why it is not valid; the others are remarks.
    reasons: usize,
}

/// What a run has to tell.
struct Report {
    /// For people.
    text: String,
    title: String,
    /// What the rows do not tell.
    settings: String,
    /// The baseline's first.
    rows: Vec<Row>,
}

impl Report {
    /// Prints, and writes the result file; true if every row is valid.
    fn publish(
        self,
        environment: Environment,
        begun_ns: u64,
        files: Option<ResultFiles>,
    ) -> Result<bool> {
        output::print(&self.text);
        let valid = self.rows.iter().all(|row| row.valid);
        let experiment = ExperimentRecord {
            name: "load".to_owned(),
            title: self.title,
            source: None,
            scale: "default".to_owned(),
            file: self.settings,
        };
        let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
        let baseline = self.rows.first().map_or_else(String::new, |row| row.subject.clone());
        if let Some(files) = files {
            files.write(&Document::new(environment, experiment, elapsed_s, baseline, self.rows))?;
        }
        Ok(valid)
    }
}

/// Loads the server and prints what came of it; true if nothing went wrong.
pub(crate) fn run(arguments: &LoadArgs) -> Result<bool> {
    if let Some(rate) = arguments.open.rate {
        return open::run(arguments, rate);
    }
    let begun_ns = now_ns();
    let signals = Signals::block();
    let limits = Limits::raise()?;
    limits.check_connections(arguments.connections)?;
    let files = ResultFiles::prepare(&arguments.measure.output)?;
    let environment = Environment::gather(&limits, 0)?;
    let report = match &arguments.beside {
        Some(command) => beside(arguments, command, &signals)?,
        None => closed(arguments, &signals)?,
    };
    report.publish(environment, begun_ns, files)
}

fn closed(arguments: &LoadArgs, signals: &Signals) -> Result<Report> {
    let target = Target::reach(arguments, signals)?;
    let outcome = measure(arguments, &target, signals)?;
    let headline = format!("closed loop on {} connections", arguments.connections);
    Ok(Report {
        text: format!(
            "{}: {headline}: {}",
            target.address,
            describe(&outcome, arguments.duration())
        ),
        title: format!("{}: {headline}", target.name),
        settings: format!("closed loop, measured {:?}\n", arguments.duration()),
        rows: vec![outcome.row],
    })
}

fn beside(arguments: &LoadArgs, command: &str, signals: &Signals) -> Result<Report> {
    let mut contest = contest(arguments, Template::new(command)?, signals)?;
    let rows = contest.run(arguments.measure.rounds.unwrap_or(DEFAULT_ROUNDS))?;
    let server = arguments.server.as_deref().unwrap_or_default();
    Ok(Report {
        text: beside::describe(&rows, server),
        title: format!("Clients of {server}"),
        settings: format!("server {server}, its clients iobench load and `{command}`\n"),
        rows: rows.into(),
    })
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
    if arguments.measure.client_cpus.is_none() {
        client_cpus.truncate(1);
    }
    let workload = workload(arguments);
    Ok(Contest { arguments, workload, template, server, server_cpus, client_cpus, signals })
}

fn workload(arguments: &LoadArgs) -> Workload {
    let duration_ns = arguments.duration().as_nanos() as u64;
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
    evaluate(arguments, target, &tallies, workload.slicing, &watched)
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
) -> Result<Outcome> {
    let Watch { client_busy, disturbance } = *watched;
    let mut latencies = new_times();
    let mut faults = FaultCounts::default();
    let mut totals = Accounts::default();
    let mut measured = 0;
    for tally in tallies {
        faults.add(&tally.faults);
        totals.client_transactions += tally.transactions;
        totals.client_connections += tally.connections;
        totals.client_bytes_sent += tally.bytes_sent;
        totals.client_bytes_received += tally.bytes_received;
        for slice in &tally.slices {
            measured += slice.transactions;
            add_latencies(&mut latencies, &slice.latencies);
        }
    }
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
    let latency_us = Percentiles::of(&latencies);
    let throughput = Some(measured as f64 * 1e9 / slicing.total_ns() as f64);
    let valid = reasons == 0;
    let round = RoundFigures { latency_us, throughput, valid, ..RoundFigures::default() };
    let row = Row {
        connections: arguments.connections,
        transactions: arguments.transactions,
        cores: target.server_cpus.len().max(1),
        server_cpus: target.server_cpus.clone(),
        client_cpus: target.client.cpus.clone(),
        latency_us,
        throughput,
        client_busy: Some(client_busy),
        valid,
        notes,
        disturbance: Some(disturbance),
        totals: Some(totals),
        rounds: vec![round],
        histograms: Histograms { service: encode_recorded(&latencies)?, ..Histograms::default() },
        ..Row::empty(&target.name, exchange.workload(), Kind::Closed, exchange)
    };
    Ok(Outcome { row, errors: faults.total(), reasons })
}

fn describe(outcome: &Outcome, duration: Duration) -> String {
    let Outcome { row, errors, reasons } = outcome;
    let mut text = format!(
        "{:.0} transactions/s over {:.1} s, {errors} errors, clients {:.0} % busy\n",
        row.throughput.unwrap_or(f64::NAN),
        duration.as_secs_f64(),
        row.client_busy.unwrap_or(f64::NAN) * 100.0
    );
    if let Some(latency) = row.latency_us {
        text.push_str(&format!(
            "latency in us: p25 {:.0}, p50 {:.0}, p75 {:.0}, p99 {:.0}, p99.9 {:.0}, max {:.0}\n",
            latency.p25, latency.p50, latency.p75, latency.p99, latency.p999, latency.max
        ));
    }
    for (number, note) in row.notes.iter().enumerate() {
        let mark = if number < *reasons { "INVALID" } else { "note" };
        text.push_str(&format!("{mark}: {note}\n"));
    }
    text
}
