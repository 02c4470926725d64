//! Plans a comparison: cells, slots, rounds, CPUs, and the expected duration.

use crate::client::slices::{SLICE_NS, Slicing};
use crate::client::warm_up::WARM_UP_NS;
use crate::engine::placement::{CpuChoice, Placement, unique};
use crate::engine::rounds::{CellShape, QUICK_NS, Schedule};
use crate::error::{Error, Result};
use crate::exchange::Exchange;

/// Intended length of a slot's measured part.
pub(crate) const SLOT_NS: u64 = 250_000_000;
/// Round trips per slot: the usual number, if the duration allows it, and the least.
const USUAL_ROUND_TRIPS: u64 = 20;
const LEAST_ROUND_TRIPS: u64 = 5;
/// Time of a slot beside warm-up and measurement: opening, closing, draining.
pub(crate) const SLOT_OVERHEAD_NS: u64 = 25_000_000;
/// Time of an idle connection in each round: opening with a transaction, and closing.
pub(crate) const IDLE_CONNECTION_NS: u64 = 60_000;
/// Time for everything outside the rounds.
const START_NS: u64 = 500_000_000;
const QUICK_ROUNDS: u32 = 5;
const QUICK_TRANSACTIONS: [u32; 2] = [1, 128];
const DEFAULT_ROUNDS: u32 = 5;
const DEFAULT_TRANSACTIONS: [u32; 4] = [1, 8, 128, 0];

/// One combination of parameters; every server gets a row in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) cores: usize,
    pub(crate) placement: Placement,
    pub(crate) exchange: Exchange,
    /// 0 stands for persistent connections.
    pub(crate) transactions: u32,
    /// Connections to each server that are open and idle beside the measured ones.
    pub(crate) idle: usize,
}

/// The user's choices; `None` leaves a choice to the plan.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) servers: usize,
    pub(crate) transactions: Option<Vec<u32>>,
    /// Numbers of idle connections to each server.
    pub(crate) idle: Vec<usize>,
    pub(crate) exchanges: Vec<Exchange>,
    pub(crate) cores: Option<Vec<usize>>,
    pub(crate) cpus: CpuChoice,
    pub(crate) duration_ns: u64,
    pub(crate) rounds: Option<u32>,
    pub(crate) quick: bool,
    /// Upper bound of the network's round trip time.
    pub(crate) round_trip_ns: u64,
}

/// The plan of the whole run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) cells: Vec<Cell>,
    pub(crate) rounds: u32,
    /// Slots per server, cell and round; even, so that every A B is followed by B A.
    pub(crate) passes: usize,
    pub(crate) slicing: Slicing,
    servers: usize,
    /// No round is planned or started that would end later than this time of the run.
    pub(crate) limit_ns: Option<u64>,
}

impl Plan {
    pub(crate) fn new(request: &Request, allowed: &[usize]) -> Result<Plan> {
        let pool = request.cpus.server_cpus.as_ref().map_or(allowed.len(), Vec::len);
        let cores = unique(&request.cores.clone().unwrap_or_else(|| vec![1, pool]));
        let transactions = unique(&request.transactions.clone().unwrap_or_else(|| {
            if request.quick { &QUICK_TRANSACTIONS[..] } else { &DEFAULT_TRANSACTIONS }.to_vec()
        }));
        let mut cells = Vec::new();
        for &cores in &cores {
            let placement = Placement::choose(cores, allowed, &request.cpus)?;
            for &exchange in &unique(&request.exchanges) {
                for &transactions in &transactions {
                    cells.extend(unique(&request.idle).into_iter().map(|idle| Cell {
                        cores,
                        placement: placement.clone(),
                        exchange,
                        transactions,
                        idle,
                    }));
                }
            }
        }
        let (passes, slicing) = divide(request.duration_ns, request.round_trip_ns);
        check_round_trips(request, slicing.total_ns())?;
        let servers = request.servers;
        let rounds = request.rounds.unwrap_or(DEFAULT_ROUNDS);
        let mut plan = Plan { cells, rounds, passes, slicing, servers, limit_ns: None };
        if request.quick {
            plan.fit_into(QUICK_NS, request.rounds.unwrap_or(QUICK_ROUNDS))?;
        }
        Ok(plan)
    }

