//! From slots to rows: what is printed, written as JSON, and read back by `report`.

use fable::Form;
use ipcload::Pattern;
use serde::{Deserialize, Serialize};

use crate::compare::report::SliceSummary;
use crate::engine::outcome::SliceCounts;
use crate::engine::statistics::{Interval, median, ratio_interval};
use crate::error::Result;
use crate::figures::{self, Times, new_times};
use crate::ipc::placement::Relation;
use crate::ipc::plan::{Plan, Slot};
use crate::ipc::slot::{Figures, SlotOutcome};
use crate::ipc::subject::Subject;

/// What every row is compared with: the quickest calls of the kernel on each path.
const TCP: &str = "tcp-blocking";
const UNIX: &str = "unix-blocking";
const PIPE: &str = "pipe-blocking";
/// What it means for a row, and what to do about it.
const ROUGH: &str = ", so the figures are of all: try a longer --duration or a quieter machine";
const NO_TIME: &str =
    "there was no time for it: leave --quick out, or name fewer transports or sizes";
/// Different complaints that a row tells.
const COMPLAINTS_MAX: usize = 3;

/// One transport at one placement, message size, and batch. What was not measured is null.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) transport: String,
    pub(crate) form: Option<String>,
    pub(crate) message_bytes: usize,
    pub(crate) placement: Relation,
    pub(crate) cpus: [usize; 2],
    pub(crate) shares_core: bool,
    pub(crate) batch: u32,
    pub(crate) latency_ns: Option<LatencyNs>,
    pub(crate) latency_p50_interval_ns: Option<Interval>,
    pub(crate) one_way_ns: Option<f64>,
    pub(crate) p50_over_floor: Option<f64>,
    pub(crate) cpu_us_per_round_trip: Option<f64>,
    pub(crate) throughput_mb_s: Option<f64>,
    pub(crate) throughput_interval_mb_s: Option<Interval>,
    pub(crate) messages_s: Option<f64>,
    pub(crate) cpu_us_per_message: Option<f64>,
    pub(crate) cpu_reader_us_per_message: Option<f64>,
    pub(crate) cpu_writer_us_per_message: Option<f64>,
    pub(crate) latency_ratio_tcp: Option<Interval>,
    pub(crate) latency_ratio_unix: Option<Interval>,
    pub(crate) latency_ratio_pipe: Option<Interval>,
    pub(crate) throughput_ratio_tcp: Option<Interval>,
    pub(crate) throughput_ratio_unix: Option<Interval>,
    pub(crate) throughput_ratio_pipe: Option<Interval>,
    pub(crate) valid: bool,
    pub(crate) reason: Option<String>,
    /// Of both patterns together.
    pub(crate) slices: SliceSummary,
    pub(crate) rounds: Vec<RoundFigures>,
}

impl Row {
    /// The full name, such as `mempipe-spin-safe`.
    pub(crate) fn name(&self) -> String {
        match &self.form {
            Some(form) => format!("{}-{form}", self.transport),
            None => self.transport.clone(),
        }
    }
}

/// What the fields mean, for readers of the file.
pub(crate) const FIELDS: [(&str, &str); 18] = [
    ("transport", "name without its form; flow-NAME: a flow, without a daemon, on that transport"),
    ("form", "unsafe: the reader looks at shared memory; safe: at a copy; null: there is one form"),
    (
        "message_bytes",
        "payload; the writer writes the sequence number in the first and the last eight bytes and \
         its lowest byte in all others, the reader checks both numbers and looks at no other byte",
    ),
    ("placement", "same-core, same-socket or other-socket"),
    ("cpus", "the CPU of the process that pings or reads, and of the one that answers or writes"),
    ("shares_core", "whether both CPUs are hardware threads of one core"),
    ("batch", "messages after which the writer tells the reader; 1 is batching off"),
    (
        "latency_ns",
        "ROUND TRIP of a ping-pong, all rounds together, one clock reading included; never \
         batched, so the same in rows that differ in batch only",
    ),
    ("one_way_ns", "half of the median round trip"),
    ("p50_over_floor", "median round trip over that of one cache line at the same placement"),
    ("cpu_us_per_round_trip", "CPU of both processes, user and system"),
    ("throughput_mb_s", "payload one way, 10^6 bytes per second, median over rounds"),
    ("messages_s", "messages one way per second, median over rounds"),
    ("cpu_us_per_message", "CPU of both processes for a message one way, user and system"),
    (
        "latency_ratio_*",
        "median round trip over that of tcp-blocking, unix-blocking or pipe-blocking, within \
         rounds; null, as all ratios, if either of the two is not to be trusted",
    ),
    (
        "throughput_ratio_*",
        "throughput over that of the same baseline, within rounds; null where batch is not 1, \
         which baselines do not have",
    ),
    ("slices", "of time: undisturbed ones, which count, and the others"),
    ("rounds", "each round's own figures; clean: enough of its slices were undisturbed"),
];

