//! Plans the comparison: workloads, slots, rounds and the expected duration.

use std::time::Duration;

use crate::cli::http::{HttpArgs, Version};
use crate::client::protocol::get::Get;
use crate::client::slices::Slicing;
use crate::client::warm_up::WARM_UP_NS;
use crate::compare::plan::{Cell, IDLE_CONNECTION_NS, SLOT_OVERHEAD_NS, divide};
use crate::engine::placement::{Placement, unique};
use crate::engine::rounds::{CellShape, QUICK_NS, Schedule};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::http::h2load::SPARE_NS;
use crate::load::wrk;

/// Measured time of a server in a workload and round.
const USUAL_DURATION: Duration = Duration::from_millis(500);
const DEFAULT_ROUNDS: u32 = 5;
const DEFAULT_CONNECTIONS: [usize; 3] = [1, 16, 256];
const QUICK_CONNECTIONS: [usize; 1] = [16];
const DEFAULT_RESPONSE_BYTES: [usize; 2] = [64, 16_384];
const QUICK_RESPONSE_BYTES: [usize; 1] = [64];
/// Time until h2load has connected.
const STARTING_NS: u64 = 50_000_000;
/// Time for everything outside the rounds.
const START_NS: u64 = 1_500_000_000;

/// One combination of parameters; every server gets a row in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) version: Version,
    /// Whether wrk is the client.
    pub(crate) by_wrk: bool,
    pub(crate) connections: usize,
    /// Requests under way on each connection.
    pub(crate) streams: u32,
    /// Cores, sizes, requests per connection, and idle connections.
    pub(crate) cell: Cell,
}

impl Workload {
    /// Returns the version of HTTP, and the client if there are two for it.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.version.name(), if self.by_wrk { " by wrk" } else { "" })
    }

    /// Returns a short text for users.
    pub(crate) fn describe(&self) -> String {
        let Workload { connections, streams, cell, .. } = self;
        let transactions = match cell.transactions {
            0 => "persistent".to_owned(),
            count => format!("{count} per connection"),
        };
        let streams = if *streams > 1 { format!(" x {streams}") } else { String::new() };
        let plural = if cell.cores == 1 { "" } else { "s" };
        let idle = if cell.idle > 0 { format!(", {} idle", cell.idle) } else { String::new() };
        format!(
            "{}, {connections}{streams} connections, {transactions}, {} B, {} core{plural}{idle}",
            self.name(),
            cell.exchange.response_bytes,
            cell.cores
        )
    }
}

/// The plan of the whole run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) workloads: Vec<Workload>,
    pub(crate) rounds: u32,
    /// Slots of a server in a round of a workload: A B, then B A.
    pub(crate) passes: usize,
    pub(crate) slicing: Slicing,
    servers: usize,
    limit_ns: Option<u64>,
}

impl Plan {
    pub(crate) fn new(arguments: &HttpArgs, servers: usize, allowed: &[usize]) -> Result<Plan> {
        let measure = &arguments.measure;
        let duration = measure.duration.unwrap_or(USUAL_DURATION);
        let (passes, slicing) = divide(duration.as_nanos() as u64, 0);
        let workloads = workloads(arguments, allowed)?;
        if workloads.is_empty() {
            return Err(Error::setup(
                "there is nothing to measure: over HTTP/2, connections persist",
                "name 0 among --transactions, or 1 among --versions",
            ));
        }
        let rounds = measure.rounds.unwrap_or(DEFAULT_ROUNDS);
        let mut plan = Plan { workloads, rounds, passes, slicing, servers, limit_ns: None };
        if measure.quick {
            plan.fit_into(QUICK_NS)?;
        }
        Ok(plan)
    }

    /// Reduces the number of rounds until they fit.
    fn fit_into(&mut self, limit_ns: u64) -> Result<()> {
        let round_ns = Schedule { rounds: 1, ..self.schedule(0, 0, 0) }.estimate_ns();
        let fitting = (limit_ns - START_NS) / round_ns;
        if fitting == 0 {
            return Err(Error::setup(
                format!("one round takes {} s, too long for --quick", round_ns / 1_000_000_000),
                "name fewer servers or values of an option, fewer --idle connections, a shorter \
                 --duration, or leave --quick out",
            ));
        }
        self.rounds = self.rounds.min(u32::try_from(fitting).unwrap_or(u32::MAX));
        self.limit_ns = Some(limit_ns);
        Ok(())
    }

