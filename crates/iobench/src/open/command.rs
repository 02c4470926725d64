//! `iobench load --rate`: the open loop alone, against a server that already runs.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use crate::cli::LoadArgs;
use crate::disturbance::Disturbance;
use crate::engine::environment::Environment;
use crate::engine::json_file::JsonFile;
use crate::error::{Error, Result};
use crate::figures::{Percentiles, encode};
use crate::load::target::{Target, exchange};
use crate::open::arrivals::Arrivals;
use crate::open::connect::Route;
use crate::open::gauge::{Blind, Gauge, ServerUse, Watched};
use crate::open::outcome::OpenOutcome;
use crate::open::phases::Course;
use crate::open::terminal::Terminal;
use crate::open::verdict::{Tolerance, time};
use crate::open::{LEAD_NS, OpenPlan, Prepared, place};
use crate::output;
use crate::results::{Accounts, Histograms, Moment};
use crate::sys::clock::now_ns;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;

const MOST_RATE: f64 = 10_000_000.0;

/// The JSON file.
#[derive(Serialize)]
struct Document<'a> {
    environment: &'a Environment,
    result: Report<'a>,
}

#[derive(Serialize)]
struct Report<'a> {
    connect: String,
    /// `open`.
    r#loop: &'a str,
    connections: usize,
    request_rate: f64,
    arrivals: Arrivals,
    request_bytes: usize,
    response_bytes: usize,
    duration_s: f64,
    latency_us: Option<Percentiles>,
    send_lag_us: Option<Percentiles>,
    transmit_us: Option<Percentiles>,
    turnaround_us: Option<Percentiles>,
    receive_lag_us: Option<Percentiles>,
    accept_us: Option<Percentiles>,
    offered_rate: f64,
    throughput: f64,
    starved: f64,
    disturbance: Disturbance,
    reopened: u64,
    server: ServerUse,
    accounts: Accounts,
    valid: bool,
    notes: &'a [String],
    timeline: &'a [Moment],
    histograms: Histograms,
}

/// Loads the server at the given rate; true if the run is valid.
pub(crate) fn run(arguments: &LoadArgs, rate: f64) -> Result<bool> {
    let signals = Signals::block();
    let limits = Limits::raise_for(arguments.connections)?;
    limits.check_open_files(arguments.connections)?;
    let target = Target::reach(arguments, &signals)?;
    let plan = plan(arguments, rate, &target)?;
    let json = arguments.measure.output.json.as_deref().map(JsonFile::prepare).transpose()?;
    let environment = Environment::gather(&limits, plan.seed)?;
    let route = Route::new(target.address, plan.connections)?;
    let mut terminal = Terminal::new(target.address.to_string(), plan.tolerance);
    let prepared = Prepared::connect(plan.clone(), &route, &signals, &mut terminal)?;
    let clock = prepared.clock().describe();
    let cpus = target.server_cpus.as_slice();
    let watched = target.server.as_ref().map(|server| Watched { server, cpus });
    let gauge: &dyn Gauge = watched.as_ref().map_or(&Blind, |watched| watched);
    let outcome = prepared.run(now_ns() + LEAD_NS, gauge, &signals, &mut terminal)?;
    drop(terminal);
    output::print(&format!("timestamps: {clock}\n{}\n", headline(target.address, &plan)));
    output::print(&describe(&outcome));
    if let Some(json) = json {
        let result = report(target.address, &plan, &outcome)?;
        json.write(&Document { environment: &environment, result })?;
    }
    Ok(outcome.is_valid())
}

/// Which loop it is, and what it asks for.
fn headline(address: SocketAddr, plan: &OpenPlan) -> String {
    let (rate, connections, arrivals) = (plan.course.rate, plan.connections, plan.arrivals.name());
    match plan.churn {
        None => format!(
            "{address}: open loop at {rate} requests/s, {arrivals} arrivals on {connections} \
             connections"
        ),
        Some(transactions) => format!(
            "{address}: open loop at {rate} new connections/s, {arrivals} arrivals, \
             {transactions} requests each"
        ),
    }
}

