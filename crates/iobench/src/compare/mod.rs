//! `iobench compare`: compares servers under the report's microbenchmark (section 2.2).
//!
//! Every server is a process of its own that runs for the whole comparison and idles except in its
//! own slots. Rounds are the outermost loop, so that each cell's rounds are spread over the whole
//! run and over the machine's changing load.

pub(crate) mod contenders;
pub(crate) mod holder;
pub(crate) mod idle;
pub(crate) mod machine;
pub(crate) mod plan;
mod provisional;
pub(crate) mod report;
pub(crate) mod rounds;
pub(crate) mod self_test;
mod shown;
pub(crate) mod slots;
pub(crate) mod table;

use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

use crate::cli::CompareArgs;
use crate::compare::contenders::Contenders;
use crate::compare::idle::IdleLoad;
use crate::compare::machine::{Machine, measure_idle_memory, start};
use crate::compare::plan::{Plan, Request};
use crate::compare::report::{Doubts, Rounds};
use crate::compare::slots::SlotShape;
use crate::engine;
use crate::engine::environment::Environment;
use crate::engine::outcome::SlotOutcome;
use crate::engine::rounds::Measured;
use crate::error::{Context, Error, Result};
use crate::network::{Network, NetworkCounters, Options, PathKind, conditions::Conditions};
use crate::open::connect::Opening;
use crate::output;
use crate::path::Path;
use crate::results::files::ResultFiles;
use crate::results::{Document, ExperimentRecord, Ratios, Row, SelfTest, Slots, Versus};
use crate::server;
use crate::sys::affinity::allowed_cpus;
use crate::sys::clock::now_ns;
use crate::sys::limits::local_ports;
use crate::sys::signals::Signals;
use crate::sys::socket::{CongestionControl, default_congestion_control};

/// Measured time of a server in a cell and round.
const USUAL_DURATION: Duration = Duration::from_millis(500);

/// The network path between clients and servers, for the report.
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
    let choice = arguments.path();
    let (kind, conditions) = choice.parts();
    let contenders = Contenders::choose(arguments, kind)?;
    let driver = server::describe_driver(contenders.own_servers())?;
    let mut path = create_path(arguments, kind, conditions, seed)?;
    if contenders.has_external() {
        stop_pacing(&path)?;
    }
    // From here on everything is created in the clients' namespace, except for the servers.
    let _entered = path.enter_client()?;
    let labels: Vec<&str> = contenders.labels.iter().map(String::as_str).collect();
    let limits = idle::raise_limits(arguments.connections, most_idle(arguments))?;
    limits.check_connections(arguments.connections)?;
    limits.check_backlog(arguments.connections)?;
    let plan = Plan::new(&request(arguments, conditions, labels.len()), &allowed_cpus()?)?;
    let files = ResultFiles::prepare(&arguments.measure.output)?;
    let mut environment = Environment::gather(&limits, seed)?;
    environment.driver = driver;
    let schedule = plan.schedule(contenders.baseline, begun_ns, seed);
    schedule.announce(format_args!("{} servers in {} cells", labels.len(), plan.cells.len()));
    let connections = arguments.connections;
    let mut processes = start(&plan, &contenders, connections, &signals, &mut path)?;
    let network = path.network();
    let (plan, contenders) = (&plan, &contenders);
    let shape = SlotShape { connections, slicing: plan.slicing, network };
    let refusal = Box::new(|server, idle| contenders.refusal(server, connections + idle));
    let mut idle = IdleLoad::new(&path, Opening::Exchange, refusal, &signals);
    measure_idle_memory(plan, &mut processes, &mut idle)?;
    let mut machine = Machine::new(plan, contenders, shape, &signals, &mut processes, idle);
    let measured = engine::rounds::run(&schedule, &mut machine)?;
    drop(machine);
    let outcomes = &measured.outcomes;
    let mut rows = rows(plan, contenders, connections, outcomes)?;
    rows.iter_mut().for_each(|row| row.network = path.label().map(str::to_owned));
    let further = contenders.further_baselines.iter();
    let versus = further.map(|&baseline| versus(contenders, outcomes, baseline)).collect();
    let baseline = contenders.baseline_label();
    let network = network.map(PathReport::of).transpose()?;
    let machine = environment.describe();
    let surroundings = describe_surroundings(machine, &path, network.as_ref());
    let self_test = arguments.self_test.then(|| SelfTest::of(&rows, baseline));
    let experiment = experiment(arguments.measure.quick, plan, measured.rounds);
    let elapsed_s = (now_ns() - begun_ns) as f64 / 1e9;
    let document = Document {
        slots: Some(slots(plan, &measured)),
        network: network.as_ref().map(encode).transpose()?,
        self_test,
        versus,
        ..Document::new(environment, experiment, elapsed_s, baseline.to_owned(), rows)
    };
    let not_shown = shown::not_shown(&document.results, &doubts(outcomes, contenders.baseline));
    let (results, repeats) = (describe_results(&document), measured.repeats.describe());
    files.publish(&format!("{surroundings}{results}{repeats}{not_shown}"), &document)?;
    let trustworthy = document.self_test.is_none_or(|self_test| self_test.trustworthy);
    Ok(trustworthy && document.results.iter().all(|row| row.valid))
}

fn encode(network: &PathReport<'_>) -> Result<serde_json::Value> {
    serde_json::to_value(network)
        .map_err(std::io::Error::from)
        .context("encode what the network did", "report this as a bug")
}

/// Returns the numbers of rounds, slots and slices, for the result file.
fn slots(plan: &Plan, measured: &Measured<SlotOutcome>) -> Slots {
    Slots {
        rounds: measured.rounds,
        repeated_rounds: measured.repeats.rounds,
        per_round: plan.passes,
        slice_ms: plan.slicing.length_ns as f64 / 1e6,
    }
}

