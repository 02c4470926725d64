//! Makes the rows of the result file from slices.

use crate::engine::rounds::{Rounds, Slot};
use crate::engine::slices::SliceCounts;
use crate::engine::statistics::{Interval, median, ratio_interval};
use crate::exchange::Exchange;
use crate::ipc::placement::Pair;
use crate::network::PathKind;
use crate::programs::slice::{Figures, SliceOutcome};
use crate::programs::{Cell, Variant};
use crate::results::{Kind, Ratios, ReportedLatency, RoundFigures, Row};

/// End of the complaint about a row without enough clean slices, with a remedy.
const ROUGH: &str = ", so the figures are of all: try a longer --duration or a quieter machine";
/// Most different complaints of a row.
const COMPLAINTS_MAX: usize = 3;

/// The results of a cell at one placement.
pub(crate) struct Measured {
    pub(crate) cell: Cell,
    pub(crate) pair: Pair,
    variants: &'static [Variant],
    /// By variant, then by round.
    outcomes: Vec<Vec<SliceOutcome>>,
}

impl Measured {
    pub(crate) fn new(
        cell: Cell,
        pair: Pair,
        variants: &'static [Variant],
        outcomes: Vec<Rounds<SliceOutcome>>,
    ) -> Measured {
        let outcomes = outcomes.into_iter().map(|rounds| rounds.into_iter().flatten().collect());
        Measured { cell, pair, variants, outcomes: outcomes.collect() }
    }

    /// Returns a row for each variant, the baseline first.
    pub(crate) fn rows(&self, program: &str, path: PathKind) -> Vec<Row> {
        let digests = self.digests();
        let row = |(variant, own): (&Variant, &Digest<'_>)| Row {
            network: (path == PathKind::Veth).then(|| "veth".to_owned()),
            ..self.row(program, *variant, own, &digests[0])
        };
        self.variants.iter().zip(&digests).map(row).collect()
    }

    /// Returns the ratios of the same rows to another baseline; `None` if that was not measured.
    pub(crate) fn ratios(&self, baseline: Variant) -> Vec<Ratios> {
        let digests = self.digests();
        let place = self.variants.iter().position(|variant| *variant == baseline);
        digests.iter().map(|own| own.ratios(place.map(|place| &digests[place]))).collect()
    }

    fn digests(&self) -> Vec<Digest<'_>> {
        self.outcomes.iter().map(|rounds| Digest::of(rounds)).collect()
    }

    fn row(&self, program: &str, variant: Variant, own: &Digest<'_>, baseline: &Digest<'_>) -> Row {
        let Measured { cell, pair, .. } = self;
        let [server_cpu, client_cpu] = pair.cpus;
        let ratios = own.ratios(Some(baseline));
        let mut slices = SliceCounts::default();
        own.rounds.iter().for_each(|slice| slices.add(&slice.slices));
        let workload = format!("{program} {}", cell.operation);
        let exchange = Exchange { request_bytes: 0, response_bytes: 0 };
        Row {
            connections: cell.connections as usize,
            transactions: cell.transactions,
            pipeline: cell.pipeline,
            placement: Some(pair.relation.name().to_owned()),
            server_cpus: vec![server_cpu],
            client_cpus: vec![client_cpu],
            reported_latency_us: reported(ReportedLatency {
                mean: own.middle(|figures| figures.latency.mean),
                p50: own.middle(p50),
                p99: own.middle(p99),
            }),
            throughput: own.middle(rate),
            server_cpu_us: own.middle(server_cpu_us),
            client_cpu_us: own.middle(client_cpu_us),
            cpu_both_us: own.middle(cpu_both_us),
            throughput_ratio: ratios.throughput_ratio,
            cpu_ratio: ratios.cpu_ratio,
            client_cpu_ratio: own.ratio(baseline, client_cpu_us),
            cpu_both_ratio: ratios.cpu_both_ratio,
            p50_ratio: ratios.p50_ratio,
            p99_ratio: ratios.p99_ratio,
            valid: ratios.valid,
            notes: own.reasons.clone(),
            slices: Some(slices),
            pairs: Some(own.pairs(baseline, rate).concat().len()),
            operations: own.middle(|figures| Some(figures.operations as f64)),
            upgraded_connections: own.rounds.iter().filter_map(|s| s.upgraded).min(),
            rounds: own.rounds.iter().map(of_round).collect(),
            ..Row::empty(variant.name(), &workload, Kind::Closed, exchange)
        }
    }
}

type Figure = fn(&Figures) -> Option<f64>;

fn rate(figures: &Figures) -> Option<f64> {
    Some(figures.operations_s)
}

fn p50(figures: &Figures) -> Option<f64> {
    figures.latency.p50
}

fn p99(figures: &Figures) -> Option<f64> {
    figures.latency.p99
}

fn server_cpu_us(figures: &Figures) -> Option<f64> {
    Some(figures.server_cpu_us)
}

fn client_cpu_us(figures: &Figures) -> Option<f64> {
    Some(figures.client_cpu_us)
}

fn cpu_both_us(figures: &Figures) -> Option<f64> {
    Some(figures.cpu_both_us)
}

/// The rounds of one variant, summarised.
struct Digest<'a> {
    rounds: &'a [SliceOutcome],
    /// The figures of each round that are shown.
    figures: Vec<Option<Figures>>,
    reasons: Vec<String>,
}

