//! `iobench compare`: servers side by side under the report's microbenchmark (section 2.2).
//!
//! Every server is a process of its own that lives for the whole run and idles except in its own
//! slots. Rounds are the outermost loop, so that each cell's rounds are spread over the whole run
//! and see the machine in different moods.

pub(crate) mod congestion;
pub(crate) mod contenders;
pub(crate) mod convert;
pub(crate) mod holder;
pub(crate) mod idle;
pub(crate) mod plan;
pub(crate) mod repeats;
pub(crate) mod report;
pub(crate) mod rounds;
pub(crate) mod self_test;
mod shown;
pub(crate) mod slots;
pub(crate) mod table;
pub(crate) mod versus;

use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

use crate::cli::CompareArgs;
use crate::compare::contenders::Contenders;
use crate::compare::convert::convert;
use crate::compare::idle::IdleLoad;
use crate::compare::plan::{Cell, Plan, Request};
use crate::compare::repeats::{Measured, Round, RoundSource, Turn};
use crate::compare::report::{Rounds, Row};
use crate::compare::rounds::{RoundShape, measure_round, service_for};
use crate::engine::environment::Environment;
use crate::engine::progress::Progress;
use crate::engine::table::stdout_width;
use crate::error::{Context, Result};
use crate::exchange::Exchange;
use crate::network::{Network, NetworkCounters, Options, conditions::Conditions};
use crate::output;
use crate::path::Path;
use crate::results::files::ResultFiles;
use crate::results::{self, Document, ExperimentRecord, SelfTest, Slots, Versus};
use crate::server::{process::Launch, running::Running};
use crate::stack::Site;
use crate::sys::affinity::{allowed_cpus, wake_promptly};
use crate::sys::clock::now_ns;
use crate::sys::limits::local_ports;
use crate::sys::signals::Signals;
use crate::sys::socket::{CongestionControl, default_congestion_control};

/// Measured time of a server in a cell and round.
const USUAL_DURATION: Duration = Duration::from_millis(500);

/// The path between clients and servers.
#[derive(Serialize)]
struct PathReport<'a> {
    conditions: &'a Conditions,
    description: String,
    server_address: IpAddr,
    client_addresses: &'a [IpAddr],
    counters: NetworkCounters,
}

/// Runs the comparison and prints it; true if every row is valid.
pub(crate) fn run(arguments: &CompareArgs) -> Result<bool> {
    let begun_ns = now_ns();
    let signals = Signals::block();
    let seed = arguments.measure.seed.unwrap_or(begun_ns % 1_000_000);
    let contenders = Contenders::choose(arguments)?;
    let mut path = create_path(arguments, seed)?;
    if contenders.has_external() {
        stop_pacing(&path)?;
    }
    // From here on everything is made on the clients' side, but for the servers.
    let _entered = path.enter_client()?;
    let labels: Vec<&str> = contenders.labels.iter().map(String::as_str).collect();
    let limits = idle::raise_limits(arguments.connections, most_idle(arguments))?;
    limits.check_connections(arguments.connections)?;
    limits.check_backlog(arguments.connections)?;
    let plan = Plan::new(&request(arguments, labels.len()), &allowed_cpus()?)?;
    let files = ResultFiles::prepare(&arguments.measure.output)?;
    let environment = Environment::gather(&limits, seed)?;
    announce(&plan, labels.len());
    let connections = arguments.connections;
    let mut processes = start(&plan, &contenders, connections, &signals, &mut path)?;
    let network = path.network();
    let (plan, contenders) = (&plan, &contenders);
    let machine = Machine {
        plan,
        contenders,
        connections,
        signals: &signals,
        network,
        processes: &mut processes,
        progress: Progress::new(u64::from(plan.rounds) * plan.round_slots() as u64, plan.slot_ns()),
        repeats: false,
        idle: IdleLoad::new(&path, contenders, connections, &signals),
    };
    let measured = machine.measure_all(begun_ns)?;
    let rows = |baseline| rows(plan, contenders, connections, &measured.outcomes, baseline);
    let further = contenders
        .further_baselines
        .iter()
        .map(|&baseline| Ok(versus::versus(&contenders.labels[baseline], &rows(baseline)?)));
    let versus: Vec<Versus> = further.collect::<Result<_>>()?;
    let mut rows = rows(contenders.baseline)?;
    rows.iter_mut().for_each(|row| row.path = path.label());
    let network = network.map(PathReport::of).transpose()?;
    print_surroundings(&environment, &rows, &path, network.as_ref());
    let self_test = arguments.self_test.then(|| SelfTest::of(&rows, contenders.baseline_label()));
    print_results(&rows, &versus, contenders.baseline_label(), self_test.as_ref());
    output::print(&measured.repeats.describe());
    output::print(&shown::not_shown(&rows));
    let valid = rows.iter().all(|row| row.valid);
    let trustworthy = self_test.as_ref().is_none_or(|self_test| self_test.trustworthy);
    if let Some(files) = files {
        let results = convert_all(rows, &measured.outcomes)?;
        let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
        let baseline = contenders.baseline_label().to_owned();
        let experiment = experiment(arguments.measure.quick, plan, measured.rounds);
        files.write(&Document {
            slots: Some(slots(plan, &measured)),
            network: network.as_ref().map(encode).transpose()?,
            self_test,
            versus,
            ..Document::new(environment, experiment, elapsed_s, baseline, results)
        })?;
    }
    Ok(trustworthy && valid)
}

