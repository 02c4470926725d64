//! Formats the table of an experiment: a block for every point, and the number of valid rows.

use std::fmt::Write;

use crate::figures::Percentiles;
use crate::results::table::{Column, Table};
use crate::results::{Document, Kind, Row};

/// Returns the whole report.
pub(crate) fn describe(document: &Document) -> String {
    let rows = &document.results;
    let legend = format!(
        "times in us: service time from the intended send time; lag: send lag, recv: receive lag \
         at the median, both part of it; CPU: server CPU per request; ratios to {}, mean [95 % \
         interval] over rounds\n",
        document.baseline
    );
    let table = Table { with_remarks: true, ..Table::new(rows, columns(), heading, legend) };
    let judged = match rows.iter().filter(|row| !row.valid).count() {
        0 => format!("all {} rows are valid\n", rows.len()),
        invalid => format!("{invalid} of {} rows are INVALID\n", rows.len()),
    };
    format!(
        "{}\n\n{} ({})\n\n{table}{judged}",
        document.environment.describe(),
        document.experiment.title,
        document.experiment.scale
    )
}

/// Returns the columns; those of a closed loop have the bound instead of the send lag.
fn columns() -> Vec<Column> {
    fn time(
        heading: &str,
        decimals: usize,
        of: fn(&Row) -> Option<Percentiles>,
        pick: fn(&Percentiles) -> f64,
    ) -> Column {
        Column::figure(heading, decimals, move |row| of(row).as_ref().map(pick))
    }
    let closed = |column: Column| column.of(|row| row.kind == Kind::Closed);
    let open = |column: Column| column.of(|row| row.kind != Kind::Closed);
    vec![
        Column::left("server", |row| row.subject.clone()),
        Column::figure("k/s", 2, |row| row.throughput.map(|rate| rate / 1e3)),
        time("p1", 0, |row| row.latency_us, |p| p.p1),
        time("p25", 0, |row| row.latency_us, |p| p.p25),
        time("p50", 0, |row| row.latency_us, |p| p.p50),
        time("p75", 0, |row| row.latency_us, |p| p.p75),
        time("p99", 0, |row| row.latency_us, |p| p.p99),
        Column::figure("CPU", 2, |row| row.server_cpu_us),
        closed(Column::right("bound", |row| row.bound.clone().unwrap_or_default())),
        open(time("lag p50", 1, |row| row.send_lag_us, |p| p.p50)),
        open(time("p99", 1, |row| row.send_lag_us, |p| p.p99)),
        open(time("recv", 1, |row| row.receive_lag_us, |p| p.p50)),
        closed(Column::ratio("throughput ratio", |row| row.throughput_ratio)),
        open(Column::ratio("p50 ratio", |row| row.p50_ratio)),
        Column::ratio("CPU ratio", |row| row.cpu_ratio),
    ]
}

/// Returns the heading of a block: what its rows have in common.
fn heading(row: &Row) -> String {
    let cores = if row.cores == 1 { "core" } else { "cores" };
    let mut text = match (row.kind, row.request_rate) {
        (Kind::Open, Some(rate)) => format!("{} connections, {rate} requests/s", row.connections),
        (Kind::Churn, Some(rate)) => {
            format!("{rate} connections/s, {} each", requests(row.transactions))
        }
        _ if row.transactions == 0 => format!("{} persistent connections", row.connections),
        _ => format!("{} connections, {} each", row.connections, requests(row.transactions)),
    };
    let _ = write!(
        text,
        ", {} B there and {} B back, {} server {cores}",
        row.request_bytes, row.response_bytes, row.cores
    );
    if row.work != "none" {
        let _ = write!(text, ", work {}", row.work);
    }
    if let Some(network) = &row.network {
        let _ = write!(text, ", {network}");
    }
    text
}

fn requests(count: u32) -> String {
    format!("{count} request{}", if count == 1 { "" } else { "s" })
}
