//! Makes the rows of the result document from the slots.

use crate::client::faults::FaultCounts;
use crate::compare::plan::Cell;
use crate::engine::outcome::{Accounts, Figures, SlotOutcome};
use crate::engine::rounds::{self, Slot, least_pairs};
use crate::engine::slices::{LEAST_CLEAN_SLICES, SliceCounts};
use crate::engine::statistics::{Interval, median, ratio_interval};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::figures::{self, Percentiles, Times, encode_recorded, new_times};
use crate::results::{Histograms, Kind, Ratios, RoundFigures, Row};

/// From this utilisation on a side counts as the bound.
const BUSY: f64 = 0.95;
/// From this size on a message is a bulk transfer, and a row also shows bytes per second.
const LEAST_BULK_BYTES: usize = 64 << 10;
const GIB: f64 = (1_u64 << 30) as f64;
/// The bound of a row whose two sides use the same CPUs: which of them limits cannot be decided.
const SHARED: &str = "shared";
/// Number of different notes about single slots that a row keeps.
const MOST_PROBLEMS: usize = 5;

/// The kinds of reasons why a row is not valid; the notes have the details.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Doubts {
    /// Too few slices or pairs were undisturbed.
    pub(crate) disturbed: bool,
    /// Connections failed, bytes were lost, or the server ended.
    pub(crate) failed: bool,
    /// The baseline's own row is not valid.
    pub(crate) baseline: bool,
}

impl Doubts {
    /// Returns the reasons against the validity of a server's row.
    pub(crate) fn of(outcomes: &[Rounds], server: usize, baseline: usize) -> Doubts {
        let (own, theirs) = (&outcomes[server], &outcomes[baseline]);
        let compared = server != baseline;
        Doubts {
            disturbed: SlotOutcome::are_rough(own) || (compared && lacks_pairs(own, theirs)),
            failed: has_failed(own),
            baseline: compared && (SlotOutcome::are_rough(theirs) || has_failed(theirs)),
        }
    }

    pub(crate) fn is_none(self) -> bool {
        self == Doubts::default()
    }
}

/// A server's slots in one cell.
pub(crate) type Rounds = rounds::Rounds<SlotOutcome>;

/// Makes a cell's rows, in the order of the servers.
pub(crate) fn rows(
    cell: &Cell,
    connections: usize,
    servers: &[&str],
    baseline: usize,
    outcomes: &[Rounds],
) -> Result<Vec<Row>> {
    let row = |(server, name): (usize, &&str)| {
        let rounds = &outcomes[server];
        let mut row = row(cell, connections, name, rounds)?;
        let pairs = match server == baseline {
            true => rounds.iter().flatten().filter(|slot| slot.figures.is_some()).count(),
            false => undisturbed_pairs(rounds, &outcomes[baseline]),
        };
        row.notes.extend(doubts_of_pairs(outcomes, server, baseline));
        let ratios = ratios(outcomes, server, baseline);
        Ok(Row {
            throughput_ratio: ratios.throughput_ratio,
            cpu_ratio: ratios.cpu_ratio,
            cpu_both_ratio: ratios.cpu_both_ratio,
            p50_ratio: ratios.p50_ratio,
            p99_ratio: ratios.p99_ratio,
            valid: ratios.valid,
            pairs: Some(pairs),
            ..row
        })
    };
    servers.iter().enumerate().map(row).collect()
}

/// Returns the ratios of a server to another one, from the slots of the same rounds and passes; one
/// if both are the same.
pub(crate) fn ratios(outcomes: &[Rounds], server: usize, baseline: usize) -> Ratios {
    let valid = Doubts::of(outcomes, server, baseline).is_none();
    let (own, theirs) = (&outcomes[server], &outcomes[baseline]);
    if server == baseline {
        let one = Some(Interval::ONE);
        let has_both = shown(own).iter().any(|figures| figures.cpu_both_us.is_some());
        return Ratios {
            throughput_ratio: one,
            cpu_ratio: one,
            cpu_both_ratio: one.filter(|_| has_both),
            p50_ratio: one,
            p99_ratio: one,
            valid,
        };
    }
    // If too few pairs are undisturbed, the ratios are from all pairs.
    let rough = lacks_pairs(own, theirs);
    let of_figures = |figure: fn(&Figures) -> Option<f64>| {
        let figure = |slot: &SlotOutcome| slot.shown(rough).and_then(|figures| figure(&figures));
        ratio_interval(&pair_ratios(own, theirs, figure))
    };
    let of_latency = |quantile: f64| {
        ratio_interval(&pair_ratios(own, theirs, |slot| slot.latency_us(quantile, rough)))
    };
    Ratios {
        throughput_ratio: of_figures(|figures| Some(figures.throughput)),
        cpu_ratio: of_figures(|figures| Some(figures.server_cpu_us)),
        cpu_both_ratio: of_figures(|figures| figures.cpu_both_us),
        p50_ratio: of_latency(0.5),
        p99_ratio: of_latency(0.99),
        valid,
    }
}