/// What is going to be measured, and how long that takes.
fn announce(plan: &Plan, servers: usize) {
    output::note(&format!(
        "{servers} servers in {} cells, {} rounds, about {} s",
        plan.cells.len(),
        plan.rounds,
        plan.estimate_ns().div_ceil(1_000_000_000)
    ));
}

fn encode(network: &PathReport<'_>) -> Result<serde_json::Value> {
    serde_json::to_value(network)
        .map_err(std::io::Error::from)
        .context("encode what the network did", "report this as a bug")
}

/// How time was cut.
fn slots(plan: &Plan, measured: &Measured) -> Slots {
    Slots {
        rounds: measured.rounds,
        repeated_rounds: measured.repeats.rounds,
        per_round: plan.passes,
        slice_ms: plan.slicing.length_ns as f64 / 1e6,
    }
}

/// What the result file says of the comparison as a whole.
fn experiment(quick: bool, plan: &Plan, rounds: u32) -> ExperimentRecord {
    let slice_ms = plan.slicing.length_ns as f64 / 1e6;
    ExperimentRecord {
        name: "compare".to_owned(),
        title: format!("Servers compared, {rounds} rounds, slices of {slice_ms} ms"),
        source: None,
        scale: if quick { "quick" } else { "default" }.to_owned(),
        // The command, which stands with the environment, is the whole experiment.
        file: String::new(),
    }
}

/// The rows of the result file, with their rounds; `outcomes` are by cell, then by server.
fn convert_all(rows: Vec<Row>, outcomes: &[Vec<Rounds>]) -> Result<Vec<results::Row>> {
    let convert = |(row, rounds): (Row, &Rounds)| {
        let (path, workload) = (row.path, row.exchange().workload());
        convert(row, workload, path, "none".to_owned(), rounds, &[])
    };
    rows.into_iter().zip(outcomes.iter().flatten()).map(convert).collect()
}

/// The most idle connections to a server in any cell.
fn most_idle(arguments: &CompareArgs) -> usize {
    arguments.idle.iter().copied().max().unwrap_or(0)
}

/// The path, with addresses for idle connections beside the measured clients' own.
fn create_path(arguments: &CompareArgs, seed: u64) -> Result<Path> {
    let client_addresses = 1 + idle::addresses_for(most_idle(arguments), local_ports())?;
    let options = Options { client_addresses, relay_cpu: arguments.relay_cpu, seed };
    Path::create(arguments.path, arguments.network.as_ref(), &options)
}

/// Gives programs that are not ours the congestion control of our own servers and clients. Where
/// that is not permitted the rows tell what each used.
fn stop_pacing(path: &Path) -> Result<()> {
    let default = default_congestion_control();
    if !CongestionControl::pick().must_be_set {
        return Ok(());
    }
    output::note(&if path.stop_pacing()? {
        format!(
            "servers and clients run in network namespaces of their own, because the system's \
             congestion control, {default}, paces; programs that are not ours cannot reach the \
             machine's network from there"
        )
    } else {
        format!(
            "no permission for a network namespace: programs that are not ours use the system's \
             congestion control, {default}, unless they set another; run as root for figures to \
             be compared"
        )
    });
    Ok(())
}

/// What all rows have in common, and an empty line.
fn print_surroundings(
    environment: &Environment,
    rows: &[Row],
    path: &Path,
    network: Option<&PathReport<'_>>,
) {
    let network = network.map(PathReport::describe);
    let lines = [Some(report::describe(environment, rows)), path.describe(), network];
    lines.into_iter().flatten().for_each(|line| output::print(&format!("{line}\n")));
    output::print("\n");
}

/// The tables and the sentences below them.
fn print_results(rows: &[Row], versus: &[Versus], baseline: &str, self_test: Option<&SelfTest>) {
    output::print(&table::render(rows, baseline, stdout_width()));
    versus.iter().for_each(|versus| output::print(&versus::render(versus, rows)));
    match self_test {
        Some(self_test) => output::print(&self_test.describe()),
        None => table::summarise(rows, baseline)
            .iter()
            .for_each(|sentence| output::print(&format!("{sentence}\n"))),
    }
}

