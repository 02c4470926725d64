//! The result file of every command that measures: one self-describing JSON document, which `diff`
//! and `report` read back. Times are in microseconds where a name ends in `_us`, rates per second.
//! `docs/results.schema.json` is its JSON Schema, made of these types.

pub(crate) mod csv;
pub(crate) mod files;
pub(crate) mod phrase;
pub(crate) mod table;

use serde::{Deserialize, Serialize};

use crate::engine::environment::Environment;
use crate::engine::outcome::Accounts as Totals;
use crate::engine::sampler::Disturbance;
use crate::engine::slices::SliceCounts;
use crate::engine::statistics::Interval;
use crate::exchange::Exchange;
use crate::figures::Percentiles;
use crate::sys::signals::was_interrupted;

/// Value of `format`.
pub(crate) const FORMAT: &str = "iobench-results";
/// Changes when a reader of the former version would misunderstand a file.
pub(crate) const VERSION: u32 = 2;

/// The whole file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Document {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) environment: Environment,
    pub(crate) experiment: ExperimentRecord,
    pub(crate) elapsed_s: f64,
    /// A signal ended the run early, so that rounds or subjects are missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) interrupted: bool,
    /// The subject that ratios are against.
    pub(crate) baseline: String,
    /// How time was cut, where slots were interleaved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slots: Option<Slots>,
    /// What lies between clients and servers, and what it did to packets, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<serde_json::Value>,
    /// Only of a server against itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) self_test: Option<SelfTest>,
    /// What the latencies were read from, where a reading is a part of them that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) clock: Option<Clock>,
    pub(crate) results: Vec<Row>,
    /// The same rows against further baselines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) versus: Vec<Versus>,
}

/// Note of the rows of a run that a signal ended.
pub(crate) const PARTIAL: &str =
    "the run was interrupted, so these are the results of a part of it; let it end";

/// How time was cut.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Slots {
    /// Of every row; fewer than planned if time was up.
    pub(crate) rounds: u32,
    /// How many rounds of a cell were disturbed and measured again.
    pub(crate) repeated_rounds: u32,
    /// Slots of a server in one round of a cell.
    pub(crate) per_round: usize,
    pub(crate) slice_ms: f64,
}

/// A clock and what it costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Clock {
    pub(crate) name: String,
    /// Duration of one reading, which every latency includes.
    pub(crate) cost_ns: f64,
}

impl Clock {
    pub(crate) fn describe(&self) -> String {
        let Clock { name, cost_ns } = self;
        format!("times from {name}; a reading takes {cost_ns:.0} ns and is in every latency")
    }
}

/// Ratios against a further baseline, from the same slots.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Versus {
    pub(crate) baseline: String,
    /// In the order of the results.
    pub(crate) results: Vec<Ratios>,
}

impl Versus {
    /// The rows with their ratios to this baseline, and whether these are valid; without notes,
    /// which are on the comparison with the first one.
    pub(crate) fn of(&self, rows: &[Row]) -> Vec<Row> {
        let against = |(row, ratios): (&Row, &Ratios)| Row {
            throughput_ratio: ratios.throughput_ratio,
            cpu_ratio: ratios.cpu_ratio,
            cpu_both_ratio: ratios.cpu_both_ratio,
            p50_ratio: ratios.p50_ratio,
            p99_ratio: ratios.p99_ratio,
            valid: ratios.valid,
            notes: Vec::new(),
            ..row.clone()
        };
        rows.iter().zip(&self.results).map(against).collect()
    }
}

/// A row against a further baseline.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Ratios {
    pub(crate) throughput_ratio: Option<Interval>,
    pub(crate) cpu_ratio: Option<Interval>,
    pub(crate) cpu_both_ratio: Option<Interval>,
    pub(crate) p50_ratio: Option<Interval>,
    pub(crate) p99_ratio: Option<Interval>,
    pub(crate) valid: bool,
}

