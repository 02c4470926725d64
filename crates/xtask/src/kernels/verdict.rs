//! Judges the reports of a guest's checks.

use std::fmt;

use super::checks::{Check, Judge};
use super::protocol::Ended;
use crate::tally::{Scanner, Tally};

/// Most lines of a failed check's output that are shown.
const EXCERPT_LINES: usize = 40;

/// timeout(1)'s exit codes: the program was ended, or killed.
const OVERDUE: [i32; 2] = [124, 137];

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    /// The software cannot do it on this kernel, and reports why.
    Refused(String),
    Failed(String),
}

/// A check with its outcome and its counts.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) check: Check,
    pub(super) outcome: Outcome,
    pub(super) tally: Tally,
    pub(super) milliseconds: u64,
    /// Its output.
    pub(super) output: String,
}

impl Verdict {
    /// Returns the verdict of a check that did not run, or did not finish.
    pub(super) fn without_end(check: Check, outcome: Outcome) -> Verdict {
        let tally = match outcome {
            Outcome::Failed(_) => Tally { failed: 1, ..Tally::default() },
            _ => Tally { skipped: 1, ..Tally::default() },
        };
        Verdict { check, outcome, tally, milliseconds: 0, output: String::new() }
    }

    /// Judges a check that has ended.
    pub(super) fn of(check: Check, ended: Ended) -> Verdict {
        let Ended { code, milliseconds, output, .. } = ended;
        // A test that handles signals may hide how it was ended.
        let is_overdue = OVERDUE.contains(&code) || milliseconds >= check.limit.as_millis() as u64;
        let late = is_overdue
            .then(|| format!("not done within {} s{}", check.limit.as_secs(), unfinished(&output)));
        let mut tally = match check.judge {
            Judge::Status if code == 0 => Tally { passed: 1, ..Tally::default() },
            Judge::Status => Tally { failed: 1, ..Tally::default() },
            Judge::Tests { .. } => last_summary(&output),
        };
        tally.announce_skipped(lines_after(&output, "SKIPPED: ").count() as u64);
        let failure = late.or_else(|| match check.judge {
            _ if code != 0 => Some(cause(&output, code)),
            Judge::Tests { least } if tally.passed + tally.skipped < least => {
                Some(format!("{} tests ran, at least {least} must", tally.passed))
            }
            _ => None,
        });
        // A program that crashes prints no summary.
        tally.failed = tally.failed.max(u64::from(failure.is_some()));
        let outcome = failure.map_or(Outcome::Passed, Outcome::Failed);
        Verdict { check, outcome, tally, milliseconds, output }
    }

    /// Returns whether the check failed.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_))
    }

    /// Returns the end of the output, for finding the cause.
    pub(super) fn excerpt(&self) -> String {
        let is_news = |line: &&str| !line.is_empty() && !line.ends_with("... ok");
        let lines: Vec<&str> = self.output.lines().filter(is_news).collect();
        let last = &lines[lines.len().saturating_sub(EXCERPT_LINES)..];
        last.iter().map(|line| format!("    {line}\n")).collect()
    }
}

/// Formats one line: name, outcome and duration.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.milliseconds as f64 / 1000.0;
        write!(f, "{:<28} ", self.check.name)?;
        let tests = match self.check.judge {
            Judge::Tests { .. } => format!(" {}", counted(self.tally)),
            Judge::Status => String::new(),
        };
        match &self.outcome {
            Outcome::Passed => write!(f, "pass{tests} in {seconds:.1} s"),
            Outcome::Refused(reason) => write!(f, "refused: {reason}"),
            Outcome::Failed(reason) => write!(f, "FAIL{tests} in {seconds:.1} s: {reason}"),
        }
    }
}

/// `N of M`, with the tests that could not run.
pub(super) fn counted(tally: Tally) -> String {
    let Tally { passed, failed, skipped } = tally;
    let left_out = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
    format!("{passed} of {}{left_out}", passed + failed)
}

/// Returns the summary of the program itself, which follows those of programs that its tests start.
fn last_summary(output: &str) -> Tally {
    let mut last = None;
    Scanner::default().feed(output.as_bytes(), |tally| last = Some(tally));
    last.unwrap_or_else(|| {
        // A program that was ended prints none; its tests may still have passed.
        let count = |end: &str| {
            let is_test = |line: &&str| line.starts_with("test ") && line.ends_with(end);
            output.lines().filter(is_test).count() as u64
        };
        let [passed, failed] = [" ... ok", " ... FAILED"].map(count);
        Tally { passed, failed, skipped: 0 }
    })
}

