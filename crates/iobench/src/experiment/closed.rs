//! The run of a closed-loop experiment. It measures as `compare` does: in short slots, interleaved
//! between the servers, of which only the undisturbed parts count.

use crate::compare::convert::convert;
use crate::compare::plan::{Cell, divide};
use crate::compare::report::{self, Rounds};
use crate::compare::rounds::{RoundShape, measure_round, service_for};
use crate::engine::outcome::SlotOutcome;
use crate::engine::progress::Progress;
use crate::error::{Error, Result};
use crate::exchange::{Service, Work};
use crate::experiment::Assignment;
use crate::experiment::journal::{Key, Ledger};
use crate::experiment::points::Point;
use crate::results::Row;
use crate::server::find;
use crate::server::process::Launch;
use crate::server::running::{Running, Subject};
use crate::sys::affinity::wake_promptly;
use crate::sys::signals::Signals;

/// What a slot costs beside its measured part.
const SLOT_OVERHEAD_NS: u64 = 75_000_000;

/// One round of one point: slots by server, then by pass; or why it could not be measured.
pub(crate) type PointOutcome = std::result::Result<Vec<Vec<SlotOutcome>>, String>;

pub(crate) struct ClosedCampaign<'a> {
    assignment: &'a Assignment,
    ledger: Ledger<PointOutcome>,
}

impl<'a> ClosedCampaign<'a> {
    pub(crate) fn new(
        assignment: &'a Assignment,
        ledger: Ledger<PointOutcome>,
    ) -> ClosedCampaign<'a> {
        ClosedCampaign { assignment, ledger }
    }

    /// Measures what is not measured yet, rounds outermost, and makes the rows.
    pub(crate) fn run(mut self, signals: &Signals) -> Result<Vec<Row>> {
        if self.assignment.experiment.network.is_some() {
            return Err(Error::setup(
                "closed loops of an experiment run over the plain loopback only",
                "remove `network`, or use `iobench compare` with --network or --path",
            ));
        }
        if wake_promptly().is_none() {
            crate::output::note("no permission for real-time priority; slices may be sampled late");
        }
        let keys = self.keys_left();
        let (passes, slicing) = self.slots();
        let slots = keys.len() * self.assignment.servers.len() * passes;
        let mut progress = Progress::new(slots as u64, slicing.total_ns() + SLOT_OVERHEAD_NS);
        for key in keys {
            let outcome = self.measure(&key, signals, &mut progress)?;
            self.ledger.add(key, outcome)?;
        }
        self.rows()
    }

    fn keys_left(&self) -> Vec<Key> {
        let points = self.assignment.points.len();
        let all = (0..self.assignment.experiment.rounds)
            .flat_map(|round| (0..points).map(move |point| Key { round, point, server: 0 }));
        all.filter(|key| self.ledger.get(key).is_none()).collect()
    }

    fn slots(&self) -> (usize, crate::client::slices::Slicing) {
        divide(self.assignment.experiment.periods.measure.as_nanos() as u64, 0)
    }

    /// One round of one point, with servers that were started for it.
    fn measure(
        &self,
        key: &Key,
        signals: &Signals,
        progress: &mut Progress,
    ) -> Result<PointOutcome> {
        match self.try_measure(key, signals, progress) {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => Ok(Err(error.to_string())),
            Ok(outcomes) => Ok(Ok(outcomes)),
        }
    }

    fn try_measure(
        &self,
        key: &Key,
        signals: &Signals,
        progress: &mut Progress,
    ) -> Result<Vec<Vec<SlotOutcome>>> {
        let Assignment { experiment, servers, points, baseline, .. } = self.assignment;
        let point = &points[key.point];
        let mut running = Vec::with_capacity(servers.len());
        for subject in servers {
            if let Subject::Own(name) = subject {
                find(name)?.check_connections(point.connections)?;
            }
            running.push(Running::start(subject, &launch(subject, point), signals)?);
        }
        let mut subjects: Vec<&mut Running> = running.iter_mut().collect();
        let (passes, slicing) = self.slots();
        let connections = point.connections;
        let baseline = *baseline;
        let stacks = &[];
        let shape = RoundShape {
            connections,
            passes,
            slicing,
            baseline,
            network: None,
            stacks,
            unable: &[],
        };
        let phase = format!("round {} of {}", key.round + 1, experiment.rounds);
        let mut first = key.point == 0;
        let round = key.round as usize;
        measure_round(&cell(point), &shape, round, &mut subjects, signals, |server| {
            let what = format!("{}, {}", servers[server].name(), point.describe());
            progress.announce(&phase, &what, first);
            first = false;
            progress.step();
        })
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let mut all = Vec::new();
        for (number, point) in self.assignment.points.iter().enumerate() {
            all.extend(self.rows_of(number, point)?);
        }
        Ok(all)
    }

    fn rows_of(&self, number: usize, point: &Point) -> Result<Vec<Row>> {
        let Assignment { experiment, servers, baseline, .. } = self.assignment;
        let names: Vec<&str> = servers.iter().map(Subject::name).collect();
        let mut slots: Vec<Rounds> = vec![Rounds::new(); servers.len()];
        let mut failures = Vec::new();
        for round in 0..experiment.rounds {
            match self.ledger.get(&Key { round, point: number, server: 0 }) {
                Some(Ok(outcomes)) => {
                    for (rounds, slots) in slots.iter_mut().zip(outcomes) {
                        rounds.push(slots.clone());
                    }
                }
                Some(Err(failure)) if !failures.contains(failure) => failures.push(failure.clone()),
                _ => {}
            }
        }
        let compared = report::rows(&cell(point), point.connections, &names, *baseline, &slots)?;
        compared
            .into_iter()
            .zip(&slots)
            .map(|(row, rounds)| {
                let workload = point.exchange.workload();
                convert(row, workload, None, point.work.to_string(), rounds, &failures)
            })
            .collect()
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
    let Service { exchange, .. } = service_for(point.exchange);
    // Work is done for each request, so the server has to know where one ends.
    let exchange = if point.work == Work::None { exchange } else { Some(point.exchange) };
    Launch {
        service: Service { exchange, work: point.work },
        ..Launch::echo(subject.name(), &point.placement.server_cpus)
    }
}
