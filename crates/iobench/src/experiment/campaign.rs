//! The run of an open-loop experiment: which measurements there are, in which order, and what is
//! known of them.

use crate::engine::order::slot_order;
use crate::error::Result;
use crate::experiment::file::Experiment;
use crate::experiment::journal::{Key, Ledger};
use crate::experiment::measure::{Bench, Task};
use crate::experiment::points::Point;
use crate::experiment::rows;
use crate::open::outcome::OpenOutcome;
use crate::output;
use crate::random::SplitMix64;
use crate::results::Row;
use crate::server::running::Subject;

/// What a measurement costs beside its periods, and for each connection.
const OVERHEAD_NS: u64 = 350_000_000;
const PER_CONNECTION_NS: u64 = 60_000;

/// The run of an experiment.
pub(super) struct Campaign<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) servers: &'a [Subject],
    pub(super) baseline: usize,
    pub(super) points: &'a [Point],
    pub(super) seed: u64,
    pub(super) ledger: Ledger<OpenOutcome>,
}

impl Campaign<'_> {
    fn total(&self) -> usize {
        self.points.len() * self.servers.len() * self.experiment.rounds as usize
    }

    /// Everything that is not measured yet, round by round.
    pub(super) fn measure(&mut self, bench: &mut dyn Bench) -> Result<()> {
        let keys: Vec<Key> =
            self.order().into_iter().filter(|key| self.ledger.get(key).is_none()).collect();
        let mut left_ns: u64 = keys.iter().map(|key| self.estimate_ns(key)).sum();
        output::note(&format!(
            "{}: {} servers at {} points, {} rounds, about {} s",
            self.experiment.name,
            self.servers.len(),
            self.points.len(),
            self.experiment.rounds,
            left_ns.div_ceil(1_000_000_000)
        ));
        let (total, first) = (self.total(), self.total() - keys.len());
        for (number, key) in keys.into_iter().enumerate() {
            let (server, point) = (&self.servers[key.server], &self.points[key.point]);
            let label = format!(
                "[{}/{total}, {} s left] {}, {}:",
                first + number + 1,
                left_ns.div_ceil(1_000_000_000),
                server.name(),
                point.describe()
            );
            left_ns -= self.estimate_ns(&key);
            // The schedule is the same for all servers at a point, so that they meet the same
            // bursts.
            let mut seeds =
                SplitMix64::new(self.seed ^ (key.point as u64) << 32 ^ u64::from(key.round));
            let (experiment, seed, label) = (self.experiment, seeds.next(), label.as_str());
            let outcome = bench.measure(&Task { experiment, server, point, seed, label })?;
            self.ledger.add(key, outcome)?;
        }
        Ok(())
    }

    /// Rounds outermost, points within, and at each point the servers in alternating order.
    fn order(&self) -> Vec<Key> {
        let mut keys = Vec::with_capacity(self.total());
        for round in 0..self.experiment.rounds {
            for point in 0..self.points.len() {
                let order = slot_order(self.servers.len(), self.baseline, round as usize, 0);
                keys.extend(order.into_iter().map(|server| Key { round, point, server }));
            }
        }
        keys
    }

    fn estimate_ns(&self, key: &Key) -> u64 {
        let periods = &self.experiment.periods;
        let course = periods.growth + periods.steady + periods.measure;
        let connections = self.points[key.point].connections as u64;
        course.as_nanos() as u64 + OVERHEAD_NS + connections * PER_CONNECTION_NS
    }

    /// All rows; `way` describes what lies between server and clients.
    pub(super) fn rows(&self, way: Option<&str>) -> Result<Vec<Row>> {
        let mut all = Vec::with_capacity(self.points.len() * self.servers.len());
        for (number, point) in self.points.iter().enumerate() {
            let rounds = |server: usize| -> Vec<&OpenOutcome> {
                let of = |round| self.ledger.get(&Key { round, point: number, server });
                (0..self.experiment.rounds).filter_map(of).collect()
            };
            let baseline = rounds(self.baseline);
            for (server, name) in self.servers.iter().enumerate() {
                let evidence = rows::Evidence {
                    kind: self.experiment.kind,
                    way,
                    server: name.name(),
                    point,
                    rounds: &rounds(server),
                    baseline: (server != self.baseline).then_some(baseline.as_slice()),
                };
                all.push(evidence.row()?);
            }
        }
        Ok(all)
    }
}
