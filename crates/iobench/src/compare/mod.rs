//! `iobench compare`: servers side by side under the report's microbenchmark (section 2.2).
//!
//! Every server is a process of its own that lives for the whole run and idles except in its own
//! slots. Rounds are the outermost loop, so that each cell's rounds are spread over the whole run
//! and see the machine in different moods.

pub(crate) mod environment;
pub(crate) mod outcome;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod rounds;
pub(crate) mod slots;
pub(crate) mod stats;
pub(crate) mod table;

use serde::Serialize;

use crate::cli::CompareArgs;
use crate::compare::environment::Environment;
use crate::compare::plan::{Cell, CpuChoice, Plan, Request};
use crate::compare::progress::Progress;
use crate::compare::report::{JsonFile, Rounds, Row};
use crate::compare::rounds::{RoundShape, measure_round, service_for};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::output;
use crate::server::{
    self,
    process::{Launch, ServerProcess},
};
use crate::sys::affinity::{allowed_cpus, wake_promptly};
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;

/// The JSON file.
#[derive(Serialize)]
struct Document<'a> {
    environment: &'a Environment,
    baseline: &'a str,
    rounds: u32,
    slots_per_round: usize,
    slice_ms: f64,
    results: &'a [Row],
}

/// Runs the comparison and prints it; true if every row is valid.
pub(crate) fn run(arguments: &CompareArgs) -> Result<bool> {
    let begun_ns = now_ns();
    let signals = Signals::block();
    let names = server_names(&arguments.servers)?;
    let baseline = baseline_of(&names, arguments.baseline.as_deref())?;
    let limits = Limits::raise()?;
    limits.check_connections(arguments.connections)?;
    limits.check_backlog(arguments.connections)?;
    let plan = Plan::new(&request(arguments, names.len()), &allowed_cpus()?)?;
    let json = arguments.json.as_deref().map(JsonFile::prepare).transpose()?;
    let seed = arguments.seed.unwrap_or(begun_ns % 1_000_000);
    let environment = Environment::gather(&limits, seed)?;
    output::note(&format!(
        "{} servers in {} cells, {} rounds, about {} s",
        names.len(),
        plan.cells.len(),
        plan.rounds,
        plan.estimate_ns().div_ceil(1_000_000_000)
    ));
    let connections = arguments.connections;
    let mut run = Run::start(plan, &names, baseline, connections, &signals)?;
    let rounds = run.measure(begun_ns)?;
    let mut rows: Vec<Row> = Vec::new();
    for (cell, outcomes) in run.plan.cells.iter().zip(&run.outcomes) {
        rows.extend(report::rows(cell, connections, &names, baseline, outcomes, seed)?);
    }
    output::print(&format!("{}\n\n", environment.describe()));
    output::print(&table::render(&rows, names[baseline], table::stdout_width()));
    for sentence in table::summarise(&rows, names[baseline]) {
        output::print(&format!("{sentence}\n"));
    }
    if let Some(json) = json {
        json.write(&Document {
            environment: &environment,
            baseline: names[baseline],
            rounds,
            slots_per_round: run.plan.passes,
            slice_ms: run.plan.slicing.length_ns as f64 / 1e6,
            results: &rows,
        })?;
    }
    Ok(rows.iter().all(|row| row.valid))
}