    pub(crate) fn has(&self, version: Version) -> bool {
        self.workloads.iter().any(|workload| workload.version == version)
    }

    pub(crate) fn most_connections(&self) -> usize {
        self.workloads.iter().map(|workload| workload.connections).max().unwrap_or(0)
    }

    pub(crate) fn most_idle(&self) -> usize {
        self.workloads.iter().map(|workload| workload.cell.idle).max().unwrap_or(0)
    }

    /// Returns the order of the slots of a run that began at `begun_ns`.
    pub(crate) fn schedule(&self, baseline: usize, begun_ns: u64, seed: u64) -> Schedule {
        let shape = |workload: &Workload| {
            let spare_ns =
                if workload.version == Version::Two { SPARE_NS + STARTING_NS } else { 0 };
            let idle_ns = workload.cell.idle as u64 * IDLE_CONNECTION_NS / self.passes as u64;
            let measured_ns = if workload.by_wrk {
                wrk::SECONDS * 1_000_000_000
            } else {
                self.slicing.total_ns()
            };
            let slot_ns = WARM_UP_NS + measured_ns + SLOT_OVERHEAD_NS + spare_ns + idle_ns;
            CellShape { subjects: self.servers, baseline, slot_ns }
        };
        Schedule {
            cells: self.workloads.iter().map(shape).collect(),
            rounds: self.rounds,
            passes: self.passes,
            seed,
            deadline_ns: self.limit_ns.map(|limit_ns| begun_ns + limit_ns),
        }
    }
}

fn workloads(arguments: &HttpArgs, allowed: &[usize]) -> Result<Vec<Workload>> {
    let quick = arguments.measure.quick;
    let choose = |choice: &[usize], default: &[usize], when_quick: &[usize]| {
        unique(if !choice.is_empty() {
            choice
        } else if quick {
            when_quick
        } else {
            default
        })
    };
    let connections = choose(&arguments.connections, &DEFAULT_CONNECTIONS, &QUICK_CONNECTIONS);
    let sizes = choose(&arguments.response_bytes, &DEFAULT_RESPONSE_BYTES, &QUICK_RESPONSE_BYTES);
    let cpus = arguments.measure.cpus();
    let pool = cpus.server_cpus.as_ref().map_or(allowed.len(), Vec::len);
    let cores = choose(&arguments.cores, &[1, pool], &[1]);
    let (loads, idle) = (loads(arguments, &connections), unique(&arguments.idle));
    let mut workloads = Vec::new();
    for &cores in &cores {
        let placement = Placement::choose(cores, allowed, &cpus)?;
        for &Load { version, by_wrk, transactions, connections, streams } in &loads {
            let points = sizes.iter().flat_map(|&size| idle.iter().map(move |&idle| (size, idle)));
            workloads.extend(points.map(|(response_bytes, idle)| {
                let request_bytes = match version {
                    Version::One => Get::new(response_bytes, transactions).request_bytes(),
                    // h2load chooses the size of its requests.
                    Version::Two => 0,
                };
                let exchange = Exchange { request_bytes, response_bytes };
                let placement = placement.clone();
                let cell = Cell { cores, placement, exchange, transactions, idle };
                Workload { version, by_wrk, connections, streams, cell }
            }));
        }
    }
    Ok(workloads)
}

/// What a workload is without the sizes of its answers and the numbers of cores and idle
/// connections.
#[derive(Clone, Copy)]
struct Load {
    version: Version,
    by_wrk: bool,
    transactions: u32,
    connections: usize,
    streams: u32,
}

