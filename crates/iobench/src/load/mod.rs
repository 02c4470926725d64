//! `iobench load`: runs the client alone, against a URL, against a running server of iobench's own
//! exchange, or against one of iobench's servers in a process and on a CPU of its own.

pub(crate) mod external;
mod open;
mod target;
mod text;
pub(crate) mod url;
pub(crate) mod wrk;

use crate::cli::LoadArgs;
use crate::client::faults::FaultCounts;
use crate::client::slices::{Slicing, Tally, add_latencies, add_open};
use crate::client::warm_up::{LEAD_NS, USUAL_WAIT_NS, warm_up};
use crate::client::{ClientGroup, Order, Workload};
use crate::engine::environment::Environment;
use crate::engine::outcome::Accounts;
use crate::engine::progress::RunProgress;
use crate::engine::sampler::{
    Border, Disturbance, Sampler, TOLERATED, Used, disturbance, unjudged, wall_ns,
};
use crate::error::{Error, Result};
use crate::figures::{Percentiles, encode_recorded, new_times};
use crate::load::target::Target;
use crate::open::phases::Phase;
use crate::open::verdict::gap;
use crate::output;
use crate::results::files::ResultFiles;
use crate::results::{Document, ExperimentRecord, Histograms, Kind, RoundFigures, Row};
use crate::server::running::Running;
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;
use crate::sys::socket::CongestionControl;

/// Most slices. Each has a histogram, so long runs have longer slices.
const MOST_SLICES: u64 = 400;
const SHORTEST_SLICE_NS: u64 = 25_000_000;
/// The command's name in result documents.
const NAME: &str = "load";

/// The client's results.
struct Outcome {
    row: Row,
    errors: u64,
    /// How many of the row's notes are reasons why it is not valid; the others are remarks.
    reasons: usize,
    measured_ns: u64,
}

/// The results of a run, for the user and for the file.
pub(crate) struct Report {
    /// The command.
    pub(crate) name: &'static str,
    /// Text for the user.
    pub(crate) text: String,
    pub(crate) title: String,
    /// Settings that the rows do not contain.
    pub(crate) settings: String,
    /// The rows; the baseline's comes first.
    pub(crate) rows: Vec<Row>,
}

impl Report {
    /// Prints the text and writes the result file; true if every row is valid.
    pub(crate) fn publish(
        self,
        environment: Environment,
        begun_ns: u64,
        files: ResultFiles,
    ) -> Result<bool> {
        let driver =
            environment.driver.as_ref().map_or_else(String::new, |driver| format!("{driver}\n"));
        let valid = self.rows.iter().all(|row| row.valid);
        let experiment = ExperimentRecord {
            name: self.name.to_owned(),
            title: self.title,
            source: None,
            scale: "default".to_owned(),
            file: self.settings,
        };
        let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
        let baseline = self.rows.first().map_or_else(String::new, |row| row.subject.clone());
        let document = Document::new(environment, experiment, elapsed_s, baseline, self.rows);
        files.publish(&(driver + &self.text), &document)?;
        Ok(valid)
    }
}

/// Loads the server and prints the result; true if every row is valid.
pub(crate) fn run(arguments: &LoadArgs) -> Result<bool> {
    if arguments.beside.is_some() {
        return Err(Error::setup(
            "load has no --beside any more",
            "compare clients on a server of `iobench serve`, or with `iobench http --wrk`",
        ));
    }
    if arguments.message_bytes.is_some() {
        output::superseded("--message-bytes", "--request-bytes");
    }
    if let Some(url) = &arguments.http.url {
        return url::run(arguments, url);
    }
    if let Some(rate) = arguments.open.rate {
        return open::run(arguments, rate);
    }
    let begun_ns = now_ns();
    let signals = Signals::block();
    let limits = Limits::raise()?;
    limits.check_connections(arguments.connections)?;
    let files = ResultFiles::prepare(&arguments.measure.output)?;
    let seed = arguments.measure.seed.unwrap_or(begun_ns % 1_000_000);
    let environment = environment(arguments, &limits, seed)?;
    closed(arguments, &signals)?.publish(environment, begun_ns, files)
}

/// Returns the environment, with the driver of iobench's own server.
fn environment(arguments: &LoadArgs, limits: &Limits, seed: u64) -> Result<Environment> {
    let mut environment = Environment::gather(limits, seed)?;
    environment.driver = crate::server::describe_driver(arguments.server.as_deref().into_iter())?;
    Ok(environment)
}

fn closed(arguments: &LoadArgs, signals: &Signals) -> Result<Report> {
    let target = Target::reach(arguments, signals)?;
    let outcome = measure(arguments, &target, signals)?;
    let headline = format!("closed loop on {} connections", arguments.connections);
    Ok(Report {
        name: NAME,
        text: format!("{}: {headline}: {}", target.address, describe(&outcome)),
        title: format!("{}: {headline}", target.name),
        settings: format!("closed loop, measured {:?}\n", arguments.duration()),
        rows: vec![outcome.row],
    })
}

