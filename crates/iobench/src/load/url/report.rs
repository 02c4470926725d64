//! Plans both loops over a URL, and makes text and row of their results.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cli::LoadArgs;
use crate::client::slices::{Slicing, add_open};
use crate::engine::placement::Placement;
use crate::engine::point::Point;
use crate::engine::progress::RunProgress;
use crate::engine::sampler::{
    ClientSide, Disturbance, Sampler, TOLERATED, Used, disturbance, unjudged,
};
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Work};
use crate::experiment::rows::Evidence;
use crate::figures::{Percentiles, encode_recorded};
use crate::http_client::Version;
use crate::http_client::answer::{Failures, describe_silence};
use crate::http_client::closed_loop::{self, Control, Part, Record};
use crate::http_client::connection::Totals;
use crate::http_client::open_loop::{Job, Schedule};
use crate::http_client::open_run::{OpenResult, OpenRun};
use crate::http_client::threads::{self, divide};
use crate::load::open::course;
use crate::load::url::Target;
use crate::load::{client_busy, text};
use crate::open::arrivals;
use crate::open::log::LogWriter;
use crate::open::phases::Phase;
use crate::random::SplitMix64;
use crate::results::{Histograms, Kind, RoundFigures, Row};
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

/// A loop over a URL, closed or open.
pub(super) struct UrlLoop<'a> {
    pub(super) arguments: &'a LoadArgs,
    pub(super) target: &'a Target,
    /// The CPUs that the loop may use.
    pub(super) client: ClientSide,
    pub(super) seed: u64,
    pub(super) signals: &'a Signals,
}

impl UrlLoop<'_> {
    /// Runs the loop: an open one if there is a rate.
    pub(super) fn run(self) -> Result<Outcome> {
        let (arguments, version) = (self.arguments, self.target.server.version);
        let streams = arguments.http.client.streams_of(&self.target.url, version)?;
        match arguments.open.rate {
            Some(rate) => self.open(rate, streams),
            None => self.closed(streams),
        }
    }

    fn closed(mut self, streams: usize) -> Result<Outcome> {
        let connections = self.arguments.connections;
        let UrlLoop { target, signals, .. } = self;
        let version = target.server.version.name();
        let headline = format!("closed loop on {connections} connections, {version}");
        let duration_ns = self.arguments.duration().as_nanos() as u64;
        self.client.cpus.truncate(connections);
        let client = &self.client;
        let count = client.cpus.len();
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
        let progress = RunProgress::new(target.url.to_string());
        let watch = |ids: &[i32]| {
            let mut sampler = Sampler::new(client, ids, None)?;
            let begin_ns = now_ns() + BEGIN_LIMIT_NS;
            let begun = || control.begun.load(Ordering::Relaxed) / streams;
            while begun() < connections && now_ns() < begin_ns {
                progress.connecting(begun(), connections);
                signals.sleep_ms(1)?;
            }
            let from_ns = now_ns() + LEAD_NS;
            control.measure(from_ns, from_ns + duration_ns);
            let used = || {
                let at_ns = now_ns().saturating_sub(from_ns);
                progress.show(Phase::Measure.name(), at_ns, duration_ns);
                Used::default()
            };
            let borders = sampler.watch(signals, from_ns, Slicing::judged(duration_ns), used)?;
            let disturbance = disturbance(&borders, sampler.sides());
            Ok((client_busy(&borders, count), disturbance, unjudged(client, &borders)))
        };
        let body = async |part| closed_loop::run(part).await;
        let (watched, records) = threads::run(&client.cpus, parts, body, &control.stop, watch)?;
        drop(progress);
        let mut record = Record::new();
        records.iter().for_each(|other| record.add(other));
        add_open(&mut record.latencies, record.open_ages_ns.iter().copied());
        let result = ClosedResult { target, record, watched, duration_ns };
        let (text, row) = result.describe()?;
        let client_cpus = self.client.cpus;
        let row = Row { connections, pipeline: streams as u32, client_cpus, ..row };
        Ok(Outcome { headline, text, row })
    }

    fn open(mut self, rate: f64, streams: usize) -> Result<Outcome> {
        let UrlLoop { arguments, target, seed, .. } = self;
        let connections = arguments.connections;
        let course = course(arguments, rate)?;
        let arrivals = arguments.open.arrivals;
        let headline = format!(
            "open loop at {rate} requests/s, {} arrivals on up to {connections} connections, {}",
            arrivals.name(),
            target.server.version.name()
        );
        let count = generators(arguments.open.generators, rate, &self.client, connections)?;
        self.client.cpus.truncate(count);
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
            client: &self.client,
            course,
            timeout_ns: arguments.open.timeout.as_nanos() as u64,
            by: arguments.http.client.connections_by,
            connections,
            streams,
            seed,
            schedules: (0..count).map(schedule).collect(),
        };
        let log = arguments.open.log.as_deref().map(LogWriter::create);
        let subject = target.url.to_string();
        let progress = RunProgress::new(subject.clone());
        let result = run.run(log.transpose()?, self.signals, &progress)?;
        drop(progress);
        let point = point(self.client.cpus, connections, rate, sizes(target));
        let (text, row) = describe_open(result, &point, &subject, target.server.version)?;
        Ok(Outcome { headline, text, row: Row { pipeline: streams as u32, ..row } })
    }
}

