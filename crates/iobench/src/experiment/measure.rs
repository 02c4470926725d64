//! One measurement: a fresh server, the load of one point, and what came of it.

use crate::error::{Error, Result};
use crate::exchange::Service;
use crate::experiment::file::Experiment;
use crate::experiment::points::Point;
use crate::open::connect::Route;
use crate::open::outcome::{Gauge, OpenOutcome};
use crate::open::phases::Course;
use crate::open::terminal::Terminal;
use crate::open::{LEAD_NS, OpenPlan, Prepared, place};
use crate::results::Kind;
use crate::server::process::{Launch, ServerProcess};
use crate::sys::clock::now_ns;
use crate::sys::signals::Signals;

/// Measures servers for one experiment.
pub(crate) struct Measurer<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) signals: &'a Signals,
}

impl Measurer<'_> {
    /// Measures one server at one point. What is wrong with the server or the point becomes a
    /// reason in the outcome; only the end of the whole run is an error.
    pub(crate) fn measure(
        &self,
        server: &str,
        point: &Point,
        seed: u64,
        label: String,
    ) -> Result<OpenOutcome> {
        match self.try_measure(server, point, seed, label) {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => Ok(OpenOutcome::failed(error.to_string())),
            outcome => outcome,
        }
    }

    fn try_measure(
        &self,
        server: &str,
        point: &Point,
        seed: u64,
        label: String,
    ) -> Result<OpenOutcome> {
        let plan = self.plan(point, seed)?;
        let launch = Launch {
            service: Service { exchange: Some(point.exchange), work: point.work },
            ..Launch::echo(server, &point.placement.server_cpus)
        };
        let mut terminal = Terminal::new(label, plan.tolerance);
        let mut process = ServerProcess::start(&launch, self.signals)?;
        let route = Route::new(process.address(), point.connections)?;
        let prepared = Prepared::connect(plan, &route, self.signals, &mut terminal)?;
        let gauge = Watched { process: &process, cpus: launch.cpus.len() };
        let start_ns = now_ns() + LEAD_NS;
        let mut outcome = prepared.run(start_ns, &gauge, self.signals, &mut terminal)?;
        if let Some(status) = process.ended() {
            outcome.reasons.push(format!("the server process ended ({status})"));
        }
        Ok(outcome)
    }

    fn plan(&self, point: &Point, seed: u64) -> Result<OpenPlan> {
        let periods = &self.experiment.periods;
        let rate = point.rate.unwrap_or(1.0);
        let generators = self.experiment.placement.generators;
        Ok(OpenPlan {
            course: Course {
                rate,
                growth_ns: periods.growth.as_nanos() as u64,
                steady_ns: periods.steady.as_nanos() as u64,
                measure_ns: periods.measure.as_nanos() as u64,
            },
            arrivals: self.experiment.sweep.arrivals,
            exchange: point.exchange,
            connections: point.connections,
            churn: (self.experiment.kind == Kind::Churn).then_some(point.transactions),
            timeout_ns: periods.timeout.as_nanos() as u64,
            generators: place(&point.placement.client_cpus, rate, generators)?,
            seed,
            tolerance: self.experiment.tolerance,
            log: None,
        })
    }
}

/// A server whose use of resources can be read.
struct Watched<'a> {
    process: &'a ServerProcess,
    cpus: usize,
}

impl Gauge for Watched<'_> {
    fn cpu_ns(&self) -> Option<u64> {
        Some(self.process.cpu_time_ns())
    }

    fn system_calls(&self) -> Option<u64> {
        Some(self.process.counters().system_calls)
    }

    fn cpus(&self) -> usize {
        self.cpus
    }
}
