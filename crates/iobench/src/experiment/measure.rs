//! Makes one measurement: starts a server, loads it at one point, and returns the outcome.

use crate::client::ClientKind;
use crate::engine::point::Point;
use crate::engine::progress::RunProgress;
use crate::engine::sampler::ClientSide;
use crate::error::{Error, Result};
use crate::exchange::Service;
use crate::experiment::file::{Experiment, PathSetting};
use crate::network::verdict::Observation;
use crate::network::{Entered, Options, PathKind};
use crate::open::connect::{PER_SOURCE, Route};
use crate::open::gauge::Watched;
use crate::open::outcome::OpenOutcome;
use crate::open::phases::Course;
use crate::open::{LEAD_NS, OpenPlan, Prepared, place};
use crate::path::Path;
use crate::results::Kind;
use crate::server::find;
use crate::server::process::Launch;
use crate::server::running::{Running, Subject};
use crate::sys::clock::now_ns;
use crate::sys::signals::Signals;

/// The parameters of one measurement.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) server: &'a Subject,
    pub(crate) point: &'a Point,
    pub(crate) seed: u64,
}

impl Task<'_> {
    /// Requests per connection, if the load is a churn.
    pub(crate) fn churn(&self) -> Option<u32> {
        (self.experiment.kind == Kind::Churn).then_some(self.point.transactions)
    }
}

/// Makes measurements on this machine, or over several hosts.
pub(crate) trait Measure {
    /// Measures; an error is a fault of the server or the point.
    fn try_measure(&mut self, task: &Task<'_>) -> Result<OpenOutcome>;

    /// Measures. A fault becomes a reason in the outcome; an error ends the whole run.
    fn measure(&mut self, task: &Task<'_>) -> Result<OpenOutcome> {
        match self.try_measure(task) {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => Ok(OpenOutcome::failed(error.to_string())),
            outcome => outcome,
        }
    }
}

/// Returns the course of the request rate at a point.
pub(crate) fn course(experiment: &Experiment, point: &Point) -> Course {
    let periods = &experiment.periods;
    Course {
        rate: point.rate.unwrap_or(1.0),
        growth_ns: periods.growth.as_nanos() as u64,
        steady_ns: periods.steady.as_nanos() as u64,
        measure_ns: periods.measure.as_nanos() as u64,
    }
}

/// Returns how to start the server of a point, on the loopback address.
pub(crate) fn launch(task: &Task<'_>) -> Launch {
    let point = task.point;
    Launch {
        service: Service { exchange: Some(point.exchange), work: point.work },
        ..Launch::echo(task.server.name(), &point.placement.server_cpus)
    }
}

/// Measures on this machine, with a network path if the experiment has one.
pub(crate) struct Local<'a> {
    signals: &'a Signals,
    /// Declared before the path, so that the thread leaves the clients' namespace before the path
    /// is dropped.
    _entered: Option<Entered>,
    path: Path,
}

impl<'a> Local<'a> {
    /// If the experiment has a path, the calling thread stays in the clients' namespace.
    pub(crate) fn new(
        experiment: &Experiment,
        most_connections: usize,
        seed: u64,
        signals: &'a Signals,
    ) -> Result<Local<'a>> {
        let (kind, conditions) =
            experiment.network.as_ref().map_or((PathKind::Loopback, None), PathSetting::parts);
        let options = Options {
            client_addresses: most_connections.div_ceil(PER_SOURCE).max(1),
            relay_cpu: experiment.placement.relay_cpu,
            seed,
        };
        let path = Path::create(kind, conditions, &options)?;
        Ok(Local { signals, _entered: path.enter_client()?, path })
    }

    fn route(&self, process: &Running, connections: usize) -> Result<Route> {
        match self.path.sources(process.address().ip()) {
            None => Route::new(process.address(), connections),
            Some(sources) => Ok(Route { target: process.address(), sources }),
        }
    }
}

impl Measure for Local<'_> {
    fn try_measure(&mut self, task: &Task<'_>) -> Result<OpenOutcome> {
        let plan = plan(task)?;
        if let Subject::Own(name) = task.server {
            find(name)?.check_connections(plan.connections)?;
        }
        let (course, connections) = (plan.course, plan.connections);
        let launch = launch(task);
        if let Some(network) = self.path.network() {
            // Connections are opened without loss, because a lost SYN would delay the start by a
            // second.
            network.lossless_from(0);
        }
        let server_cpus = launch.cpus.clone();
        self.path.clear()?;
        let progress = RunProgress::hidden();
        let client = ClientKind::Kernel;
        let (mut process, _) = self.path.start(task.server, client, launch, self.signals)?;
        let route = self.route(&process, connections)?;
        let prepared = Prepared::connect(plan, &route, self.signals, &progress)?;
        let gauge = Watched { server: &process, cpus: &server_cpus };
        let start_ns = now_ns() + LEAD_NS;
        let end_ns = start_ns + course.end_ns();
        let observation = self.path.network().map(|n| Observation::begin(n, end_ns)).transpose()?;
        let mut outcome = prepared.run(start_ns, &gauge, self.signals, &progress)?;
        if let (Some(observation), Some(network)) = (observation, self.path.network()) {
            outcome.reasons.extend(observation.end(network)?);
        }
        if let Some(status) = process.ended() {
            outcome.reasons.push(format!("the server process ended ({status})"));
        }
        Ok(outcome)
    }
}

fn plan(task: &Task<'_>) -> Result<OpenPlan> {
    let Task { experiment, point, seed, .. } = *task;
    let course = course(experiment, point);
    let generators = experiment.placement.generators;
    Ok(OpenPlan {
        course,
        arrivals: experiment.sweep.arrivals,
        exchange: point.exchange,
        connections: point.connections,
        churn: task.churn(),
        timeout_ns: experiment.periods.timeout.as_nanos() as u64,
        generators: place(&point.placement.client_cpus, course.rate, generators)?,
        client: ClientSide {
            cpus: point.placement.client_cpus.clone(),
            owned: true,
            roaming: experiment.network.is_some(),
        },
        own_server: matches!(task.server, Subject::Own(_)),
        seed,
        tolerance: experiment.tolerance,
        log: None,
        keeps_part: false,
    })
}