    /// Reduces the number of rounds until they fit, at most `rounds`.
    fn fit_into(&mut self, limit_ns: u64, rounds: u32) -> Result<()> {
        let fitting = (limit_ns - START_NS) / self.round_ns();
        self.rounds = rounds.min(u32::try_from(fitting).unwrap_or(u32::MAX));
        self.limit_ns = Some(limit_ns);
        if self.rounds == 0 {
            return Err(Error::setup(
                format!(
                    "one round of {} cells takes {} s, too long for --quick",
                    self.cells.len(),
                    self.round_ns() / 1_000_000_000
                ),
                "ask for fewer --cores, --transactions, --idle or sizes, a shorter --duration, or \
                 leave --quick out",
            ));
        }
        Ok(())
    }

    /// Returns the order of the slots of a run that began at `begun_ns`.
    pub(crate) fn schedule(&self, baseline: usize, begun_ns: u64, seed: u64) -> Schedule {
        let shape = |cell: &Cell| {
            let idle_ns = cell.idle as u64 * IDLE_CONNECTION_NS / self.passes as u64;
            let slot_ns = self.slot_ns() + idle_ns;
            CellShape { subjects: self.servers, baseline, slot_ns }
        };
        Schedule {
            cells: self.cells.iter().map(shape).collect(),
            rounds: self.rounds,
            passes: self.passes,
            seed,
            deadline_ns: self.limit_ns.map(|limit_ns| begun_ns + limit_ns),
        }
    }

    /// Returns the expected duration of one slot, everything included.
    pub(crate) fn slot_ns(&self) -> u64 {
        WARM_UP_NS + self.slicing.total_ns() + SLOT_OVERHEAD_NS
    }

    /// Slots in one round.
    pub(crate) fn round_slots(&self) -> usize {
        self.cells.len() * self.servers * self.passes
    }

    pub(crate) fn round_ns(&self) -> u64 {
        let idle: usize = self.cells.iter().map(|cell| cell.idle * self.servers).sum();
        self.round_slots() as u64 * self.slot_ns() + idle as u64 * IDLE_CONNECTION_NS
    }
}

/// Fails if a connection has too little time in a slot for its transactions.
fn check_round_trips(request: &Request, slot_ns: u64) -> Result<()> {
    if slot_ns < LEAST_ROUND_TRIPS * request.round_trip_ns {
        return Err(Error::setup(
            format!(
                "a slot of {} ms is too short for round trips of {} ms",
                slot_ns / 1_000_000,
                request.round_trip_ns / 1_000_000
            ),
            format!(
                "ask for --duration {}ms or less delay",
                (2 * LEAST_ROUND_TRIPS * request.round_trip_ns).div_ceil(1_000_000)
            ),
        ));
    }
    Ok(())
}

