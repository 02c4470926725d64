//! Records of the two threads of a generator, merged after the run.

use std::sync::mpsc::Sender;

use crate::figures::{Times, new_times};
use crate::open::Numbering;
use crate::open::dialogue::WrongReply;
use crate::open::log::{Entry, Outcome};
use crate::open::phases::{Course, Phase};
use crate::results::Accounts;

/// Length of a bin, a tenth of a second, unless that gives too many or too few bins.
const BIN_NS: u64 = 100_000_000;
const MOST_BINS: u64 = 120;
const LEAST_BINS: u64 = 10;
/// Log entries sent at a time.
const LOG_CHUNK: usize = 16_384;

/// Numbers of events by stretches of the run, as one thread recorded them.
#[derive(Debug, Clone)]
pub(crate) struct Bins {
    pub(crate) counts: Vec<u64>,
    end_ns: u64,
}

impl Bins {
    pub(crate) fn new(course: &Course) -> Bins {
        let count = (course.end_ns() / BIN_NS).clamp(LEAST_BINS, MOST_BINS);
        Bins { counts: vec![0; count as usize], end_ns: course.end_ns().max(1) }
    }

    /// Returns the end of a bin.
    pub(crate) fn end_of(&self, bin: usize) -> u64 {
        self.end_ns * (bin as u64 + 1) / self.counts.len() as u64
    }

    fn record(&mut self, at_ns: u64) {
        let index =
            (u128::from(at_ns) * self.counts.len() as u128 / u128::from(self.end_ns)) as usize;
        // Times after the end belong to no bin.
        if let Some(count) = self.counts.get_mut(index) {
            *count += 1;
        }
    }

    pub(crate) fn merge(&mut self, other: &Bins) {
        for (ours, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *ours += theirs;
        }
    }
}

/// Sends log entries in chunks; does nothing without a log.
pub(crate) struct LogTap {
    sink: Option<Sender<Vec<Entry>>>,
    chunk: Vec<Entry>,
    numbering: Numbering,
}

impl LogTap {
    pub(crate) fn new(sink: Option<Sender<Vec<Entry>>>, numbering: Numbering) -> LogTap {
        let chunk = Vec::with_capacity(if sink.is_some() { LOG_CHUNK } else { 0 });
        LogTap { sink, chunk, numbering }
    }

    fn push(&mut self, entry: Entry) {
        if self.sink.is_none() {
            return;
        }
        self.chunk.push(entry);
        if self.chunk.len() == LOG_CHUNK {
            self.flush();
        }
    }

    fn push_due(&mut self, due: Due, received_ns: u64, outcome: Outcome, phase: Phase) {
        let Due { connection, intended_ns, actual_ns } = due;
        let connection = self.numbering.of(connection) as u32;
        self.push(Entry { intended_ns, actual_ns, received_ns, connection, outcome, phase });
    }

    /// Sends the entries that are not sent yet.
    pub(crate) fn flush(&mut self) {
        if let Some(sink) = &self.sink {
            let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(LOG_CHUNK));
            // If the writer has failed, its error is reported at the end of the run.
            let _ = sink.send(chunk);
        }
    }
}

/// A scheduled request, or a scheduled connection of a churn. Times are of CLOCK_MONOTONIC; the
/// number of the connection is the generator's own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    pub(crate) connection: usize,
    pub(crate) intended_ns: u64,
    pub(crate) actual_ns: u64,
}

/// Wrong replies in the whole run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    pub(crate) count: u64,
    pub(crate) first: Option<WrongReply>,
}

impl Faults {
    pub(crate) fn count(&mut self, fault: WrongReply) {
        self.count += 1;
        self.first.get_or_insert(fault);
    }

    pub(crate) fn add(&mut self, other: &Faults) {
        self.count += other.count;
        if self.first.is_none() {
            self.first.clone_from(&other.first);
        }
    }
}

/// The sender's record.
pub(crate) struct SendRecord {
    course: Course,
    start_ns: u64,
    /// Time from the scheduled to the actual send time, of requests scheduled in the measured
    /// period.
    pub(crate) lag: Times,
    /// Time from the actual send time to the kernel's transmit timestamp.
    pub(crate) transmit: Times,
    pub(crate) scheduled: u64,
    pub(crate) refused: u64,
    /// Requests in the measured period whose scheduled time had passed before the sender could wait
    /// for it.
    pub(crate) hurried: u64,
    pub(crate) bins: Bins,
    pub(crate) log: LogTap,
}

impl SendRecord {
    pub(crate) fn new(course: Course, start_ns: u64, log: LogTap) -> SendRecord {
        SendRecord {
            lag: new_times(),
            transmit: new_times(),
            scheduled: 0,
            refused: 0,
            hurried: 0,
            bins: Bins::new(&course),
            log,
            course,
            start_ns,
        }
    }

    /// Records that a scheduled request was sent at `actual_ns`. Times are of CLOCK_MONOTONIC.
    pub(crate) fn due(&mut self, intended_ns: u64, actual_ns: u64, hurried: bool) {
        let at_ns = intended_ns.saturating_sub(self.start_ns);
        let lag_ns = actual_ns.saturating_sub(intended_ns);
        self.bins.record(at_ns);
        if self.course.phase(at_ns) == Phase::Measure {
            self.scheduled += 1;
            self.hurried += u64::from(hurried);
            self.lag.saturating_record(lag_ns);
        }
    }

