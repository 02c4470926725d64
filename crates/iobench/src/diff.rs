//! `iobench diff`: what has changed between two saved runs, row by row, and whether for the worse.
//!
//! A change's interval comes from the rounds of both runs. Files of `compare` hold no rounds, but
//! ratios against a baseline that ran interleaved; there the change of that ratio is judged, which
//! says nothing about the baseline itself.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use crate::cli::saved::DiffArgs;
use crate::compare::report::JsonFile;
use crate::compare::stats::{Interval, change_interval};
use crate::error::{Context, Result};
use crate::output;
use crate::report::input::{self, Saved};
use crate::report::number;
use crate::report::point::Dimension;
use crate::results::{Document, RoundFigures, Row};

/// The bootstrap's seed, always the same, so that a verdict can be repeated.
const SEED: u64 = 1;

/// What it comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// All rows could be compared, and none is worse.
    Fine,
    /// No row that could be compared is worse, but some could not.
    Incomplete,
    /// Something is worse for certain, by more than the threshold.
    Regression,
}

/// What has become of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Finding {
    /// The interval holds "no change".
    Unchanged,
    Better,
    Worse,
    /// Worse by more than the threshold.
    Regression,
    /// There are too few rounds for an interval.
    Unknown,
}

/// A figure of a row in both files.
#[derive(Debug, Serialize)]
struct Change {
    figure: &'static str,
    old: f64,
    new: f64,
    /// New against old.
    ratio: f64,
    interval: Option<Interval>,
    finding: Finding,
    #[serde(skip)]
    format: fn(f64) -> String,
}

/// A row of OLD.
#[derive(Debug, Serialize)]
struct Comparison {
    server: String,
    point: String,
    changes: Vec<Change>,
    /// Why it could not be compared.
    problem: Option<String>,
}

/// Everything, as `--json` writes it.
#[derive(Debug, Serialize)]
struct Diff {
    format: &'static str,
    version: u32,
    old: String,
    new: String,
    threshold: f64,
    outcome: Outcome,
    remarks: Vec<String>,
    results: Vec<Comparison>,
}

/// Compares the files and prints what has changed.
pub(crate) fn run(arguments: &DiffArgs) -> Result<Outcome> {
    let only_json = arguments.json.as_deref() == Some(Path::new("-"));
    let json = arguments.json.as_deref().filter(|_| !only_json).map(JsonFile::prepare);
    let json = json.transpose()?;
    let (old, new) = (input::read(&arguments.old)?, input::read(&arguments.new)?);
    let diff = compare(&old, &new, arguments.threshold);
    if only_json {
        let text = serde_json::to_string_pretty(&diff)
            .map_err(std::io::Error::from)
            .context("encode the changes", "report this as a bug")?;
        output::print(&(text + "\n"));
    } else {
        output::print(&table(&diff));
    }
    if let Some(json) = json {
        json.write(&diff)?;
    }
    Ok(diff.outcome)
}

fn compare(old: &Saved, new: &Saved, threshold: f64) -> Diff {
    let mut others: HashMap<Vec<String>, VecDeque<&Row>> = HashMap::new();
    for row in &new.document.results {
        others.entry(identity(row)).or_default().push_back(row);
    }
    let results: Vec<Comparison> = old
        .document
        .results
        .iter()
        .map(|row| {
            let other = others.get_mut(&identity(row)).and_then(VecDeque::pop_front);
            comparison(row, other, threshold)
        })
        .collect();
    let found = |finding| results.iter().flat_map(|row| &row.changes).any(|c| c.finding == finding);
    let outcome = if found(Finding::Regression) {
        Outcome::Regression
    } else if results.iter().any(|row| row.problem.is_some()) {
        Outcome::Incomplete
    } else {
        Outcome::Fine
    };
    let mut remarks = differences(&old.document, &new.document);
    let added: usize = others.values().map(VecDeque::len).sum();
    if added > 0 {
        remarks.push(format!("{added} rows of NEW are not in OLD"));
    }
    if found(Finding::Unknown) {
        remarks.push(
            "changes without an interval are not judged; measure with at least 2 rounds".to_owned(),
        );
    }
    Diff {
        format: "iobench-diff",
        version: 1,
        old: old.label.clone(),
        new: new.label.clone(),
        threshold,
        outcome,
        remarks,
        results,
    }
}

/// What a row has to agree in with its counterpart.
fn identity(row: &Row) -> Vec<String> {
    let dimensions = Dimension::ALL.into_iter().map(|dimension| dimension.value(row));
    std::iter::once(row.server.clone()).chain(dimensions).collect()
}

