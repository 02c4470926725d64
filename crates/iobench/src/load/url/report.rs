//! Plans both loops over a URL, and makes text and row of their results.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cli::LoadArgs;
use crate::client::slices::{Slicing, add_open};
use crate::engine::placement::Placement;
use crate::engine::point::Point;
use crate::engine::sampler::{ClientSide, Disturbance, Sampler, TOLERATED, Used, disturbance};
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Work};
use crate::experiment::rows::Evidence;
use crate::figures::{Percentiles, Times, encode_recorded};
use crate::http_client::Version;
use crate::http_client::answer::{Failures, describe_silence};
use crate::http_client::closed_loop::{self, Control, Part, Record};
use crate::http_client::connection::Totals;
use crate::http_client::open_loop::{Job, Schedule};
use crate::http_client::open_run::{OpenResult, OpenRun};
use crate::http_client::threads::{self, divide};
use crate::load::open::course;
use crate::load::url::Target;
use crate::load::{BUSY, client_busy};
use crate::open::arrivals;
use crate::open::log::{Header, LogWriter};
use crate::open::verdict::time;
use crate::random::SplitMix64;
use crate::results::{Accounts, Histograms, Kind, RoundFigures, Row};
use crate::sys::clock::now_ns;
use crate::sys::signals::Signals;

/// Rate of one thread in requests per second, if there are CPUs for more threads.
const RATE_PER_THREAD: f64 = 20_000.0;
/// Longest time in which the connections of a closed loop make their first exchange.
const BEGIN_LIMIT_NS: u64 = 10_000_000_000;
/// Time from the decision to measure to the measurement.
const LEAD_NS: u64 = 20_000_000;
/// A request that is open for this part (1/5) of the measured time, and for this many times the
/// 99th percentile, has no answer.
const SILENT_PART: u64 = 5;
const SILENT_TIMES: u64 = 4;

/// The result of a loop.
pub(crate) struct Outcome {
    /// A line about the loop.
    pub(super) headline: String,
    pub(super) text: String,
    pub(super) row: Row,
}

/// Runs the closed loop.
pub(super) fn closed(
    arguments: &LoadArgs,
    target: &Target,
    client: &ClientSide,
    signals: &Signals,
) -> Result<Outcome> {
    let connections = arguments.connections;
    let streams = arguments.http.client.streams_of(&target.url, target.server.version)?;
    let version = target.server.version.name();
    let headline = format!("closed loop on {connections} connections, {version}");
    let duration_ns = arguments.duration().as_nanos() as u64;
    let count = client.cpus.len().min(connections);
    let client = ClientSide { cpus: client.cpus[..count].to_vec(), ..client.clone() };
    let control = Arc::new(Control::new());
    let part = |connections: usize| Part {
        control: Arc::clone(&control),
        server: target.server.clone(),
        template: Arc::clone(&target.template),
        expected: target.expected,
        slots: connections * streams,
        streams,
    };
    let parts = divide(connections, count).into_iter().map(part).collect();
    let watch = |ids: &[i32]| {
        let mut sampler = Sampler::new(&client, ids, None)?;
        let begin_ns = now_ns() + BEGIN_LIMIT_NS;
        while control.begun.load(Ordering::Relaxed) < connections * streams && now_ns() < begin_ns {
            signals.sleep_ms(1)?;
        }
        let from_ns = now_ns() + LEAD_NS;
        control.measure(from_ns, from_ns + duration_ns);
        let borders =
            sampler.watch(signals, from_ns, Slicing::judged(duration_ns), Used::default)?;
        Ok((client_busy(&borders, count), disturbance(&borders, sampler.sides())))
    };
    let body = async |part| closed_loop::run(part).await;
    let (watched, records) = threads::run(&client.cpus, parts, body, &control.stop, watch)?;
    let mut record = Record::new();
    records.iter().for_each(|other| record.add(other));
    add_open(&mut record.latencies, record.open_ages_ns.iter().copied());
    let outcome = ClosedResult { target, client, record, watched, duration_ns };
    let (text, row) = outcome.describe(connections, streams)?;
    Ok(Outcome { headline, text, row })
}

struct ClosedResult<'a> {
    target: &'a Target,
    client: ClientSide,
    record: Record,
    /// Busy share of the client's CPUs, and disturbance.
    watched: (f64, Disturbance),
    duration_ns: u64,
}

