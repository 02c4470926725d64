//! The self-test: compares a server with itself, to show which differences mean nothing.

use crate::engine::statistics::Interval;
use crate::results::{Row, SelfTest};

/// Share of the intervals that miss the true value by chance: they are 95 % intervals.
const MISSES: f64 = 0.05;
/// Probability, at most, that a correct self-test has more misses than are accepted.
const SURPRISE: f64 = 0.01;

impl SelfTest {
    /// Judges the rows other than the baseline's.
    pub(crate) fn of(rows: &[Row], baseline: &str) -> SelfTest {
        let again = || rows.iter().filter(|row| row.subject != baseline);
        let throughput: Vec<Interval> = again().filter_map(|row| row.throughput_ratio).collect();
        let cpu: Vec<Interval> = again().filter_map(|row| row.cpu_ratio).collect();
        let all = throughput.iter().chain(&cpu);
        let excluding_one = all.filter(|interval| !interval.contains(1.0)).count();
        let intervals = throughput.len() + cpu.len();
        let complete = intervals > 0 && intervals == 2 * again().count();
        SelfTest {
            throughput_noise_percent: noise_percent(&throughput),
            cpu_noise_percent: noise_percent(&cpu),
            intervals,
            excluding_one,
            explained_by_chance: explained_by_chance(intervals),
            trustworthy: complete
                && excluding_one <= explained_by_chance(intervals)
                && rows.iter().all(|row| row.valid),
        }
    }

    /// Returns the sentences below the table.
    pub(crate) fn describe(&self) -> String {
        let bound = |noise: Option<f64>| {
            noise.map_or_else(|| "an unknown amount".to_owned(), |noise| format!("{noise} %"))
        };
        let mut text = format!(
            "This is what \"no difference\" looks like on this machine now: differences under {} \
             in throughput and under {} in CPU per transaction mean nothing here.\n",
            bound(self.throughput_noise_percent),
            bound(self.cpu_noise_percent)
        );
        if self.excluding_one > self.explained_by_chance {
            text.push_str(&format!(
                "NOT TO BE TRUSTED: {} of {} intervals exclude 1 although both sides are the same; \
                 chance explains {}. The machine is not quiet enough now; repeat with more \
                 --rounds or a longer --duration.\n",
                self.excluding_one, self.intervals, self.explained_by_chance
            ));
        } else if !self.trustworthy {
            text.push_str(
                "NOT TO BE TRUSTED: rows are not valid, see the notes; repeat on a quieter \
                 machine.\n",
            );
        } else {
            text.push_str(&format!(
                "{} of {} intervals include 1; chance explains {} that do not.\n",
                self.intervals - self.excluding_one,
                self.intervals,
                self.explained_by_chance
            ));
        }
        text
    }
}

/// Returns the least number of misses that chance exceeds with a probability below `SURPRISE`: the
/// upper tail of the binomial distribution.
fn explained_by_chance(intervals: usize) -> usize {
    let mut exactly = (1.0 - MISSES).powi(intervals as i32);
    let mut at_most = exactly;
    let mut count = 0;
    while 1.0 - at_most >= SURPRISE && count < intervals {
        exactly *= (intervals - count) as f64 / (count + 1) as f64 * MISSES / (1.0 - MISSES);
        at_most += exactly;
        count += 1;
    }
    count
}

/// Returns how far the intervals reach from 1, at most: a ratio in either direction, in percent,
/// rounded up to tenths.
fn noise_percent(intervals: &[Interval]) -> Option<f64> {
    let reach = |interval: &Interval| interval.high.max(1.0 / interval.low) - 1.0;
    let widest = intervals.iter().map(reach).max_by(f64::total_cmp)?;
    Some((widest * 1_000.0).ceil() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::table::tests::row;

    #[test]
    fn the_widest_interval_is_the_noise() {
        let mut wide = row("epoll (again)", 1, 1.0);
        wide.cpu_ratio = Some(Interval { estimate: 0.9, low: 0.8, high: 1.0 });
        let rows = [row("epoll", 1, 1.0), row("epoll (again)", 0, 1.0), wide];
        let outcome = SelfTest::of(&rows, "epoll");
        // As factors, 0.9 is as far from 1 as 1/0.9 is, and 0.8 as far as 1.25.
        assert_eq!(outcome.throughput_noise_percent, Some(11.2));
        assert_eq!(outcome.cpu_noise_percent, Some(25.0));
        assert_eq!((outcome.intervals, outcome.excluding_one), (4, 0));
        assert!(outcome.trustworthy);
        let text = outcome.describe();
        assert!(text.contains("under 11.2 % in throughput and under 25 % in CPU"), "{text}");
    }

    #[test]
    fn chance_explains_some_misses_among_many_intervals() {
        // From tables of the binomial distribution with p = 0.05.
        for (intervals, explained) in [(0, 0), (1, 1), (4, 2), (16, 3), (100, 11)] {
            assert_eq!(explained_by_chance(intervals), explained, "{intervals}");
        }
    }

    #[test]
    fn a_claimed_difference_is_not_to_be_trusted() {
        let rows = [row("epoll", 1, 1.0), row("epoll (again)", 1, 1.5)];
        let outcome = SelfTest::of(&rows, "epoll");
        assert!(!outcome.trustworthy);
        let text = outcome.describe();
        assert!(text.contains("NOT TO BE TRUSTED: 2 of 2 intervals exclude 1"), "{text}");
    }

    #[test]
    fn neither_are_invalid_or_missing_rows() {
        let mut again = row("epoll (again)", 1, 1.0);
        again.valid = false;
        let outcome = SelfTest::of(&[row("epoll", 1, 1.0), again.clone()], "epoll");
        assert!(!outcome.trustworthy && outcome.describe().contains("rows are not valid"));
        (again.valid, again.throughput_ratio, again.cpu_ratio) = (true, None, None);
        let outcome = SelfTest::of(&[row("epoll", 1, 1.0), again], "epoll");
        assert!(!outcome.trustworthy && outcome.describe().contains("an unknown amount"));
    }
}
