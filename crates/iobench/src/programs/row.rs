//! From slices to rows: what is printed and written as JSON.

use serde::Serialize;

use crate::compare::report::SliceSummary;
use crate::engine::outcome::SliceCounts;
use crate::engine::statistics::{Interval, median, ratio_interval};
use crate::ipc::placement::{Pair, Relation};
use crate::programs::slice::{Figures, SliceOutcome};
use crate::programs::{Amount, Cell, Variant};

/// What it means for a row, and what to do about it.
const ROUGH: &str = ", so the figures are of all: try a longer --duration or a quieter machine";
/// Different complaints that a row tells.
const COMPLAINTS_MAX: usize = 3;

/// What the fields of a row mean, for readers of the file.
pub(crate) const FIELDS: [(&str, &str); 18] = [
    ("program", "the server; its usual client loads it"),
    (
        "variant",
        "tcp: loopback; unix: the server's socket; fable: both under `fable run`; veth: the \
         kernel's TCP over a veth pair; mtcp: there, the server on a stack; mtcp/mtcp: both",
    ),
    ("operation", "what the client asks for"),
    ("connections", "at the same time, all from one client process"),
    ("pipeline", "requests under way on each connection"),
    ("placement", "same-core, same-socket or other-socket"),
    ("cpus", "that of the server and that of the client"),
    ("operations", "in one slice, median over rounds"),
    ("operations_s", "operations per second as the client reports them, median over rounds"),
    ("latency_us", "as the client reports it, medians over rounds; null: not reported"),
    ("server_cpu_us", "CPU time of the server and its children per operation, user and system"),
    ("client_cpu_us", "the same of the client, its start included"),
    (
        "cpu_both_us",
        "CPU time per operation of both sides, a backend and the kernel's softirq threads: over \
         veth the receiver's part of the kernel runs in the time of the sender",
    ),
    (
        "*_ratio_tcp",
        "over the kernel's TCP (the variant tcp, or veth) in the same rounds, mean and 95 % \
         interval",
    ),
    ("*_ratio_unix", "the same over the variant unix"),
    (
        "upgraded_connections",
        "of a client, to shared memory or to a stack in user space, least of all rounds; null \
         where none should be",
    ),
    ("slices", "undisturbed ones, which count, and the others"),
    ("rounds", "each round's own figures; clean: its slice was undisturbed"),
];

/// One variant in one cell. What was not measured is null.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) program: String,
    pub(crate) variant: String,
    pub(crate) operation: String,
    pub(crate) connections: u32,
    pub(crate) pipeline: u32,
    pub(crate) placement: Relation,
    pub(crate) cpus: [usize; 2],
    pub(crate) operations: Option<f64>,
    pub(crate) operations_s: Option<f64>,
    pub(crate) latency_us: LatencyUs,
    pub(crate) server_cpu_us: Option<f64>,
    pub(crate) client_cpu_us: Option<f64>,
    pub(crate) cpu_both_us: Option<f64>,
    pub(crate) operations_ratio_tcp: Option<Interval>,
    pub(crate) latency_p50_ratio_tcp: Option<Interval>,
    pub(crate) server_cpu_ratio_tcp: Option<Interval>,
    pub(crate) client_cpu_ratio_tcp: Option<Interval>,
    pub(crate) cpu_both_ratio_tcp: Option<Interval>,
    pub(crate) operations_ratio_unix: Option<Interval>,
    pub(crate) upgraded_connections: Option<u64>,
    pub(crate) valid: bool,
    pub(crate) reason: Option<String>,
    pub(crate) slices: SliceSummary,
    pub(crate) rounds: Vec<Option<RoundFigures>>,
}

/// Microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct LatencyUs {
    pub(crate) mean: Option<f64>,
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
}

/// One round of a row.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct RoundFigures {
    pub(crate) operations_s: f64,
    pub(crate) latency_p50_us: Option<f64>,
    pub(crate) server_cpu_us: f64,
    pub(crate) client_cpu_us: f64,
    pub(crate) cpu_both_us: f64,
    pub(crate) clean: bool,
}

/// A cell at one placement, with what came of it.
pub(crate) struct Measured {
    pub(crate) cell: Cell,
    pub(crate) pair: Pair,
    pub(crate) amount: Amount,
    variants: &'static [Variant],
    /// By variant, then by round; nothing for a round without time for it.
    pub(crate) outcomes: Vec<Vec<Option<SliceOutcome>>>,
}