/// What can be learnt from rows that should all be equal to their baseline's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SelfTest {
    /// Smaller differences in throughput mean nothing here; unknown without a single interval.
    pub(crate) throughput_noise_percent: Option<f64>,
    /// The same for CPU time per transaction.
    pub(crate) cpu_noise_percent: Option<f64>,
    pub(crate) intervals: usize,
    /// Intervals that exclude 1, and so claim a difference that does not exist.
    pub(crate) excluding_one: usize,
    /// How many of them chance explains.
    pub(crate) explained_by_chance: usize,
    /// All rows are valid and have their intervals, and no more of those exclude 1 than chance
    /// explains.
    pub(crate) trustworthy: bool,
}

impl Document {
    /// A document of this version, without what only some commands have.
    pub(crate) fn new(
        environment: Environment,
        experiment: ExperimentRecord,
        elapsed_s: f64,
        baseline: String,
        mut results: Vec<Row>,
    ) -> Document {
        let interrupted = was_interrupted();
        if interrupted {
            results.iter_mut().for_each(|row| row.notes.push(PARTIAL.to_owned()));
        }
        Document {
            format: FORMAT.to_owned(),
            version: VERSION,
            environment,
            experiment,
            elapsed_s,
            interrupted,
            baseline,
            slots: None,
            network: None,
            self_test: None,
            clock: None,
            results,
            versus: Vec::new(),
        }
    }
}

/// What was run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Requests at a given rate on standing connections, whatever the server does.
    Open,
    /// Every connection sends the next request when it has the answer.
    Closed,
    /// New connections at a given rate, with some requests each.
    Churn,
    /// Messages in one direction, as fast as they are taken.
    OneWay,
}