impl<'a> PathReport<'a> {
    fn of(network: &'a Network) -> Result<PathReport<'a>> {
        let conditions = network.conditions();
        Ok(PathReport {
            conditions,
            description: conditions.to_string(),
            server_address: network.server_address(),
            client_addresses: network.client_addresses(),
            counters: network.counters()?,
        })
    }

    /// Two lines for people.
    fn describe(&self) -> String {
        let [to_server, to_client] = [&self.counters.to_server, &self.counters.to_client];
        format!(
            "network: {}; {} packets to the servers, {} back, {} lost, {} dropped by full queues\n\
             what the kernel does to receive a packet is in the CPU time of the network's relay \
             ({:.1} s), not in the servers'",
            self.description,
            to_server.received,
            to_client.received,
            to_server.lost + to_client.lost,
            to_server.queue_full + to_client.queue_full,
            self.counters.relay_cpu_ns as f64 / 1e9
        )
    }
}

fn request(arguments: &CompareArgs, servers: usize) -> Request {
    Request {
        servers,
        transactions: arguments.transactions.as_ref().map(|list| list.0.clone()),
        idle: arguments.idle.clone(),
        exchanges: exchanges(arguments),
        cores: arguments.cores.clone(),
        cpus: arguments.measure.cpus(),
        duration_ns: arguments.measure.duration.unwrap_or(USUAL_DURATION).as_nanos() as u64,
        rounds: arguments.measure.rounds,
        quick: arguments.measure.quick,
        round_trip_ns: arguments
            .network
            .as_ref()
            .map_or(0, |network| network.longest_round_trip().as_nanos() as u64),
    }
}

/// Every request size with every response size, or echoes where only one size is given.
fn exchanges(arguments: &CompareArgs) -> Vec<Exchange> {
    if arguments.request_bytes.is_empty() {
        return arguments.message_bytes.iter().map(|&bytes| Exchange::echo(bytes)).collect();
    }
    let responses = |&request_bytes| {
        let exchange = move |&response_bytes| Exchange { request_bytes, response_bytes };
        arguments.response_bytes.iter().map(exchange)
    };
    arguments.request_bytes.iter().flat_map(responses).collect()
}

/// From so many on, opening idle connections takes long enough to be announced.
const MANY_IDLE: usize = 5_000;

/// What tells server processes apart: CPUs, service, and the index of the server.
type ProcessKey = (usize, Option<Exchange>, usize);

fn process_key(cell: &Cell, server: usize) -> ProcessKey {
    (cell.cores, service_for(cell.exchange).exchange, server)
}

/// A server that runs, and the place of its clients' stack if they bring one.
type Process = (ProcessKey, Running, Option<Site>);

/// Starts all servers.
fn start(
    plan: &Plan,
    contenders: &Contenders,
    connections: usize,
    signals: &Signals,
    path: &mut Path,
) -> Result<Vec<Process>> {
    let mut processes: Vec<Process> = Vec::new();
    contenders.check_connections(connections)?;
    for cell in &plan.cells {
        for (server, subject) in contenders.subjects.iter().enumerate() {
            let key = process_key(cell, server);
            if processes.iter().all(|(other, ..)| *other != key) {
                let echo = Launch::echo(subject.name(), &cell.placement.server_cpus);
                let launch = Launch { service: service_for(cell.exchange), ..echo };
                let client = contenders.clients[server];
                let (running, site) = path.start(subject, client, launch, signals)?;
                processes.push((key, running, site));
            }
        }
    }
    Ok(processes)
}

/// What serves and loads on this machine.
struct Machine<'a> {
    plan: &'a Plan,
    contenders: &'a Contenders,
    connections: usize,
    signals: &'a Signals,
    network: Option<&'a Network>,
    processes: &'a mut [Process],
    progress: Progress,
    /// Whether a round was measured again before.
    repeats: bool,
    idle: IdleLoad<'a>,
}

impl Machine<'_> {
    /// Runs the rounds, and says if there was no time for all of them.
    fn measure_all(mut self, begun_ns: u64) -> Result<Measured> {
        if wake_promptly().is_none() {
            output::note("no permission for real-time priority; more slices may be sampled late");
        }
        let (plan, contenders) = (self.plan, self.contenders);
        let (servers, baseline) = (contenders.labels.len(), contenders.baseline);
        let measured = repeats::measure(plan, servers, baseline, begun_ns, &mut self)?;
        if measured.rounds < plan.rounds {
            output::note(&format!(
                "time is up after {} of {} rounds",
                measured.rounds, plan.rounds
            ));
        }
        Ok(measured)
    }
}

