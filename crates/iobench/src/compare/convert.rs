//! From rows of closed loops to those of the result file.

use crate::compare::report::{self, Rounds, latencies};
use crate::engine::outcome::{Figures, SlotOutcome};
use crate::engine::statistics::median;
use crate::error::Result;
use crate::figures::{Percentiles, encode_recorded};
use crate::results::{Histograms, Kind, RoundFigures, Row};

/// From a row of `compare` to one of the result file.
pub(crate) fn convert(
    row: report::Row,
    workload: &str,
    network: Option<&str>,
    work: String,
    rounds: &Rounds,
    failures: &[String],
) -> Result<Row> {
    let times = latencies(rounds)?;
    let figures: Result<Vec<RoundFigures>> =
        rounds.iter().map(|slots| round_figures(slots)).collect();
    let exchange = row.exchange();
    let notes: Vec<String> = failures.iter().cloned().chain(row.notes).collect();
    Ok(Row {
        connections: row.connections,
        transactions: row.transactions,
        idle: row.idle,
        cores: row.cores,
        server_cpus: row.server_cpus,
        client_cpus: row.client_cpus,
        work,
        network: network.map(str::to_owned),
        latency_us: row.latency_us,
        throughput: row.throughput,
        server_cpu_us: row.server_cpu_us,
        cpu_both_us: row.cpu_both_us,
        system_calls: row.system_calls,
        gigabytes_per_s: row.gigabytes_per_s,
        cpu_s_per_gib: row.cpu_s_per_gib,
        server_busy: row.server_busy,
        client_busy: row.client_busy,
        congestion_control: row.congestion.map(|seen| seen.to_string()),
        bound: Some(row.bound.name().to_owned()),
        throughput_ratio: row.throughput_ratio,
        cpu_ratio: row.cpu_ratio,
        cpu_both_ratio: row.cpu_both_ratio,
        p50_ratio: row.p50_ratio,
        p99_ratio: row.p99_ratio,
        valid: row.valid && failures.is_empty(),
        notes,
        slices: Some(row.doubts.slices),
        pairs: Some(row.pairs),
        totals: Some(row.accounts),
        rounds: figures?,
        histograms: Histograms { service: encode_recorded(&times)?, ..Histograms::default() },
        ..Row::empty(&row.server, workload, Kind::Closed, exchange)
    })
}

fn round_figures(slots: &[SlotOutcome]) -> Result<RoundFigures> {
    let figures: Vec<_> = slots.iter().filter_map(|slot| slot.shown(false)).collect();
    let times = latencies(&vec![slots.to_vec()])?;
    let middle = |figure: fn(&Figures) -> Option<f64>| {
        median(&figures.iter().filter_map(figure).collect::<Vec<f64>>())
    };
    Ok(RoundFigures {
        latency_us: Percentiles::of(&times),
        throughput: middle(|figures| Some(figures.throughput)),
        server_cpu_us: middle(|figures| Some(figures.server_cpu_us)),
        cpu_both_us: middle(|figures| figures.cpu_both_us),
        valid: !figures.is_empty(),
        ..RoundFigures::default()
    })
}