/// One subject at one point of the sweep. What does not apply is null or left out.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Row {
    /// What was measured: a server, a variant of a program, or a transport between processes.
    pub(crate) subject: String,
    /// What the load asks for, such as `echo`, `redis get` or `ping-pong`.
    pub(crate) workload: String,
    pub(crate) kind: Kind,
    /// Concurrent connections; for churn, the most that were open at a time.
    pub(crate) connections: usize,
    /// Requests per second asked for (open), or connections per second (churn).
    pub(crate) request_rate: Option<f64>,
    /// Size of a request and of its response; 0 where another program's client chooses them.
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: usize,
    /// Transactions per connection (closed, churn); 0: connections persist.
    pub(crate) transactions: u32,
    /// Further connections that are open and idle, each after one transaction (closed).
    #[serde(default)]
    pub(crate) idle: usize,
    /// Requests under way on each connection.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) pipeline: u32,
    /// Messages after which a writer notifies the reader (one-way).
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) batch: u32,
    /// How the CPUs of both sides lie to each other: `same-core`, `same-socket` or `other-socket`;
    /// where the command chooses them by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) placement: Option<String>,
    /// Whether the CPUs of both sides are hardware threads of one core, or the same one; where
    /// `placement` is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shares_core: Option<bool>,
    /// Server threads, each on a CPU of its own; 1 for what is no server.
    pub(crate) cores: usize,
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) client_cpus: Vec<usize>,
    /// Server processing per request, `none`, `burn:50us`, `sleep:1000us`.
    pub(crate) work: String,
    /// Conditions on the way, for people; null for the plain loopback.
    pub(crate) network: Option<String>,
    /// From the intended send time to the complete answer.
    pub(crate) latency_us: Option<Percentiles>,
    /// The same as the client tells it, which is a program that is not ours: medians over rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reported_latency_us: Option<ReportedLatency>,
    /// From the intended to the actual send time.
    pub(crate) send_lag_us: Option<Percentiles>,
    /// From the actual send time to the kernel's transmit timestamp, of a sample.
    pub(crate) transmit_us: Option<Percentiles>,
    /// From the actual send time to the kernel's receive timestamp of the answer: the wire and the
    /// server.
    #[serde(default)]
    pub(crate) turnaround_us: Option<Percentiles>,
    /// From the kernel's receive timestamp of an answer to when it was read. Service time is send
    /// lag, turnaround and receive lag.
    #[serde(default)]
    pub(crate) receive_lag_us: Option<Percentiles>,
    /// Churn: from the intended connection time to the first answer, accept included.
    pub(crate) accept_us: Option<Percentiles>,
    /// Answers per second while measuring (open, closed), connections served (churn), or messages
    /// (one-way).
    pub(crate) throughput: Option<f64>,
    /// Server CPU, user and system, per request.
    pub(crate) server_cpu_us: Option<f64>,
    /// Client CPU, user and system, per request, where it is told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_cpu_us: Option<f64>,
    /// CPU per request on both sides together, with what lies between (closed).
    #[serde(default)]
    pub(crate) cpu_both_us: Option<f64>,
    /// The server's calls into the kernel per request, where it counts them.
    pub(crate) system_calls: Option<f64>,
    /// Payload in a second, in units of 10⁹ bytes: of both directions for messages from 64 KiB on
    /// (closed), or of messages of any size (one-way).
    #[serde(default)]
    pub(crate) gigabytes_per_s: Option<f64>,
    /// Seconds of CPU on both sides together for each GiB (closed, messages from 64 KiB on).
    #[serde(default)]
    pub(crate) cpu_s_per_gib: Option<f64>,
    /// Memory of the server's processes for each idle connection, in bytes, without the kernel's
    /// (closed).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idle_bytes: Option<f64>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_cpu_ratio: Option<Interval>,
    #[serde(default)]
    pub(crate) cpu_both_ratio: Option<Interval>,
    pub(crate) p50_ratio: Option<Interval>,
    pub(crate) p99_ratio: Option<Interval>,
    pub(crate) valid: bool,
    pub(crate) notes: Vec<String>,
    /// Of time, by what was found of them (closed).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slices: Option<SliceCounts>,
    /// Pairs of undisturbed slots that the ratios are from (closed).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pairs: Option<usize>,
    /// Operations of one slice, median over rounds, where another program's client counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operations: Option<f64>,
    /// What other work did while it was measured (`load`, `run`): the sum over rounds of slices,
    /// and the worst round's parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disturbance: Option<Disturbance>,
    /// The part of its CPUs that the load generator did not get, the worst of all rounds (open,
    /// churn).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) starved: Option<f64>,
    /// Connections that ended and were opened again (open).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reopened: Option<u64>,
    /// Totals of both sides from the first connection to the last, warm-up included (closed).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) totals: Option<Totals>,
    /// Of a client's connections, those that left the kernel's TCP, the least of all rounds; where
    /// that was wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) upgraded_connections: Option<u64>,
    /// What became of every request (open, churn).
    pub(crate) accounts: Option<Accounts>,
    pub(crate) rounds: Vec<RoundFigures>,
    pub(crate) histograms: Histograms,
}

impl Row {
    /// The median latency, of whoever measured it.
    pub(crate) fn p50_us(&self) -> Option<f64> {
        median(self.latency_us.as_ref(), self.reported_latency_us.as_ref())
    }

    /// The 99th percentile, of whoever measured it.
    pub(crate) fn p99_us(&self) -> Option<f64> {
        tail(self.latency_us.as_ref(), self.reported_latency_us.as_ref())
    }

