//! Makes the rows of the result file: one for each slot of the plan.

use std::collections::HashMap;

use ipcload::Pattern;

use crate::engine::rounds::{Rounds, Slot as _};
use crate::engine::slices::SliceCounts;
use crate::engine::statistics::{Interval, median, ratio_interval};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::figures::{self, Percentiles, Times, new_times};
use crate::ipc::loops::Loop;
use crate::ipc::plan::{Plan, Slot};
use crate::ipc::slot::{Figures, SlotOutcome};
use crate::ipc::subject::Subject;
use crate::results::{Histograms, Kind, Ratios, RoundFigures, Row, Versus};

/// The baseline of all rows: the fastest plain calls over TCP.
pub(crate) const BASELINE: &str = "tcp-blocking";
/// The further baseline.
pub(crate) const UNIX: &str = "unix-blocking";
pub(crate) const PIPE: &str = "pipe-blocking";
/// The names of the workloads.
pub(crate) const PING_PONG: &str = "ping-pong";
pub(crate) const ONE_WAY: &str = "one-way";
/// End of the complaint about a row without enough clean slices, with a remedy.
const ROUGH: &str = ", so the figures are of all: try a longer --duration or a quieter machine";
const NO_TIME: &str =
    "there was no time for it: leave --quick out, or name fewer transports or sizes";
/// Most different complaints of a row.
const COMPLAINTS_MAX: usize = 3;

/// All outcomes, by slot of the plan.
pub(crate) type Outcomes = Vec<Rounds<SlotOutcome>>;

/// Returns the rows, in the order of the plan, and their ratios to the further baselines.
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

/// Returns the median round trip of each ping-pong divided by that of one cache line between the
/// same CPUs; `None` if one of them is not valid, and for other rows.
pub(crate) fn over_floor(rows: &[Row]) -> Vec<Option<f64>> {
    let trusted = |row: &Row| row.latency_us.filter(|_| row.valid && row.workload == PING_PONG);
    let cpus = |row: &Row| (row.client_cpus.clone(), row.server_cpus.clone());
    let is_floor = |row: &&Row| row.subject == Loop::Cacheline.name();
    let floors: HashMap<_, f64> = rows
        .iter()
        .filter(is_floor)
        .filter_map(|row| Some((cpus(row), trusted(row)?.p50)).filter(|(_, floor)| *floor > 0.0))
        .collect();
    rows.iter().map(|row| Some(trusted(row)?.p50 / floors.get(&cpus(row))?)).collect()
}

/// The outcomes of one slot of the plan, summarised.
struct Digest<'a> {
    slot: &'a Slot,
    /// The figures of each round that are shown.
    figures: Vec<Option<&'a Figures>>,
    /// The round trips of each round.
    latencies_us: Vec<Option<Percentiles>>,
    /// The round trips of all rounds together.
    latencies: Times,
    clean: Vec<bool>,
    slices: SliceCounts,
    reasons: Vec<String>,
}

impl<'a> Digest<'a> {
    fn of(slot: &'a Slot, rounds: &'a Rounds<SlotOutcome>) -> Result<Digest<'a>> {
        let measured = || rounds.iter().flatten();
        let clean: Vec<bool> = measured().map(SlotOutcome::is_clean).collect();
        let clean_rounds = clean.iter().filter(|clean| **clean).count();
        let rough = clean_rounds == 0 || 2 * clean_rounds < measured().count();
        let shown = |round: &'a SlotOutcome| match rough {
            true => round.rough.as_ref(),
            false => round.figures.as_ref(),
        };
        let figures: Vec<Option<&Figures>> = measured().map(shown).collect();
        let mut latencies = new_times();
        let mut latencies_us = Vec::new();
        for figures in &figures {
            let text = figures.map(|figures| figures.latencies.as_str()).unwrap_or_default();
            let times = if text.is_empty() { new_times() } else { figures::decode(text)? };
            latencies_us.push(Percentiles::of(&times));
            // All histograms have the same bounds, so this cannot fail.
            let _ = latencies.add(times);
        }
        let mut slices = SliceCounts::default();
        measured().for_each(|round| slices.add(&round.slices));
        let reasons = reasons(slot, measured(), rough.then_some(clean_rounds));
        Ok(Digest { slot, figures, latencies_us, latencies, clean, slices, reasons })
    }

    /// Returns the figure that is compared with a baseline, of each round.
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

    /// Returns the median over rounds.
    fn middle(&self, figure: impl Fn(&Figures) -> f64) -> Option<f64> {
        median(&self.figures.iter().flatten().map(|figures| figure(figures)).collect::<Vec<_>>())
    }
}

/// Returns the reasons why the slot is not valid; empty if it is.
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

    /// Returns the index of the subject with this name.
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

    /// Returns the ratio of the slot's figure to the baseline's in the same rounds; `None` if
    /// either is not valid, or if the baseline has no such slot, as with batching.
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
