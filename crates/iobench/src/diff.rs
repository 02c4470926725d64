//! `iobench diff`: compares two result files row by row and decides whether a row is worse.
//!
//! Two runs never find the same conditions: from one hour to the next a machine may be 5 % slower.
//! A row is therefore judged by its ratio to the baseline, which was measured in the same rounds
//! and is affected alike: the ratios of the rounds of both runs give the change and its interval.
//! Rows without a baseline (the baseline itself, a run of one server) are judged by the figures
//! themselves, and a change counts only if it exceeds the drift that `--drift` allows for.
//!
//! Many changes are judged at a time, so their intervals are such that with 95 % all of them hold,
//! and they allow for the correlation of successive rounds, which is estimated from all rows.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;

use serde::Serialize;

use crate::cli::saved::DiffArgs;
use crate::engine::autocorrelation::Correlation;
use crate::engine::statistics::{Interval, LEAST_ROUNDS, change_interval, geometric_mean};
use crate::engine::whole_file::WholeFile;
use crate::error::Result;
use crate::output;
use crate::report::input::{self, Saved};
use crate::report::number;
use crate::report::point::Dimension;
use crate::results::{Document, RoundFigures, Row};

/// The result of the whole comparison; it determines the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// All rows could be compared, and none is worse.
    Fine,
    /// No row that could be compared is worse, but some could not.
    Incomplete,
    /// A row is worse by more than the threshold, with statistical certainty.
    Regression,
}

/// The result for one figure of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Finding {
    /// The interval contains "no change".
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
    /// The baseline whose ratio is judged; the figure itself is judged without one.
    against: Option<String>,
    /// The value that is judged: the mean over rounds of the ratio, or of the figure.
    judged_old: f64,
    judged_new: f64,
    /// The figures that the rows show.
    old: f64,
    new: f64,
    /// The judged value, new divided by old.
    ratio: f64,
    interval: Option<Interval>,
    finding: Finding,
    /// The judged values of all rounds, of OLD and of NEW.
    #[serde(skip)]
    rounds: [Vec<f64>; 2],
    #[serde(skip)]
    of: &'static Figure,
}

impl Change {
    /// Whether both files have enough rounds for an interval.
    fn can_be_judged(&self) -> bool {
        self.rounds.iter().all(|rounds| rounds.len() >= LEAST_ROUNDS)
    }
}

/// The comparison of one row of OLD with its counterpart in NEW.
#[derive(Debug, Serialize)]
struct Comparison {
    subject: String,
    point: String,
    changes: Vec<Change>,
    /// Why the row could not be compared.
    problem: Option<String>,
}

/// The whole result, as `--json` writes it.
#[derive(Debug, Serialize)]
pub(crate) struct Diff {
    format: &'static str,
    version: u32,
    old: String,
    new: String,
    threshold: f64,
    drift: f64,
    /// Changes with an interval; with 95 % all of these intervals hold.
    claims: usize,
    /// The correlation of successive rounds that they allow for.
    correlation: f64,
    pub(crate) outcome: Outcome,
    remarks: Vec<String>,
    results: Vec<Comparison>,
}

/// Compares the files and prints what has changed.
pub(crate) fn run(arguments: &DiffArgs) -> Result<Outcome> {
    let json = arguments.json.as_deref().map(WholeFile::prepare).transpose()?;
    if let Some(json) = &json {
        json.check_is_no_input(&[arguments.old.clone(), arguments.new.clone()])?;
    }
    let (old, new) = (input::read(&arguments.old)?, input::read(&arguments.new)?);
    let bounds = Bounds { threshold: arguments.threshold, drift: arguments.drift };
    let diff = compare(&old, &new, bounds);
    let printed = match &json {
        Some(json) if json.is_standard_output() => Ok(()),
        _ => output::print(&table(&diff)),
    };
    if let Some(json) = json {
        json.write(&diff)?;
    }
    printed?;
    Ok(diff.outcome)
}