/// Returns the reasons against a row's validity that its baseline causes.
fn doubts_of_pairs(outcomes: &[Rounds], server: usize, baseline: usize) -> Vec<String> {
    let (own, theirs) = (&outcomes[server], &outcomes[baseline]);
    let mut notes = Vec::new();
    if server != baseline && lacks_pairs(own, theirs) {
        notes.push(format!(
            "only {} of {} pairs with the baseline were undisturbed, fewer than {}, so ratios, if \
             any, are of all pairs; repeat with more --rounds or on a quieter machine",
            undisturbed_pairs(own, theirs),
            own.iter().map(Vec::len).sum::<usize>(),
            least_pairs(own)
        ));
    }
    if Doubts::of(outcomes, server, baseline).baseline {
        notes.push("the baseline's own row is not valid".to_owned());
    }
    notes
}

fn undisturbed_pairs(own: &Rounds, baseline: &Rounds) -> usize {
    let throughput = |slot: &SlotOutcome| slot.figures.map(|figures| figures.throughput);
    pair_ratios(own, baseline, throughput).iter().map(Vec::len).sum()
}

fn lacks_pairs(own: &Rounds, baseline: &Rounds) -> bool {
    undisturbed_pairs(own, baseline) < least_pairs(own)
}

fn has_failed(rounds: &Rounds) -> bool {
    rounds.iter().flatten().any(Slot::has_failed)
}

/// Notes the busy shares of both sides if they share CPUs, because then neither is the bound by
/// itself. The note follows the reasons against the row's validity.
pub(crate) fn note_sharing(row: &mut Row) {
    if let (Some(SHARED), Some(server), Some(client)) =
        (row.bound.as_deref(), row.server_busy, row.client_busy)
    {
        row.notes.push(format!(
            "server and clients share CPUs: the server used {:.0} % of them, the clients {:.0} %",
            server * 100.0,
            client * 100.0
        ));
    }
}

/// Returns the name of the side that limited the throughput, by the busy shares of both.
fn bound(server_busy: f64, client_busy: f64) -> &'static str {
    match (server_busy >= BUSY, client_busy >= BUSY) {
        (true, true) => "both",
        (true, false) => "server",
        (false, true) => "client",
        (false, false) => "neither",
    }
}

/// Returns the row, without what needs the baseline.
fn row(cell: &Cell, connections: usize, server: &str, rounds: &Rounds) -> Result<Row> {
    let mut evidence = Evidence::default();
    for outcome in rounds.iter().flatten() {
        evidence.add(outcome);
    }
    let figures = shown(rounds);
    let middle = |figure: fn(&Figures) -> Option<f64>| middle(&figures, figure);
    let (server_busy, client_busy) =
        (middle(|f| Some(f.server_busy)), middle(|f| Some(f.client_busy)));
    let bound = match server_busy.zip(client_busy) {
        Some(_) if cell.placement.is_shared() => SHARED,
        Some((server, client)) => bound(server, client),
        // There are no figures from which to decide.
        None => "unknown",
    };
    let throughput = middle(|f| Some(f.throughput));
    let cpu_both_us = middle(|f| f.cpu_both_us);
    let Exchange { request_bytes, response_bytes } = cell.exchange;
    let bulk_bytes = (request_bytes.max(response_bytes) >= LEAST_BULK_BYTES)
        .then_some((request_bytes + response_bytes) as f64);
    let latencies = latencies(rounds)?;
    Ok(Row {
        cores: cell.cores,
        server_cpus: cell.placement.server_cpus.clone(),
        client_cpus: cell.placement.client_cpus.clone(),
        transactions: cell.transactions,
        idle: cell.idle,
        // Of connections that a server has closed there is no figure.
        idle_bytes: rounds
            .iter()
            .flatten()
            .find_map(|slot| slot.idle_bytes)
            .filter(|_| !has_failed(rounds)),
        connections,
        throughput,
        server_cpu_us: middle(|f| Some(f.server_cpu_us)),
        cpu_both_us,
        gigabytes_per_s: bulk_bytes.zip(throughput).map(|(bytes, rate)| bytes * rate / 1e9),
        cpu_s_per_gib: bulk_bytes.zip(cpu_both_us).map(|(bytes, us)| us / 1e6 / bytes * GIB),
        system_calls: middle(|f| f.system_calls),
        latency_us: Percentiles::of(&latencies),
        bound: Some(bound.to_owned()),
        server_busy,
        client_busy,
        notes: evidence.faulty_because(),
        slices: Some(evidence.slices),
        totals: Some(evidence.accounts),
        rounds: rounds.iter().map(|slots| round_figures(slots)).collect::<Result<_>>()?,
        histograms: Histograms { service: encode_recorded(&latencies)?, ..Histograms::default() },
        ..Row::empty(server, cell.exchange.workload(), Kind::Closed, cell.exchange)
    })
}

