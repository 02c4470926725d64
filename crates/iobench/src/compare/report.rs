//! From slots to rows.

use serde::{Deserialize, Serialize};

use crate::client::faults::FaultCounts;
use crate::compare::plan::Cell;
use crate::engine::congestion::{self, CongestionSeen};
use crate::engine::environment::Environment;
use crate::engine::outcome::{Accounts, Figures, SliceCounts, SlotOutcome};
use crate::engine::statistics::{Interval, median, ratio_interval};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::figures::{self, Percentiles, Times, new_times};

/// A row needs at least this many clean slices.
pub(crate) const LEAST_CLEAN_SLICES: u32 = 12;
/// From this utilisation on a side counts as the limit.
const BUSY: f64 = 0.95;
/// From this size on a message is a bulk transfer, and a row also tells bytes.
const LEAST_BULK_BYTES: usize = 64 << 10;
const GIB: f64 = (1_u64 << 30) as f64;
/// Notes about single slots repeat; this many different ones are kept.
const MOST_PROBLEMS: usize = 5;

/// The side that limited the throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    Client,
    Server,
    Both,
    Neither,
    /// Both sides use the same CPUs, so neither can be told from the other.
    Shared,
    /// There are no figures to judge by.
    Unknown,
}

impl Bound {
    fn of(server_busy: f64, client_busy: f64) -> Bound {
        match (server_busy >= BUSY, client_busy >= BUSY) {
            (true, true) => Bound::Both,
            (true, false) => Bound::Server,
            (false, true) => Bound::Client,
            (false, false) => Bound::Neither,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Bound::Client => "client",
            Bound::Server => "server",
            Bound::Both => "both",
            Bound::Neither => "neither",
            Bound::Shared => "shared",
            Bound::Unknown => "unknown",
        }
    }
}

/// Clean and discarded slices of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SliceSummary {
    pub(crate) clean: u32,
    pub(crate) discarded: u32,
}

/// One server in one cell.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// The server, and `/` and the clients' TCP where that is not the kernel's.
    pub(crate) server: String,
    /// What lies between clients and server, if it is not the plain loopback.
    pub(crate) path: Option<&'static str>,
    pub(crate) cores: usize,
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) client_cpus: Vec<usize>,
    /// 0 stands for persistent connections.
    pub(crate) transactions: u32,
    /// Further connections to the server that were open and idle.
    pub(crate) idle: usize,
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: usize,
    pub(crate) connections: usize,
    pub(crate) throughput: Option<f64>,
    pub(crate) server_cpu_us: Option<f64>,
    /// On both sides together, with what lies between them.
    pub(crate) cpu_both_us: Option<f64>,
    /// Of messages from 64 KiB on: bytes of both directions in a second, in units of 10⁹.
    pub(crate) gigabytes_per_s: Option<f64>,
    /// The same rows: seconds of CPU on both sides together for each GiB.
    pub(crate) cpu_s_per_gib: Option<f64>,
    pub(crate) system_calls: Option<f64>,
    pub(crate) latency_us: Option<Percentiles>,
    pub(crate) throughput_ratio: Option<Interval>,
    pub(crate) cpu_ratio: Option<Interval>,
    pub(crate) cpu_both_ratio: Option<Interval>,
    pub(crate) p50_ratio: Option<Interval>,
    pub(crate) p99_ratio: Option<Interval>,
    pub(crate) bound: Bound,
    pub(crate) server_busy: Option<f64>,
    pub(crate) client_busy: Option<f64>,
    /// What the connections were seen to use.
    pub(crate) congestion: Option<CongestionSeen>,
    pub(crate) valid: bool,
    pub(crate) notes: Vec<String>,
    pub(crate) slices: SliceSummary,
    pub(crate) pairs: usize,
    pub(crate) accounts: Accounts,
    /// Why the row is not valid, by kind; the notes have the details.
    pub(crate) doubts: Doubts,
}

impl Row {
    pub(crate) fn exchange(&self) -> Exchange {
        Exchange { request_bytes: self.request_bytes, response_bytes: self.response_bytes }
    }
}

/// What speaks against a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Doubts {
    /// Too few slices or pairs were undisturbed.
    pub(crate) disturbed: bool,
    /// Connections failed, bytes were lost, or the server ended.
    pub(crate) failed: bool,
    /// The baseline's own row is not valid.
    pub(crate) baseline: bool,
    /// All slices, by what was found of them.
    pub(crate) slices: SliceCounts,
}