/// Returns the number of slots of a server in a round (even, so that every A B is followed by B A)
/// and the slices of each. A slot lasts for many round trips of the path.
pub(crate) fn divide(duration_ns: u64, round_trip_ns: u64) -> (usize, Slicing) {
    let slot_ns = SLOT_NS.max(USUAL_ROUND_TRIPS * round_trip_ns);
    let passes = (duration_ns / slot_ns / 2 * 2).max(2);
    (passes as usize, Slicing::divide(duration_ns / passes, SLICE_NS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            servers: 2,
            transactions: None,
            idle: vec![0],
            exchanges: vec![Exchange::echo(64)],
            cores: None,
            cpus: CpuChoice::default(),
            duration_ns: 500_000_000,
            rounds: None,
            quick: false,
            round_trip_ns: 0,
        }
    }

    fn placement(cores: usize, allowed: &[usize], choice: &CpuChoice) -> (Vec<usize>, Vec<usize>) {
        let placement = Placement::choose(cores, allowed, choice).unwrap();
        (placement.server_cpus, placement.client_cpus)
    }

    #[test]
    fn clients_take_the_cpus_that_are_left() {
        let none = CpuChoice::default();
        assert_eq!(placement(1, &[0, 1], &none), (vec![0], vec![1]));
        assert_eq!(placement(2, &[0, 1], &none), (vec![0, 1], vec![0, 1]));
        assert_eq!(placement(2, &[3, 5, 7], &none), (vec![3, 5], vec![7]));
        let chosen = CpuChoice { server_cpus: Some(vec![7]), client_cpus: Some(vec![7, 3]) };
        assert_eq!(placement(1, &[3, 5, 7], &chosen), (vec![7], vec![7, 3]));
    }

    #[test]
    fn impossible_placements_are_refused() {
        let none = CpuChoice::default();
        assert!(Placement::choose(3, &[0, 1], &none).is_err());
        assert!(Placement::choose(0, &[0, 1], &none).is_err());
        let foreign = CpuChoice { server_cpus: Some(vec![9]), client_cpus: None };
        assert!(Placement::choose(1, &[0, 1], &foreign).is_err());
        let twice = CpuChoice { server_cpus: Some(vec![1, 1]), client_cpus: None };
        assert!(Placement::choose(2, &[0, 1], &twice).is_err());
    }

    #[test]
    fn defaults_cover_one_core_and_all_cores() {
        let plan = Plan::new(&request(), &[0, 1]).unwrap();
        let cells: Vec<_> = plan.cells.iter().map(|cell| (cell.cores, cell.transactions)).collect();
        let expected = [(1, 1), (1, 8), (1, 128), (1, 0), (2, 1), (2, 8), (2, 128), (2, 0)];
        assert_eq!((cells.as_slice(), plan.passes), (&expected[..], 2));
        assert_eq!((plan.slicing.count, plan.slicing.length_ns), (10, SLICE_NS));
        assert_eq!(Plan::new(&request(), &[0]).unwrap().cells.len(), 4);
    }

    #[test]
    fn every_number_of_transactions_is_measured_beside_every_number_of_idle_connections() {
        let transactions = Some(vec![1, 0]);
        let idle = vec![0, 2_000, 500, 2_000];
        let asked = Request { transactions, idle, cores: Some(vec![1]), ..request() };
        let plan = Plan::new(&asked, &[0, 1]).unwrap();
        let cells: Vec<_> = plan.cells.iter().map(|cell| (cell.transactions, cell.idle)).collect();
        assert_eq!(cells, [(1, 0), (1, 2_000), (1, 500), (0, 0), (0, 2_000), (0, 500)]);
        // Each of the two servers has as many.
        let slots_ns = plan.round_slots() as u64 * plan.slot_ns();
        assert_eq!(plan.round_ns(), slots_ns + 2 * 2 * 2_500 * IDLE_CONNECTION_NS);
    }

    #[test]
    fn longer_durations_mean_more_slots() {
        let slots = |duration_ns| {
            let plan = Plan::new(&Request { duration_ns, ..request() }, &[0, 1]).unwrap();
            (plan.passes, plan.slicing.total_ns() / 1_000_000)
        };
        assert_eq!(slots(2_000_000_000), (8, 250));
        assert_eq!(slots(250_000_000), (2, 125));
        assert_eq!(slots(750_000_000), (2, 375));
    }

    #[test]
    fn slots_have_time_for_round_trips() {
        let plan = |duration_ns, round_trip_ns| {
            Plan::new(&Request { duration_ns, round_trip_ns, ..request() }, &[0, 1])
        };
        let passes = |duration_ns, round_trip_ns| plan(duration_ns, round_trip_ns).unwrap().passes;
        assert_eq!(passes(2_000_000_000, 1_000_000), 8);
        assert_eq!(passes(2_000_000_000, 20_000_000), 4);
        assert_eq!(passes(2_000_000_000, 200_000_000), 2);
        let refused = plan(500_000_000, 100_000_000).unwrap_err().to_string();
        assert!(refused.contains("--duration 1000ms"), "{refused}");
        assert!(plan(1_000_000_000, 100_000_000).is_ok());
    }

    #[test]
    fn quick_runs_fit_into_a_minute() {
        let quick = |servers, transactions| {
            let request = Request { servers, transactions, quick: true, ..request() };
            Plan::new(&request, &[0, 1])
        };
        for servers in 1..=4 {
            let plan = quick(servers, None).unwrap();
            let estimate_ns = START_NS + plan.schedule(0, 0, 0).estimate_ns();
            assert!(estimate_ns <= QUICK_NS && plan.rounds >= 2, "{}", plan.rounds);
        }
        assert!(quick(8, Some((0..20).collect())).is_err());
    }
}