    /// The row without any figure, for a command to fill in.
    pub(crate) fn empty(subject: &str, workload: &str, kind: Kind, exchange: Exchange) -> Row {
        Row {
            subject: subject.to_owned(),
            workload: workload.to_owned(),
            kind,
            connections: 1,
            request_rate: None,
            request_bytes: exchange.request_bytes,
            response_bytes: exchange.response_bytes,
            transactions: 0,
            idle: 0,
            pipeline: 1,
            batch: 1,
            placement: None,
            shares_core: None,
            cores: 1,
            server_cpus: Vec::new(),
            client_cpus: Vec::new(),
            work: "none".to_owned(),
            network: None,
            latency_us: None,
            reported_latency_us: None,
            send_lag_us: None,
            transmit_us: None,
            turnaround_us: None,
            receive_lag_us: None,
            accept_us: None,
            throughput: None,
            server_cpu_us: None,
            client_cpu_us: None,
            cpu_both_us: None,
            system_calls: None,
            gigabytes_per_s: None,
            cpu_s_per_gib: None,
            idle_bytes: None,
            server_busy: None,
            client_busy: None,
            bound: None,
            throughput_ratio: None,
            cpu_ratio: None,
            client_cpu_ratio: None,
            cpu_both_ratio: None,
            p50_ratio: None,
            p99_ratio: None,
            valid: true,
            notes: Vec::new(),
            slices: None,
            pairs: None,
            operations: None,
            disturbance: None,
            starved: None,
            reopened: None,
            totals: None,
            upgraded_connections: None,
            accounts: None,
            rounds: Vec::new(),
            histograms: Histograms::default(),
        }
    }
}

/// Latencies as another program's client reports them; null: it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ReportedLatency {
    pub(crate) mean: Option<f64>,
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
}

fn median(own: Option<&Percentiles>, reported: Option<&ReportedLatency>) -> Option<f64> {
    own.map(|own| own.p50).or_else(|| reported?.p50)
}

fn tail(own: Option<&Percentiles>, reported: Option<&ReportedLatency>) -> Option<f64> {
    own.map(|own| own.p99).or_else(|| reported?.p99)
}

fn one() -> u32 {
    1
}

/// Serde gives a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_one(value: &u32) -> bool {
    *value == 1
}

/// What became of the requests that were due in the measured period. The first is the sum of the
/// others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RoundFigures {
    pub(crate) latency_us: Option<Percentiles>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reported_latency_us: Option<ReportedLatency>,
    pub(crate) throughput: Option<f64>,
    pub(crate) server_cpu_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_cpu_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_both_us: Option<f64>,
    pub(crate) valid: bool,
}

impl RoundFigures {
    /// The median latency, of whoever measured it.
    pub(crate) fn p50_us(&self) -> Option<f64> {
        median(self.latency_us.as_ref(), self.reported_latency_us.as_ref())
    }

    /// The 99th percentile, of whoever measured it.
    pub(crate) fn p99_us(&self) -> Option<f64> {
        tail(self.latency_us.as_ref(), self.reported_latency_us.as_ref())
    }
}

/// Raw histograms over all rounds: HdrHistogram V2, deflated, base 64, in nanoseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The schema is generated, so that it cannot differ from what is written.
    #[test]
    fn the_published_schema_is_that_of_these_types() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results.schema.json");
        let mut schema = schemars::schema_for!(Document);
        schema.insert("title".to_owned(), format!("{FORMAT}, version {VERSION}").into());
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("MEGAPIPE_UPDATE").is_some() {
            std::fs::write(file, &text).unwrap();
        }
        let published = std::fs::read_to_string(file).unwrap();
        assert!(
            published == text,
            "docs/results.schema.json is out of date: run this with MEGAPIPE_UPDATE=1"
        );
    }

    #[test]
    fn every_field_is_in_the_reference() {
        let documented = |heading| testkit::documented("result-document.md", heading);
        let schema = serde_json::to_value(schemars::schema_for!(Document)).unwrap();
        let fields = |part: &serde_json::Value| -> BTreeSet<String> {
            part["properties"].as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(documented("Document"), fields(&schema));
        let sections = ["What was measured", "Figures", "Ratios", "Whether to believe it"];
        let row: BTreeSet<String> = sections.into_iter().flat_map(documented).collect();
        assert_eq!(row, fields(&schema["$defs"]["Row"]));
    }
}