/// Times of round trips in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct LatencyNs {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
}

impl LatencyNs {
    fn of(times: &Times) -> Option<LatencyNs> {
        let at = |quantile| times.value_at_quantile(quantile) as f64;
        (!times.is_empty()).then(|| LatencyNs {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: times.max() as f64,
            mean: times.mean(),
        })
    }
}

/// One round of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoundFigures {
    pub(crate) latency_p50_ns: Option<f64>,
    pub(crate) messages_s: Option<f64>,
    pub(crate) cpu_us_per_message: Option<f64>,
    pub(crate) clean: bool,
}

/// Everything that was measured, by slot of the plan, then by round; nothing for a round without
/// time for the slot.
pub(crate) type Outcomes = Vec<Vec<Option<SlotOutcome>>>;

/// The rows, in the order of the plan.
pub(crate) fn rows(plan: &Plan, subjects: &[Subject], outcomes: &Outcomes) -> Result<Vec<Row>> {
    let table = Table::new(plan, subjects, outcomes)?;
    let one_way = plan.slots.iter().filter(|slot| slot.pattern == Pattern::OneWay);
    let mut rows: Vec<Row> = one_way.map(|slot| table.row(slot)).collect();
    for index in 0..rows.len() {
        let floor = rows.iter().find(|row| {
            row.transport == fable::Kind::Cacheline.base_name() && row.cpus == rows[index].cpus
        });
        let trusted = |row: &Row| row.latency_ns.filter(|_| row.valid).map(|latency| latency.p50);
        let (floor, own) = (floor.and_then(trusted), trusted(&rows[index]));
        rows[index].p50_over_floor = own.zip(floor).map(|(own, floor)| own / floor);
    }
    Ok(rows)
}

/// One slot of the plan, digested.
struct Digest<'a> {
    slot: &'a Slot,
    /// What is shown of each round.
    figures: Vec<Option<&'a Figures>>,
    /// The median round trip of each.
    p50_ns: Vec<Option<f64>>,
    latencies: Times,
    clean: Vec<bool>,
    slices: SliceCounts,
    reasons: Vec<String>,
}

