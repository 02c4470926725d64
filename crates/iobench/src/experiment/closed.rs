//! Runs a closed-loop experiment: slots as in `compare`, in pairs A B and B A of the servers, of
//! which only undisturbed slices count.

use crate::client::slices::Slicing;
use crate::compare::plan::{Cell, divide};
use crate::compare::report;
use crate::compare::rounds::Clients;
use crate::compare::slots::SlotShape;
use crate::engine;
use crate::engine::outcome::SlotOutcome;
use crate::engine::point::Point;
use crate::engine::progress::Progress;
use crate::engine::rounds::{Bench, CellShape, Schedule, Turn};
use crate::error::{Error, Result};
use crate::exchange::{Service, Work};
use crate::experiment::Assignment;
use crate::experiment::journal::Ledger;
use crate::results::Row;
use crate::server::find;
use crate::server::process::Launch;
use crate::server::running::{Running, Subject};
use crate::sys::signals::Signals;

/// Time of a slot beside its measured part.
const SLOT_OVERHEAD_NS: u64 = 75_000_000;

/// Measures the slots that are missing in the ledger, and makes the rows.
pub(crate) fn run(
    assignment: &Assignment,
    ledger: Ledger<SlotOutcome>,
    seed: u64,
    signals: &Signals,
) -> Result<Vec<Row>> {
    let Assignment { experiment, servers, points, baseline, .. } = assignment;
    if experiment.network.is_some() {
        return Err(Error::setup(
            "closed loops of an experiment run over the plain loopback only",
            "remove `network`, or use `iobench compare` with --path",
        ));
    }
    let (passes, slicing) = divide(experiment.periods.measure.as_nanos() as u64, 0);
    let slot_ns = slicing.total_ns() + SLOT_OVERHEAD_NS;
    let shape = CellShape { subjects: servers.len(), baseline: *baseline, slot_ns };
    let schedule = Schedule {
        cells: vec![shape; points.len()],
        rounds: experiment.rounds,
        passes,
        seed,
        deadline_ns: None,
    };
    schedule.announce(assignment.summary());
    let cells: Vec<Cell> = points.iter().map(cell).collect();
    let mut bench = ClosedBench {
        assignment,
        cells: &cells,
        slicing,
        ledger,
        signals,
        running: Vec::new(),
        clients: None,
        failure: None,
    };
    let measured = engine::rounds::run(&schedule, &mut bench)?;
    let names: Vec<&str> = servers.iter().map(Subject::name).collect();
    let mut rows = Vec::new();
    for ((point, cell), slots) in points.iter().zip(&cells).zip(&measured.outcomes) {
        let compared = report::rows(cell, point.connections, &names, *baseline, slots)?;
        let work = point.work.to_string();
        rows.extend(compared.into_iter().map(|row| Row { work: work.clone(), ..row }));
    }
    Ok(rows)
}

/// The servers of one round of a point, and their clients.
struct ClosedBench<'a> {
    assignment: &'a Assignment,
    /// By point.
    cells: &'a [Cell],
    slicing: Slicing,
    ledger: Ledger<SlotOutcome>,
    signals: &'a Signals,
    running: Vec<Running>,
    clients: Option<Clients<'a>>,
    /// Why the current round cannot be measured.
    failure: Option<String>,
}

impl ClosedBench<'_> {
    fn start(&mut self, number: usize) -> Result<()> {
        let Assignment { servers, points, .. } = self.assignment;
        let point = &points[number];
        for subject in servers {
            if let Subject::Own(name) = subject {
                find(name)?.check_connections(point.connections)?;
            }
            self.running.push(Running::start(subject, &launch(subject, point), self.signals)?);
        }
        let connections = point.connections;
        let shape = SlotShape { connections, slicing: self.slicing, network: None };
        let stacks = vec![None; servers.len()];
        let clients = Clients::start(&self.cells[number], &shape, &stacks, self.signals)?;
        self.clients = Some(clients);
        Ok(())
    }

    fn try_measure(&mut self, turn: Turn) -> Result<SlotOutcome> {
        match &mut self.clients {
            Some(clients) => clients.measure(turn, &mut self.running[turn.subject]),
            None => Ok(SlotOutcome::failed(self.failure.clone().unwrap_or_default())),
        }
    }
}

impl Bench for ClosedBench<'_> {
    type Slot = SlotOutcome;

    fn describe(&self, cell: usize, subject: usize) -> String {
        let Assignment { servers, points, .. } = self.assignment;
        format!("{}, {}", servers[subject].name(), points[cell].describe())
    }

    fn known(&self, turn: Turn) -> Option<SlotOutcome> {
        self.ledger.get(&turn.into()).cloned()
    }

    fn open(&mut self, first: Turn, _: &Progress) -> Result<()> {
        self.failure = match self.start(first.cell) {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            started => started.err().map(|error| error.to_string()),
        };
        Ok(())
    }

    fn measure(&mut self, turn: Turn) -> Result<SlotOutcome> {
        let outcome = match self.try_measure(turn) {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => SlotOutcome::failed(error.to_string()),
            Ok(outcome) => outcome,
        };
        self.ledger.add(turn.into(), outcome.clone())?;
        Ok(outcome)
    }

    fn close(&mut self, _: Turn, _: &mut [Vec<SlotOutcome>], _: &Progress) -> Result<()> {
        self.clients = None;
        self.running.clear();
        Ok(())
    }
}

fn cell(point: &Point) -> Cell {
    Cell {
        cores: point.cores,
        placement: point.placement.clone(),
        exchange: point.exchange,
        transactions: point.transactions,
        idle: 0,
    }
}

fn launch(subject: &Subject, point: &Point) -> Launch {
    let Service { exchange, .. } = Service::for_exchange(point.exchange);
    // Work is done for each request, so the server must know where each one ends.
    let exchange = if point.work == Work::None { exchange } else { Some(point.exchange) };
    Launch {
        service: Service { exchange, work: point.work },
        ..Launch::echo(subject.name(), &point.placement.server_cpus)
    }
}