fn round_figures(slots: &[SlotOutcome]) -> Result<RoundFigures> {
    let figures: Vec<Figures> = slots.iter().filter_map(|slot| slot.shown(false)).collect();
    Ok(RoundFigures {
        latency_us: Percentiles::of(&latencies(&vec![slots.to_vec()])?),
        throughput: middle(&figures, |figures| Some(figures.throughput)),
        server_cpu_us: middle(&figures, |figures| Some(figures.server_cpu_us)),
        cpu_both_us: middle(&figures, |figures| figures.cpu_both_us),
        valid: !figures.is_empty(),
        ..RoundFigures::default()
    })
}

fn middle(figures: &[Figures], figure: fn(&Figures) -> Option<f64>) -> Option<f64> {
    median(&figures.iter().filter_map(figure).collect::<Vec<f64>>())
}

/// Returns the figures of the slots that the row shows.
fn shown(rounds: &Rounds) -> Vec<Figures> {
    let rough = SlotOutcome::are_rough(rounds);
    rounds.iter().flatten().filter_map(|slot| slot.shown(rough)).collect()
}

/// Returns the latencies of all slots that the row shows.
fn latencies(rounds: &Rounds) -> Result<Times> {
    let rough = SlotOutcome::are_rough(rounds);
    let mut sum = new_times();
    for outcome in rounds.iter().flatten().filter(|outcome| outcome.shown(rough).is_some()) {
        // All histograms have the same bounds, so this cannot fail.
        let _ = sum.add(figures::decode(&outcome.latencies)?);
    }
    Ok(sum)
}

/// Totals over all slots of a row, from which its validity follows.
#[derive(Default)]
struct Evidence {
    slices: SliceCounts,
    faults: FaultCounts,
    accounts: Accounts,
    problems: Vec<String>,
}

impl Evidence {
    fn add(&mut self, outcome: &SlotOutcome) {
        self.slices.add(&outcome.slices);
        self.faults.add(&outcome.faults);
        self.accounts.add(&outcome.accounts);
        for problem in &outcome.problems {
            if self.problems.len() < MOST_PROBLEMS && !self.problems.contains(problem) {
                self.problems.push(problem.clone());
            }
        }
    }

    /// Returns the reasons why the row is not valid; none if it is.
    fn faulty_because(&self) -> Vec<String> {
        let mut notes = self.faults.describe();
        notes.extend(self.problems.iter().cloned());
        if self.slices.clean < LEAST_CLEAN_SLICES {
            let SliceCounts { clean, stolen, delayed, late } = self.slices;
            notes.push(format!(
                "only {clean} clean slices, fewer than {LEAST_CLEAN_SLICES} (discarded: {stolen} \
                 stolen by the host, {delayed} disturbed by other programs, {late} sampled late), \
                 so the figures are of all slices; repeat with a longer --duration, more --rounds \
                 or on a quieter machine"
            ));
        }
        notes
    }
}

/// Returns the ratios between a server's and the baseline's slots of the same round and pass, where
/// both have the figure.
fn pair_ratios(
    server: &Rounds,
    baseline: &Rounds,
    figure: impl Fn(&SlotOutcome) -> Option<f64>,
) -> Vec<Vec<f64>> {
    let of_round = |(server, baseline): (&Vec<SlotOutcome>, &Vec<SlotOutcome>)| {
        let pairs = server.iter().zip(baseline);
        pairs
            .filter_map(|(server, baseline)| Some((figure(server)?, figure(baseline)?)))
            // A slot whose CPU time did not move (all within one tick) has no ratio.
            .filter(|&(ours, theirs)| ours > 0.0 && theirs > 0.0)
            .map(|(ours, theirs)| ours / theirs)
            .collect()
    };
    server.iter().zip(baseline).map(of_round).collect()
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
