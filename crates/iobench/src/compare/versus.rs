//! Ratios against further baselines, from the same slots.

use std::fmt::Write;

use serde::Serialize;

use crate::compare::report::Row;
use crate::compare::stats::Interval;
use crate::compare::table::{lay_out, ratio};

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
        let headings =
            ["server", "trans", "bytes", "cores", "throughput ratio", "CPU ratio", "both ratio"];
        let mut lines = vec![headings.map(str::to_owned).to_vec()];
        for row in &self.results {
            let transactions = match row.transactions {
                0 => "persist".to_owned(),
                count => count.to_string(),
            };
            let mut line = vec![
                row.server.clone(),
                transactions,
                format!("{}/{}", row.request_bytes, row.response_bytes),
                row.cores.to_string(),
            ];
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
    use crate::compare::table::tests::row;

    #[test]
    fn every_row_has_a_line() {
        let mut bad = row("mtcp/mtcp", 0, 0.3);
        bad.valid = false;
        let text = Versus::new("megapipe", &[row("epoll", 1, 1.0), bad]).render();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("against megapipe"), "{text}");
        assert!(lines[2].starts_with("epoll"), "{text}");
        assert!(lines[3].contains("persist") && lines[3].ends_with("INVALID"), "{text}");
    }
}