/// What makes the files hard to compare.
fn differences(old: &Document, new: &Document) -> Vec<String> {
    let (before, after) = (&old.environment, &new.environment);
    let count = |cpus: &[usize]| cpus.len().to_string();
    let facts = [
        ("kernel", before.kernel.clone(), after.kernel.clone()),
        ("CPU model", before.cpu_model.clone(), after.cpu_model.clone()),
        ("number of CPUs", count(&before.cpus), count(&after.cpus)),
        ("congestion control", before.congestion_control.clone(), after.congestion_control.clone()),
    ];
    let mut remarks: Vec<String> = facts
        .into_iter()
        .filter(|(_, before, after)| before != after)
        .map(|(what, before, after)| format!("another {what}: {before} in OLD, {after} in NEW"))
        .collect();
    if old.experiment.file != new.experiment.file {
        remarks.push("the experiment files differ".to_owned());
    }
    remarks
}

fn comparison(old: &Row, new: Option<&Row>, threshold: f64) -> Comparison {
    let point: Vec<String> = [
        Dimension::Connections,
        Dimension::Rate,
        Dimension::Transactions,
        Dimension::Idle,
        Dimension::RequestBytes,
        Dimension::Cores,
    ]
    .into_iter()
    .filter(|d| *d != Dimension::Rate || old.request_rate.is_some())
    .filter(|d| *d != Dimension::Transactions || old.request_rate.is_none())
    .filter(|d| *d != Dimension::Idle || old.idle > 0)
    .map(|dimension| dimension.phrase(old))
    .collect();
    let because = |what: &str, row: &Row| {
        let reason = row.notes.first().map_or("the file does not say why", String::as_str);
        Some(format!("not valid in {what}: {reason}"))
    };
    let (changes, problem) = match new {
        None => (Vec::new(), Some("missing from NEW".to_owned())),
        Some(new) if !new.valid => (Vec::new(), because("NEW", new)),
        Some(_) if !old.valid => (Vec::new(), because("OLD", old)),
        Some(new) => changes(old, new, threshold),
    };
    Comparison { server: old.server.clone(), point: point.join(", "), changes, problem }
}

/// A figure, where to find it, and which way is up.
struct Figure {
    name: &'static str,
    of_row: fn(&Row) -> Option<f64>,
    of_round: fn(&RoundFigures) -> Option<f64>,
    /// Its interval against the baseline, which stands in for rounds.
    ratio: fn(&Row) -> Option<Interval>,
    more_is_better: bool,
    format: fn(f64) -> String,
}

const FIGURES: [Figure; 4] = [
    Figure {
        name: "p50",
        of_row: |row| Some(row.latency_us?.p50),
        of_round: |round| Some(round.latency_us?.p50),
        ratio: |row| row.p50_ratio,
        more_is_better: false,
        format: number::time,
    },
    Figure {
        name: "p99",
        of_row: |row| Some(row.latency_us?.p99),
        of_round: |round| Some(round.latency_us?.p99),
        ratio: |row| row.p99_ratio,
        more_is_better: false,
        format: number::time,
    },
    Figure {
        name: "throughput",
        of_row: |row| row.throughput,
        of_round: |round| round.throughput,
        ratio: |row| row.throughput_ratio,
        more_is_better: true,
        format: number::plain,
    },
    Figure {
        name: "CPU per request",
        of_row: |row| row.server_cpu_us,
        of_round: |round| round.server_cpu_us,
        ratio: |row| row.cpu_ratio,
        more_is_better: false,
        format: number::time,
    },
];

fn changes(old: &Row, new: &Row, threshold: f64) -> (Vec<Change>, Option<String>) {
    let mut changes = Vec::new();
    let mut lacking = Vec::new();
    for figure in &FIGURES {
        match ((figure.of_row)(old), (figure.of_row)(new)) {
            (Some(before), Some(after)) if before > 0.0 && after > 0.0 => {
                changes.push(change(figure, (old, before), (new, after), threshold));
            }
            (Some(before), None) if before > 0.0 => lacking.push(figure.name),
            _ => {}
        }
    }
    let problem = match lacking.as_slice() {
        [] if changes.is_empty() => Some("it has no figures in common".to_owned()),
        [] => None,
        names => Some(format!("NEW has no {}", names.join(", "))),
    };
    (changes, problem)
}

fn change(
    figure: &Figure,
    (old_row, old): (&Row, f64),
    (new_row, new): (&Row, f64),
    threshold: f64,
) -> Change {
    let rounds = |row: &Row| -> Vec<f64> {
        let valid = row.rounds.iter().filter(|round| round.valid);
        valid.filter_map(figure.of_round).filter(|value| *value > 0.0).collect()
    };
    let interval = if old_row.rounds.is_empty() && new_row.rounds.is_empty() {
        against_baselines((figure.ratio)(old_row), (figure.ratio)(new_row))
    } else {
        change_interval(&rounds(old_row), &rounds(new_row), SEED)
    };
    let ratio = interval.map_or(new / old, |interval| interval.median);
    Change {
        figure: figure.name,
        old,
        new,
        ratio,
        interval,
        finding: judge(interval, figure.more_is_better, threshold),
        format: figure.format,
    }
}

