//! The results for people: a block for every program and placement, a line for every variant.

use std::fmt::Write;

use crate::engine::table::{figure, lay_out, ratio};
use crate::programs::row::Row;

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
and system time per operation, both: with the kernel's softirq threads. x tcp: over the kernel's TCP
(the variant tcp, or veth) in the same rounds, x unix: over that variant (of op/s more is better, of
CPU less), mean and 95 % interval over rounds.
";

/// The whole table.
pub(crate) fn render(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut notes: Vec<&str> = Vec::new();
    let key = |row: &Row| (row.program.clone(), row.cpus);
    for block in rows.chunk_by(|one, other| key(one) == key(other)) {
        let first = &block[0];
        let [server, client] = first.cpus;
        let (program, place) = (&first.program, first.placement.name());
        let _ =
            writeln!(text, "{program}, {place}: server on CPU {server}, client on CPU {client}");
        let mut lines = vec![HEAD.map(str::to_owned).to_vec()];
        lines.extend(block.iter().map(|row| line(row, &mut notes)));
        lay_out(&mut text, &lines);
        text.push('\n');
    }
    text.push_str(LEGEND);
    for (index, note) in notes.iter().enumerate() {
        let _ = writeln!(text, "({}) {note}", index + 1);
    }
    text
}

fn line<'a>(row: &'a Row, notes: &mut Vec<&'a str>) -> Vec<String> {
    let width = match row.pipeline {
        1 => row.connections.to_string(),
        pipeline => format!("{} x {pipeline}", row.connections),
    };
    let latency = row.latency_us;
    let middle = match (latency.p50, latency.mean) {
        (None, Some(mean)) => format!("({mean:.1})"),
        (p50, _) => figure(p50, 1),
    };
    let mut cells = vec![
        row.operation.clone(),
        width,
        row.variant.clone(),
        figure(row.operations_s, 0),
        ratio(row.operations_ratio_tcp),
        ratio(row.operations_ratio_unix),
        middle,
        figure(latency.p99, 1),
        figure(row.server_cpu_us, 2),
        ratio(row.server_cpu_ratio_tcp),
        figure(row.client_cpu_us, 2),
        figure(row.cpu_both_us, 2),
        ratio(row.cpu_both_ratio_tcp),
    ];
    if let Some(reason) = row.reason.as_deref() {
        let place = notes.iter().position(|note| *note == reason).unwrap_or_else(|| {
            notes.push(reason);
            notes.len() - 1
        });
        cells.push(format!("INVALID ({})", place + 1));
    }
    cells
}