impl<'a> Digest<'a> {
    fn of(slot: &'a Slot, rounds: &'a [Option<SlotOutcome>]) -> Result<Digest<'a>> {
        let measured = || rounds.iter().flatten();
        let clean: Vec<bool> = rounds
            .iter()
            .map(|round| round.as_ref().is_some_and(|round| round.figures.is_some()))
            .collect();
        let clean_rounds = clean.iter().filter(|clean| **clean).count();
        let rough = clean_rounds == 0 || 2 * clean_rounds < measured().count();
        let shown = |round: &'a SlotOutcome| match rough {
            true => round.rough.as_ref(),
            false => round.figures.as_ref(),
        };
        let figures: Vec<Option<&Figures>> =
            rounds.iter().map(|round| round.as_ref().and_then(shown)).collect();
        let mut latencies = new_times();
        let mut p50_ns = Vec::new();
        for figures in &figures {
            let text = figures.map(|figures| figures.latencies.as_str()).unwrap_or_default();
            let times = if text.is_empty() { new_times() } else { figures::decode(text)? };
            p50_ns.push((!times.is_empty()).then(|| times.value_at_quantile(0.5) as f64));
            // Bounds are equal by construction, so this cannot fail.
            let _ = latencies.add(times);
        }
        let mut slices = SliceCounts::default();
        measured().for_each(|round| slices.add(&round.slices));
        let reasons = reasons(slot, measured(), rough.then_some(clean_rounds));
        Ok(Digest { slot, figures, p50_ns, latencies, clean, slices, reasons })
    }

    fn messages_s(&self) -> Vec<Option<f64>> {
        self.figures.iter().map(|figures| Some(figures.as_ref()?.messages_s)).collect()
    }

    /// Median over rounds.
    fn middle(&self, figure: impl Fn(&Figures) -> f64) -> Option<f64> {
        median(&self.figures.iter().flatten().map(|figures| figure(figures)).collect::<Vec<_>>())
    }
}

/// Why the slot is not to be trusted; nothing if it is.
fn reasons<'a>(
    slot: &Slot,
    measured: impl Iterator<Item = &'a SlotOutcome> + Clone,
    clean_rounds: Option<usize>,
) -> Vec<String> {
    let mut reasons: Vec<String> = Vec::new();
    for complaint in measured.clone().filter_map(|round| round.complaint.as_ref()) {
        if reasons.len() < COMPLAINTS_MAX && !reasons.contains(complaint) {
            reasons.push(complaint.clone());
        }
    }
    let rounds = measured.count();
    if rounds == 0 {
        reasons.push(NO_TIME.to_owned());
    } else if let (Some(clean), true) = (clean_rounds, reasons.is_empty()) {
        let what = match slot.pattern {
            Pattern::PingPong => "ping-pong",
            Pattern::OneWay => "one-way",
        };
        reasons.push(format!("only {clean} of {rounds} {what} rounds were undisturbed{ROUGH}"));
    }
    reasons
}

struct Table<'a> {
    subjects: &'a [Subject],
    digests: Vec<Digest<'a>>,
}

impl<'a> Table<'a> {
    fn new(plan: &'a Plan, subjects: &'a [Subject], outcomes: &'a Outcomes) -> Result<Table<'a>> {
        let digests =
            plan.slots.iter().zip(outcomes).map(|(slot, rounds)| Digest::of(slot, rounds));
        Ok(Table { subjects, digests: digests.collect::<Result<_>>()? })
    }

    /// The slot that differs from `slot` in these.
    fn find(
        &self,
        slot: &Slot,
        subject: usize,
        pattern: Pattern,
        batch: u32,
    ) -> Option<&Digest<'a>> {
        let wanted = Slot { subject, pattern, batch, ..slot.clone() }.key();
        self.digests.iter().find(|digest| digest.slot.key() == wanted)
    }