impl<'a> Digest<'a> {
    fn of(rounds: &'a [SliceOutcome]) -> Digest<'a> {
        let count = rounds.len();
        let clean = rounds.iter().filter(|slice| slice.is_clean()).count();
        let rough = clean == 0 || 2 * clean < count;
        let shown = |slice: &SliceOutcome| slice.figures.filter(|_| rough || slice.is_clean());
        let figures = rounds.iter().map(shown).collect();
        let mut reasons: Vec<String> = Vec::new();
        for complaint in rounds.iter().filter_map(|slice| slice.complaint.as_ref()) {
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

    /// Returns the median over rounds.
    fn middle(&self, figure: Figure) -> Option<f64> {
        median(&self.figures.iter().flatten().filter_map(figure).collect::<Vec<_>>())
    }

    /// Returns the ratios to another variant; all are unknown without one.
    fn ratios(&self, other: Option<&Digest<'_>>) -> Ratios {
        let ratio = |figure| self.ratio(other?, figure);
        Ratios {
            throughput_ratio: ratio(rate),
            cpu_ratio: ratio(server_cpu_us),
            cpu_both_ratio: ratio(cpu_both_us),
            p50_ratio: ratio(p50),
            p99_ratio: ratio(p99),
            valid: self.reasons.is_empty(),
        }
    }

    /// Returns the ratio to another variant in the same rounds; one for the variant itself.
    fn ratio(&self, other: &Digest<'_>, figure: Figure) -> Option<Interval> {
        if std::ptr::eq(self.rounds, other.rounds) {
            return self.middle(figure).map(|_| Interval::ONE);
        }
        ratio_interval(&self.pairs(other, figure))
    }

    /// Returns the ratios of the rounds in which both have the figure.
    fn pairs(&self, other: &Digest<'_>, figure: Figure) -> Vec<Vec<f64>> {
        let value = |figures: &Option<Figures>| figures.as_ref().and_then(figure);
        let rounds = self.figures.iter().zip(&other.figures);
        let ratio = |(own, other)| Some(value(own)? / value(other)?);
        rounds
            .map(|round| ratio(round).filter(|r| r.is_finite() && *r > 0.0).into_iter().collect())
            .collect()
    }
}

fn of_round(slice: &SliceOutcome) -> RoundFigures {
    let Some(figures) = slice.figures else { return RoundFigures::default() };
    RoundFigures {
        latency_us: None,
        reported_latency_us: reported(figures.latency),
        throughput: Some(figures.operations_s),
        server_cpu_us: Some(figures.server_cpu_us),
        client_cpu_us: Some(figures.client_cpu_us),
        cpu_both_us: Some(figures.cpu_both_us),
        valid: slice.is_clean() && slice.complaint.is_none(),
    }
}

/// Returns the latencies that a client reports; `None` if it reports none.
fn reported(latency: ReportedLatency) -> Option<ReportedLatency> {
    (latency != ReportedLatency::default()).then_some(latency)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::placement::Relation;

    const CELL: Cell = Cell { operation: "get", connections: 1, pipeline: 1, transactions: 0 };

    fn slice(operations_s: f64, clean: bool) -> SliceOutcome {
        let latency = ReportedLatency::default();
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
        SliceOutcome { figures: Some(figures), slices, ..SliceOutcome::default() }
    }

    fn measured(tcp: Vec<SliceOutcome>, fable: Vec<SliceOutcome>) -> Vec<Row> {
        let pair = Pair { cpus: [0, 1], relation: Relation::SameSocket, shares_core: false };
        let variants = &[Variant::Tcp, Variant::Fable];
        let rounds = |slices: Vec<SliceOutcome>| slices.into_iter().map(|slice| vec![slice]);
        let outcomes = [tcp, fable].map(|slices| rounds(slices).collect()).to_vec();
        let measured = Measured::new(CELL, pair, variants, outcomes);
        let ratios = measured.ratios(Variant::Unix);
        assert!(ratios.len() == 2 && ratios.iter().all(|r| r.throughput_ratio.is_none()));
        measured.rows("redis", PathKind::Loopback)
    }

    #[test]
    fn ratios_are_of_rounds_in_which_both_were_undisturbed() {
        let clean = |rate| slice(rate, true);
        let tcp = vec![clean(100.0), slice(10.0, false), clean(200.0), clean(50.0)];
        let fable = vec![clean(200.0), clean(400.0), clean(400.0), clean(100.0)];
        let rows = measured(tcp, fable);
        assert_eq!(rows[0].throughput_ratio, Some(Interval::ONE));
        let ratio = rows[1].throughput_ratio.unwrap();
        assert!(
            (ratio.estimate - 2.0).abs() < 1e-9 && (ratio.high - 2.0).abs() < 1e-9,
            "{ratio:?}"
        );
        assert!(rows[1].reported_latency_us.is_none() && rows[1].pairs == Some(3));
        assert!(rows.iter().all(|row| row.valid), "{rows:?}");
        let slices = rows[0].slices.unwrap();
        assert_eq!((slices.clean, slices.discarded()), (3, 1));
    }

    #[test]
    fn complaints_and_disturbed_rounds_make_a_row_invalid() {
        let complaint = Some("the client failed".to_owned());
        let failed = SliceOutcome { complaint, ..SliceOutcome::default() };
        let disturbed = vec![slice(1.0, false), slice(2.0, false), slice(3.0, true)];
        let rows = measured(disturbed, vec![slice(1.0, true), failed]);
        assert!(rows[0].notes[0].contains("1 of 3 rounds were undisturbed"));
        assert_eq!(rows[0].throughput, Some(2.0));
        assert_eq!(rows[1].notes, ["the client failed"]);
        assert!(measured(vec![], vec![])[0].notes[0].contains("no time"));
    }
}