impl RoundSource for Machine<'_> {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn measure(&mut self, turn: Turn) -> Result<Round> {
        let cell = &self.plan.cells[turn.cell];
        let keys: Vec<_> =
            (0..self.contenders.labels.len()).map(|server| process_key(cell, server)).collect();
        // Started in this order: by cell, then by server.
        let (mut subjects, stacks): (Vec<&mut Running>, Vec<Option<Site>>) = self
            .processes
            .iter_mut()
            .filter_map(|(key, process, site)| {
                keys.contains(key).then_some((process, site.clone()))
            })
            .unzip();
        let labels = &self.contenders.labels;
        let announces = turn.round == 0 && !turn.again && cell.idle >= MANY_IDLE;
        let held = self.idle.open(turn.cell, cell, &mut subjects, |server| {
            if announces {
                let what = format!("opening {} idle connections to {}", cell.idle, labels[server]);
                self.progress.note(&what);
            }
        })?;
        let unable = self.idle.reasons(turn.cell, subjects.len());
        let shape = RoundShape {
            connections: self.connections,
            passes: self.plan.passes,
            slicing: self.plan.slicing,
            baseline: self.contenders.baseline,
            network: self.network,
            stacks: &stacks,
            unable: &unable,
        };
        let (phase, mut first) = if turn.again {
            self.progress.extend((subjects.len() * self.plan.passes) as u64);
            let first = !std::mem::replace(&mut self.repeats, true);
            ("disturbed rounds again".to_owned(), first)
        } else {
            let phase = format!("round {} of {}", turn.round + 1, self.plan.rounds);
            (phase, turn.cell == 0)
        };
        let progress = &mut self.progress;
        let number = turn.round as usize;
        let announce = |server: usize| {
            let what = format!("{}, {}", labels[server], describe(cell));
            progress.announce(&phase, &what, first);
            first = false;
            progress.step();
        };
        let mut round = measure_round(cell, &shape, number, &mut subjects, self.signals, announce)?;
        self.idle.close(held, &mut subjects, &mut round)?;
        Ok(round)
    }
}

/// The rows of all cells.
fn rows(
    plan: &Plan,
    contenders: &Contenders,
    connections: usize,
    outcomes: &[Vec<Rounds>],
    baseline: usize,
) -> Result<Vec<Row>> {
    let labels: Vec<&str> = contenders.labels.iter().map(String::as_str).collect();
    let mut rows: Vec<Row> = Vec::new();
    for (cell, outcomes) in plan.cells.iter().zip(outcomes) {
        rows.extend(report::rows(cell, connections, &labels, baseline, outcomes)?);
    }
    rows.iter_mut().for_each(report::note_sharing);
    Ok(rows)
}

fn describe(cell: &Cell) -> String {
    let transactions = match cell.transactions {
        0 => "persistent".to_owned(),
        count => format!("{count} per connection"),
    };
    let sizes = match cell.exchange {
        exchange if exchange.is_echo() => exchange.request_bytes.to_string(),
        Exchange { request_bytes, response_bytes } => format!("{request_bytes}/{response_bytes}"),
    };
    let idle = if cell.idle > 0 { format!(", {} idle", cell.idle) } else { String::new() };
    format!("{transactions}, {sizes} B, {} cores{idle}", cell.cores)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::engine::placement::Placement;

    #[test]
    fn every_request_size_runs_with_every_response_size() {
        let sizes = |words: &[&str]| {
            let cli = Cli::parse_from([&["iobench", "compare"], words].concat());
            let Command::Compare(arguments) = cli.command else { panic!("compare was asked for") };
            let sizes = |exchange: Exchange| (exchange.request_bytes, exchange.response_bytes);
            exchanges(&arguments).into_iter().map(sizes).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[]), [(64, 64)]);
        assert_eq!(sizes(&["--message-bytes", "1,9"]), [(1, 1), (9, 9)]);
        let both = ["--request-bytes", "1,2", "--response-bytes", "2,3"];
        assert_eq!(sizes(&both), [(1, 2), (1, 3), (2, 2), (2, 3)]);
    }

    #[test]
    fn echoes_of_all_sizes_share_a_server_and_other_exchanges_do_not() {
        let key = |request_bytes, response_bytes| {
            let placement = Placement { server_cpus: vec![0], client_cpus: vec![1] };
            let exchange = Exchange { request_bytes, response_bytes };
            process_key(&Cell { cores: 1, placement, exchange, transactions: 1, idle: 0 }, 0)
        };
        assert_eq!(key(64, 64), key(1, 1));
        assert_ne!(key(64, 64), key(64, 65));
        assert_ne!(key(64, 66), key(64, 65));
    }
}