    fn row(&self, slot: &Slot) -> Row {
        let subject = &self.subjects[slot.subject];
        let ping = self.find(slot, slot.subject, Pattern::PingPong, 1);
        let way = self.find(slot, slot.subject, Pattern::OneWay, slot.batch);
        let digests = || [ping, way].into_iter().flatten();
        let mut reasons: Vec<String> = digests().flat_map(|d| d.reasons.clone()).collect();
        reasons.dedup();
        let mut slices = SliceCounts::default();
        digests().for_each(|digest| slices.add(&digest.slices));
        let latency_ns = ping.and_then(|ping| LatencyNs::of(&ping.latencies));
        let messages_s = way.map(Digest::messages_s).unwrap_or_default();
        let p50_ns = ping.map(|ping| ping.p50_ns.clone()).unwrap_or_default();
        let megabytes = slot.message_bytes as f64 / 1e6;
        let middle = |figure: fn(&Figures) -> f64| way.and_then(|way| way.middle(figure));
        let rate = middle(|figures| figures.messages_s);
        let valid = reasons.is_empty();
        let ratio = |pattern, name| valid.then(|| self.ratio(slot, pattern, name)).flatten();
        Row {
            transport: subject.transport().into_owned(),
            form: subject.form().map(Form::name).map(str::to_owned),
            message_bytes: slot.message_bytes,
            placement: slot.pair.relation,
            cpus: slot.pair.cpus,
            shares_core: slot.pair.shares_core,
            batch: slot.batch,
            latency_ns,
            latency_p50_interval_ns: interval(&p50_ns, 1.0),
            one_way_ns: latency_ns.map(|latency| latency.p50 / 2.0),
            p50_over_floor: None,
            cpu_us_per_round_trip: ping.and_then(|p| p.middle(|f| f.cpu_us.iter().sum())),
            throughput_mb_s: rate.map(|rate| rate * megabytes),
            throughput_interval_mb_s: interval(&messages_s, megabytes),
            messages_s: rate,
            cpu_us_per_message: middle(|figures| figures.cpu_us.iter().sum()),
            cpu_reader_us_per_message: middle(|figures| figures.cpu_us[0]),
            cpu_writer_us_per_message: middle(|figures| figures.cpu_us[1]),
            latency_ratio_tcp: ratio(Pattern::PingPong, TCP),
            latency_ratio_unix: ratio(Pattern::PingPong, UNIX),
            latency_ratio_pipe: ratio(Pattern::PingPong, PIPE),
            throughput_ratio_tcp: ratio(Pattern::OneWay, TCP),
            throughput_ratio_unix: ratio(Pattern::OneWay, UNIX),
            throughput_ratio_pipe: ratio(Pattern::OneWay, PIPE),
            valid,
            reason: (!valid).then(|| reasons.join("; ")),
            slices: SliceSummary { clean: slices.clean, discarded: slices.discarded() },
            rounds: rounds(ping, way),
        }
    }

    /// Against the other transport in the same rounds.
    fn ratio(&self, slot: &Slot, pattern: Pattern, name: &str) -> Option<Interval> {
        let baseline = self.subjects.iter().position(|subject| subject.transport() == name)?;
        let batch = if pattern == Pattern::OneWay { slot.batch } else { 1 };
        let own = self.find(slot, slot.subject, pattern, batch)?;
        if baseline == slot.subject {
            return own.figures.iter().any(Option::is_some).then_some(Interval::ONE);
        }
        let other = self.find(slot, baseline, pattern, batch)?;
        if !other.reasons.is_empty() {
            return None;
        }
        let values = |digest: &Digest<'_>| match pattern {
            Pattern::PingPong => digest.p50_ns.clone(),
            Pattern::OneWay => digest.messages_s(),
        };
        let pairs = values(own).into_iter().zip(values(other));
        let ratios: Vec<Vec<f64>> = pairs
            .map(|(own, other)| own.zip(other).map(|(a, b)| a / b).into_iter().collect())
            .collect();
        ratio_interval(&ratios)
    }
}

/// The interval of a positive figure's median over rounds, times `unit`.
fn interval(values: &[Option<f64>], unit: f64) -> Option<Interval> {
    let rounds: Vec<Vec<f64>> = values.iter().flatten().map(|value| vec![value * unit]).collect();
    ratio_interval(&rounds)
}

fn rounds(ping: Option<&Digest<'_>>, way: Option<&Digest<'_>>) -> Vec<RoundFigures> {
    let count = way.or(ping).map_or(0, |digest| digest.figures.len());
    let of_round = |round: usize| {
        let figures = way.and_then(|way| way.figures[round]);
        let is_clean =
            |digest: Option<&Digest<'_>>| digest.is_none_or(|digest| digest.clean[round]);
        RoundFigures {
            latency_p50_ns: ping.and_then(|ping| ping.p50_ns[round]),
            messages_s: figures.map(|figures| figures.messages_s),
            cpu_us_per_message: figures.map(|figures| figures.cpu_us.iter().sum()),
            clean: is_clean(ping) && is_clean(way),
        }
    };
    (0..count).map(of_round).collect()
}