/// Returns the description of the whole comparison in the result file.
fn experiment(quick: bool, plan: &Plan, rounds: u32) -> ExperimentRecord {
    let slice_ms = plan.slicing.length_ns as f64 / 1e6;
    ExperimentRecord {
        name: "compare".to_owned(),
        title: format!("Servers compared, {rounds} rounds, slices of {slice_ms} ms"),
        source: None,
        scale: if quick { "quick" } else { "default" }.to_owned(),
        // The environment contains the command, which determines the whole experiment.
        file: String::new(),
    }
}

/// Returns the largest number of idle connections to a server in any cell.
fn most_idle(arguments: &CompareArgs) -> usize {
    arguments.idle.iter().copied().max().unwrap_or(0)
}

/// Returns the path, with addresses for idle connections beside the measured clients' own.
fn create_path(
    arguments: &CompareArgs,
    kind: PathKind,
    conditions: Option<&Conditions>,
    seed: u64,
) -> Result<Path> {
    if arguments.relay_cpu.is_some() && conditions.is_none() {
        return Err(Error::setup(
            "--relay-cpu is for the thread that emulates a network, and there is none",
            "leave it out, or write conditions such as --path delay=10ms",
        ));
    }
    let client_addresses = 1 + idle::addresses_for(most_idle(arguments), local_ports())?;
    let options = Options { client_addresses, relay_cpu: arguments.relay_cpu, seed };
    Path::create(kind, conditions, &options)
}

/// Gives external servers the congestion control of iobench's own servers and clients. If that is
/// not permitted, a remark says so.
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

/// Returns lines about what all rows have in common, and an empty line.
fn describe_surroundings(machine: String, path: &Path, network: Option<&PathReport<'_>>) -> String {
    let network = network.map(PathReport::describe);
    let lines = [Some(machine), path.describe(), network, Some(String::new())];
    lines.into_iter().flatten().map(|line| line + "\n").collect()
}

/// Returns the tables and the sentences below them.
fn describe_results(Document { results, baseline, versus, self_test, .. }: &Document) -> String {
    let mut text = table::table(results, baseline).to_string();
    for versus in versus {
        text += &format!("\n{}", table::against(&versus.of(results), &versus.baseline));
    }
    match self_test {
        Some(self_test) => text += &self_test.describe(),
        None => {
            text.extend(table::summarise(results, baseline).iter().map(|line| format!("{line}\n")))
        }
    }
    text
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

    /// Two lines for users.
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

fn request(arguments: &CompareArgs, conditions: Option<&Conditions>, servers: usize) -> Request {
    Request {
        servers,
        transactions: arguments.transactions.as_ref().map(|list| list.0.clone()),
        idle: arguments.idle.clone(),
        exchanges: arguments.exchanges(),
        cores: arguments.cores.clone(),
        cpus: arguments.measure.cpus(),
        duration_ns: arguments.measure.duration.unwrap_or(USUAL_DURATION).as_nanos() as u64,
        rounds: arguments.measure.rounds,
        quick: arguments.measure.quick,
        round_trip_ns: conditions
            .map_or(0, |conditions| conditions.longest_round_trip().as_nanos() as u64),
    }
}

/// Returns the rows of all cells.
fn rows(
    plan: &Plan,
    contenders: &Contenders,
    connections: usize,
    outcomes: &[Vec<Rounds>],
) -> Result<Vec<Row>> {
    let labels: Vec<&str> = contenders.labels.iter().map(String::as_str).collect();
    let mut rows: Vec<Row> = Vec::new();
    for (cell, outcomes) in plan.cells.iter().zip(outcomes) {
        rows.extend(report::rows(cell, connections, &labels, contenders.baseline, outcomes)?);
    }
    rows.iter_mut().for_each(report::note_sharing);
    Ok(rows)
}

/// Returns the same rows against a further baseline.
fn versus(contenders: &Contenders, outcomes: &[Vec<Rounds>], baseline: usize) -> Versus {
    let of_cell = |cell: &Vec<Rounds>| -> Vec<Ratios> {
        (0..cell.len()).map(|server| report::ratios(cell, server, baseline)).collect()
    };
    let results = outcomes.iter().flat_map(of_cell).collect();
    Versus { baseline: contenders.labels[baseline].clone(), results }
}

/// Returns the reasons against each row's validity.
fn doubts(outcomes: &[Vec<Rounds>], baseline: usize) -> Vec<Doubts> {
    let of_cell = |cell: &Vec<Rounds>| -> Vec<Doubts> {
        (0..cell.len()).map(|server| Doubts::of(cell, server, baseline)).collect()
    };
    outcomes.iter().flat_map(of_cell).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::{Cli, Command};
    use crate::exchange::Exchange;

    #[test]
    fn every_request_size_runs_with_every_response_size() {
        let sizes = |words: &[&str]| {
            let cli = Cli::parse_from([&["iobench", "compare"], words].concat());
            let Command::Compare(arguments) = cli.command else { panic!("compare was asked for") };
            let sizes = |exchange: Exchange| (exchange.request_bytes, exchange.response_bytes);
            arguments.exchanges().into_iter().map(sizes).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[]), [(64, 64)]);
        assert_eq!(sizes(&["--request-bytes", "1,9"]), [(1, 1), (9, 9)]);
        assert_eq!(sizes(&["--message-bytes", "1,9"]), [(1, 1), (9, 9)]);
        assert_eq!(sizes(&["--response-bytes", "9"]), [(64, 9)]);
        let both = ["--request-bytes", "1,2", "--response-bytes", "2,3"];
        assert_eq!(sizes(&both), [(1, 2), (1, 3), (2, 2), (2, 3)]);
    }
}
