//! Writes the table of docs/kernels.md: all of it, or the rows of some kernels.

use std::fs;
use std::path::Path;

use super::checks::Column;
use super::doctor::{driver, lacking, one_line};
use super::guest::Run;
use super::verdict::{Outcome, counted};
use crate::tally::Tally;

const BEGIN: &str = "<!-- `cargo xtask kernels` writes what follows -->";
const END: &str = "<!-- end of what `cargo xtask kernels` writes -->";

/// A kernel's row, and notes for which the cells have no space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Row {
    version: String,
    line: String,
    notes: Vec<String>,
}

/// Writes the rows of these runs; rows of other kernels are kept if `keeps`.
pub(super) fn write(path: &Path, runs: &[Run], date: &str, keeps: bool) -> Result<(), String> {
    let failed = |error| format!("cannot use {}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(failed)?;
    let rows = runs.iter().map(|run| row(run, date)).collect();
    let text = replaced(&text, rows, keeps)
        .ok_or_else(|| format!("{} has no lines `{BEGIN}` and `{END}`", path.display()))?;
    fs::write(path, text).map_err(failed)
}

/// Returns the text with the new rows between its two markers.
fn replaced(text: &str, mut rows: Vec<Row>, keeps: bool) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (old, after) = rest.split_once(END)?;
    let is_new = |version: &str| rows.iter().any(|row| row.version == version);
    if keeps {
        let kept: Vec<Row> = parsed(old).into_iter().filter(|row| !is_new(&row.version)).collect();
        rows.extend(kept);
    }
    rows.sort_by_key(|row| numbers(&row.version));
    Some(format!("{before}{BEGIN}\n{}{END}{after}", rendered(&rows)))
}

/// Returns the version as numbers, for sorting.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

fn rendered(rows: &[Row]) -> String {
    let titles: Vec<&str> = Column::ALL.iter().skip(1).map(|column| column.title()).collect();
    let mut text = format!("| kernel | driver | {} | run |\n", titles.join(" | "));
    text.push_str(&format!("{}\n", "| --- ".repeat(titles.len() + 3) + "|"));
    rows.iter().for_each(|row| text.push_str(&format!("{}\n", row.line)));
    if rows.iter().any(|row| !row.notes.is_empty()) {
        text.push('\n');
    }
    for row in rows {
        row.notes.iter().for_each(|note| text.push_str(&format!("- {}: {note}\n", row.version)));
    }
    text
}

/// Returns the rows of a table. The version is the first word of a row and of a note.
fn parsed(table: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in table.lines() {
        if let Some((version, note)) = line.strip_prefix("- ").and_then(|l| l.split_once(": ")) {
            if let Some(row) = rows.iter_mut().find(|row| row.version == version) {
                row.notes.push(note.to_string());
            }
        } else if let Some(cells) = line.strip_prefix("| ") {
            let version = cells.split(' ').next().unwrap_or_default().to_string();
            if version.starts_with(|c: char| c.is_ascii_digit()) {
                rows.push(Row { version, line: line.to_string(), notes: Vec::new() });
            }
        }
    }
    rows
}

fn row(run: &Run, date: &str) -> Row {
    let version = run.kernel.version();
    let cells = Column::ALL.iter().skip(1).map(|column| cell(run, *column));
    let cells: Vec<String> = cells.collect();
    let line = format!(
        "| {version} ({}, {}) | {} | {} | {date}, {} |",
        run.kernel.release,
        run.origin,
        run.driver(),
        cells.join(" | "),
        run.accelerator.name(),
    );
    Row { version, line, notes: notes(run) }
}

/// Counts of tests, or a word for a script.
fn cell(run: &Run, column: Column) -> String {
    let verdicts = || run.verdicts.iter().filter(|verdict| verdict.check.column == column);
    if verdicts().next().is_none() {
        return "not run".to_string();
    }
    if verdicts().all(|verdict| matches!(verdict.outcome, Outcome::Refused(_))) {
        return "refused".to_string();
    }
    let mut tally = Tally::default();
    verdicts().for_each(|verdict| tally += verdict.tally);
    let counted = counted(tally);
    if verdicts().any(|verdict| verdict.has_failed()) {
        return format!("**FAIL**, {counted}");
    }
    counted
}

fn notes(run: &Run) -> Vec<String> {
    let mut notes = Vec::new();
    let doctor = run.verdicts.iter().find(|verdict| verdict.check.column == Column::Doctor);
    if let Some(doctor) = doctor {
        notes.push(driver(&doctor.output));
        let replaced = lacking(&doctor.output);
        if !replaced.is_empty() {
            notes.push(format!("the kernel lacks: {}", replaced.join("; ")));
        }
    }
    for verdict in &run.verdicts {
        if let Outcome::Failed(reason) = &verdict.outcome {
            notes.push(format!("{} failed: {}", verdict.check.name, one_line(reason)));
        }
    }
    if let Some(compare) = run.verdicts.iter().find(|v| v.check.column == Column::Compare) {
        notes.extend(ratios(&compare.output));
    }
    notes.extend(run.faults.iter().map(|fault| format!("fault: {}", one_line(fault))));
    notes
}

/// iobench's ratios of the channel to the partitioned epoll server.
fn ratios(compare: &str) -> Option<String> {
    let mut lines = compare.lines();
    let line = lines.find(|line| {
        line.starts_with("megapipe") && line.contains(" against epoll-partitioned at ")
    })?;
    // Under emulation no result is valid, which the document says once.
    Some(one_line(line.split(" NOT VALID").next().unwrap_or(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_row(version: &str, text: &str) -> Row {
        let line = format!("| {version} ({version}.0-1, sid) | {text} |");
        Row { version: version.to_string(), line, notes: vec![format!("note {text}")] }
    }

    fn document(rows: &[Row]) -> String {
        format!("# Kernels\n\n{BEGIN}\n{}{END}\n\nmore\n", rendered(rows))
    }

    #[test]
    fn a_partial_run_replaces_only_its_rows() {
        let old = document(&[new_row("5.10", "a"), new_row("6.12", "b")]);
        let new = replaced(&old, vec![new_row("6.12", "c"), new_row("6.1", "d")], true).unwrap();
        let wanted = [new_row("5.10", "a"), new_row("6.1", "d"), new_row("6.12", "c")];
        assert_eq!(new, document(&wanted));
        let whole = replaced(&old, vec![new_row("6.1", "d")], false).unwrap();
        assert_eq!(whole, document(&[new_row("6.1", "d")]));
    }

    #[test]
    fn a_document_without_marks_is_left_alone() {
        assert_eq!(replaced("# Kernels\n", Vec::new(), true), None);
        let empty = format!("{BEGIN}\n{END}\n");
        assert!(replaced(&empty, vec![new_row("6.1", "d")], true).unwrap().contains("| 6.1 (6.1"));
    }

    #[test]
    fn the_ratio_is_taken_without_the_remark_on_its_validity() {
        let said = "noise\nmegapipe against epoll-partitioned at 8 transactions per connection on \
                    1 core: throughput x0.82 [0.61, 1.09]. NOT VALID, see the notes.\n";
        assert!(ratios(said).unwrap().ends_with("throughput x0.82 [0.61, 1.09]."));
        assert_eq!(ratios("nothing\n"), None);
    }
}
