//! Formats the table of the programs: a block for every program and placement, a line for every
//! variant.

use crate::programs::Variant;
use crate::results::table::{Column, Entry, Table, figure};
use crate::results::{Row, Versus};

const LEGEND: &str = "\
op/s, p50, p99: as the client reports them (p50 in brackets: only the mean is reported); CPU: user
and system time per operation, both: with the kernel's softirq threads. x tcp: over the variant tcp,
the kernel's TCP, in the same rounds, x unix: over that variant (of op/s more is better, of CPU
less), mean and 95 % interval over rounds.
";

pub(crate) fn table<'a>(rows: &'a [Row], versus: &'a [Versus]) -> Table<'a> {
    Table { versus, ..Table::new(rows, columns(), heading, LEGEND) }
}

fn columns() -> Vec<Column> {
    let unix = |entry: &Entry<'_>| entry.against(Variant::Unix.name())?.throughput_ratio;
    vec![
        Column::left("operation", |row| parts(row).1.to_owned()),
        Column::right("connections", |row| match row.pipeline {
            1 => row.connections.to_string(),
            pipeline => format!("{} x {pipeline}", row.connections),
        }),
        Column::right("variant", |row| row.subject.clone()),
        Column::figure("op/s", 0, |row| row.throughput),
        Column::ratio("x tcp", |row| row.throughput_ratio),
        Column::ratio("x unix", unix).optional(),
        Column::right("p50 us", |row| middle(row)),
        Column::figure("p99 us", 1, |row| row.p99_us()),
        Column::figure("server CPU us", 2, |row| row.server_cpu_us),
        Column::ratio("x tcp", |row| row.cpu_ratio),
        Column::figure("client CPU us", 2, |row| row.client_cpu_us),
        Column::figure("both CPU us", 2, |row| row.cpu_both_us),
        Column::ratio("x tcp", |row| row.cpu_both_ratio),
    ]
}

/// Returns the median, or the mean in brackets if only that is known.
fn middle(row: &Row) -> String {
    match (row.p50_us(), row.reported_latency_us.and_then(|latency| latency.mean)) {
        (None, Some(mean)) => format!("({mean:.1})"),
        (p50, _) => figure(p50, 1),
    }
}

/// Returns the heading of a block: what its rows have in common.
fn heading(row: &Row) -> String {
    let (program, _) = parts(row);
    let place = row.placement.as_deref().unwrap_or_default();
    let path = row.network.as_ref().map_or(String::new(), |network| format!(" over {network}"));
    let (server, client) = (&row.server_cpus[0], &row.client_cpus[0]);
    format!("{program}{path}, {place}: server on CPU {server}, client on CPU {client}")
}

/// Returns the program and the operation.
fn parts(row: &Row) -> (&str, &str) {
    row.workload.split_once(' ').unwrap_or((&row.workload, ""))
}
