//! The result file of `iobench run`: one self-describing JSON document, which `diff` and `report`
//! read back. Times are in microseconds where a name ends in `_us`, rates per second.

use serde::{Deserialize, Serialize};

use crate::compare::environment::Environment;
use crate::compare::stats::Interval;
use crate::figures::Percentiles;

/// Value of `format`.
pub(crate) const FORMAT: &str = "iobench-run";
/// Changes when a reader of the former version would misunderstand a file.
pub(crate) const VERSION: u32 = 1;

/// The whole file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Document {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) environment: Environment,
    pub(crate) experiment: ExperimentRecord,
    pub(crate) elapsed_s: f64,
    /// The server that ratios are against.
    pub(crate) baseline: String,
    pub(crate) results: Vec<Row>,
}

/// What was run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ExperimentRecord {
    pub(crate) name: String,
    pub(crate) title: String,
    /// Where the experiment comes from, such as a paper's table.
    pub(crate) source: Option<String>,
    /// `default`, `quick` or `paper`.
    pub(crate) scale: String,
    /// The experiment file as it was read.
    pub(crate) file: String,
}

/// How requests are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Requests at a given rate on standing connections, whatever the server does.
    Open,
    /// Every connection sends the next request when it has the answer.
    Closed,
    /// New connections at a given rate, with some requests each.
    Churn,
}

/// One server at one point of the sweep. What does not apply is null.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) server: String,
    pub(crate) kind: Kind,
    /// Concurrent connections; for churn, the most that were open at a time.
    pub(crate) connections: usize,
    /// Requests per second asked for (open), or connections per second (churn).
    pub(crate) request_rate: Option<f64>,
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: usize,
    /// Transactions per connection (closed, churn); 0: connections persist.
    pub(crate) transactions: u32,
    /// Further connections that are open and idle (closed).
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) idle: usize,
    /// Server threads, each on a CPU of its own.
    pub(crate) cores: usize,
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) client_cpus: Vec<usize>,
    /// Server processing per request, `none`, `burn:50us`, `sleep:1000us`.
    pub(crate) work: String,
    /// Conditions on the way, for people; null for the plain loopback.
    pub(crate) network: Option<String>,
    /// From the intended send time to the complete answer.
    pub(crate) latency_us: Option<Percentiles>,
    /// From the intended to the actual send time.
    pub(crate) send_lag_us: Option<Percentiles>,
    /// From the actual send time to the kernel's transmit timestamp, of a sample.
    pub(crate) transmit_us: Option<Percentiles>,
    /// From the actual send time to the kernel's receive timestamp of the answer: the wire and the
    /// server, of a sample.
    #[serde(default)]
    pub(crate) turnaround_us: Option<Percentiles>,
    /// From the kernel's receive timestamp of an answer to when it was read, of the same sample.
    /// Service time is send lag, turnaround and receive lag.
    #[serde(default)]
    pub(crate) receive_lag_us: Option<Percentiles>,
    /// Churn: from the intended connection time to the first answer, accept included.
    pub(crate) accept_us: Option<Percentiles>,
    /// Answers per second while measuring (open, closed), or connections served (churn).
    pub(crate) throughput: Option<f64>,
    /// Server CPU, user and system, per request.
    pub(crate) server_cpu_us: Option<f64>,
    /// CPU per request on both sides together, with what lies between (closed).
    #[serde(default)]
    pub(crate) cpu_both_us: Option<f64>,
    /// The server's calls into the kernel per request, where it counts them.
    pub(crate) system_calls: Option<f64>,
    /// Busy parts of the sides' CPUs, 0 to 1.
    pub(crate) server_busy: Option<f64>,
    pub(crate) client_busy: Option<f64>,
    /// Closed loops: the side that limited the throughput: client, server, both, neither, shared
    /// (both sides use the same CPUs) or unknown.
    #[serde(default)]
    pub(crate) bound: Option<String>,
    /// Against the baseline at the same point, each with its interval.
    pub(crate) throughput_ratio: Option<Interval>,
    pub(crate) cpu_ratio: Option<Interval>,
    #[serde(default)]
    pub(crate) cpu_both_ratio: Option<Interval>,
    pub(crate) p50_ratio: Option<Interval>,
    pub(crate) p99_ratio: Option<Interval>,
    pub(crate) valid: bool,
    pub(crate) notes: Vec<String>,
    /// What became of every request (open, churn).
    pub(crate) accounts: Option<Accounts>,
    pub(crate) rounds: Vec<RoundFigures>,
    /// Of the first round; empty for closed loops.
    pub(crate) timeline: Vec<Moment>,
    pub(crate) histograms: Histograms,
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

/// What became of the requests that were due in the measured period. The first is the sum of the
/// others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Accounts {
    /// Due in the measured period.
    pub(crate) scheduled: u64,
    /// Answered in time.
    pub(crate) answered: u64,
    /// Answered, but later than the time-out.
    pub(crate) late: u64,
    /// Never answered, on a connection that stayed open.
    pub(crate) lost: u64,
    /// Never sent: the connection's queue of open requests was full, or there was no connection.
    pub(crate) refused: u64,
    /// The connection ended before the answer.
    pub(crate) reset: u64,
    /// Answered with other bytes than the right ones, or with more.
    #[serde(default)]
    pub(crate) wrong: u64,
}

impl Accounts {
    pub(crate) fn add(&mut self, other: &Accounts) {
        self.scheduled += other.scheduled;
        self.answered += other.answered;
        self.late += other.late;
        self.lost += other.lost;
        self.refused += other.refused;
        self.reset += other.reset;
        self.wrong += other.wrong;
    }

    /// Whether every request is accounted for.
    pub(crate) fn balance(&self) -> bool {
        let Accounts { scheduled, answered, late, lost, refused, reset, wrong } = *self;
        scheduled == answered + late + lost + refused + reset + wrong
    }
}

/// One round of a row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RoundFigures {
    pub(crate) latency_us: Option<Percentiles>,
    pub(crate) throughput: Option<f64>,
    pub(crate) server_cpu_us: Option<f64>,
    pub(crate) valid: bool,
}

/// A stretch of the timeline.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Moment {
    /// Its end, seconds after the first connection.
    pub(crate) t_s: f64,
    /// `connect`, `growth`, `steady` or `measure`.
    pub(crate) phase: String,
    /// Connections open at its end.
    pub(crate) connections: usize,
    pub(crate) offered_rate: f64,
    pub(crate) throughput: f64,
    pub(crate) send_lag_p50_us: Option<f64>,
    pub(crate) send_lag_p99_us: Option<f64>,
    pub(crate) service_p50_us: Option<f64>,
    pub(crate) service_p99_us: Option<f64>,
    /// Busy part of the server's CPUs.
    pub(crate) server_busy: Option<f64>,
}

/// Raw histograms over all rounds: HdrHistogram V2, deflated, base 64, in nanoseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Histograms {
    pub(crate) service: Option<String>,
    pub(crate) send_lag: Option<String>,
    pub(crate) transmit: Option<String>,
    #[serde(default)]
    pub(crate) turnaround: Option<String>,
    #[serde(default)]
    pub(crate) receive_lag: Option<String>,
    pub(crate) accept: Option<String>,
}