/// The known names among those asked for, each once; the usual servers if none is.
fn server_names(asked: &[String]) -> Result<Vec<&'static str>> {
    if asked.is_empty() {
        return Ok(server::usual().iter().map(|server| server.name()).collect());
    }
    let mut names = Vec::new();
    for name in asked {
        let name = server::find(name)?.name();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// `--baseline`, else the server called epoll, else the first one.
fn baseline_of(names: &[&str], asked: Option<&str>) -> Result<usize> {
    let position = |wanted: &str| names.iter().position(|name| *name == wanted);
    match asked {
        None => Ok(position("epoll").unwrap_or(0)),
        Some(name) => position(name).ok_or_else(|| {
            Error::setup(
                format!("the baseline `{name}` is not among the servers compared"),
                format!("choose from: {}, or add it to --servers", names.join(", ")),
            )
        }),
    }
}

fn request(arguments: &CompareArgs, servers: usize) -> Request {
    Request {
        servers,
        transactions: arguments.transactions.as_ref().map(|list| list.0.clone()),
        exchanges: exchanges(arguments),
        cores: arguments.cores.clone(),
        cpus: CpuChoice {
            server_cpus: arguments.server_cpus.clone(),
            client_cpus: arguments.client_cpus.clone(),
        },
        duration_ns: arguments.duration.as_nanos() as u64,
        rounds: arguments.rounds,
        quick: arguments.quick,
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

/// What tells server processes apart: CPUs, service, and the index of the server.
type ProcessKey = (usize, Option<Exchange>, usize);

fn process_key(cell: &Cell, server: usize) -> ProcessKey {
    (cell.cores, service_for(cell.exchange).exchange, server)
}

/// The running comparison.
struct Run<'a> {
    plan: Plan,
    names: &'a [&'static str],
    baseline: usize,
    connections: usize,
    signals: &'a Signals,
    processes: Vec<(ProcessKey, ServerProcess)>,
    /// By cell, then by server.
    outcomes: Vec<Vec<Rounds>>,
}

impl<'a> Run<'a> {
    /// Starts all servers.
    fn start(
        plan: Plan,
        names: &'a [&'static str],
        baseline: usize,
        connections: usize,
        signals: &'a Signals,
    ) -> Result<Self> {
        for name in names {
            server::find(name)?.check_connections(connections)?;
        }
        let mut processes: Vec<(ProcessKey, ServerProcess)> = Vec::new();
        for cell in &plan.cells {
            for (server, name) in names.iter().enumerate() {
                let key = process_key(cell, server);
                if processes.iter().all(|(other, _)| *other != key) {
                    let echo = Launch::echo(name, &cell.placement.server_cpus);
                    let launch = Launch { service: service_for(cell.exchange), ..echo };
                    processes.push((key, ServerProcess::start(&launch, signals)?));
                }
            }
        }
        let outcomes = vec![vec![Rounds::new(); names.len()]; plan.cells.len()];
        Ok(Run { plan, names, baseline, connections, signals, processes, outcomes })
    }

    /// Runs the rounds and returns how many there was time for.
    fn measure(&mut self, begun_ns: u64) -> Result<u32> {
        if wake_promptly().is_none() {
            output::note("no permission for real-time priority; more slices may be sampled late");
        }
        let rounds = self.plan.rounds;
        let slots = u64::from(rounds) * self.plan.round_slots() as u64;
        let mut progress = Progress::new(slots, self.plan.slot_ns());
        let first_ns = now_ns();
        for round in 0..rounds {
            let now_ns = now_ns();
            let spent_ns = (now_ns - first_ns).checked_div(u64::from(round)).unwrap_or(0);
            let over = |limit_ns| now_ns + spent_ns > begun_ns + limit_ns;
            if round > 0 && self.plan.limit_ns.is_some_and(over) {
                output::note(&format!("time is up after {round} of {rounds} rounds"));
                return Ok(round);
            }
            for cell in 0..self.plan.cells.len() {
                self.measure_cell(cell, round, &mut progress)?;
            }
        }
        Ok(rounds)
    }

    /// One round of one cell.
    fn measure_cell(&mut self, index: usize, round: u32, progress: &mut Progress) -> Result<()> {
        let cell = &self.plan.cells[index];
        let shape = RoundShape {
            connections: self.connections,
            passes: self.plan.passes,
            slicing: self.plan.slicing,
            baseline: self.baseline,
        };
        let keys: Vec<_> = (0..self.names.len()).map(|server| process_key(cell, server)).collect();
        // Started in this order: by cell, then by server.
        let mut subjects: Vec<&mut ServerProcess> = self
            .processes
            .iter_mut()
            .filter_map(|(key, process)| keys.contains(key).then_some(process))
            .collect();
        let phase = format!("round {} of {}", round + 1, self.plan.rounds);
        let mut first = index == 0;
        let outcomes =
            measure_round(cell, &shape, round as usize, &mut subjects, self.signals, |server| {
                let what = format!("{}, {}", self.names[server], describe(cell));
                progress.announce(&phase, &what, first);
                first = false;
                progress.step();
            })?;
        for (rounds, outcomes) in self.outcomes[index].iter_mut().zip(outcomes) {
            rounds.push(outcomes);
        }
        Ok(())
    }
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
    format!("{transactions}, {sizes} B, {} cores", cell.cores)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::compare::plan::Placement;

    #[test]
    fn servers_default_to_the_usual_and_appear_once() {
        let usual = ["epoll", "epoll-partitioned", "megapipe", "megapipe-epoll"];
        assert_eq!(server_names(&[]).unwrap(), usual);
        let asked = ["epoll", "epoll"].map(str::to_owned);
        assert_eq!(server_names(&asked).unwrap(), ["epoll"]);
        assert!(server_names(&["nobody".to_owned()]).is_err());
    }

    #[test]
    fn the_baseline_is_epoll_unless_named() {
        assert_eq!(baseline_of(&["other", "epoll"], None).unwrap(), 1);
        assert_eq!(baseline_of(&["other", "third"], None).unwrap(), 0);
        assert_eq!(baseline_of(&["other", "epoll"], Some("other")).unwrap(), 0);
        assert!(baseline_of(&["epoll"], Some("other")).is_err());
    }

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
            process_key(&Cell { cores: 1, placement, exchange, transactions: 1 }, 0)
        };
        assert_eq!(key(64, 64), key(1, 1));
        assert_ne!(key(64, 64), key(64, 65));
        assert_ne!(key(64, 66), key(64, 65));
    }
}