/// The change of a ratio, from the intervals of both: independent errors add up in squares, on
/// logarithms. The baseline itself always has a ratio of one, about which nothing can be told.
fn against_baselines(old: Option<Interval>, new: Option<Interval>) -> Option<Interval> {
    let (old, new) = (old?, new?);
    if old == Interval::ONE || new == Interval::ONE || old.low <= 0.0 || new.low <= 0.0 {
        return None;
    }
    let median = new.median / old.median;
    let below = (new.median / new.low).ln().hypot((old.high / old.median).ln());
    let above = (new.high / new.median).ln().hypot((old.median / old.low).ln());
    Some(Interval { median, low: median * (-below).exp(), high: median * above.exp() })
}

fn judge(interval: Option<Interval>, more_is_better: bool, threshold: f64) -> Finding {
    let Some(interval) = interval else { return Finding::Unknown };
    if interval.contains(1.0) {
        return Finding::Unchanged;
    }
    let grew = interval.median > 1.0;
    if grew == more_is_better {
        return Finding::Better;
    }
    if (interval.median - 1.0).abs() > threshold { Finding::Regression } else { Finding::Worse }
}

/// The table for people.
fn table(diff: &Diff) -> String {
    let mut out = format!("{} → {}\n", diff.old, diff.new);
    for remark in &diff.remarks {
        let _ = writeln!(out, "  note: {remark}");
    }
    for row in &diff.results {
        let _ = writeln!(out, "\n{}, {}", row.server, row.point);
        for change in &row.changes {
            let shown = match &change.interval {
                Some(interval) => number::change_with_interval(interval),
                None => format!("{}, no interval", number::change(change.ratio)),
            };
            let line = format!(
                "  {:<16} {:>10} → {:>10}   {shown:<26} {}",
                change.figure,
                (change.format)(change.old),
                (change.format)(change.new),
                word(change.finding)
            );
            let _ = writeln!(out, "{}", line.trim_end());
        }
        if let Some(problem) = &row.problem {
            let _ = writeln!(out, "  NOT COMPARED: {problem}");
        }
    }
    out + "\n" + &summary(diff) + "\n"
}

fn word(finding: Finding) -> &'static str {
    match finding {
        Finding::Unchanged | Finding::Unknown => "",
        Finding::Better => "better",
        Finding::Worse => "worse, within the threshold",
        Finding::Regression => "REGRESSION",
    }
}

fn summary(diff: &Diff) -> String {
    let all = || diff.results.iter().flat_map(|row| &row.changes);
    let count = |finding| all().filter(|change| change.finding == finding).count();
    let problems = diff.results.iter().filter(|row| row.problem.is_some()).count();
    let rows = diff.results.len();
    format!(
        "{} regressions beyond {} %, {} better, {} worse within it; {problems} of {rows} rows not \
         compared.",
        count(Finding::Regression),
        number::plain(diff.threshold * 100.0),
        count(Finding::Better),
        count(Finding::Worse),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(low: f64, median: f64, high: f64) -> Option<Interval> {
        Some(Interval { median, low, high })
    }

    #[test]
    fn a_regression_is_certain_for_the_worse_and_beyond_the_threshold() {
        let cases = [
            (interval(0.95, 1.1, 1.2), false, Finding::Unchanged),
            (interval(1.05, 1.1, 1.2), false, Finding::Regression),
            (interval(1.05, 1.1, 1.2), true, Finding::Better),
            (interval(1.01, 1.03, 1.2), false, Finding::Worse),
            (interval(0.7, 0.8, 0.9), true, Finding::Regression),
            (interval(0.7, 0.8, 0.9), false, Finding::Better),
            (None, false, Finding::Unknown),
        ];
        for (interval, more_is_better, finding) in cases {
            assert_eq!(judge(interval, more_is_better, 0.05), finding, "{interval:?}");
        }
    }

    #[test]
    fn ratios_against_baselines_are_compared_with_both_uncertainties() {
        let old = interval(1.0, 2.0, 4.0);
        let change = against_baselines(old, interval(2.0, 2.0, 2.0)).unwrap();
        assert!((change.median - 1.0).abs() < 1e-12 && (change.low - 0.5).abs() < 1e-12);
        assert!((change.high - 2.0).abs() < 1e-12, "{change:?}");
        let both = against_baselines(old, interval(1.0, 2.0, 4.0)).unwrap();
        assert!(both.low < 0.5 && both.high > 2.0, "{both:?}");
        assert_eq!(against_baselines(Some(Interval::ONE), Some(Interval::ONE)), None);
    }
}