    /// Records that the request just scheduled could not be sent.
    pub(crate) fn refuse(&mut self, connection: usize, intended_ns: u64, actual_ns: u64) {
        let phase = self.course.phase(intended_ns.saturating_sub(self.start_ns));
        if phase == Phase::Measure {
            self.refused += 1;
        }
        self.log.push_due(Due { connection, intended_ns, actual_ns }, 0, Outcome::Refused, phase);
    }
}

/// The receiver's record.
pub(crate) struct ReceiveRecord {
    course: Course,
    start_ns: u64,
    timeout_ns: u64,
    /// Time from the scheduled time to the complete answer, of requests scheduled in the measured
    /// period.
    pub(crate) service: Times,
    /// Time from the actual send time to the kernel's receive timestamp of the answer, and from
    /// that to the read of the answer. With the send lag their sum is the service time.
    pub(crate) turnaround: Times,
    pub(crate) receive_lag: Times,
    /// Churn: for every request, the time from when it could be sent to its answer.
    pub(crate) requests: Times,
    /// Churn: connections that ended after their first answer, but before their last.
    pub(crate) cut_short: u64,
    pub(crate) faults: Faults,
    /// Connections that ended and were opened again.
    pub(crate) reopened: u64,
    /// `scheduled` stays zero: it is the sender's.
    pub(crate) accounts: Accounts,
    /// Answers that arrived in the measured period, whenever they were scheduled.
    pub(crate) answers: u64,
    pub(crate) bins: Bins,
    pub(crate) log: LogTap,
}

impl ReceiveRecord {
    pub(crate) fn new(
        course: Course,
        start_ns: u64,
        timeout_ns: u64,
        log: LogTap,
    ) -> ReceiveRecord {
        ReceiveRecord {
            service: new_times(),
            turnaround: new_times(),
            receive_lag: new_times(),
            requests: new_times(),
            cut_short: 0,
            faults: Faults::default(),
            reopened: 0,
            accounts: Accounts::default(),
            answers: 0,
            bins: Bins::new(&course),
            log,
            course,
            start_ns,
            timeout_ns,
        }
    }

    /// Records an answer.
    pub(crate) fn answer(&mut self, due: Due, now_ns: u64) {
        let service_ns = now_ns.saturating_sub(due.intended_ns);
        let came_at_ns = now_ns.saturating_sub(self.start_ns);
        self.bins.record(came_at_ns);
        if (self.course.measure_from_ns()..self.course.end_ns()).contains(&came_at_ns) {
            self.answers += 1;
        }
        let phase = self.phase(due.intended_ns);
        let late = service_ns > self.timeout_ns;
        if phase == Phase::Measure {
            self.service.saturating_record(service_ns);
            self.accounts.answered += u64::from(!late);
            self.accounts.late += u64::from(late);
        }
        let outcome = if late { Outcome::Late } else { Outcome::Answered };
        self.log.push_due(due, now_ns, outcome, phase);
    }

    /// Records an answer that was read at `now_ns` and that the kernel had received at `stamp_ns`.
    pub(crate) fn received(&mut self, due: Due, stamp_ns: u64, now_ns: u64) {
        if self.phase(due.intended_ns) == Phase::Measure {
            self.turnaround.saturating_record(stamp_ns.saturating_sub(due.actual_ns).max(1));
            self.receive_lag.saturating_record(now_ns.saturating_sub(stamp_ns).max(1));
        }
    }

    /// Records a wrong answer.
    pub(crate) fn wrong(&mut self, due: Due, now_ns: u64) {
        let phase = self.phase(due.intended_ns);
        self.accounts.wrong += u64::from(phase == Phase::Measure);
        self.log.push_due(due, now_ns, Outcome::Wrong, phase);
    }

    fn phase(&self, intended_ns: u64) -> Phase {
        self.course.phase(intended_ns.saturating_sub(self.start_ns))
    }

    /// Churn: records the time of a request of a connection that was scheduled at `intended_ns`.
    pub(crate) fn request(&mut self, intended_ns: u64, time_ns: u64) {
        if self.phase(intended_ns) == Phase::Measure {
            self.requests.saturating_record(time_ns);
        }
    }

    /// Churn: records a connection that ended before its last answer.
    pub(crate) fn cut_short(&mut self) {
        self.cut_short += 1;
    }

    /// Records a request that will not be answered: its connection has ended, or it was given up.
    pub(crate) fn give_up(&mut self, due: Due, ended: bool) {
        let phase = self.phase(due.intended_ns);
        if phase == Phase::Measure {
            self.accounts.reset += u64::from(ended);
            self.accounts.lost += u64::from(!ended);
        }
        let outcome = if ended { Outcome::Reset } else { Outcome::Lost };
        self.log.push_due(due, 0, outcome, phase);
    }

    /// Records a request that got no connection to be sent on.
    pub(crate) fn unsent(&mut self, due: Due) {
        let phase = self.phase(due.intended_ns);
        self.accounts.refused += u64::from(phase == Phase::Measure);
        self.log.push_due(due, 0, Outcome::Refused, phase);
    }
}