struct ClosedResult<'a> {
    target: &'a Target,
    record: Record,
    /// Busy share of the client's CPUs, disturbance, and that it was not judged.
    watched: (f64, Disturbance, Option<String>),
    duration_ns: u64,
}

impl ClosedResult<'_> {
    fn describe(self) -> Result<(String, Row)> {
        let ClosedResult { target, record, watched, duration_ns } = self;
        let (busy, disturbance, unjudged) = watched;
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
        let remarks = resent(&record.totals).into_iter().chain(text::busy(busy)).chain(unjudged);
        let remarks: Vec<String> = remarks.collect();
        let seconds = duration_ns as f64 / 1e9;
        let rate = record.answers as f64 / seconds;
        let latency_us = Percentiles::of(&record.latencies);
        let text = [
            format!(
                "{rate:.0} requests/s over {seconds:.1} s, {} errors, clients {:.0} % busy\n",
                record.failures.total(),
                busy * 100.0
            ),
            text::times("latency", latency_us),
            ended(&record.totals),
            text::verdict(&reasons, &remarks),
        ];
        let valid = reasons.is_empty();
        let throughput = Some(rate);
        let round = RoundFigures { latency_us, throughput, valid, ..RoundFigures::default() };
        let service = encode_recorded(&record.latencies)?;
        let (subject, version) = (target.url.to_string(), target.server.version.name());
        let row = Row {
            latency_us,
            throughput,
            client_busy: Some(busy),
            valid,
            notes: [reasons, remarks].concat(),
            disturbance: Some(disturbance),
            reopened: Some(record.totals.reopened),
            rounds: vec![round],
            histograms: Histograms { service, ..Histograms::default() },
            ..Row::empty(&subject, version, Kind::Closed, sizes(target))
        };
        Ok((text.concat(), row))
    }
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

/// Returns the point of an open loop over HTTP, of whose server only the URL is known.
pub(crate) fn point(
    client_cpus: Vec<usize>,
    connections: usize,
    rate: f64,
    exchange: Exchange,
) -> Point {
    Point {
        cores: 1,
        placement: Placement { server_cpus: Vec::new(), client_cpus },
        connections,
        rate: Some(rate),
        exchange,
        transactions: 0,
        work: Work::None,
    }
}

/// Makes text and row of an open loop over HTTP.
pub(crate) fn describe_open(
    result: OpenResult,
    point: &Point,
    subject: &str,
    version: Version,
) -> Result<(String, Row)> {
    let OpenResult { mut outcome, failures, totals, waited } = result;
    let failed = failed(&failures, outcome.accounts.scheduled);
    match outcome.accounts.wrong {
        0 => outcome.remarks.extend(failed),
        _ => outcome.reasons.extend(failed),
    }
    outcome.remarks.extend(resent(&totals));
    if waited > 0 {
        outcome.remarks.push(format!(
            "{waited} requests found all {} connections in use, and waited for one",
            outcome.connections
        ));
    }
    let text = [
        text::requests(&outcome, "not sent"),
        text::times("service time", Percentiles::of(&outcome.service)),
        text::times("send lag", Percentiles::of(&outcome.send_lag)),
        ended(&totals),
        text::verdict(&outcome.reasons, &outcome.remarks),
    ];
    let rounds = [&outcome];
    let evidence = Evidence {
        kind: Kind::Open,
        way: None,
        server: subject,
        point,
        rounds: &rounds,
        baseline: None,
    };
    let row = Row { workload: version.name().to_owned(), ..evidence.row()? };
    Ok((text.concat(), row))
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