impl ClosedResult<'_> {
    fn describe(self, connections: usize, streams: usize) -> Result<(String, Row)> {
        let ClosedResult { target, client, record, watched, duration_ns } = self;
        let (busy, disturbance) = watched;
        let requests = record.exchanges + record.failures.total();
        let mut reasons: Vec<String> = failed(&record.failures, requests).into_iter().collect();
        if record.answers == 0 {
            reasons.push("no right answer came while it was measured".to_owned());
        }
        let silent_ns = SILENT_TIMES * record.latencies.value_at_quantile(0.99);
        let is_silent = |age_ns: &&u64| **age_ns > silent_ns.max(duration_ns / SILENT_PART);
        let silent: Vec<u64> = record.open_ages_ns.iter().filter(is_silent).copied().collect();
        if let Some(oldest_ns) = silent.iter().max() {
            reasons.push(describe_silence(silent.len(), *oldest_ns));
        }
        reasons.extend(disturbance.reasons(TOLERATED));
        let mut remarks: Vec<String> = resent(&record.totals).into_iter().collect();
        if busy >= BUSY {
            remarks.push(format!(
                "the clients were busy {:.0} % of the time: they may be the limit, not the server",
                busy * 100.0
            ));
        }
        let seconds = duration_ns as f64 / 1e9;
        let rate = record.answers as f64 / seconds;
        let mut text = format!(
            "{rate:.0} requests/s over {seconds:.1} s, {} errors, clients {:.0} % busy\n",
            record.failures.total(),
            busy * 100.0
        );
        text.push_str(&times("latency", &record.latencies));
        text.push_str(&ended(&record.totals));
        text.push_str(&verdict(&reasons, &remarks));
        let latency_us = Percentiles::of(&record.latencies);
        let valid = reasons.is_empty();
        let throughput = Some(rate);
        let round = RoundFigures { latency_us, throughput, valid, ..RoundFigures::default() };
        let service = encode_recorded(&record.latencies)?;
        let row = Row {
            connections,
            pipeline: streams as u32,
            client_cpus: client.cpus,
            latency_us,
            throughput,
            client_busy: Some(busy),
            valid,
            notes: [reasons, remarks].concat(),
            disturbance: Some(disturbance),
            reopened: Some(record.totals.reopened),
            rounds: vec![round],
            histograms: Histograms { service, ..Histograms::default() },
            ..Row::empty(
                &target.url.to_string(),
                target.server.version.name(),
                Kind::Closed,
                sizes(target),
            )
        };
        Ok((text, row))
    }
}

/// Runs the open loop.
pub(super) fn open(
    arguments: &LoadArgs,
    rate: f64,
    seed: u64,
    target: &Target,
    client: &ClientSide,
    signals: &Signals,
) -> Result<Outcome> {
    let connections = arguments.connections;
    let streams = arguments.http.client.streams_of(&target.url, target.server.version)?;
    let course = course(arguments, rate)?;
    let arrivals = arguments.open.arrivals;
    let headline = format!(
        "open loop at {rate} requests/s, {} arrivals on up to {connections} connections, {}",
        arrivals.name(),
        target.server.version.name()
    );
    let count = generators(arguments.open.generators, rate, client, connections)?;
    let schedule = |number: usize| -> Schedule {
        let mut seeds = SplitMix64::new(seed.wrapping_add(number as u64));
        let own = course.with_rate(rate / count as f64);
        let template = Arc::clone(&target.template);
        let job = Job { template, expected: target.expected };
        let times = arrivals::Schedule::new(arrivals, own, seeds.next());
        Box::new(times.map(move |at_ns| (at_ns, job.clone())))
    };
    let run = OpenRun {
        server: &target.server,
        client,
        course,
        timeout_ns: arguments.open.timeout.as_nanos() as u64,
        by: arguments.http.client.connections_by,
        connections,
        streams,
        seed,
        schedules: (0..count).map(schedule).collect(),
    };
    let Exchange { request_bytes, response_bytes } = sizes(target);
    let header = Header {
        clock: "CLOCK_MONOTONIC".to_owned(),
        target: target.url.to_string(),
        connections,
        rate,
        arrivals: arrivals.name().to_owned(),
        request_bytes,
        response_bytes,
        seed,
    };
    let log = arguments.open.log.as_deref().map(|path| LogWriter::create(path, &header));
    let result = run.run(log.transpose()?, signals)?;
    let point = Point {
        cores: 1,
        placement: Placement {
            server_cpus: Vec::new(),
            client_cpus: client.cpus[..count].to_vec(),
        },
        connections,
        rate: Some(rate),
        exchange: sizes(target),
        transactions: 0,
        work: Work::None,
    };
    let subject = target.url.to_string();
    let (text, row) = describe_open(result, &point, &subject, target.server.version)?;
    Ok(Outcome { headline, text, row: Row { pipeline: streams as u32, ..row } })
}

