//! From slots to rows of the result file: one for each slot of the plan.

use std::collections::HashMap;

use ipcload::Pattern;

use crate::engine::outcome::SliceCounts;
use crate::engine::statistics::{Interval, median, ratio_interval};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::figures::{self, Percentiles, Times, new_times};
use crate::ipc::plan::{Plan, Slot};
use crate::ipc::slot::{Figures, SlotOutcome};
use crate::ipc::subject::Subject;
use crate::results::{Histograms, Kind, Ratios, RoundFigures, Row, Versus};

/// What every row is compared with: the quickest calls of the kernel on each path.
pub(crate) const BASELINE: &str = "tcp-blocking";
/// Further ones.
pub(crate) const UNIX: &str = "unix-blocking";
pub(crate) const PIPE: &str = "pipe-blocking";
/// The names of the workloads.
pub(crate) const PING_PONG: &str = "ping-pong";
pub(crate) const ONE_WAY: &str = "one-way";
/// What it means for a row, and what to do about it.
const ROUGH: &str = ", so the figures are of all: try a longer --duration or a quieter machine";
const NO_TIME: &str =
    "there was no time for it: leave --quick out, or name fewer transports or sizes";
/// Different complaints that a row tells.
const COMPLAINTS_MAX: usize = 3;

/// Everything that was measured, by slot of the plan, then by round; nothing for a round without
/// time for the slot.
pub(crate) type Outcomes = Vec<Vec<Option<SlotOutcome>>>;

/// The rows, in the order of the plan, and the same against the further baselines.
pub(crate) fn rows(
    plan: &Plan,
    subjects: &[Subject],
    outcomes: &Outcomes,
) -> Result<(Vec<Row>, Vec<Versus>)> {
    let digests = plan.slots.iter().zip(outcomes).map(|(slot, rounds)| Digest::of(slot, rounds));
    let table = Table { subjects, digests: digests.collect::<Result<_>>()? };
    let rows = table.digests.iter().map(|digest| table.row(digest)).collect::<Result<_>>()?;
    let further = [UNIX, PIPE].into_iter().filter(|name| table.place(name).is_some());
    Ok((rows, further.map(|name| table.versus(name)).collect()))
}

/// The median round trip of each ping-pong over that of one cache line between the same CPUs;
/// nothing where one of them is not valid, and for other rows.
pub(crate) fn over_floor(rows: &[Row]) -> Vec<Option<f64>> {
    let trusted = |row: &Row| row.latency_us.filter(|_| row.valid && row.workload == PING_PONG);
    let cpus = |row: &Row| (row.client_cpus.clone(), row.server_cpus.clone());
    let is_floor = |row: &&Row| row.subject == fable::Kind::Cacheline.base_name();
    let floors: HashMap<_, f64> = rows
        .iter()
        .filter(is_floor)
        .filter_map(|row| Some((cpus(row), trusted(row)?.p50)).filter(|(_, floor)| *floor > 0.0))
        .collect();
    rows.iter().map(|row| Some(trusted(row)?.p50 / floors.get(&cpus(row))?)).collect()
}

/// One slot of the plan, digested.
struct Digest<'a> {
    slot: &'a Slot,
    /// What is shown of each round.
    figures: Vec<Option<&'a Figures>>,
    /// The round trips of each.
    latencies_us: Vec<Option<Percentiles>>,
    /// Of all rounds together.
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
        let mut latencies_us = Vec::new();
        for figures in &figures {
            let text = figures.map(|figures| figures.latencies.as_str()).unwrap_or_default();
            let times = if text.is_empty() { new_times() } else { figures::decode(text)? };
            latencies_us.push(Percentiles::of(&times));
            // Bounds are equal by construction, so this cannot fail.
            let _ = latencies.add(times);
        }
        let mut slices = SliceCounts::default();
        measured().for_each(|round| slices.add(&round.slices));
        let reasons = reasons(slot, measured(), rough.then_some(clean_rounds));
        Ok(Digest { slot, figures, latencies_us, latencies, clean, slices, reasons })
    }

    /// What is compared with a baseline, of each round.
    fn compared(&self) -> Vec<Option<f64>> {
        match self.slot.pattern {
            Pattern::PingPong => {
                self.latencies_us.iter().map(|times| Some(times.as_ref()?.p50)).collect()
            }
            Pattern::OneWay => {
                self.figures.iter().map(|figures| Some((*figures)?.messages_s)).collect()
            }
        }
    }

    fn rounds(&self) -> Vec<RoundFigures> {
        let of_round = |round: usize| {
            let figures = self.figures[round];
            RoundFigures {
                latency_us: self.latencies_us[round],
                throughput: figures.map(|figures| figures.messages_s),
                server_cpu_us: figures.map(|figures| figures.cpu_us[1]),
                cpu_both_us: figures.map(|figures| figures.cpu_us.iter().sum()),
                valid: self.clean[round],
                ..RoundFigures::default()
            }
        };
        (0..self.figures.len()).map(of_round).collect()
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
        let what = workload(slot.pattern);
        reasons.push(format!("only {clean} of {rounds} {what} rounds were undisturbed{ROUGH}"));
    }
    reasons
}