/// Returns the combinations of version, client, requests per connection, connections and streams.
fn loads(arguments: &HttpArgs, connections: &[usize]) -> Vec<Load> {
    let (transactions, streams) = (unique(&arguments.transactions), unique(&arguments.streams));
    let mut loads = Vec::new();
    for version in unique(&arguments.versions) {
        let (transactions, streams) = match version {
            Version::One => (&transactions[..], &[1][..]),
            // h2load keeps its connections.
            Version::Two => (&[0][..usize::from(transactions.contains(&0))], &streams[..]),
        };
        let clients =
            if arguments.wrk && version == Version::One { &[false, true][..] } else { &[false] };
        for &by_wrk in clients {
            // A connection of wrk has one request or all.
            let transactions = transactions.iter().filter(|&&count| !by_wrk || count < 2);
            for &transactions in transactions {
                for &connections in connections {
                    let load = |&streams: &u32| Load {
                        version,
                        by_wrk,
                        transactions,
                        connections,
                        streams,
                    };
                    loads.extend(streams.iter().map(load));
                }
            }
        }
    }
    loads
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn plan(words: &[&str], servers: usize) -> Result<Plan> {
        let cli = Cli::parse_from([&["iobench", "http"], words].concat());
        let Command::Http(arguments) = cli.command else { panic!("http was asked for") };
        Plan::new(&arguments, servers, &[0, 1])
    }

    #[test]
    fn everything_is_combined_except_short_connections_over_http_2() {
        let plan = plan(&[], 6).unwrap();
        let count = |version, transactions| {
            let is_one = |workload: &&Workload| {
                workload.version == version && workload.cell.transactions == transactions
            };
            plan.workloads.iter().filter(is_one).count()
        };
        // Connections, sizes, cores.
        assert_eq!((count(Version::One, 0), count(Version::One, 1)), (12, 12));
        assert_eq!((count(Version::Two, 0), count(Version::Two, 1)), (12, 0));
        assert_eq!(plan.most_connections(), 256);
    }

    #[test]
    fn quick_runs_of_all_servers_fit_into_a_minute() {
        let plan = plan(&["--quick"], 6).unwrap();
        assert_eq!(plan.workloads.len(), 3);
        assert!(plan.rounds >= 3, "intervals need three rounds, not {}", plan.rounds);
        assert!(START_NS + plan.schedule(0, 0, 0).estimate_ns() <= QUICK_NS);
        let refused = self::plan(&["--quick", "--duration", "30s"], 6).unwrap_err().to_string();
        assert!(refused.contains("too long for --quick"), "{refused}");
    }

    #[test]
    fn a_plan_without_workloads_is_refused() {
        let refused = plan(&["--versions", "2", "--transactions", "1"], 2).unwrap_err();
        assert!(refused.to_string().contains("connections persist"), "{refused}");
    }

    #[test]
    fn workloads_are_described_by_what_distinguishes_them() {
        let words =
            ["--versions", "2", "--connections", "1,16", "--streams", "1,10", "--cores", "1"];
        let plan = plan(&[&words[..], &["--response-bytes", "64"]].concat(), 2).unwrap();
        let texts: Vec<String> = plan.workloads.iter().map(Workload::describe).collect();
        assert_eq!(texts.len(), 4);
        assert_eq!(texts[3], "HTTP/2, 16 x 10 connections, persistent, 64 B, 1 core");
    }

    #[test]
    fn wrk_measures_what_it_can_once_more() {
        let words = ["--wrk", "--connections", "4", "--cores", "1", "--response-bytes", "64"];
        let plan = plan(&[&words[..], &["--transactions", "0,1,8"]].concat(), 2).unwrap();
        let texts: Vec<String> = plan.workloads.iter().map(Workload::describe).collect();
        let by_wrk: Vec<&String> = texts.iter().filter(|text| text.contains("wrk")).collect();
        assert_eq!((texts.len(), by_wrk.len()), (6, 2), "{texts:?}");
        assert_eq!(by_wrk[1], "HTTP/1 by wrk, 4 connections, 1 per connection, 64 B, 1 core");
    }

    #[test]
    fn every_workload_is_measured_beside_every_number_of_idle_connections() {
        let words = ["--versions", "1", "--connections", "4", "--cores", "1"];
        let more = ["--transactions", "0", "--response-bytes", "64,128", "--idle", "0,10000"];
        let plan = plan(&[&words[..], &more].concat(), 2).unwrap();
        let texts: Vec<String> = plan.workloads.iter().map(Workload::describe).collect();
        assert_eq!(texts.len(), 4);
        assert_eq!(texts[1], "HTTP/1, 4 connections, persistent, 64 B, 1 core, 10000 idle");
        assert_eq!(plan.most_idle(), 10_000);
        let slots = plan.schedule(0, 0, 0).cells;
        // Each server has as many, once in a round.
        let more_ns = plan.passes as u64 * (slots[1].slot_ns - slots[0].slot_ns);
        assert_eq!(more_ns, 10_000 * IDLE_CONNECTION_NS);
    }
}