/// A server's slots in one cell: by round, then by pass.
pub(crate) type Rounds = Vec<Vec<SlotOutcome>>;

/// Makes a cell's rows, in the order of the servers.
pub(crate) fn rows(
    cell: &Cell,
    connections: usize,
    servers: &[&str],
    baseline: usize,
    outcomes: &[Rounds],
) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = servers
        .iter()
        .zip(outcomes)
        .map(|(server, rounds)| row(cell, connections, server, rounds))
        .collect::<Result<_>>()?;
    let baseline_valid = rows[baseline].valid;
    for (server, row) in rows.iter_mut().enumerate() {
        if server == baseline {
            (row.throughput_ratio, row.cpu_ratio) = (Some(Interval::ONE), Some(Interval::ONE));
            (row.p50_ratio, row.p99_ratio) = (Some(Interval::ONE), Some(Interval::ONE));
            row.cpu_both_ratio = row.cpu_both_us.map(|_| Interval::ONE);
            row.pairs = outcomes[server].iter().flatten().filter(|o| o.figures.is_some()).count();
            continue;
        }
        let figures = |figure: fn(&Figures) -> Option<f64>, rough: bool| {
            pair_ratios(&outcomes[server], &outcomes[baseline], |slot| {
                slot.shown(rough).and_then(|figures| figure(&figures))
            })
        };
        row.pairs = figures(|f| Some(f.throughput), false).iter().map(Vec::len).sum();
        let planned: usize = outcomes[server].iter().map(Vec::len).sum();
        let least = least_pairs(&outcomes[server]);
        let rough = row.pairs < least;
        if rough {
            row.notes.push(format!(
                "only {} of {planned} pairs with the baseline were undisturbed, fewer than \
                 {least}, so the ratios are of all pairs; repeat with more --rounds or on a \
                 quieter machine",
                row.pairs
            ));
            row.valid = false;
            row.doubts.disturbed = true;
        }
        row.throughput_ratio = ratio_interval(&figures(|f| Some(f.throughput), rough));
        row.cpu_ratio = ratio_interval(&figures(|f| Some(f.server_cpu_us), rough));
        row.cpu_both_ratio = ratio_interval(&figures(|f| f.cpu_both_us, rough));
        let latencies = |quantile: f64| {
            let latency = |slot: &SlotOutcome| slot.latency_us(quantile, rough);
            ratio_interval(&pair_ratios(&outcomes[server], &outcomes[baseline], latency))
        };
        (row.p50_ratio, row.p99_ratio) = (latencies(0.5), latencies(0.99));
        if !baseline_valid {
            row.notes.push("the baseline's own row is not valid".to_owned());
            row.valid = false;
            row.doubts.baseline = true;
        }
    }
    note_congestion(&mut rows, baseline);
    Ok(rows)
}

/// Another congestion control than was asked for, or than the baseline's, is no fault of the
/// measurement: the row stays valid, and says so.
fn note_congestion(rows: &mut [Row], baseline: usize) {
    let of_baseline = rows[baseline].congestion.clone();
    for (server, row) in rows.iter_mut().enumerate() {
        let other = of_baseline.as_ref().filter(|_| server != baseline);
        row.notes.extend(row.congestion.as_ref().and_then(|seen| seen.note(other)));
    }
}

/// The environment with what the rows' connections used, for people.
pub(crate) fn describe<'a>(
    environment: &Environment,
    rows: impl IntoIterator<Item = &'a Row>,
) -> String {
    let rows = rows.into_iter().map(|row| (row.server.as_str(), row.congestion.as_ref()));
    environment.describe_with(&congestion::summarise(&environment.congestion_control, rows))
}

/// Fewer undisturbed pairs with the baseline say too little: half of the planned ones.
fn least_pairs(rounds: &Rounds) -> usize {
    rounds.iter().map(Vec::len).sum::<usize>().div_ceil(2).max(2)
}

/// Whether too few slices or pairs of a cell were undisturbed for one of its rows to be valid.
pub(crate) fn lacks_evidence(outcomes: &[Rounds], baseline: usize) -> bool {
    outcomes.iter().enumerate().any(|(server, rounds)| {
        let pairs = pair_ratios(rounds, &outcomes[baseline], |slot| {
            slot.figures.map(|figures| figures.throughput)
        });
        let pairs: usize = pairs.iter().map(Vec::len).sum();
        is_rough(rounds) || (server != baseline && pairs < least_pairs(rounds))
    })
}

