//! Runs an open loop over HTTP on several threads, and makes its outcome.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::client::slices::Slicing;
use crate::engine::progress::RunProgress;
use crate::engine::sampler::{Border, ClientSide, Sampler, Used, disturbance, unjudged};
use crate::error::Result;
use crate::figures::{Percentiles, Times, new_times};
use crate::http_client::answer::Failures;
use crate::http_client::connection::{Server, Totals};
use crate::http_client::open_loop::{self, ConnectionsBy, Control, Part, Record, Schedule};
use crate::http_client::threads::{self, divide};
use crate::open::gauge::ServerUse;
use crate::open::log::LogWriter;
use crate::open::outcome::OpenOutcome;
use crate::open::phases::Course;
use crate::open::record::{Bins, Faults, LogTap};
use crate::open::verdict::{Evidence, Tolerance, silence};
use crate::open::{LEAD_NS, Numbering};
use crate::results::Accounts;
use crate::sys::clock::now_ns;
use crate::sys::signals::Signals;

/// Time between two updates of the progress display before the measured time.
const VIEW_NS: u64 = 100_000_000;

/// The parameters of a run.
pub(crate) struct OpenRun<'a> {
    pub(crate) server: &'a Server,
    /// Its CPUs are as many as there are schedules.
    pub(crate) client: &'a ClientSide,
    pub(crate) course: Course,
    pub(crate) timeout_ns: u64,
    pub(crate) by: ConnectionsBy,
    pub(crate) connections: usize,
    pub(crate) streams: usize,
    pub(crate) seed: u64,
    /// One for each thread; at most as many as client CPUs and connections.
    pub(crate) schedules: Vec<Schedule>,
}

/// The outcome of a run.
pub(crate) struct OpenResult {
    pub(crate) outcome: OpenOutcome,
    pub(crate) failures: Failures,
    pub(crate) totals: Totals,
    /// Requests that found all connections in use.
    pub(crate) waited: u64,
}

impl OpenRun<'_> {
    /// Runs all threads to the end of the schedule, and until the last answer has come or is given
    /// up.
    pub(crate) fn run(
        self,
        log: Option<LogWriter>,
        signals: &Signals,
        progress: &RunProgress,
    ) -> Result<OpenResult> {
        let control = Arc::new(Control::default());
        let sink = log.as_ref().and_then(LogWriter::sink);
        let (course, client) = (self.course, self.client);
        let count = self.schedules.len();
        let start_ns = now_ns() + LEAD_NS;
        let mut first_slot = 0;
        let mut part = |(number, connections): (usize, usize)| {
            let slots = connections * self.streams;
            first_slot += slots;
            Part {
                control: Arc::clone(&control),
                server: self.server.clone(),
                course,
                start_ns,
                timeout_ns: self.timeout_ns,
                by: self.by,
                slots,
                streams: self.streams,
                seed: self.seed.wrapping_add(number as u64),
                first_slot: first_slot - slots,
            }
        };
        let shares = divide(self.connections, count);
        let parts: Vec<Part> = shares.into_iter().enumerate().map(&mut part).collect();
        let tap = || LogTap::new(sink.clone(), Numbering::ALONE);
        let logs = |_| [tap(), tap()];
        let logs: Vec<[LogTap; 2]> = (0..count).map(logs).collect();
        drop(sink);
        let parts = parts.into_iter().zip(self.schedules).zip(logs).collect();
        let body = async |((part, schedule), logs)| open_loop::run(part, schedule, logs).await;
        let watch = |ids: &[i32]| {
            let mut sampler = Sampler::new(client, ids, None)?;
            let show = || {
                let at_ns = now_ns().saturating_sub(start_ns);
                progress.show(course.phase(at_ns).name(), at_ns, course.end_ns());
            };
            let from_ns = start_ns + course.measure_from_ns();
            while now_ns() + VIEW_NS < from_ns {
                show();
                signals.sleep_until(now_ns() + VIEW_NS)?;
            }
            let slicing = Slicing::judged(course.measure_ns);
            let used = || {
                show();
                Used::default()
            };
            let borders = sampler.watch(signals, from_ns, slicing, used)?;
            while control.finished.load(Ordering::Acquire) < count {
                signals.sleep_ms(1)?;
            }
            Ok((borders, sampler.sides()))
        };
        let outcome = threads::run(&client.cpus, parts, body, &control.stop, watch);
        let result = outcome.map(|((borders, sides), records)| {
            let disturbance = disturbance(&borders, sides);
            let empty = OpenOutcome { reasons: Vec::new(), ..OpenOutcome::failed(String::new()) };
            let remarks = unjudged(client, &borders).into_iter().collect();
            merge(course, &records, &borders, OpenOutcome { disturbance, remarks, ..empty })
        });
        // The records, which send to the log, are dropped. The log's error is more important than
        // an interruption that it may have caused.
        if let Some(log) = log {
            log.finish()?;
        }
        result
    }
}

/// Merges the threads' records, and decides whether the run is valid.
fn merge(
    course: Course,
    records: &[Record],
    borders: &[Border],
    outcome: OpenOutcome,
) -> OpenResult {
    let merged = |pick: fn(&Record) -> &Times| {
        let mut sum = new_times();
        for record in records {
            // All histograms have the same bounds, so this cannot fail.
            let _ = sum.add(pick(record));
        }
        sum
    };
    let (mut accounts, mut totals) = (Accounts::default(), Totals::default());
    let mut failures = Failures::default();
    let (mut due, mut came) = (Bins::new(&course), Bins::new(&course));
    for Record { send, receive, failures: own, totals: counted, .. } in records {
        accounts.add(&receive.accounts);
        accounts.scheduled += send.scheduled;
        accounts.refused += send.refused;
        due.merge(&send.bins);
        came.merge(&receive.bins);
        failures.add(own);
        totals.add(counted);
    }
    let connections = records.iter().map(|record| record.connections).sum();
    let measured_s = course.measure_ns as f64 / 1e9;
    let answers: u64 = records.iter().map(|record| record.receive.answers).sum();
    let mut outcome = OpenOutcome {
        service: merged(|record| &record.receive.service),
        send_lag: merged(|record| &record.send.lag),
        accounts,
        offered_rate: accounts.scheduled as f64 / measured_s,
        throughput: answers as f64 / measured_s,
        starved: threads::starved(borders),
        reopened: totals.reopened,
        server: ServerUse::default(),
        connections,
        ..outcome
    };
    outcome.remarks.extend(silence(&course, &due, &came, u64::MAX));
    let hurried = records.iter().map(|record| record.send.hurried).sum();
    outcome.reasons = Tolerance::default().judge(&Evidence {
        lag: Percentiles::of(&outcome.send_lag),
        transmit: None,
        accounts,
        hurried,
        starved: outcome.starved,
        faults: Faults::default(),
        disturbance: outcome.disturbance,
        interval_us: 1e6 * records.len() as f64 / course.rate,
    });
    if !accounts.balance() {
        outcome
            .reasons
            .push(format!("the records do not balance: {accounts:?}; report this as a bug"));
    }
    let waited = records.iter().map(|record| record.waited).sum();
    OpenResult { outcome, failures, totals, waited }
}
