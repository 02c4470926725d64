//! The table of suites and programs, and the verdict.

use serde_json::{Value, json};
use std::fmt::Write as _;

use super::compare::{Finding, Pair};
use super::journal::Outcome;
use super::pins::Pin;
use crate::operations::aligned;

/// A suite, or a program with the same ends under the library.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) pairs: Vec<(Pair, Finding)>,
    /// Differences that count, as lines for the list.
    pub(crate) new: Vec<Pin>,
    /// Pinned cases that pass.
    pub(crate) passes: Vec<String>,
    /// Cases with varying results: most runs agree with the list, but not all.
    pub(crate) unsteady: Vec<String>,
    /// Ends of connections that were upgraded; `None` if they are not counted.
    pub(crate) upgraded: Option<u64>,
    /// Whether at least one connection must be upgraded.
    pub(crate) must_upgrade: bool,
    /// The reason why it was not run.
    pub(crate) skipped: Option<String>,
    pub(crate) seconds: f64,
}

/// The results of all suites and programs.
#[derive(Debug, Default)]
pub struct Table {
    pub(crate) rows: Vec<Row>,
    /// Pinned lines that match no case.
    pub(crate) stale: Vec<String>,
}

const HEAD: [&str; 12] = [
    "suite or program",
    "cases",
    "passed plain",
    "failed plain",
    "hung plain",
    "passed under",
    "failed under",
    "hung under",
    "pinned",
    "new",
    "upgraded",
    "seconds",
];

impl Row {
    /// Makes the row of a suite or program that was not run.
    pub(crate) fn skipped(name: String, why: String) -> Row {
        Row { skipped: Some(why), ..Row::empty(name) }
    }

    /// Makes a row without results.
    pub(crate) fn empty(name: String) -> Row {
        Row {
            name,
            pairs: Vec::new(),
            new: Vec::new(),
            passes: Vec::new(),
            unsteady: Vec::new(),
            upgraded: None,
            must_upgrade: false,
            skipped: None,
            seconds: 0.0,
        }
    }

    fn count(&self, is: impl Fn(&(Pair, Finding)) -> bool) -> usize {
        self.pairs.iter().filter(|pair| is(pair)).count()
    }

    /// Returns whether connections must be upgraded and none was.
    fn lacks_upgrades(&self) -> bool {
        self.must_upgrade && self.upgraded == Some(0) && self.skipped.is_none()
    }

    /// Returns the cells after the name.
    fn cells(&self) -> Vec<String> {
        let plain = |is: fn(Outcome) -> bool| self.count(|(pair, _)| is(pair.plain.outcome));
        let under = |is: fn(Outcome) -> bool| self.count(|(pair, _)| is(pair.under.outcome));
        let has_failed =
            |outcome| matches!(outcome, Outcome::Failed | Outcome::Error | Outcome::Died);
        let has_hung = |outcome| outcome == Outcome::Hung;
        let upgraded = match self.upgraded {
            Some(0) if self.lacks_upgrades() => "NONE".to_string(),
            Some(count) => count.to_string(),
            None => "-".to_string(),
        };
        vec![
            plain(|outcome| outcome != Outcome::Absent).to_string(),
            plain(Outcome::is_good).to_string(),
            plain(has_failed).to_string(),
            plain(has_hung).to_string(),
            under(Outcome::is_good).to_string(),
            under(has_failed).to_string(),
            under(has_hung).to_string(),
            self.count(|(_, finding)| *finding == Finding::Pinned).to_string(),
            (self.new.len() + self.passes.len()).to_string(),
            upgraded,
            format!("{:.0}", self.seconds),
        ]
    }

    fn json(&self) -> Value {
        let case = |(pair, finding): &(Pair, Finding)| {
            json!({
                "case": pair.case,
                "plain": pair.plain.outcome.to_string(),
                "under": pair.under.outcome.to_string(),
                "finding": format!("{finding:?}"),
                "detail": pair.under.detail,
            })
        };
        let differs =
            |(pair, finding): &&(Pair, Finding)| *finding != Finding::Same || pair.differs();
        let cases: Vec<Value> = self.pairs.iter().filter(differs).map(case).collect();
        let (name, skipped) = (&self.name, &self.skipped);
        let mut row = json!({ "name": name, "skipped": skipped, "differences": cases });
        for (head, cell) in HEAD[1..].iter().zip(self.cells()) {
            let number = cell.parse::<u64>().map(Value::from);
            row[head.replace(' ', "_")] = number.unwrap_or_else(|_| cell.into());
        }
        row
    }

    /// Returns the row as one line, shown before the table is complete.
    pub(crate) fn line(&self) -> String {
        if let Some(why) = &self.skipped {
            return format!("{}: skipped: {why}", self.name);
        }
        let cells = HEAD[1..].iter().zip(self.cells());
        let cells: Vec<String> = cells.map(|(head, cell)| format!("{head} {cell}")).collect();
        format!("{}: {}", self.name, cells.join(", "))
    }
}

