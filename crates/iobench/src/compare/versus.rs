//! Ratios against further baselines, from the same slots.

use std::fmt::Write;

use serde::Serialize;

use crate::compare::report::Row;
use crate::compare::stats::Interval;
use crate::compare::table::{lay_out, ratio, transactions};

/// What a comparison says against one of its further baselines.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Versus {
    pub(crate) baseline: String,
    pub(crate) results: Vec<Ratios>,
}

/// One server in one cell.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Ratios {
    server: String,
    cores: usize,
    transactions: u32,
    idle: usize,
    request_bytes: usize,
    response_bytes: usize,
    throughput_ratio: Option<Interval>,
    cpu_ratio: Option<Interval>,
    cpu_both_ratio: Option<Interval>,
    p50_ratio: Option<Interval>,
    p99_ratio: Option<Interval>,
    valid: bool,
}

impl Versus {
    /// Of rows whose ratios are against this baseline.
    pub(crate) fn new(baseline: &str, rows: &[Row]) -> Versus {
        let results = rows.iter().map(|row| Ratios {
            server: row.server.clone(),
            cores: row.cores,
            transactions: row.transactions,
            idle: row.idle,
            request_bytes: row.request_bytes,
            response_bytes: row.response_bytes,
            throughput_ratio: row.throughput_ratio,
            cpu_ratio: row.cpu_ratio,
            cpu_both_ratio: row.cpu_both_ratio,
            p50_ratio: row.p50_ratio,
            p99_ratio: row.p99_ratio,
            valid: row.valid,
        });
        Versus { baseline: baseline.to_owned(), results: results.collect() }
    }

    /// A table for people.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "Ratios against {}, from the same slots:", self.baseline);
        let has_idle = self.results.iter().any(|row| row.idle > 0);
        let mut headings = vec!["server", "trans"];
        headings.extend(has_idle.then_some("idle"));
        headings.extend(["bytes", "cores", "throughput ratio", "CPU ratio", "both ratio"]);
        let mut lines = vec![headings.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        for row in &self.results {
            let mut line = vec![row.server.clone(), transactions(row.transactions)];
            line.extend(has_idle.then(|| row.idle.to_string()));
            line.push(format!("{}/{}", row.request_bytes, row.response_bytes));
            line.push(row.cores.to_string());
            let ratios = [row.throughput_ratio, row.cpu_ratio, row.cpu_both_ratio];
            line.extend(ratios.map(ratio));
            if !row.valid {
                line.push("INVALID".to_owned());
            }
            lines.push(line);
        }
        lay_out(&mut text, &lines);
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::table::tests::{row, row_beside};

    #[test]
    fn every_row_has_a_line() {
        let mut bad = row("mtcp/mtcp", 0, 0.3);
        bad.valid = false;
        let text = Versus::new("megapipe", &[row("epoll", 1, 1.0), bad]).render();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("against megapipe"), "{text}");
        assert!(lines[2].starts_with("epoll"), "{text}");
        assert!(lines[3].contains("persist") && lines[3].ends_with("INVALID"), "{text}");
        assert!(!text.contains("idle"), "{text}");
    }

    #[test]
    fn idle_connections_have_a_column_where_there_are_any() {
        let rows = [row("epoll", 1, 1.0), row_beside("epoll", 200, 1.0)];
        let text = Versus::new("megapipe", &rows).render();
        let words: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0][..4], ["server", "trans", "idle", "bytes"], "{text}");
        assert_eq!(words[1][..4], ["epoll", "1", "0", "64/64"], "{text}");
        assert_eq!(words[2][..4], ["epoll", "1", "200", "64/64"], "{text}");
    }
}
