//! Counts tests: reads the summary lines of `cargo test` from its output.

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
    /// Parses `test result: ok. 12 passed; 0 failed; 1 ignored; ...`; any other line is `None`.
    /// Tests filtered out by name were not requested, so they do not count as skipped.
    fn from_summary(line: &str) -> Option<Tally> {
        let (_, fields) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut fields = fields.split(';').map(str::trim);
        let mut next =
            |name: &str| fields.next()?.strip_suffix(name)?.trim_end().parse::<u64>().ok();
        Some(Tally { passed: next("passed")?, failed: next("failed")?, skipped: next("ignored")? })
    }

    /// Parses the last line of a run, as [`fmt::Display`] writes it.
    pub(crate) fn from_result(line: &str) -> Option<Tally> {
        let mut fields = line.strip_prefix("result: ")?.split(", ");
        let mut next = |name: &str| fields.next()?.strip_suffix(name)?.trim_end().parse().ok();
        Some(Tally { passed: next("passed")?, failed: next("failed")?, skipped: next("skipped")? })
    }

    /// Counts tests that reported themselves as skipped. They returned, so the harness has counted
    /// each of them as passed.
    pub(crate) fn announce_skipped(&mut self, count: u64) {
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

/// Finds summary lines in a stream that arrives in arbitrary pieces.
#[derive(Default)]
pub(crate) struct Scanner {
    line: Vec<u8>,
}

/// Longest line that is kept, enough for a summary line; a test may print lines of any length.
const LINE_BYTES_MAX: usize = 256;

impl Scanner {
    /// Takes the next piece and calls `found` for each summary that ends within it.
    pub(crate) fn feed(&mut self, piece: &[u8], mut found: impl FnMut(Tally)) {
        for &byte in piece {
            if byte == b'\n' {
                let summary = str::from_utf8(&self.line).ok().and_then(Tally::from_summary);
                summary.into_iter().for_each(&mut found);
                self.line.clear();
            } else if self.line.len() < LINE_BYTES_MAX {
                self.line.push(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY: &str = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; \
                           3 filtered out; finished in 0.01s";

    fn scan(pieces: &[&[u8]]) -> Tally {
        let mut scanner = Scanner::default();
        let mut total = Tally::default();
        for piece in pieces {
            scanner.feed(piece, |tally| total += tally);
        }
        total
    }

    #[test]
    fn the_last_line_of_a_run_is_read_as_it_is_written() {
        let tally = Tally { passed: 12, failed: 3, skipped: 1 };
        assert_eq!(Tally::from_result(&tally.to_string()), Some(tally));
        assert_eq!(Tally::from_result("result: 12 passed, x failed, 1 skipped"), None);
    }

    #[test]
    fn reads_a_summary() {
        let tally = Tally { passed: 12, failed: 0, skipped: 1 };
        assert_eq!(Tally::from_summary(SUMMARY), Some(tally));
    }

    #[test]
    fn reads_a_failed_summary() {
        let line = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        let tally = Tally { passed: 3, failed: 2, skipped: 0 };
        assert_eq!(Tally::from_summary(line), Some(tally));
    }

    #[test]
    fn other_lines_are_no_summary() {
        for line in ["", "test a ... ok", "test result: ok.", "running 3 tests", " test result: "] {
            assert_eq!(Tally::from_summary(line), None, "{line:?}");
        }
    }

    #[test]
    fn sums_over_pieces_cut_anywhere() {
        let text = format!("running\n{SUMMARY}\n\nnoise \u{e9}\n{SUMMARY}\n").into_bytes();
        let whole = Tally { passed: 24, failed: 0, skipped: 2 };
        for cut in 0..text.len() {
            assert_eq!(scan(&[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
        }
    }

    #[test]
    fn an_endless_line_hides_nothing_that_follows() {
        let mut text = vec![b'x'; 3 * LINE_BYTES_MAX];
        text.extend(format!("\n{SUMMARY}\n").bytes());
        assert_eq!(scan(&[&text]).passed, 12);
    }

    #[test]
    fn announced_skips_move_from_passed_to_skipped() {
        let mut tally = Tally { passed: 5, failed: 0, skipped: 1 };
        tally.announce_skipped(2);
        assert_eq!(tally.to_string(), "result: 3 passed, 0 failed, 3 skipped");
    }
}