/// The limits that a change has to exceed, as fractions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// To be a regression.
    pub(crate) threshold: f64,
    /// To be a change at all, for rows without a baseline.
    pub(crate) drift: f64,
}

/// Compares two files.
pub(crate) fn compare(old: &Saved, new: &Saved, bounds: Bounds) -> Diff {
    let mut others: HashMap<Vec<String>, VecDeque<&Row>> = HashMap::new();
    for row in &new.document.results {
        others.entry(identity(row)).or_default().push_back(row);
    }
    let mut results: Vec<Comparison> = old
        .document
        .results
        .iter()
        .map(|row| {
            let other = others.get_mut(&identity(row)).and_then(VecDeque::pop_front);
            let other = other.map(|other| Side::of(&new.document, other));
            comparison(Side::of(&old.document, row), other)
        })
        .collect();
    let (claims, correlation) = judge_all(&mut results, bounds);
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
            "changes without an interval are not judged; measure with at least 3 rounds".to_owned(),
        );
    }
    Diff {
        format: "iobench-diff",
        version: 1,
        old: old.label.clone(),
        new: new.label.clone(),
        threshold: bounds.threshold,
        drift: bounds.drift,
        claims,
        correlation,
        outcome,
        remarks,
        results,
    }
}

/// Judges all changes together; returns their number and the correlation of successive rounds.
fn judge_all(results: &mut [Comparison], bounds: Bounds) -> (usize, f64) {
    let all = results.iter_mut().flat_map(|row| &mut row.changes);
    let mut judged: Vec<&mut Change> = all.filter(|change| change.can_be_judged()).collect();
    let series = judged.iter().flat_map(|change| &change.rounds).map(Vec::as_slice);
    let (claims, correlation) = (judged.len(), Correlation::estimate(series));
    for change in &mut judged {
        let [old, new] = &change.rounds;
        change.interval = change_interval(old, new, claims, correlation);
        let drift = if change.against.is_some() { 0.0 } else { bounds.drift };
        change.finding = judge(change.interval, change.of.more_is_better, bounds.threshold, drift);
    }
    (claims, correlation.coefficient())
}

/// Returns the fields of a row that its counterpart must have the same values in.
fn identity(row: &Row) -> Vec<String> {
    let dimensions = Dimension::ALL.into_iter().map(|dimension| dimension.value(row));
    std::iter::once(row.subject.clone()).chain(dimensions).collect()
}

/// Differences between the files that make them hard to compare.
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
    for (document, name) in [(old, "OLD"), (new, "NEW")] {
        if document.interrupted {
            remarks.push(format!("{name} is of a run that was interrupted"));
        }
    }
    if old.experiment.file != new.experiment.file {
        remarks.push("the experiment files differ".to_owned());
    }
    remarks
}

/// A row with the baseline's row at the same point, unless it is the baseline itself.
#[derive(Clone, Copy)]
struct Side<'a> {
    row: &'a Row,
    baseline: Option<&'a Row>,
}

impl<'a> Side<'a> {
    fn of(document: &'a Document, row: &'a Row) -> Side<'a> {
        let point = |row: &Row| identity(row).split_off(1);
        let is_baseline = |other: &&Row| {
            other.subject == document.baseline && other.valid && point(other) == point(row)
        };
        let baseline = (row.subject != document.baseline)
            .then(|| document.results.iter().find(is_baseline))
            .flatten();
        Side { row, baseline }
    }

    /// Returns the figure of every valid round, divided by the baseline's of the same round if
    /// asked for.
    fn rounds(&self, figure: &Figure, against_baseline: bool) -> Vec<f64> {
        let value = |round: &RoundFigures| {
            (figure.of_round)(round).filter(|value| round.valid && *value > 0.0)
        };
        match self.baseline.filter(|_| against_baseline) {
            None => self.row.rounds.iter().filter_map(value).collect(),
            Some(baseline) => {
                let pairs = self.row.rounds.iter().zip(&baseline.rounds);
                pairs.filter_map(|(own, base)| Some(value(own)? / value(base)?)).collect()
            }
        }
    }
}

