//! The rounds of one program: every variant lives for the whole run and idles except in its own
//! slices, and rounds are the outermost loop.

use std::time::Duration;

use crate::cli::programs::ProgramsArgs;
use crate::engine::order::slot_order;
use crate::engine::progress::Progress;
use crate::error::Result;
use crate::ipc::placement::Pair;
use crate::output;
use crate::programs::road::Road;
use crate::programs::row::Measured;
use crate::programs::server::Server;
use crate::programs::slice::Slicer;
use crate::programs::{Amount, Cell, Program};
use crate::sys::clock::now_ns;
use crate::sys::signals::Signals;

const DEFAULT_ROUNDS: u32 = 10;
const QUICK_ROUNDS: u32 = 5;
const DEFAULT_DURATION: Duration = Duration::from_millis(500);
const QUICK_DURATION: Duration = Duration::from_millis(200);
/// When no further slice may begin after a quick start; the last one and the end follow.
const QUICK_NS: u64 = 26_000_000_000;
/// What a slice costs beside the client's own time.
const SLICE_OVERHEAD_NS: u64 = 60_000_000;
/// The first guess, for each connection.
const FIRST_OPERATIONS: u64 = 20;
/// The second guess aims at this part (1/4) of the time, and warms up the server.
const SECOND_PART: f64 = 0.25;
/// A bound for what a client reports.
const OPERATIONS_MAX: u64 = 1_000_000_000;

/// One program with all that was asked for.
pub(crate) struct Campaign<'a> {
    program: &'a dyn Program,
    cells: Vec<Cell>,
    pairs: &'a [Pair],
    signals: &'a Signals,
    rounds: u32,
    duration: Duration,
    quick: bool,
    begun_ns: u64,
}

impl<'a> Campaign<'a> {
    pub(crate) fn new(
        program: &'a dyn Program,
        arguments: &ProgramsArgs,
        pairs: &'a [Pair],
        signals: &'a Signals,
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
        }
    }

    /// Measures everything.
    pub(crate) fn run(&self, road: &mut Road) -> Result<Vec<Measured>> {
        let variants = self.program.variants();
        let slice_ns = self.slice_ns();
        let slices = (self.cells.len() * self.pairs.len() * variants.len()) as u64;
        let total_ns = slices * slice_ns * u64::from(self.rounds);
        let total_ns = if self.quick { total_ns.min(QUICK_NS) } else { total_ns };
        let (name, seconds) = (self.program.name(), total_ns.div_ceil(1_000_000_000));
        output::note(&format!("{name}: {} rounds, about {seconds} s", self.rounds));
        let (mut stations, mut measured) = (Vec::new(), Vec::new());
        for &pair in self.pairs {
            let mut servers = Vec::new();
            for &variant in variants {
                servers.push(Server::start(self.program, variant, pair, road, self.signals)?);
            }
            let mut slicer = Slicer::new(self.program, pair, self.signals)?;
            for &cell in &self.cells {
                let amount = self.calibrate(&mut slicer, &mut servers[0], &cell)?;
                measured.push(Measured::new(cell, pair, variants, amount));
            }
            stations.push((slicer, servers));
        }
        let mut progress = Progress::new(slices * u64::from(self.rounds), slice_ns);
        for round in 0..self.rounds as usize {
            if self.is_over() {
                output::note(&format!("time is up after {round} of {} rounds", self.rounds));
                break;
            }
            let phase = format!("{name}, round {} of {}", round + 1, self.rounds);
            progress.announce(&phase, name, true);
            for (index, measured) in measured.iter_mut().enumerate() {
                let (slicer, servers) = &mut stations[index / self.cells.len()];
                for place in slot_order(variants.len(), 0, round, 0) {
                    let outcome = match self.is_over() {
                        true => None,
                        false => Some(slicer.measure(
                            &mut servers[place],
                            &measured.cell,
                            measured.amount,
                        )?),
                    };
                    measured.outcomes[place].push(outcome);
                    progress.step();
                }
            }
        }
        drop(stations);
        Ok(measured)
    }

    /// As many operations as the baseline does in the time.
    fn calibrate(
        &self,
        slicer: &mut Slicer<'_>,
        baseline: &mut Server,
        cell: &Cell,
    ) -> Result<Amount> {
        let each = FIRST_OPERATIONS * u64::from(cell.pipeline);
        let least = self.program.least_operations().max(each * u64::from(cell.connections));
        let mut amount = Amount { operations: least, duration: self.duration };
        if !self.program.counts_operations() {
            return Ok(amount);
        }
        for part in [SECOND_PART, 1.0] {
            // A client that fails here fails in the rounds as well, where it is told.
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

    fn is_over(&self) -> bool {
        self.quick && now_ns() + self.slice_ns() > self.begun_ns + QUICK_NS
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
