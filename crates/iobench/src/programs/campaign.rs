//! Measures one program in all its variants, which run for the whole measurement and idle except in
//! their own slices.

use std::time::Duration;

use crate::cli::programs::ProgramsArgs;
use crate::engine;
use crate::engine::rounds::{Bench, CellShape, Schedule, Turn};
use crate::error::Result;
use crate::ipc::placement::Pair;
use crate::programs::network_path::NetworkPath;
use crate::programs::row::Measured;
use crate::programs::server::Server;
use crate::programs::slice::{SliceOutcome, Slicer};
use crate::programs::{Amount, Cell, Program, Variant};
use crate::sys::clock::now_ns;
use crate::sys::signals::Signals;

const DEFAULT_ROUNDS: u32 = 10;
const QUICK_ROUNDS: u32 = 5;
const DEFAULT_DURATION: Duration = Duration::from_millis(500);
const QUICK_DURATION: Duration = Duration::from_millis(200);
/// Time after which no further slice may begin with `--quick`; the last slice and the end take
/// longer.
const QUICK_NS: u64 = 26_000_000_000;
/// Time of a slice beside the client's own.
const SLICE_OVERHEAD_NS: u64 = 60_000_000;
/// The first estimate of operations, for each connection.
const FIRST_OPERATIONS: u64 = 20;
/// The second estimate aims at this part (1/4) of the time, and warms up the server.
const SECOND_PART: f64 = 0.25;
/// Upper bound for the numbers that a client reports.
const OPERATIONS_MAX: u64 = 1_000_000_000;

/// One program with the user's choices.
pub(crate) struct Campaign<'a> {
    program: &'a dyn Program,
    cells: Vec<Cell>,
    pairs: &'a [Pair],
    signals: &'a Signals,
    rounds: u32,
    duration: Duration,
    quick: bool,
    begun_ns: u64,
    seed: u64,
}

impl<'a> Campaign<'a> {
    pub(crate) fn new(
        program: &'a dyn Program,
        arguments: &ProgramsArgs,
        pairs: &'a [Pair],
        signals: &'a Signals,
        seed: u64,
    ) -> Campaign<'a> {
        let (rounds, duration) = match arguments.measure.quick {
            true => (QUICK_ROUNDS, QUICK_DURATION),
            false => (DEFAULT_ROUNDS, DEFAULT_DURATION),
        };
        Campaign {
            program,
            cells: cells(program, arguments),
            pairs,
            signals,
            rounds: arguments.measure.rounds.unwrap_or(rounds),
            duration: arguments.measure.duration.unwrap_or(duration),
            quick: arguments.measure.quick,
            begun_ns: now_ns(),
            seed,
        }
    }

    /// Measures everything.
    pub(crate) fn run(&self, network_path: &mut NetworkPath) -> Result<Vec<Measured>> {
        let (variants, name) = (self.program.variants(), self.program.name());
        let shape = CellShape { subjects: variants.len(), baseline: 0, slot_ns: self.slice_ns() };
        let schedule = Schedule {
            cells: vec![shape; self.cells.len() * self.pairs.len()],
            rounds: self.rounds,
            passes: 1,
            seed: self.seed,
            deadline_ns: self.quick.then_some(self.begun_ns + QUICK_NS),
        };
        schedule.announce(format_args!("{name}: {} variants", variants.len()));
        let mut bench = ProgramBench { name, variants, stations: Vec::new(), cells: Vec::new() };
        for &pair in self.pairs {
            let mut servers = Vec::new();
            for &variant in variants {
                servers.push(Server::start(
                    self.program,
                    variant,
                    pair,
                    network_path,
                    self.signals,
                )?);
            }
            let slicer = Slicer::new(self.program, pair, self.signals);
            for &cell in &self.cells {
                let amount = self.calibrate(&slicer, &mut servers[0], &cell)?;
                bench.cells.push((bench.stations.len(), cell, amount));
            }
            bench.stations.push((slicer, servers));
        }
        let measured = engine::rounds::run(&schedule, &mut bench)?;
        let cell = |(&(station, cell, _), outcomes): (&(usize, Cell, Amount), Vec<_>)| {
            Measured::new(cell, self.pairs[station], variants, outcomes)
        };
        Ok(bench.cells.iter().zip(measured.outcomes).map(cell).collect())
    }

    /// Returns the number of operations that the baseline does in the duration.
    fn calibrate(&self, slicer: &Slicer<'_>, baseline: &mut Server, cell: &Cell) -> Result<Amount> {
        let each = FIRST_OPERATIONS * u64::from(cell.pipeline);
        let least = self.program.least_operations().max(each * u64::from(cell.connections));
        let mut amount = Amount { operations: least, duration: self.duration };
        if !self.program.counts_operations() {
            return Ok(amount);
        }
        for part in [SECOND_PART, 1.0] {
            // A client that fails here also fails in the rounds, which report it.
            let Some(figures) = slicer.measure(baseline, cell, amount)?.figures else { break };
            let wanted = figures.operations_s * self.duration.as_secs_f64() * part;
            amount.operations = (wanted as u64).clamp(least, OPERATIONS_MAX);
        }
        Ok(amount)
    }

    fn slice_ns(&self) -> u64 {
        let duration_ns = match self.program.counts_operations() {
            true => self.duration.as_nanos() as u64,
            false => self.duration.as_secs_f64().ceil() as u64 * 1_000_000_000,
        };
        duration_ns + SLICE_OVERHEAD_NS
    }
}

/// The running variants of a program, on every pair of CPUs.
struct ProgramBench<'a> {
    name: &'static str,
    variants: &'a [Variant],
    /// By pair of CPUs.
    stations: Vec<(Slicer<'a>, Vec<Server>)>,
    /// Each with the index of its pair of CPUs.
    cells: Vec<(usize, Cell, Amount)>,
}

impl Bench for ProgramBench<'_> {
    type Slot = SliceOutcome;

    fn describe(&self, cell: usize, subject: usize) -> String {
        let (_, cell, _) = &self.cells[cell];
        format!("{} over {}, {}", self.name, self.variants[subject].name(), cell.operation)
    }

    fn measure(&mut self, turn: Turn) -> Result<SliceOutcome> {
        let (station, cell, amount) = &self.cells[turn.cell];
        let (slicer, servers) = &mut self.stations[*station];
        slicer.measure(&mut servers[turn.subject], cell, *amount)
    }
}

fn cells(program: &dyn Program, arguments: &ProgramsArgs) -> Vec<Cell> {
    let distinct = |values: &[u32]| {
        let mut values = values.to_vec();
        values.sort_unstable();
        values.dedup();
        values
    };
    let pipelines = match program.can_pipeline() {
        true => distinct(&arguments.pipeline),
        false => vec![1],
    };
    let mut cells = Vec::new();
    for connections in distinct(&arguments.connections) {
        for &pipeline in &pipelines {
            for operation in program.operations() {
                let transactions = program.transactions(operation);
                cells.push(Cell { operation, connections, pipeline, transactions });
            }
        }
    }
    cells
}
