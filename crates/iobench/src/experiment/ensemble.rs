//! Measures over many hosts: rank 0 serves, and the others load. Orders are sent before the start
//! and results after the end; during the measurement only the load is on the network.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::engine::progress::RunProgress;
use crate::engine::sampler::ClientSide;
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::experiment::measure::{Measure, Task, course, launch};
use crate::figures::new_times;
use crate::hosts::addresses::explore;
use crate::hosts::clock::{self, Start};
use crate::hosts::control::{Control, broadcast_value, gather_values};
use crate::hosts::share::{Share, divide};
use crate::open::arrivals::Arrivals;
use crate::open::connect::Route;
use crate::open::gauge::{Blind, Reading, ServerUse, Watched};
use crate::open::outcome::OpenOutcome;
use crate::open::phases::Course;
use crate::open::verdict::Tolerance;
use crate::open::{OpenPlan, Prepared, place};
use crate::server::process::Launch;
use crate::server::running::{Running, Subject};
use crate::sys::affinity::allowed_cpus;
use crate::sys::signals::Signals;

/// The order of rank 0 to the loading hosts for one point.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct LoadOrder {
    target: SocketAddr,
    course: Course,
    arrivals: Arrivals,
    exchange: Exchange,
    connections: usize,
    churn: Option<u32>,
    timeout_ns: u64,
    own_server: bool,
    seed: u64,
    tolerance: Tolerance,
}

/// Rank 0's side, which runs the servers and coordinates the others.
pub(crate) struct Ensemble<'a> {
    control: &'a dyn Control,
    signals: &'a Signals,
    address: IpAddr,
}

impl<'a> Ensemble<'a> {
    /// Finds an address at which all other ranks reach this host. All processes call it together.
    pub(crate) fn assemble(
        control: &'a dyn Control,
        named: Option<IpAddr>,
        signals: &'a Signals,
    ) -> Result<Ensemble<'a>> {
        let address = explore(control, named)?.agreed()?;
        Ok(Ensemble { control, signals, address })
    }

    /// Sends the other ranks the order to end.
    pub(crate) fn dismiss(&self) -> Result<()> {
        broadcast_value::<Option<LoadOrder>>(self.control, Some(&None)).map(drop)
    }

    /// Returns the number of processes that load.
    pub(crate) fn clients(&self) -> usize {
        self.control.size() - 1
    }

    fn lead(&self, order: LoadOrder, server: &Running, cpus: &[usize]) -> Result<OpenOutcome> {
        let course = order.course;
        broadcast_value(self.control, Some(&Some(order)))?;
        let problems = gather_values::<Option<String>>(self.control, &None)?;
        let problem = problems.into_iter().flatten().next();
        broadcast_value(self.control, Some(&problem.is_none()))?;
        if let Some(problem) = problem {
            return Ok(OpenOutcome::failed(problem));
        }
        let offset = clock::measure(self.control, &mut new_times())?;
        // If there is none the other ranks know it too, and wait for the next order.
        let start_ns = clock::agree_on_start(self.control, offset)?.agreed()?;
        let watched = Watched { server, cpus };
        self.signals.sleep_until(start_ns + course.measure_from_ns())?;
        let from = Reading::take(&watched);
        self.signals.sleep_until(start_ns + course.end_ns())?;
        let to = Reading::take(&watched);
        let outcomes = gather_values::<Option<OpenOutcome>>(self.control, &None)?;
        let mut whole = OpenOutcome::failed(String::new());
        whole.reasons.clear();
        for (rank, outcome) in outcomes.iter().enumerate() {
            if let Some(outcome) = outcome {
                whole.add(outcome, &format!("rank {rank}"));
            }
        }
        let requests = whole.throughput * course.measure_ns as f64 / 1e9;
        whole.server = ServerUse::between(&from, &to, course.measure_ns, requests, cpus.len());
        Ok(whole)
    }
}

impl Measure for Ensemble<'_> {
    fn try_measure(&mut self, task: &Task<'_>) -> Result<OpenOutcome> {
        let Task { experiment, server, point, seed, .. } = *task;
        let launch = Launch { address: self.address, ..launch(task) };
        let mut process = Running::start(server, &launch, self.signals)?;
        let order = LoadOrder {
            target: process.address(),
            course: course(experiment, point),
            arrivals: experiment.sweep.arrivals,
            exchange: point.exchange,
            connections: point.connections,
            churn: task.churn(),
            timeout_ns: experiment.periods.timeout.as_nanos() as u64,
            own_server: matches!(server, Subject::Own(_)),
            seed,
            tolerance: experiment.tolerance,
        };
        let mut outcome = self.lead(order, &process, &launch.cpus)?;
        if let Some(status) = process.ended() {
            outcome.reasons.push(format!("the server process ended ({status})"));
        }
        Ok(outcome)
    }
}

/// Returns the other ranks' side: executes orders until the order to end.
pub(crate) fn follow(
    control: &dyn Control,
    named: Option<IpAddr>,
    signals: &Signals,
) -> Result<()> {
    explore(control, named)?.agreed()?;
    while let Some(order) = broadcast_value::<Option<LoadOrder>>(control, None)? {
        let prepared = prepare(control, &order, signals);
        let problem =
            prepared.as_ref().err().map(|error| format!("rank {}: {error}", control.rank()));
        gather_values(control, &problem)?;
        let go = broadcast_value::<bool>(control, None)?;
        let (Ok(prepared), true) = (prepared, go) else { continue };
        let offset = clock::measure(control, &mut new_times())?;
        let Start::At(start_ns) = clock::agree_on_start(control, offset)? else { continue };
        let outcome = prepared.run(start_ns, &Blind, signals, &RunProgress::hidden())?;
        gather_values(control, &Some(outcome))?;
    }
    Ok(())
}

/// Makes this process's share of the connections.
fn prepare(control: &dyn Control, order: &LoadOrder, signals: &Signals) -> Result<Prepared> {
    let whole = Share { connections: order.connections, rate: Some(order.course.rate) };
    let shares = divide(whole, control.size() - 1)?;
    let share = control.rank().checked_sub(1).and_then(|number| shares.get(number));
    let Some(&Share { connections, rate: Some(rate) }) = share else {
        return Err(Error::setup("this process has no share of the load", "report this as a bug"));
    };
    let cpus = allowed_cpus()?;
    let plan = OpenPlan {
        course: order.course.with_rate(rate),
        arrivals: order.arrivals,
        exchange: order.exchange,
        connections,
        churn: order.churn,
        timeout_ns: order.timeout_ns,
        generators: place(&cpus, rate, None)?,
        // Other processes may share this host.
        client: ClientSide { cpus, owned: false, roaming: false },
        own_server: order.own_server,
        // Every host draws its own schedule.
        seed: order.seed ^ (control.rank() as u64) << 48,
        tolerance: order.tolerance,
        log: None,
        keeps_part: false,
    };
    let route = Route::new(order.target, connections)?;
    Prepared::connect(plan, &route, signals, &RunProgress::hidden())
}
