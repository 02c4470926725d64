//! The results for people: a block for every program and placement, a line for every variant.

use std::fmt::Write;

use crate::engine::table::{figure, lay_out, ratio};
use crate::results::{Ratios, Row};

const HEAD: [&str; 13] = [
    "operation",
    "connections",
    "variant",
    "op/s",
    "x tcp",
    "x unix",
    "p50 us",
    "p99 us",
    "server CPU us",
    "x tcp",
    "client CPU us",
    "both CPU us",
    "x tcp",
];

const LEGEND: &str = "\
op/s, p50, p99: as the client reports them (p50 in brackets: only the mean is reported); CPU: user
and system time per operation, both: with the kernel's softirq threads. x tcp: over the variant tcp,
the kernel's TCP, in the same rounds, x unix: over that variant (of op/s more is better, of CPU
less), mean and 95 % interval over rounds.
";

/// The whole table; `against_unix` belongs to the rows in their order.
pub(crate) fn render(rows: &[Row], against_unix: &[Ratios]) -> String {
    let mut text = String::new();
    let mut notes: Vec<String> = Vec::new();
    let all: Vec<(&Row, &Ratios)> = rows.iter().zip(against_unix).collect();
    for block in all.chunk_by(|(one, _), (other, _)| heading(one) == heading(other)) {
        let _ = writeln!(text, "{}", heading(block[0].0));
        let mut lines = vec![HEAD.map(str::to_owned).to_vec()];
        lines.extend(block.iter().map(|(row, unix)| line(row, unix, &mut notes)));
        lay_out(&mut text, &lines);
        text.push('\n');
    }
    text.push_str(LEGEND);
    for (index, note) in notes.iter().enumerate() {
        let _ = writeln!(text, "({}) {note}", index + 1);
    }
    text
}

/// What the rows of a block have in common.
fn heading(row: &Row) -> String {
    let (program, _) = parts(row);
    let place = row.placement.as_deref().unwrap_or_default();
    let path = row.network.as_ref().map_or(String::new(), |network| format!(" over {network}"));
    let (server, client) = (&row.server_cpus[0], &row.client_cpus[0]);
    format!("{program}{path}, {place}: server on CPU {server}, client on CPU {client}")
}

/// The program and the operation.
fn parts(row: &Row) -> (&str, &str) {
    row.workload.split_once(' ').unwrap_or((&row.workload, ""))
}

fn line(row: &Row, unix: &Ratios, notes: &mut Vec<String>) -> Vec<String> {
    let width = match row.pipeline {
        1 => row.connections.to_string(),
        pipeline => format!("{} x {pipeline}", row.connections),
    };
    let middle = match (row.p50_us(), row.reported_latency_us.and_then(|latency| latency.mean)) {
        (None, Some(mean)) => format!("({mean:.1})"),
        (p50, _) => figure(p50, 1),
    };
    let mut cells = vec![
        parts(row).1.to_owned(),
        width,
        row.subject.clone(),
        figure(row.throughput, 0),
        ratio(row.throughput_ratio),
        ratio(unix.throughput_ratio),
        middle,
        figure(row.p99_us(), 1),
        figure(row.server_cpu_us, 2),
        ratio(row.cpu_ratio),
        figure(row.client_cpu_us, 2),
        figure(row.cpu_both_us, 2),
        ratio(row.cpu_both_ratio),
    ];
    if !row.valid {
        let reason = row.notes.join("; ");
        let place = notes.iter().position(|note| *note == reason).unwrap_or_else(|| {
            notes.push(reason);
            notes.len() - 1
        });
        cells.push(format!("INVALID ({})", place + 1));
    }
    cells
}