fn workload(arguments: &LoadArgs) -> Workload {
    let duration_ns = arguments.duration().as_nanos() as u64;
    let slice_ns = (duration_ns / MOST_SLICES).max(SHORTEST_SLICE_NS);
    Workload {
        transactions: arguments.transactions,
        exchange: arguments.exchange(),
        congestion: CongestionControl::pick(),
        slicing: Slicing::divide(duration_ns, slice_ns),
    }
}

fn measure(arguments: &LoadArgs, target: &Target, signals: &Signals) -> Result<Outcome> {
    let workload = workload(arguments);
    let client_cpus = &target.client.cpus;
    let clients = ClientGroup::start(client_cpus, arguments.connections, &workload)?;
    let server = target.server.as_ref();
    let side = server.map(|server| server.side(&target.server_cpus));
    let mut sampler = Sampler::new(&target.client, &clients.thread_ids(), side.as_ref())?;
    let total_ns = workload.slicing.total_ns();
    let borders = Slicing::judged(total_ns);
    clients.begin_slot(Order::new(target.address, true));
    warm_up(&clients, signals, USUAL_WAIT_NS)?;
    let start_ns = now_ns() + LEAD_NS;
    clients.measure_from(start_ns);
    let progress = RunProgress::new(target.address.to_string());
    let used = || {
        let at_ns = now_ns().saturating_sub(start_ns);
        progress.show(Phase::Measure.name(), at_ns, total_ns);
        Used { client_ns: None, server_ns: server.map_or(0, Running::cpu_time_ns) }
    };
    let (mut seen, mut measured_ns) = (Vec::new(), total_ns);
    match sampler.watch_into(&mut seen, signals, start_ns, borders, used) {
        // What was measured until then is a result.
        Err(Error::Interrupted) if !seen.is_empty() => {
            clients.end_early(now_ns());
            seen.push(sampler.border(used()));
            measured_ns = wall_ns(&seen);
        }
        ended => ended?,
    }
    let tallies = clients.finish_slot()?;
    let watched = Watch {
        measured_ns,
        slice_ns: workload.slicing.length_ns,
        unjudged: unjudged(&target.client, &seen),
        client_busy: client_busy(&seen, client_cpus.len()),
        disturbance: disturbance(&seen, sampler.sides()),
    };
    evaluate(arguments, target, &tallies, &watched)
}

/// What the samplers found in a measurement.
struct Watch {
    /// The measured time, which an interruption makes shorter.
    measured_ns: u64,
    slice_ns: u64,
    /// That other programs' work was not judged, if so.
    unjudged: Option<String>,
    client_busy: f64,
    disturbance: Disturbance,
}

fn client_busy(borders: &[Border], cpus: usize) -> f64 {
    let (Some(first), Some(last)) = (borders.first(), borders.last()) else { return 0.0 };
    let available_ns = wall_ns(borders) * cpus as u64;
    last.client.run_ns(&first.client) as f64 / available_ns.max(1) as f64
}

fn evaluate(
    arguments: &LoadArgs,
    target: &Target,
    tallies: &[Tally],
    watched: &Watch,
) -> Result<Outcome> {
    let Watch { measured_ns, client_busy, disturbance, .. } = *watched;
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
    notes.extend(text::busy(client_busy));
    let usual_ns = if latencies.is_empty() { 0 } else { latencies.value_at_quantile(0.5) };
    let slices = 0..(measured_ns / watched.slice_ns) as usize;
    let is_silent =
        |slice: usize| tallies.iter().all(|tally| tally.slices[slice].transactions == 0);
    notes.extend(gap(slices.map(is_silent), watched.slice_ns, usual_ns));
    notes.extend(watched.unjudged.clone());
    let exchange = arguments.exchange();
    let latency_us = Percentiles::of(&latencies);
    let throughput = Some(measured as f64 * 1e9 / measured_ns as f64);
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
    Ok(Outcome { row, errors: faults.total(), reasons, measured_ns })
}

fn describe(outcome: &Outcome) -> String {
    let Outcome { row, errors, reasons, measured_ns } = outcome;
    let (reasons, remarks) = row.notes.split_at(*reasons);
    let first = format!(
        "{:.0} transactions/s over {:.1} s, {errors} errors, clients {:.0} % busy\n",
        row.throughput.unwrap_or(f64::NAN),
        *measured_ns as f64 / 1e9,
        row.client_busy.unwrap_or(f64::NAN) * 100.0
    );
    first + &text::times("latency", row.latency_us) + &text::verdict(reasons, remarks)
}
