//! Runs an open-loop experiment: determines the measurements, their order, and which of them the
//! journal has.

use crate::engine;
use crate::engine::point::Point;
use crate::engine::rounds::{Bench, CellShape, Schedule, Slot, Turn};
use crate::engine::sampler::TOLERATED;
use crate::engine::slices::SliceCounts;
use crate::error::Result;
use crate::experiment::Assignment;
use crate::experiment::journal::Ledger;
use crate::experiment::measure::{Measure, Task};
use crate::experiment::rows;
use crate::open::outcome::OpenOutcome;
use crate::random::SplitMix64;
use crate::results::Row;

/// Time of a measurement beside its periods, and for each connection.
const OVERHEAD_NS: u64 = 350_000_000;
const PER_CONNECTION_NS: u64 = 60_000;

impl Slot for OpenOutcome {
    fn slices(&self) -> SliceCounts {
        self.disturbance.counts()
    }

    fn is_clean(&self) -> bool {
        self.reasons.is_empty()
    }

    fn has_failed(&self) -> bool {
        !self.reasons.is_empty() && self.disturbance.reasons(TOLERATED).is_empty()
    }
}

/// The measurements of an experiment on one machine, or over several hosts.
pub(super) struct OpenBench<'a> {
    pub(super) assignment: &'a Assignment,
    pub(super) seed: u64,
    pub(super) ledger: Ledger<OpenOutcome>,
    pub(super) place: &'a mut dyn Measure,
}

impl OpenBench<'_> {
    /// Measures what is missing in the ledger, round by round, and makes the rows.
    pub(super) fn run(mut self, way: Option<&str>) -> Result<Vec<Row>> {
        let Assignment { experiment, servers, points, baseline, .. } = self.assignment;
        let shape = |point: &Point| CellShape {
            subjects: servers.len(),
            baseline: *baseline,
            slot_ns: self.estimate_ns(point),
        };
        let schedule = Schedule {
            cells: points.iter().map(shape).collect(),
            rounds: experiment.rounds,
            passes: 1,
            seed: self.seed,
            deadline_ns: None,
        };
        schedule.announce(self.assignment.summary());
        let measured = engine::rounds::run(&schedule, &mut self)?;
        let mut all = Vec::with_capacity(points.len() * servers.len());
        for (point, outcomes) in points.iter().zip(&measured.outcomes) {
            let rounds = |server: usize| outcomes[server].iter().flatten().collect::<Vec<_>>();
            let of_baseline = rounds(*baseline);
            for (server, name) in servers.iter().enumerate() {
                let evidence = rows::Evidence {
                    kind: experiment.kind,
                    way,
                    server: name.name(),
                    point,
                    rounds: &rounds(server),
                    baseline: (server != *baseline).then_some(of_baseline.as_slice()),
                };
                all.push(evidence.row()?);
            }
        }
        Ok(all)
    }

    fn estimate_ns(&self, point: &Point) -> u64 {
        let periods = &self.assignment.experiment.periods;
        let course = periods.growth + periods.steady + periods.measure;
        course.as_nanos() as u64 + OVERHEAD_NS + point.connections as u64 * PER_CONNECTION_NS
    }
}

impl Bench for OpenBench<'_> {
    type Slot = OpenOutcome;

    fn describe(&self, cell: usize, subject: usize) -> String {
        let Assignment { servers, points, .. } = self.assignment;
        format!("{}, {}", servers[subject].name(), points[cell].describe())
    }

    fn known(&self, turn: Turn) -> Option<OpenOutcome> {
        self.ledger.get(&turn.into()).cloned()
    }

    fn measure(&mut self, turn: Turn) -> Result<OpenOutcome> {
        let Assignment { experiment, servers, points, .. } = self.assignment;
        let (server, point) = (&servers[turn.subject], &points[turn.cell]);
        // All servers get the same schedule at a point, and so the same bursts.
        let mut seeds =
            SplitMix64::new(self.seed ^ (turn.cell as u64) << 32 ^ u64::from(turn.round));
        let task = Task { experiment, server, point, seed: seeds.next() };
        let outcome = self.place.measure(&task)?;
        self.ledger.add(turn.into(), outcome.clone())?;
        Ok(outcome)
    }
}