fn lines_after<'a>(output: &'a str, beginning: &'a str) -> impl Iterator<Item = &'a str> {
    output.lines().filter_map(move |line| line.strip_prefix(beginning))
}

/// Returns the error that a script reports, or the failed tests of libtest.
fn cause(output: &str, code: i32) -> String {
    if let Some(reason) = lines_after(output, "FAILED: ").last() {
        return reason.to_string();
    }
    let failed: Vec<&str> = failed_tests(output).collect();
    if failed.is_empty() {
        return format!("exit code {code}{}", unfinished(output));
    }
    failed.join(", ")
}

/// Returns the list at the end of libtest's output.
fn failed_tests(output: &str) -> impl Iterator<Item = &str> {
    let list = output.rsplit_once("failures:\n").map_or("", |(_, list)| list);
    list.lines().take_while(|line| line.starts_with("    ")).map(str::trim)
}

/// Returns the tests that libtest reports as running for long, as the end of a sentence; empty if
/// there are none.
fn unfinished(output: &str) -> String {
    let name = |line: &str| {
        let name = line.strip_prefix("test ")?.split_once(" has been running for over")?.0;
        let ended = output.lines().any(|line| line.starts_with(&format!("test {name} ... ")));
        (!ended).then(|| name.to_string())
    };
    let names: Vec<String> = output.lines().filter_map(name).collect();
    if names.is_empty() { String::new() } else { format!("; unfinished: {}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::checks::Column;
    use super::*;

    fn check(judge: Judge) -> Check {
        Check {
            column: Column::Uring,
            name: "uring-accept".to_string(),
            script: String::new(),
            limit: Duration::from_secs(9),
            judge,
            needs_ring: true,
        }
    }

    fn verdict(judge: Judge, code: i32, output: &str) -> Verdict {
        let (name, output) = ("uring-accept".to_string(), output.to_string());
        Verdict::of(check(judge), Ended { name, code, milliseconds: 1500, output })
    }

    const TESTS: Judge = Judge::Tests { least: 1 };

    #[test]
    fn the_programs_own_summary_counts_and_not_those_of_its_children() {
        let inner = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured";
        let outer = "test result: ok. 23 passed; 0 failed; 1 ignored; 0 measured";
        let verdict = verdict(TESTS, 0, &format!("{inner}\n{outer}\n\nSKIPPED: a: no root\n"));
        assert_eq!(verdict.tally, Tally { passed: 22, failed: 0, skipped: 2 });
        assert_eq!(verdict.outcome, Outcome::Passed);
        assert_eq!(
            verdict.to_string().trim_end(),
            "uring-accept                 \
                   pass 22 of 22, 2 skipped in 1.5 s"
        );
    }

    #[test]
    fn failed_tests_are_named() {
        let output = "failures:\n\n---- a::b stdout ----\nx\n\nfailures:\n    a::b\n    a::c\n\n\
                      test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured\n";
        let verdict = verdict(TESTS, 101, output);
        assert_eq!(verdict.outcome, Outcome::Failed("a::b, a::c".to_string()));
        assert_eq!(counted(verdict.tally), "3 of 5");
        assert!(verdict.excerpt().starts_with("    failures:\n"), "{}", verdict.excerpt());
    }

    #[test]
    fn a_test_that_hangs_is_named() {
        let output = "test a::b has been running for over 60 seconds\n\
                      test a::c has been running for over 60 seconds\ntest a::b ... ok\n";
        let verdict = verdict(TESTS, 124, output);
        let reason = "not done within 9 s; unfinished: a::c".to_string();
        assert_eq!(verdict.outcome, Outcome::Failed(reason));
        assert_eq!(counted(verdict.tally), "1 of 2");
    }

    #[test]
    fn a_filter_that_matches_nothing_is_a_failure() {
        let output = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured\n";
        assert!(verdict(TESTS, 0, output).has_failed());
    }

    #[test]
    fn a_script_says_what_has_failed() {
        let verdict = verdict(Judge::Status, 1, "FAILED: GET has other values\nlog\n");
        assert_eq!(verdict.outcome, Outcome::Failed("GET has other values".to_string()));
        assert_eq!(verdict.tally.failed, 1);
    }

    #[test]
    fn what_is_refused_counts_as_skipped() {
        let verdict = Verdict::without_end(check(TESTS), Outcome::Refused("no ring".to_string()));
        assert_eq!(verdict.tally.skipped, 1);
        assert!(verdict.to_string().ends_with("refused: no ring"));
    }
}