/// Dimensions that are the same in all rows of transports and are not shown there.
const OF_SERVERS: [Dimension; 3] =
    [Dimension::Connections, Dimension::Transactions, Dimension::Cores];

/// Returns whether answers have another size than their requests.
fn answers_differ(row: &Row) -> bool {
    row.response_bytes > 0 && row.response_bytes != row.request_bytes
}

fn comparison(old: Side<'_>, new: Option<Side<'_>>) -> Comparison {
    let row = old.row;
    let point: Vec<String> = [
        Dimension::Workload,
        Dimension::Connections,
        Dimension::Rate,
        Dimension::Transactions,
        Dimension::Idle,
        Dimension::RequestBytes,
        Dimension::ResponseBytes,
        Dimension::Cores,
        Dimension::Pipeline,
        Dimension::Batch,
        Dimension::Placement,
    ]
    .into_iter()
    .filter(|d| *d != Dimension::Rate || row.request_rate.is_some())
    .filter(|d| *d != Dimension::Transactions || row.request_rate.is_none())
    .filter(|d| *d != Dimension::Idle || row.idle > 0)
    .filter(|d| *d != Dimension::RequestBytes || row.request_bytes > 0)
    .filter(|d| *d != Dimension::ResponseBytes || answers_differ(row))
    .filter(|d| *d != Dimension::Pipeline || row.pipeline > 1)
    .filter(|d| *d != Dimension::Batch || row.batch > 1)
    .filter(|d| *d != Dimension::Placement || row.placement.is_some())
    .filter(|d| row.placement.is_none() || !OF_SERVERS.contains(d))
    .map(|dimension| dimension.phrase(row))
    .collect();
    let because = |what: &str, row: &Row| {
        let reason = row.notes.first().map_or("the file does not say why", String::as_str);
        Some(format!("not valid in {what}: {reason}"))
    };
    let (changes, problem) = match new {
        None => (Vec::new(), Some("missing from NEW".to_owned())),
        Some(new) if !new.row.valid => (Vec::new(), because("NEW", new.row)),
        Some(_) if !row.valid => (Vec::new(), because("OLD", row)),
        Some(new) => changes(&[old, new]),
    };
    Comparison { subject: row.subject.clone(), point: point.join(", "), changes, problem }
}

/// A figure: its name, how to read it from a row, and whether more is better.
#[derive(Debug)]
struct Figure {
    name: &'static str,
    of_row: fn(&Row) -> Option<f64>,
    of_round: fn(&RoundFigures) -> Option<f64>,
    more_is_better: bool,
    format: fn(f64) -> String,
}

static FIGURES: [Figure; 6] = [
    Figure {
        name: "p50",
        of_row: Row::p50_us,
        of_round: RoundFigures::p50_us,
        more_is_better: false,
        format: number::time,
    },
    Figure {
        name: "p99",
        of_row: Row::p99_us,
        of_round: RoundFigures::p99_us,
        more_is_better: false,
        format: number::time,
    },
    Figure {
        name: "throughput",
        of_row: |row| row.throughput,
        of_round: |round| round.throughput,
        more_is_better: true,
        format: number::plain,
    },
    Figure {
        name: "server CPU per request",
        of_row: |row| row.server_cpu_us,
        of_round: |round| round.server_cpu_us,
        more_is_better: false,
        format: number::time,
    },
    Figure {
        name: "client CPU per request",
        of_row: |row| row.client_cpu_us,
        of_round: |round| round.client_cpu_us,
        more_is_better: false,
        format: number::time,
    },
    Figure {
        name: "CPU of both sides per request",
        of_row: |row| row.cpu_both_us,
        of_round: |round| round.cpu_both_us,
        more_is_better: false,
        format: number::time,
    },
];

