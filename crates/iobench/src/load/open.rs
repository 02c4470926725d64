//! `iobench load --rate`: runs the open loop alone, against a running server or one of iobench's
//! own.

use std::time::Duration;

use crate::cli::LoadArgs;
use crate::engine::placement::Placement;
use crate::engine::point::Point;
use crate::engine::progress::RunProgress;
use crate::error::{Error, Result};
use crate::exchange::Work;
use crate::experiment::rows::Evidence;
use crate::figures::Percentiles;
use crate::load::target::Target;
use crate::load::{Report, text};
use crate::open::connect::Route;
use crate::open::gauge::{Blind, Gauge, ServerUse, Watched};
use crate::open::outcome::OpenOutcome;
use crate::open::phases::Course;
use crate::open::verdict::Tolerance;
use crate::open::{LEAD_NS, OpenPlan, Prepared, place};
use crate::results::files::ResultFiles;
use crate::results::{Kind, Row};
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;

const MOST_RATE: f64 = 10_000_000.0;

/// Loads the server at the given rate; true if the run is valid.
pub(crate) fn run(arguments: &LoadArgs, rate: f64) -> Result<bool> {
    let begun_ns = now_ns();
    let signals = Signals::block();
    let limits = Limits::raise_for(arguments.connections)?;
    limits.check_open_files(arguments.connections)?;
    let target = Target::reach(arguments, &signals)?;
    let plan = plan(arguments, rate, &target)?;
    let log = arguments.open.log.as_deref();
    let files = ResultFiles::prepare(&arguments.measure.output)?.beside(log)?;
    let environment = super::environment(arguments, &limits, plan.seed)?;
    let route = Route::new(target.address, plan.connections)?;
    let progress = RunProgress::new(target.address.to_string());
    let prepared = Prepared::connect(plan.clone(), &route, &signals, &progress)?;
    let cpus = target.server_cpus.as_slice();
    let watched = target.server.as_ref().map(|server| Watched { server, cpus });
    let gauge: &dyn Gauge = watched.as_ref().map_or(&Blind, |watched| watched);
    let outcome = prepared.run(now_ns() + LEAD_NS, gauge, &signals, &progress)?;
    drop(progress);
    let (address, headline, told) = (target.address, headline(&plan), describe(&outcome));
    let report = Report {
        name: super::NAME,
        text: format!("{address}: {headline}\n{told}"),
        title: format!("{}: {headline}", target.name),
        settings: settings(arguments),
        rows: vec![row(&target, &plan, &outcome)?],
    };
    report.publish(environment, begun_ns, files)
}

/// Settings that the row does not contain.
fn settings(arguments: &LoadArgs) -> String {
    let (open, duration) = (&arguments.open, arguments.duration());
    format!(
        "open loop, {} arrivals, growth {:?}, steady {:?}, measured {duration:?}, time-out {:?}\n",
        open.arrivals.name(),
        open.growth,
        open.steady,
        open.timeout
    )
}

/// Returns a line about the loop and its rate.
fn headline(plan: &OpenPlan) -> String {
    let (rate, connections, arrivals) = (plan.course.rate, plan.connections, plan.arrivals.name());
    match plan.churn {
        None => format!(
            "open loop at {rate} requests/s, {arrivals} arrivals on {connections} \
             connections"
        ),
        Some(transactions) => format!(
            "open loop at {rate} new connections/s, {arrivals} arrivals, \
             {transactions} requests each"
        ),
    }
}

/// Returns the course of the run.
pub(super) fn course(arguments: &LoadArgs, rate: f64) -> Result<Course> {
    if !(1.0..=MOST_RATE).contains(&rate) {
        return Err(Error::setup(
            format!("{rate} requests per second are out of range"),
            format!("choose a --rate from 1 to {MOST_RATE}"),
        ));
    }
    let ns = |duration: Duration| duration.as_nanos() as u64;
    Ok(Course {
        rate,
        growth_ns: ns(arguments.open.growth),
        steady_ns: ns(arguments.open.steady),
        measure_ns: ns(arguments.duration()),
    })
}

fn plan(arguments: &LoadArgs, rate: f64, target: &Target) -> Result<OpenPlan> {
    Ok(OpenPlan {
        course: course(arguments, rate)?,
        arrivals: arguments.open.arrivals,
        exchange: arguments.exchange(),
        connections: arguments.connections,
        churn: (arguments.transactions > 0).then_some(arguments.transactions),
        timeout_ns: arguments.open.timeout.as_nanos() as u64,
        generators: place(&target.client.cpus, rate, arguments.open.generators)?,
        client: target.client.clone(),
        own_server: true,
        seed: arguments.measure.seed.unwrap_or(now_ns() % 1_000_000),
        tolerance: Tolerance::default(),
        log: arguments.open.log.clone(),
        keeps_part: true,
    })
}

/// Returns the one row of the result file.
fn row(target: &Target, plan: &OpenPlan, outcome: &OpenOutcome) -> Result<Row> {
    let point = Point {
        cores: target.server_cpus.len().max(1),
        placement: Placement {
            server_cpus: target.server_cpus.clone(),
            client_cpus: target.client.cpus.clone(),
        },
        connections: plan.connections,
        rate: Some(plan.course.rate),
        exchange: plan.exchange,
        transactions: plan.churn.unwrap_or(0),
        work: Work::None,
    };
    let evidence = Evidence {
        kind: if plan.churn.is_some() { Kind::Churn } else { Kind::Open },
        way: None,
        server: &target.name,
        point: &point,
        rounds: &[outcome],
        baseline: None,
    };
    evidence.row()
}

/// Returns a few lines of text about the outcome.
pub(crate) fn describe(outcome: &OpenOutcome) -> String {
    let mut text = text::requests(outcome, "refused");
    for (name, times) in [
        ("first answer", &outcome.accept),
        ("service time", &outcome.service),
        ("send lag", &outcome.send_lag),
        ("  to the wire", &outcome.transmit),
        ("turnaround", &outcome.turnaround),
        ("receive lag", &outcome.receive_lag),
    ] {
        text.push_str(&text::times(name, Percentiles::of(times)));
    }
    if let ServerUse { cpu_us: Some(cpu_us), busy: Some(busy), .. } = outcome.server {
        let busy = 100.0 * busy;
        text.push_str(&format!("server        {cpu_us:.2} us CPU per request, {busy:.0} % busy\n"));
    }
    if outcome.reopened > 0 {
        text.push_str(&format!("{} connections ended and stood again\n", outcome.reopened));
    }
    text + &text::verdict(&outcome.reasons, &outcome.remarks)
}
