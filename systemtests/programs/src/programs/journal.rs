//! Parses the journal of a run of cases: a line when a case starts, and one when it ends.

use std::collections::BTreeMap;
use std::fmt;

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Ok,
    Skipped,
    ExpectedFailure,
    Failed,
    Error,
    /// The case did not end in time, and was killed.
    Hung,
    /// The process ended before the case did.
    Died,
    /// The case was not run: the set-up of its class or program failed.
    Absent,
}

const OUTCOMES: [(Outcome, &str); 8] = [
    (Outcome::Ok, "ok"),
    (Outcome::Skipped, "skipped"),
    (Outcome::ExpectedFailure, "expected-failure"),
    (Outcome::Failed, "failed"),
    (Outcome::Error, "error"),
    (Outcome::Hung, "hung"),
    (Outcome::Died, "died"),
    (Outcome::Absent, "absent"),
];

impl Outcome {
    /// Parses the word of an outcome.
    pub(crate) fn read(word: &str) -> Option<Outcome> {
        OUTCOMES.iter().find(|(_, name)| *name == word).map(|(outcome, _)| *outcome)
    }

    /// Returns whether the case passed or was skipped on purpose.
    pub(crate) fn is_good(self) -> bool {
        matches!(self, Outcome::Ok | Outcome::ExpectedFailure)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            OUTCOMES.iter().find(|(outcome, _)| outcome == self).map_or("", |(_, name)| name);
        out.write_str(name)
    }
}

/// The outcome of a case, and its reason.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct End {
    pub(crate) outcome: Outcome,
    pub(crate) detail: String,
    pub(crate) seconds: f64,
}

/// The cases of a suite or program by their names.
pub(crate) type Cases = BTreeMap<String, End>;

/// The part of a journal that was read so far.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) cases: Cases,
    /// The running case, and when it started.
    current: Option<(String, f64)>,
    /// The case that ended last.
    last: Option<String>,
    /// The time at which the last line was read.
    moved: f64,
    pub(crate) is_done: bool,
}

impl Journal {
    /// Creates an empty journal.
    pub(crate) fn new(now: f64) -> Journal {
        Journal { moved: now, ..Journal::default() }
    }

    /// Reads one line, written at about `now`, in seconds.
    pub(crate) fn read(&mut self, line: &str, now: f64) {
        self.moved = now;
        let words: Vec<&str> = line.split('\t').collect();
        match words[..] {
            ["start", name] => self.current = Some((name.to_string(), now)),
            ["end", name, outcome, ref detail @ ..] => {
                let started = self.current.take_if(|(of, _)| of == name);
                let seconds = started.map_or(0.0, |(_, start)| now - start);
                // An unknown word must not count as success.
                let outcome = Outcome::read(outcome).unwrap_or(Outcome::Error);
                self.end(name.to_string(), outcome, detail.join(" "), seconds);
            }
            ["done"] => self.is_done = true,
            _ => {}
        }
    }

    /// Returns the running case, or a name for what follows the last one (a fixture, the end of the
    /// process), and how long it has taken.
    pub(crate) fn waiting(&self, now: f64) -> (String, f64) {
        let name = match (&self.current, &self.last) {
            (Some((name, _)), _) => name.clone(),
            (None, _) if self.is_done => "(exit)".to_string(),
            (None, Some(last)) => {
                let class = last.rsplit_once('.').map_or(last.as_str(), |(class, _)| class);
                format!("{class} (behind)")
            }
            (None, None) => "(start)".to_string(),
        };
        (name, now - self.moved)
    }

    /// Ends the running case, because its process ended.
    pub(crate) fn cut_off(&mut self, outcome: Outcome, detail: &str, now: f64) {
        let (name, seconds) = self.waiting(now);
        self.current = None;
        self.end(name, outcome, detail.to_string(), seconds);
    }

    /// Keeps the worst outcome of cases with the same name.
    fn end(&mut self, name: String, outcome: Outcome, detail: String, seconds: f64) {
        self.last = Some(name.clone());
        let better = |end: &End| end.outcome < outcome;
        if self.cases.get(&name).is_none_or(better) {
            self.cases.insert(name, End { outcome, detail, seconds });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(lines: &[&str]) -> Journal {
        let mut journal = Journal::new(0.0);
        for (at, line) in lines.iter().enumerate() {
            journal.read(line, at as f64);
        }
        journal
    }

    #[test]
    fn each_case_has_its_outcome_detail_and_time() {
        let journal = journal(&[
            "start\tA.test_x",
            "end\tA.test_x\tfailed\twhy\tnot",
            "end\tB.setUpClass\terror\tno port",
            "done",
        ]);
        assert!(journal.is_done);
        let end = End { outcome: Outcome::Failed, detail: "why not".into(), seconds: 1.0 };
        assert_eq!(journal.cases["A.test_x"], end);
        assert_eq!(journal.cases["B.setUpClass"].outcome, Outcome::Error);
        assert_eq!(journal.waiting(9.0), ("(exit)".to_string(), 6.0));
    }

    #[test]
    fn what_hangs_is_the_case_under_way_or_what_is_behind_the_last() {
        let mut first = journal(&["start\tA.test_x", "end\tA.test_x\tok", "start\tA.test_y"]);
        assert_eq!(first.waiting(12.0), ("A.test_y".to_string(), 10.0));
        first.cut_off(Outcome::Hung, "", 12.0);
        assert_eq!(first.cases["A.test_y"].outcome, Outcome::Hung);
        let behind = journal(&["start\tA.test_x", "end\tA.test_x\tok"]);
        assert_eq!(behind.waiting(3.0), ("A (behind)".to_string(), 2.0));
        assert_eq!(journal(&[]).waiting(3.0).0, "(start)");
    }

    #[test]
    fn the_worst_of_cases_with_one_name_counts() {
        let journal = journal(&["end\tA\tok", "end\tA\tfailed\tfirst", "end\tA\tok"]);
        assert_eq!(journal.cases["A"].detail, "first");
        assert_eq!(journal.cases.len(), 1);
        for (outcome, name) in OUTCOMES {
            assert_eq!((Outcome::read(name), outcome.to_string().as_str()), (Some(outcome), name));
        }
    }
}
