//! Formats the table: a block for every version of HTTP, number of cores and answer size, a line
//! for every server and kind of connections.

use crate::compare::table::{idle_bytes, idle_legend, slices};
use crate::results::Row;
use crate::results::table::{Column, Table, transactions};

pub(super) fn table<'a>(rows: &'a [Row], baseline: &str) -> Table<'a> {
    let legend = format!(
        "Ratios are against {baseline}: mean over rounds [95 % interval]. trans: requests per \
         connection. CPU is the server's, per request; over loopback and veth the kernel receives \
         a packet in its sender's time, so it holds the clients' receive path, too. both: the CPU \
         of both sides. {}Slices: clean/discarded.\n",
        idle_legend(rows)
    );
    Table::new(rows, columns(), heading, legend)
}

fn columns() -> Vec<Column> {
    vec![
        Column::right("connections", |row| match row.pipeline {
            1 => row.connections.to_string(),
            streams => format!("{} x {streams}", row.connections),
        }),
        Column::right("trans", |row| transactions(row.transactions)),
        Column::right("idle", |row| row.idle.to_string()).optional(),
        Column::left("server", |row| row.subject.clone()),
        Column::figure("k/s", 1, |row| row.throughput.map(|rate| rate / 1e3)),
        Column::figure("CPU us", 2, |row| row.server_cpu_us),
        Column::figure("both us", 2, |row| row.cpu_both_us).gives_way(5),
        idle_bytes(),
        Column::figure("p50 us", 0, |row| row.p50_us()),
        Column::figure("p99 us", 0, |row| row.p99_us()),
        Column::ratio("throughput ratio", |row| row.throughput_ratio),
        Column::ratio("CPU ratio", |row| row.cpu_ratio),
        Column::ratio("both ratio", |row| row.cpu_both_ratio).gives_way(6),
        Column::ratio("p99 ratio", |row| row.p99_ratio).gives_way(4),
        Column::right("bound", |row| row.bound.clone().unwrap_or_default()).gives_way(2),
        Column::right("slices", |row| slices(row)).gives_way(1),
    ]
}

/// Returns the heading of a block: what its rows have in common.
fn heading(row: &Row) -> String {
    let list = |cpus: &[usize]| {
        let cpus: Vec<_> = cpus.iter().map(ToString::to_string).collect();
        cpus.join(",")
    };
    format!(
        "{}, answers of {} bytes; servers on CPU {}, clients on CPU {}",
        row.workload,
        row.response_bytes,
        list(&row.server_cpus),
        list(&row.client_cpus)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Exchange;
    use crate::results::Kind;

    fn row(version: &str, streams: u32) -> Row {
        let exchange = Exchange { request_bytes: 0, response_bytes: 64 };
        Row {
            connections: 16,
            pipeline: streams,
            server_cpus: vec![0],
            client_cpus: vec![1],
            throughput: Some(12_300.0),
            ..Row::empty("tokio", version, Kind::Closed, exchange)
        }
    }

    #[test]
    fn versions_have_a_block_each() {
        let rows = [row("HTTP/1", 1), row("HTTP/2", 10)];
        let text = table(&rows, "tokio").render(200);
        let heading = "HTTP/1, answers of 64 bytes; servers on CPU 0, clients on CPU 1\n";
        assert!(text.starts_with(heading), "{text}");
        assert!(text.contains("\nHTTP/2, answers of 64 bytes"), "{text}");
        assert!(text.contains("16 x 10") && text.contains("12.3"), "{text}");
        assert!(text.contains("Ratios are against tokio") && !text.contains("idle"), "{text}");
    }

    #[test]
    fn idle_connections_are_explained() {
        let idle = Row { idle: 10_000, idle_bytes: Some(4_321.4), ..row("HTTP/1", 1) };
        let text = table(&[row("HTTP/1", 1), idle], "tokio").render(200);
        assert!(text.contains("kept alive without traffic after one transaction"), "{text}");
        let words = |line: usize| -> Vec<&str> {
            text.lines().nth(line).unwrap().split_whitespace().collect()
        };
        assert_eq!(words(1)[..4], ["connections", "trans", "idle", "server"], "{text}");
        assert_eq!(words(3)[2..4], ["10000", "tokio"], "{text}");
        assert!(words(3).contains(&"4321") && words(2).contains(&"-"), "{text}");
    }
}
