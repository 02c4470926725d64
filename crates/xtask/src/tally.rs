//! Counts tests by the lines that test programs and `cargo xtask` commands print at their end.

use std::fmt;
use std::ops::AddAssign;

/// How many tests passed, failed and did not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    /// Counts the tests of a program by its output: a command of xtask ends with a line of
    /// [`fmt::Display`], a test program prints a summary.
    pub(crate) fn of_output(text: &str) -> Tally {
        let mut sum = Tally::default();
        for line in text.lines() {
            if let Some(total) = Tally::parse(line, "result: ", ", ", "skipped") {
                sum = total;
            } else if let Some((_, counts)) =
                line.strip_prefix("test result: ").and_then(|line| line.split_once(". "))
                && let Some(summary) = Tally::parse(counts, "", "; ", "ignored")
            {
                sum += summary;
            }
        }
        sum
    }

    fn parse(line: &str, prefix: &str, separator: &str, skipped: &str) -> Option<Tally> {
        let mut fields = line.strip_prefix(prefix)?.split(separator);
        let mut next = |name: &str| fields.next()?.strip_suffix(name)?.trim_end().parse().ok();
        Some(Tally { passed: next("passed")?, failed: next("failed")?, skipped: next(skipped)? })
    }

    /// Moves tests that reported themselves as skipped: the harness has counted them as passed.
    pub(crate) fn move_skipped(&mut self, count: u64) {
        self.passed = self.passed.saturating_sub(count);
        self.skipped += count;
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { passed, failed, skipped } = self;
        write!(f, "result: {passed} passed, {failed} failed, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_test_programs_are_added() {
        let text = "running 3 tests\n\
                    test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out\n\
                    noise\n\
                    test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; finished\n";
        let sum = Tally { passed: 15, failed: 2, skipped: 1 };
        assert_eq!(Tally::of_output(text), sum);
        assert_eq!(
            Tally::of_output("test result: ok.\n test result: x\nrunning"),
            Tally::default()
        );
    }

    #[test]
    fn the_last_line_of_a_command_is_its_sum() {
        let mut tally = Tally { passed: 12, failed: 3, skipped: 1 };
        assert_eq!(Tally::of_output(&format!("noise\n{tally}\n")), tally);
        tally.move_skipped(2);
        assert_eq!(tally.to_string(), "result: 10 passed, 3 failed, 3 skipped");
    }
}