/// Where CPUs are shared no side is the limit by itself, so the shares are told instead; after the
/// reasons against a row, if there are any.
pub(crate) fn note_sharing(row: &mut Row) {
    if let (Bound::Shared, Some(server), Some(client)) =
        (row.bound, row.server_busy, row.client_busy)
    {
        row.notes.push(format!(
            "server and clients share CPUs: the server used {:.0} % of them, the clients {:.0} %",
            server * 100.0,
            client * 100.0
        ));
    }
}

/// Everything about a row that does not need the baseline.
fn row(cell: &Cell, connections: usize, server: &str, rounds: &Rounds) -> Result<Row> {
    let mut evidence = Evidence::default();
    for outcome in rounds.iter().flatten() {
        evidence.add(outcome);
    }
    let rough = is_rough(rounds);
    let figures: Vec<Figures> = rounds.iter().flatten().filter_map(|o| o.shown(rough)).collect();
    let middle =
        |figure: fn(&Figures) -> f64| median(&figures.iter().map(figure).collect::<Vec<f64>>());
    let (server_busy, client_busy) = (middle(|f| f.server_busy), middle(|f| f.client_busy));
    let shared = cell.placement.is_shared();
    let bound = match (server_busy, client_busy) {
        (Some(_), Some(_)) if shared => Bound::Shared,
        (Some(server), Some(client)) => Bound::of(server, client),
        _ => Bound::Unknown,
    };
    let notes = evidence.faulty_because();
    let valid = notes.is_empty();
    let throughput = middle(|f| f.throughput);
    let cpu_both_us = median(&figures.iter().filter_map(|f| f.cpu_both_us).collect::<Vec<f64>>());
    let Exchange { request_bytes, response_bytes } = cell.exchange;
    let bulk_bytes = (request_bytes.max(response_bytes) >= LEAST_BULK_BYTES)
        .then_some((request_bytes + response_bytes) as f64);
    Ok(Row {
        server: server.to_owned(),
        path: None,
        cores: cell.cores,
        server_cpus: cell.placement.server_cpus.clone(),
        client_cpus: cell.placement.client_cpus.clone(),
        transactions: cell.transactions,
        idle: cell.idle,
        request_bytes,
        response_bytes,
        connections,
        throughput,
        server_cpu_us: middle(|f| f.server_cpu_us),
        cpu_both_us,
        gigabytes_per_s: bulk_bytes.zip(throughput).map(|(bytes, rate)| bytes * rate / 1e9),
        cpu_s_per_gib: bulk_bytes.zip(cpu_both_us).map(|(bytes, us)| us / 1e6 / bytes * GIB),
        system_calls: median(&figures.iter().filter_map(|f| f.system_calls).collect::<Vec<f64>>()),
        latency_us: Percentiles::of(&latencies(rounds)?),
        throughput_ratio: None,
        cpu_ratio: None,
        cpu_both_ratio: None,
        p50_ratio: None,
        p99_ratio: None,
        bound,
        server_busy,
        client_busy,
        congestion: rounds.iter().flatten().find_map(|slot| slot.congestion.clone()),
        valid,
        notes,
        slices: SliceSummary {
            clean: evidence.slices.clean,
            discarded: evidence.slices.discarded(),
        },
        pairs: 0,
        accounts: evidence.accounts,
        doubts: Doubts {
            disturbed: rough,
            failed: evidence.faults.total() > 0 || !evidence.problems.is_empty(),
            baseline: false,
            slices: evidence.slices,
        },
    })
}

/// Too few clean slices make a row rough: it then shows those of all slices.
fn is_rough(rounds: &Rounds) -> bool {
    let clean: u32 = rounds.iter().flatten().map(|outcome| outcome.slices.clean).sum();
    clean < LEAST_CLEAN_SLICES
}

/// The latencies of a row over all of its slots that are shown.
pub(crate) fn latencies(rounds: &Rounds) -> Result<Times> {
    let rough = is_rough(rounds);
    let mut sum = new_times();
    for outcome in rounds.iter().flatten().filter(|outcome| outcome.shown(rough).is_some()) {
        // Bounds are equal by construction, so this cannot fail.
        let _ = sum.add(figures::decode(&outcome.latencies)?);
    }
    Ok(sum)
}

/// What all slots of a row add up to.
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

    /// The reasons why a row is not valid; none if it is.
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

/// The ratios between a server's and the baseline's slots of the same round and pass, where both
/// have the figure.
pub(crate) fn pair_ratios(
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