/// Returns the changes, not judged yet.
fn changes(sides: &[Side<'_>; 2]) -> (Vec<Change>, Option<String>) {
    let [old, new] = sides;
    let mut changes = Vec::new();
    let mut lacking = Vec::new();
    for figure in &FIGURES {
        match ((figure.of_row)(old.row), (figure.of_row)(new.row)) {
            (Some(before), Some(after)) if before > 0.0 && after > 0.0 => {
                changes.push(change(figure, sides, [before, after]));
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

fn change(figure: &'static Figure, sides: &[Side<'_>; 2], rows: [f64; 2]) -> Change {
    let against = match sides.map(|side| side.baseline) {
        [Some(old), Some(new)] if old.subject == new.subject => Some(old.subject.clone()),
        _ => None,
    };
    let rounds = sides.map(|side| side.rounds(figure, against.is_some()));
    let mean = |place: usize| geometric_mean(&rounds[place]).unwrap_or(rows[place]);
    let (judged_old, judged_new) = (mean(0), mean(1));
    Change {
        figure: figure.name,
        against,
        judged_old,
        judged_new,
        old: rows[0],
        new: rows[1],
        ratio: judged_new / judged_old,
        interval: None,
        finding: Finding::Unknown,
        rounds,
        of: figure,
    }
}

/// Classifies an interval; a change within the drift counts as unchanged.
fn judge(interval: Option<Interval>, more_is_better: bool, threshold: f64, drift: f64) -> Finding {
    let Some(interval) = interval else { return Finding::Unknown };
    if interval.low <= 1.0 + drift && interval.high >= 1.0 / (1.0 + drift) {
        return Finding::Unchanged;
    }
    let grew = interval.estimate > 1.0;
    if grew == more_is_better {
        return Finding::Better;
    }
    if (interval.estimate - 1.0).abs() > threshold { Finding::Regression } else { Finding::Worse }
}

/// Returns the result as a table.
pub(crate) fn table(diff: &Diff) -> String {
    let mut out = format!("{} → {}\n", diff.old, diff.new);
    for remark in &diff.remarks {
        let _ = writeln!(out, "  note: {remark}");
    }
    for row in &diff.results {
        let _ = writeln!(out, "\n{}, {}", row.subject, row.point);
        for change in &row.changes {
            let shown = match &change.interval {
                Some(interval) => number::change_with_interval(interval),
                None => format!("{}, no interval", number::change(change.ratio)),
            };
            let (what, judged) = match &change.against {
                None => (change.figure.to_owned(), change.of.format),
                Some(baseline) => {
                    let ratio: fn(f64) -> String = |ratio| format!("{ratio:.3}");
                    (format!("{} / {baseline}", change.figure), ratio)
                }
            };
            let own = match change.against {
                None => String::new(),
                Some(_) => {
                    let shown = change.of.format;
                    format!("  ({} → {})", shown(change.old), shown(change.new))
                }
            };
            let line = format!(
                "  {what:<28} {:>10} → {:>10}   {shown:<26} {}{own}",
                judged(change.judged_old),
                judged(change.judged_new),
                word(change.finding)
            );
            let _ = writeln!(out, "{}", line.trim_end());
        }
        if let Some(problem) = &row.problem {
            let _ = writeln!(out, "  NOT COMPARED: {problem}");
        }
    }
    output::printable(&(out + "\n" + &summary(diff) + "\n"))
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
    let intervals = match diff.claims {
        0 => String::new(),
        claims => format!(
            "With 95 % all {claims} intervals hold, if successive rounds correlate by at most \
             {:.2}.\n",
            diff.correlation
        ),
    };
    format!(
        "{intervals}{} regressions beyond {} %, {} better, {} worse within it; {problems} of \
         {rows} rows not compared.",
        count(Finding::Regression),
        number::plain(diff.threshold * 100.0),
        count(Finding::Better),
        count(Finding::Worse),
    )
}

#[cfg(test)]
mod tests;