/// Returns the number of threads that a rate needs, or that the user asked for.
pub(crate) fn generators(
    asked: Option<usize>,
    rate: f64,
    client: &ClientSide,
    connections: usize,
) -> Result<usize> {
    let most = client.cpus.len().min(connections);
    let needed = (rate / RATE_PER_THREAD).ceil() as usize;
    let count = asked.unwrap_or(needed.clamp(1, most));
    if !(1..=most).contains(&count) {
        return Err(Error::setup(
            format!("{count} generators do not fit on {most} client CPUs and connections"),
            "each needs one of both; use fewer --generators, or more of the others",
        ));
    }
    Ok(count)
}

/// Makes text and row of an open loop over HTTP.
pub(crate) fn describe_open(
    result: OpenResult,
    point: &Point,
    subject: &str,
    version: Version,
) -> Result<(String, Row)> {
    let OpenResult { mut outcome, failures, totals, waited } = result;
    let Accounts { scheduled, answered, late, lost, refused, reset, wrong } = outcome.accounts;
    if wrong > 0 {
        outcome.reasons.extend(failed(&failures, scheduled));
    }
    let mut remarks: Vec<String> = resent(&totals).into_iter().collect();
    if wrong == 0 {
        remarks.extend(failed(&failures, scheduled));
    }
    if waited > 0 {
        remarks.push(format!(
            "{waited} requests found all {} connections in use, and waited for one",
            outcome.connections
        ));
    }
    let mut text = format!(
        "{:.0} requests/s due, {:.0}/s answered; of {scheduled}: {answered} answered, {late} late, \
         {lost} lost, {refused} not sent, {reset} reset, {wrong} wrong\n",
        outcome.offered_rate, outcome.throughput
    );
    text.push_str(&times("service time", &outcome.service));
    text.push_str(&times("send lag", &outcome.send_lag));
    text.push_str(&ended(&totals));
    text.push_str(&verdict(&outcome.reasons, &remarks));
    let rounds = [&outcome];
    let evidence = Evidence {
        kind: Kind::Open,
        way: None,
        server: subject,
        point,
        rounds: &rounds,
        baseline: None,
    };
    let mut row = evidence.row()?;
    version.name().clone_into(&mut row.workload);
    row.notes.extend(remarks);
    Ok((text, row))
}

/// Returns the sizes of the bodies of request and answer.
fn sizes(target: &Target) -> Exchange {
    Exchange { request_bytes: target.template.body_bytes(), response_bytes: target.body_bytes }
}

fn failed(failures: &Failures, requests: u64) -> Option<String> {
    let total = failures.total();
    (total > 0).then(|| {
        format!("{total} of {requests} requests failed: {}", failures.describe().join("; "))
    })
}

fn resent(totals: &Totals) -> Option<String> {
    (totals.resent > 0).then(|| {
        format!(
            "{} requests were sent again, because the server had ended their connection",
            totals.resent
        )
    })
}

fn ended(totals: &Totals) -> String {
    match totals.reopened {
        0 => String::new(),
        reopened => format!("{reopened} connections were ended by the server and opened again\n"),
    }
}

fn verdict(reasons: &[String], remarks: &[String]) -> String {
    let mut text = String::new();
    reasons.iter().for_each(|reason| text.push_str(&format!("INVALID: {reason}\n")));
    remarks.iter().for_each(|remark| text.push_str(&format!("note: {remark}\n")));
    if reasons.is_empty() {
        text.push_str("valid\n");
    }
    text
}

/// Returns a line of times.
pub(super) fn times(name: &str, times: &Times) -> String {
    let Some(Percentiles { p50, p99, p999, max, .. }) = Percentiles::of(times) else {
        return String::new();
    };
    let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    let [mean, p90, p95] = [times.mean() / 1e3, at(0.9), at(0.95)];
    let shown = [mean, p50, p90, p95, p99, p999, max].map(time);
    let names = ["mean", "p50", "p90", "p95", "p99", "p99.9", "max"];
    let figures: Vec<String> =
        names.iter().zip(shown).map(|(name, time)| format!("{name} {time}")).collect();
    format!("{name:13} {}\n", figures.join(", "))
}