fn workload(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::PingPong => PING_PONG,
        Pattern::OneWay => ONE_WAY,
    }
}

struct Table<'a> {
    subjects: &'a [Subject],
    /// In the order of the plan.
    digests: Vec<Digest<'a>>,
}

impl<'a> Table<'a> {
    fn row(&self, digest: &Digest<'a>) -> Result<Row> {
        let slot = digest.slot;
        let name = self.subjects[slot.subject].to_string();
        let is_one_way = slot.pattern == Pattern::OneWay;
        let bytes = slot.message_bytes;
        let (kind, response_bytes) =
            if is_one_way { (Kind::OneWay, 0) } else { (Kind::Closed, bytes) };
        let exchange = Exchange { request_bytes: bytes, response_bytes };
        let throughput = digest.middle(|figures| figures.messages_s);
        let ratios = self.ratios(digest, BASELINE);
        let [first, second] = slot.pair.cpus;
        let service = match digest.latencies.is_empty() {
            true => None,
            false => Some(figures::encode(&digest.latencies)?),
        };
        Ok(Row {
            batch: slot.batch,
            placement: Some(slot.pair.relation.name().to_owned()),
            shares_core: Some(slot.pair.shares_core),
            client_cpus: vec![first],
            server_cpus: vec![second],
            latency_us: Percentiles::of(&digest.latencies),
            throughput,
            gigabytes_per_s: throughput
                .filter(|_| is_one_way)
                .map(|rate| rate * bytes as f64 / 1e9),
            client_cpu_us: digest.middle(|figures| figures.cpu_us[0]),
            server_cpu_us: digest.middle(|figures| figures.cpu_us[1]),
            cpu_both_us: digest.middle(|figures| figures.cpu_us.iter().sum()),
            throughput_ratio: ratios.throughput_ratio,
            p50_ratio: ratios.p50_ratio,
            valid: ratios.valid,
            notes: digest.reasons.clone(),
            slices: Some(digest.slices),
            rounds: digest.rounds(),
            histograms: Histograms { service, ..Histograms::default() },
            ..Row::empty(&name, workload(slot.pattern), kind, exchange)
        })
    }

    /// The place of the subject with this name.
    fn place(&self, name: &str) -> Option<usize> {
        self.subjects.iter().position(|subject| subject.to_string() == name)
    }

    fn versus(&self, baseline: &str) -> Versus {
        let results = self.digests.iter().map(|digest| self.ratios(digest, baseline));
        Versus { baseline: baseline.to_owned(), results: results.collect() }
    }

    fn ratios(&self, digest: &Digest<'a>, baseline: &str) -> Ratios {
        let ratio = self.ratio(digest, baseline);
        let is_one_way = digest.slot.pattern == Pattern::OneWay;
        Ratios {
            throughput_ratio: ratio.filter(|_| is_one_way),
            cpu_ratio: None,
            cpu_both_ratio: None,
            p50_ratio: ratio.filter(|_| !is_one_way),
            p99_ratio: None,
            valid: digest.reasons.is_empty(),
        }
    }

    /// The pattern's figure against that of the baseline in the same rounds; nothing if either is
    /// not to be trusted, or if the baseline has no such slot, as where messages are batched.
    fn ratio(&self, own: &Digest<'a>, baseline: &str) -> Option<Interval> {
        let subject = self.place(baseline)?;
        let key = Slot { subject, ..own.slot.clone() }.key();
        let other = self.digests.iter().find(|digest| digest.slot.key() == key)?;
        if !own.reasons.is_empty() || !other.reasons.is_empty() {
            return None;
        }
        if subject == own.slot.subject {
            return own.figures.iter().any(Option::is_some).then_some(Interval::ONE);
        }
        let pairs = own.compared().into_iter().zip(other.compared());
        let ratios: Vec<Vec<f64>> = pairs
            .map(|(own, other)| own.zip(other).map(|(a, b)| a / b).into_iter().collect())
            .collect();
        ratio_interval(&ratios)
    }
}