impl Measured {
    pub(crate) fn new(
        cell: Cell,
        pair: Pair,
        variants: &'static [Variant],
        amount: Amount,
    ) -> Measured {
        let outcomes = vec![Vec::new(); variants.len()];
        Measured { cell, pair, amount, variants, outcomes }
    }

    fn digest(&self, variant: Variant) -> Option<Digest<'_>> {
        let place = self.variants.iter().position(|known| *known == variant)?;
        Some(Digest::of(&self.outcomes[place]))
    }
}

/// One variant's rounds, digested.
struct Digest<'a> {
    rounds: &'a [Option<SliceOutcome>],
    /// What is shown of each.
    figures: Vec<Option<Figures>>,
    reasons: Vec<String>,
}

impl<'a> Digest<'a> {
    fn of(rounds: &'a [Option<SliceOutcome>]) -> Digest<'a> {
        let measured = || rounds.iter().flatten();
        let count = measured().count();
        let clean = measured().filter(|slice| slice.is_clean()).count();
        let rough = clean == 0 || 2 * clean < count;
        let shown = |slice: &SliceOutcome| slice.figures.filter(|_| rough || slice.is_clean());
        let figures = rounds.iter().map(|slice| slice.as_ref().and_then(shown)).collect();
        let mut reasons: Vec<String> = Vec::new();
        for complaint in measured().filter_map(|slice| slice.complaint.as_ref()) {
            if reasons.len() < COMPLAINTS_MAX && !reasons.contains(complaint) {
                reasons.push(complaint.clone());
            }
        }
        if count == 0 {
            reasons.push("there was no time for it".to_owned());
        } else if rough && reasons.is_empty() {
            reasons.push(format!("only {clean} of {count} rounds were undisturbed{ROUGH}"));
        }
        Digest { rounds, figures, reasons }
    }

    /// Median over rounds of what is reported in them.
    fn middle(&self, figure: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        median(&self.figures.iter().flatten().filter_map(figure).collect::<Vec<_>>())
    }

    /// Against another variant in the same rounds.
    fn ratio(
        &self,
        other: &Digest<'_>,
        figure: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<Interval> {
        let value = |figures: &Option<Figures>| figures.as_ref().and_then(&figure);
        let pairs = self.figures.iter().zip(&other.figures);
        let ratios: Vec<Vec<f64>> = pairs
            .map(|(own, other)| value(own).zip(value(other)))
            .map(|pair| pair.map(|(own, other)| own / other))
            .map(|ratio| ratio.filter(|r| r.is_finite() && *r > 0.0).into_iter().collect())
            .collect();
        ratio_interval(&ratios)
    }
}

/// The rows of a cell, one for each variant.
pub(crate) fn rows(program: &str, measured: &Measured) -> Vec<Row> {
    measured.variants.iter().filter_map(|variant| row(program, measured, *variant)).collect()
}

fn row(program: &str, measured: &Measured, variant: Variant) -> Option<Row> {
    let own = measured.digest(variant)?;
    let against = |other: Variant, figure: fn(&Figures) -> Option<f64>| match other == variant {
        true => own.middle(figure).map(|_| Interval::ONE),
        false => own.ratio(&measured.digest(other)?, figure),
    };
    let baseline = *measured.variants.first()?;
    let against_tcp = |figure| against(baseline, figure);
    let mut slices = SliceCounts::default();
    own.rounds.iter().flatten().for_each(|slice| slices.add(&slice.slices));
    let Measured { cell, pair, .. } = measured;
    let rate: fn(&Figures) -> Option<f64> = |figures| Some(figures.operations_s);
    Some(Row {
        program: program.to_owned(),
        variant: variant.name().to_owned(),
        operation: cell.operation.to_owned(),
        connections: cell.connections,
        pipeline: cell.pipeline,
        placement: pair.relation,
        cpus: pair.cpus,
        operations: own.middle(|figures| Some(figures.operations as f64)),
        operations_s: own.middle(rate),
        latency_us: LatencyUs {
            mean: own.middle(|figures| figures.latency.mean_us),
            p50: own.middle(|figures| figures.latency.p50_us),
            p99: own.middle(|figures| figures.latency.p99_us),
        },
        server_cpu_us: own.middle(|figures| Some(figures.server_cpu_us)),
        client_cpu_us: own.middle(|figures| Some(figures.client_cpu_us)),
        cpu_both_us: own.middle(|figures| Some(figures.cpu_both_us)),
        operations_ratio_tcp: against_tcp(rate),
        latency_p50_ratio_tcp: against_tcp(|figures| figures.latency.p50_us),
        server_cpu_ratio_tcp: against_tcp(|figures| Some(figures.server_cpu_us)),
        client_cpu_ratio_tcp: against_tcp(|figures| Some(figures.client_cpu_us)),
        cpu_both_ratio_tcp: against_tcp(|figures| Some(figures.cpu_both_us)),
        operations_ratio_unix: against(Variant::Unix, rate),
        upgraded_connections: own.rounds.iter().flatten().filter_map(|slice| slice.upgraded).min(),
        valid: own.reasons.is_empty(),
        reason: (!own.reasons.is_empty()).then(|| own.reasons.join("; ")),
        slices: SliceSummary { clean: slices.clean, discarded: slices.discarded() },
        rounds: own.rounds.iter().map(|slice| of_round(slice.as_ref()?)).collect(),
    })
}

fn of_round(slice: &SliceOutcome) -> Option<RoundFigures> {
    let figures = slice.figures?;
    Some(RoundFigures {
        operations_s: figures.operations_s,
        latency_p50_us: figures.latency.p50_us,
        server_cpu_us: figures.server_cpu_us,
        client_cpu_us: figures.client_cpu_us,
        cpu_both_us: figures.cpu_both_us,
        clean: slice.is_clean(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::programs::Latency;

    const CELL: Cell = Cell { operation: "get", connections: 1, pipeline: 1 };

    fn slice(operations_s: f64, clean: bool) -> Option<SliceOutcome> {
        let latency = Latency::default();
        let figures = Figures {
            operations: 100,
            operations_s,
            latency,
            server_cpu_us: 4.0,
            client_cpu_us: 5.0,
            cpu_both_us: 9.5,
        };
        let slices =
            SliceCounts { clean: clean.into(), stolen: (!clean).into(), delayed: 0, late: 0 };
        Some(SliceOutcome { figures: Some(figures), slices, ..SliceOutcome::default() })
    }

    fn measured(tcp: Vec<Option<SliceOutcome>>, fable: Vec<Option<SliceOutcome>>) -> Vec<Row> {
        let pair = Pair { cpus: [0, 1], relation: Relation::SameSocket, shares_core: false };
        let amount = Amount { operations: 100, duration: Duration::ZERO };
        let variants = &[Variant::Tcp, Variant::Fable];
        let mut measured = Measured::new(CELL, pair, variants, amount);
        measured.outcomes = vec![tcp, fable];
        rows("redis", &measured)
    }

    #[test]
    fn ratios_are_of_rounds_in_which_both_were_undisturbed() {
        let clean = |rate| slice(rate, true);
        let tcp = vec![clean(100.0), slice(10.0, false), clean(200.0), clean(50.0)];
        let fable = vec![clean(200.0), clean(400.0), clean(400.0), clean(100.0)];
        let rows = measured(tcp, fable);
        assert_eq!(rows[0].operations_ratio_tcp, Some(Interval::ONE));
        let ratio = rows[1].operations_ratio_tcp.unwrap();
        assert!(
            (ratio.estimate - 2.0).abs() < 1e-9 && (ratio.high - 2.0).abs() < 1e-9,
            "{ratio:?}"
        );
        assert!(rows[1].operations_ratio_unix.is_none() && rows[1].latency_us.p50.is_none());
        assert!(rows.iter().all(|row| row.valid), "{rows:?}");
        assert_eq!((rows[0].slices.clean, rows[0].slices.discarded), (3, 1));
    }

    #[test]
    fn complaints_and_disturbed_rounds_make_a_row_invalid() {
        let complaint = Some("the client failed".to_owned());
        let failed = Some(SliceOutcome { complaint, ..SliceOutcome::default() });
        let disturbed = vec![slice(1.0, false), slice(2.0, false), slice(3.0, true)];
        let rows = measured(disturbed, vec![slice(1.0, true), failed, None]);
        assert!(rows[0].reason.as_ref().unwrap().contains("1 of 3 rounds were undisturbed"));
        assert_eq!(rows[0].operations_s, Some(2.0));
        assert_eq!(rows[1].reason.as_deref(), Some("the client failed"));
        assert!(measured(vec![None], vec![])[0].reason.as_ref().unwrap().contains("no time"));
    }
}
