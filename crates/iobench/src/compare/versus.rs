//! Ratios against further baselines, from the same slots.

use std::fmt::Write;

use crate::compare::report::Row;
use crate::compare::table::transactions;
use crate::engine::table::{lay_out, ratio};
use crate::results::{Ratios, Versus};

/// The ratios of rows, which are against this baseline.
pub(crate) fn versus(baseline: &str, rows: &[Row]) -> Versus {
    let results = rows.iter().map(|row| Ratios {
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
pub(crate) fn render(versus: &Versus, rows: &[Row]) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "Ratios against {}, from the same slots:", versus.baseline);
    let has_idle = rows.iter().any(|row| row.idle > 0);
    let mut headings = vec!["server", "trans"];
    headings.extend(has_idle.then_some("idle"));
    headings.extend(["bytes", "cores", "throughput ratio", "CPU ratio", "both ratio"]);
    let mut lines = vec![headings.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for (row, ratios) in rows.iter().zip(&versus.results) {
        let mut line = vec![row.server.clone(), transactions(row.transactions)];
        line.extend(has_idle.then(|| row.idle.to_string()));
        line.push(format!("{}/{}", row.request_bytes, row.response_bytes));
        line.push(row.cores.to_string());
        let all = [ratios.throughput_ratio, ratios.cpu_ratio, ratios.cpu_both_ratio];
        line.extend(all.map(ratio));
        if !ratios.valid {
            line.push("INVALID".to_owned());
        }
        lines.push(line);
    }
    lay_out(&mut text, &lines);
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::table::tests::{row, row_beside};

    #[test]
    fn every_row_has_a_line() {
        let mut bad = row("mtcp/mtcp", 0, 0.3);
        bad.valid = false;
        let rows = [row("epoll", 1, 1.0), bad];
        let text = render(&versus("megapipe", &rows), &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("against megapipe"), "{text}");
        assert!(lines[2].starts_with("epoll"), "{text}");
        assert!(lines[3].contains("persist") && lines[3].ends_with("INVALID"), "{text}");
        assert!(!text.contains("idle"), "{text}");
    }

    #[test]
    fn idle_connections_have_a_column_where_there_are_any() {
        let rows = [row("epoll", 1, 1.0), row_beside("epoll", 200, 1.0)];
        let text = render(&versus("megapipe", &rows), &rows);
        let words: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0][..4], ["server", "trans", "idle", "bytes"], "{text}");
        assert_eq!(words[1][..4], ["epoll", "1", "0", "64/64"], "{text}");
        assert_eq!(words[2][..4], ["epoll", "1", "200", "64/64"], "{text}");
    }
}
