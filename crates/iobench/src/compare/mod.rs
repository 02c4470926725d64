//! `iobench compare`: servers side by side under the report's microbenchmark (section 2.2).
//!
//! Every server is a process of its own that lives for the whole run and idles except in its own
//! slots. Rounds are the outermost loop, so that each cell's rounds are spread over the whole run
//! and see the machine in different moods.

pub(crate) mod environment;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod slots;
pub(crate) mod stats;
pub(crate) mod table;

use serde::Serialize;

use crate::cli::CompareArgs;
use crate::client::ClientGroup;
use crate::client::connection::Workload;
use crate::compare::environment::Environment;
use crate::compare::plan::{Cell, CpuChoice, Plan, Request};
use crate::compare::progress::Progress;
use crate::compare::report::{JsonFile, Rounds, Row};
use crate::compare::slots::SlotRunner;
use crate::error::{Error, Result};
use crate::output;
use crate::server::{
    self,
    process::{Launch, ServerProcess},
};
use crate::sys::affinity::{allowed_cpus, wake_promptly};
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;
use crate::sys::socket::CongestionControl;

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
    let rows: Vec<Row> = run
        .plan
        .cells
        .iter()
        .zip(&run.outcomes)
        .flat_map(|(cell, outcomes)| {
            report::rows(cell, connections, &names, baseline, outcomes, seed)
        })
        .collect();
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
        message_bytes: arguments.message_bytes.clone(),
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

/// The running comparison.
struct Run<'a> {
    plan: Plan,
    names: &'a [&'static str],
    baseline: usize,
    connections: usize,
    signals: &'a Signals,
    /// (cores, index of the server) of each process.
    processes: Vec<((usize, usize), ServerProcess)>,
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
        let mut processes: Vec<((usize, usize), ServerProcess)> = Vec::new();
        for cell in &plan.cells {
            for (server, name) in names.iter().enumerate() {
                let key = (cell.cores, server);
                if processes.iter().all(|(other, _)| *other != key) {
                    let launch = Launch::echo(name, &cell.placement.server_cpus);
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
        let cell = self.plan.cells[index].clone();
        let workload = Workload {
            transactions: cell.transactions,
            message_bytes: cell.message_bytes,
            congestion: CongestionControl::pick(),
            slicing: self.plan.slicing,
        };
        let clients = ClientGroup::start(&cell.placement.client_cpus, self.connections, &workload)?;
        let in_flight_bytes = self.connections as u64 * cell.message_bytes as u64;
        let mut runner = SlotRunner::new(
            &clients,
            self.signals,
            &cell.placement,
            self.plan.slicing,
            in_flight_bytes,
        )?;
        for rounds in &mut self.outcomes[index] {
            rounds.push(Vec::with_capacity(self.plan.passes));
        }
        let phase = format!("round {} of {}", round + 1, self.plan.rounds);
        for pass in 0..self.plan.passes {
            let servers = self.names.len();
            for server in stats::slot_order(servers, self.baseline, round as usize, pass) {
                let what = format!("{}, {}", self.names[server], describe(&cell));
                let first =
                    index == 0 && self.outcomes[0].iter().all(|r| r[round as usize].is_empty());
                progress.announce(&phase, &what, first);
                let process =
                    self.processes.iter_mut().find(|(key, _)| *key == (cell.cores, server));
                let Some((_, process)) = process else { continue };
                let outcome = runner.run(process)?;
                self.outcomes[index][server][round as usize].push(outcome);
                progress.step();
            }
        }
        Ok(())
    }
}

fn describe(cell: &Cell) -> String {
    let transactions = match cell.transactions {
        0 => "persistent".to_owned(),
        count => format!("{count} per connection"),
    };
    format!("{transactions}, {} B, {} cores", cell.message_bytes, cell.cores)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