fn plan(arguments: &LoadArgs, rate: f64, target: &Target) -> Result<OpenPlan> {
    if !(1.0..=MOST_RATE).contains(&rate) {
        return Err(Error::setup(
            format!("{rate} requests per second cannot be generated"),
            format!("choose a --rate from 1 to {MOST_RATE}"),
        ));
    }
    let ns = |duration: Duration| duration.as_nanos() as u64;
    Ok(OpenPlan {
        course: Course {
            rate,
            growth_ns: ns(arguments.open.growth),
            steady_ns: ns(arguments.open.steady),
            measure_ns: ns(arguments.duration()),
        },
        arrivals: arguments.open.arrivals,
        exchange: exchange(arguments),
        connections: arguments.connections,
        churn: (arguments.transactions > 0).then_some(arguments.transactions),
        timeout_ns: ns(arguments.open.timeout),
        generators: place(&target.client.cpus, rate, arguments.open.generators)?,
        client: target.client.clone(),
        own_server: target.server.is_some(),
        seed: arguments.measure.seed.unwrap_or(now_ns() % 1_000_000),
        tolerance: Tolerance::default(),
        log: arguments.open.log.clone(),
    })
}

fn report<'a>(
    address: SocketAddr,
    plan: &OpenPlan,
    outcome: &'a OpenOutcome,
) -> Result<Report<'a>> {
    Ok(Report {
        connect: address.to_string(),
        r#loop: "open",
        connections: plan.connections,
        request_rate: plan.course.rate,
        arrivals: plan.arrivals,
        request_bytes: plan.exchange.request_bytes,
        response_bytes: plan.exchange.response_bytes,
        duration_s: plan.course.measure_ns as f64 / 1e9,
        latency_us: outcome.latency_us(),
        send_lag_us: Percentiles::of(&outcome.send_lag),
        transmit_us: Percentiles::of(&outcome.transmit),
        turnaround_us: Percentiles::of(&outcome.turnaround),
        receive_lag_us: Percentiles::of(&outcome.receive_lag),
        accept_us: Percentiles::of(&outcome.accept),
        offered_rate: outcome.offered_rate,
        throughput: outcome.throughput,
        starved: outcome.starved,
        disturbance: outcome.disturbance,
        reopened: outcome.reopened,
        server: outcome.server,
        accounts: outcome.accounts,
        valid: outcome.is_valid(),
        notes: &outcome.reasons,
        timeline: &outcome.timeline,
        histograms: Histograms {
            service: Some(encode(&outcome.service)?),
            send_lag: Some(encode(&outcome.send_lag)?),
            transmit: Some(encode(&outcome.transmit)?),
            turnaround: Some(encode(&outcome.turnaround)?),
            receive_lag: Some(encode(&outcome.receive_lag)?),
            accept: (!outcome.accept.is_empty()).then(|| encode(&outcome.accept)).transpose()?,
        },
    })
}

/// A few lines for people.
pub(crate) fn describe(outcome: &OpenOutcome) -> String {
    let Accounts { scheduled, answered, late, lost, refused, reset, wrong } = outcome.accounts;
    let mut text = format!(
        "{:.0} requests/s due, {:.0}/s answered; of {scheduled}: {answered} answered, {late} late, \
         {lost} lost, {refused} refused, {reset} reset, {wrong} wrong\n",
        outcome.offered_rate, outcome.throughput
    );
    for (name, times) in [
        ("first answer", &outcome.accept),
        ("service time", &outcome.service),
        ("send lag", &outcome.send_lag),
        ("  to the wire", &outcome.transmit),
        ("turnaround", &outcome.turnaround),
        ("receive lag", &outcome.receive_lag),
    ] {
        if let Some(p) = Percentiles::of(times) {
            text.push_str(&format!(
                "{name:13}  p1 {}, p25 {}, p50 {}, p75 {}, p99 {}, p99.9 {}, max {}\n",
                time(p.p1),
                time(p.p25),
                time(p.p50),
                time(p.p75),
                time(p.p99),
                time(p.p999),
                time(p.max)
            ));
        }
    }
    if let ServerUse { cpu_us: Some(cpu_us), busy: Some(busy), .. } = outcome.server {
        let busy = 100.0 * busy;
        text.push_str(&format!("server        {cpu_us:.2} us CPU per request, {busy:.0} % busy\n"));
    }
    if outcome.reopened > 0 {
        text.push_str(&format!("{} connections ended and stood again\n", outcome.reopened));
    }
    for reason in &outcome.reasons {
        text.push_str(&format!("INVALID: {reason}\n"));
    }
    text
}