impl Table {
    /// Everything that makes the run fail, a line each.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for row in &self.rows {
            faults.extend(row.new.iter().map(|pin| format!("new: {pin}")));
            let pass = |name: &String| format!("unexpected pass: {name}");
            faults.extend(row.passes.iter().map(pass));
            let passes_plainly = row.count(|(pair, _)| pair.plain.outcome.is_good()) > 0;
            if row.skipped.is_none() && !passes_plainly {
                faults.push(format!("no case passes plainly: {}", row.name));
            }
            if row.lacks_upgrades() {
                faults.push(format!("no connection was upgraded: {}", row.name));
            }
        }
        faults.extend(self.stale.iter().map(|name| format!("pinned, but no case: {name}")));
        faults
    }

    /// Returns the rows that were not run, with the reasons.
    pub fn skipped(&self) -> Vec<(String, String)> {
        let skipped = |row: &Row| Some((row.name.clone(), row.skipped.clone()?));
        self.rows.iter().filter_map(skipped).collect()
    }

    /// Returns the last line of the output.
    pub fn verdict(&self) -> String {
        let faults = self.faults();
        let cases: usize = self.rows.iter().map(|row| row.pairs.len()).sum();
        let pinned: usize =
            self.rows.iter().map(|row| row.count(|(_, found)| *found == Finding::Pinned)).sum();
        let mut verdict = match faults.len() {
            0 => format!("programs: {cases} cases, {pinned} pinned differences, no new one"),
            count => format!("programs: {cases} cases, {count} faults: {}", faults.join("; ")),
        };
        let skipped: Vec<String> = self.skipped().into_iter().map(|(name, _)| name).collect();
        if !skipped.is_empty() {
            let _ = write!(verdict, "; skipped: {}", skipped.join(", "));
        }
        verdict
    }

    /// Returns the table, the differences, and the verdict.
    pub fn text(&self) -> String {
        let mut lines: Vec<Vec<String>> = vec![HEAD.map(String::from).to_vec()];
        for row in &self.rows {
            let cells = match &row.skipped {
                Some(why) => vec![format!("skipped: {why}")],
                None => row.cells(),
            };
            lines.push([row.name.clone()].into_iter().chain(cells).collect());
        }
        let mut text = aligned(&lines);
        for name in self.rows.iter().flat_map(|row| &row.unsteady) {
            let _ = writeln!(text, "unsteady, not counted: {name}");
        }
        for fault in self.faults() {
            let _ = writeln!(text, "{fault}");
        }
        format!("{text}{}\n", self.verdict())
    }

    /// Returns the table as JSON, with each case that differs.
    pub fn json(&self) -> String {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        let (faults, verdict) = (self.faults(), self.verdict());
        format!("{:#}\n", json!({ "rows": rows, "faults": faults, "verdict": verdict }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::journal::End;
    use super::*;

    fn table(row: Row) -> Table {
        Table { rows: vec![row], stale: Vec::new() }
    }

    fn row() -> Row {
        let end = End { outcome: Outcome::Ok, detail: String::new(), seconds: 0.5 };
        let pair = Pair { case: "A.d".into(), plain: end.clone(), under: end };
        let pairs = vec![(pair, Finding::Same)];
        Row { upgraded: Some(4), must_upgrade: true, pairs, ..Row::empty("test_x".into()) }
    }

    #[test]
    fn the_last_line_names_new_differences_and_unexpected_passes() {
        assert_eq!(table(row()).verdict(), "programs: 1 cases, 0 pinned differences, no new one");
        let (plain, under) = (Outcome::Ok, vec![Outcome::Hung]);
        let new = vec![Pin { name: "test_x/A.b".into(), plain, under, reason: "F1".into() }];
        let bad = table(Row { new, passes: vec!["test_x/A.c".into()], ..row() });
        let last = "programs: 1 cases, 2 faults: new: test_x/A.b | ok | hung | F1; \
                    unexpected pass: test_x/A.c\n";
        assert!(bad.text().ends_with(last), "{}", bad.text());
    }

    #[test]
    fn a_row_that_promises_upgrades_and_has_none_fails() {
        let bad = table(Row { upgraded: Some(0), ..row() });
        assert_eq!(bad.faults(), ["no connection was upgraded: test_x"]);
        assert!(bad.text().contains("NONE"));
        assert_eq!(table(Row { upgraded: None, ..row() }).faults(), [""; 0]);
        let nothing = table(Row { pairs: Vec::new(), ..row() });
        assert_eq!(nothing.faults(), ["no case passes plainly: test_x"]);
    }

    #[test]
    fn what_is_skipped_or_stale_is_named() {
        let mut table = table(Row::skipped("apache".into(), "apache2 is not installed".into()));
        assert_eq!(table.faults(), [""; 0]);
        assert!(table.text().contains("skipped: apache2 is not"), "{}", table.text());
        assert!(table.verdict().ends_with("no new one; skipped: apache"));
        assert!(table.json().contains("\"skipped\": \"apache2 is not installed\""));
        table.stale.push("apache/x".into());
        assert_eq!(table.faults(), ["pinned, but no case: apache/x"]);
    }
}
