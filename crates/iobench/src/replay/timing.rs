//! Makes the times of a replay from those of a log.

use crate::access_log::log::{Entry, Format};

const SECOND_NS: u64 = 1_000_000_000;
/// Length of the windows in which the highest rate is looked for.
const WINDOW_NS: u64 = 100_000_000;

/// How the times of the log are changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// Factor by which the replay is faster.
    pub(crate) speed: f64,
    /// Longest gap between two requests, in the log's time.
    pub(crate) max_gap_ns: u64,
}

/// What became of the times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// From the first request to the end of the last, which lasts as long as a mean gap.
    pub(crate) length_ns: u64,
    /// Gaps that were shortened.
    pub(crate) shortened: u64,
}

impl Timing {
    /// Replaces the times of the entries, which are sorted, by those of the replay, from 0.
    pub(crate) fn apply(&self, entries: &mut [Entry], format: Format) -> Times {
        if format == Format::Common || has_whole_seconds(entries) {
            spread(entries);
        }
        let (mut shortened, mut at_ns) = (0, 0);
        let mut before_ns = entries.first().map_or(0, |entry| entry.at_ns);
        for entry in entries.iter_mut() {
            let gap_ns = entry.at_ns - before_ns;
            before_ns = entry.at_ns;
            shortened += u64::from(gap_ns > self.max_gap_ns);
            at_ns += gap_ns.min(self.max_gap_ns);
            entry.at_ns = (at_ns as f64 / self.speed) as u64;
        }
        let last_ns = entries.last().map_or(0, |entry| entry.at_ns);
        let gaps = entries.len().saturating_sub(1).max(1) as u64;
        // A log of one request, or of requests at one time, has no gap.
        Times { length_ns: last_ns + (last_ns / gaps).max(1_000_000), shortened }
    }
}

/// Returns whether all times are whole seconds: those of a format without fractions.
fn has_whole_seconds(entries: &[Entry]) -> bool {
    entries.len() > 1 && entries.iter().all(|entry| entry.at_ns % SECOND_NS == 0)
}

/// Spreads requests with the same second evenly over it, in their order.
fn spread(entries: &mut [Entry]) {
    for second in entries.chunk_by_mut(|one, next| one.at_ns == next.at_ns) {
        let count = second.len() as u64;
        for (number, entry) in second.iter_mut().enumerate() {
            entry.at_ns += SECOND_NS * number as u64 / count;
        }
    }
}

/// Returns the highest rate of a window, in requests per second.
pub(crate) fn peak_rate(entries: &[Entry]) -> f64 {
    let windows = entries.chunk_by(|one, next| one.at_ns / WINDOW_NS == next.at_ns / WINDOW_NS);
    windows.map(<[Entry]>::len).max().unwrap_or(0) as f64 * SECOND_NS as f64 / WINDOW_NS as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(times: &[u64]) -> Vec<Entry> {
        times.iter().map(|&at_ns| Entry { at_ns, request: 0, status: 0 }).collect()
    }

    fn applied(times: &[u64], timing: Timing) -> (Vec<u64>, Times) {
        let mut entries = entries(times);
        let applied = timing.apply(&mut entries, Format::Json);
        (entries.iter().map(|entry| entry.at_ns).collect(), applied)
    }

    const PLAIN: Timing = Timing { speed: 1.0, max_gap_ns: u64::MAX };
    const S: u64 = SECOND_NS;

    #[test]
    fn times_are_relative_and_scaled() {
        let (times, told) = applied(&[5 * S, 5 * S + 1, 7 * S], PLAIN);
        assert_eq!(times, [0, 1, 2 * S]);
        assert_eq!(told, Times { length_ns: 3 * S, shortened: 0 });
        let (times, _) = applied(&[5 * S + 1, 7 * S + 1], Timing { speed: 4.0, ..PLAIN });
        assert_eq!(times, [0, S / 2]);
    }

    #[test]
    fn long_gaps_are_shortened_and_counted() {
        let timing = Timing { max_gap_ns: S, speed: 1.0 };
        let (times, told) = applied(&[1, 10 * S, 10 * S + 5, 99 * S], timing);
        assert_eq!(times, [0, S, S + 5, 2 * S + 5]);
        assert_eq!(told.shortened, 2);
    }

    #[test]
    fn requests_of_one_second_are_spread_over_it() {
        let (times, _) = applied(&[3 * S, 3 * S, 3 * S, 3 * S, 4 * S], PLAIN);
        assert_eq!(times, [0, S / 4, S / 2, 3 * S / 4, S]);
    }

    #[test]
    fn a_single_request_has_a_length() {
        let (times, told) = applied(&[7], PLAIN);
        assert_eq!((times, told.length_ns), (vec![0], 1_000_000));
    }

    #[test]
    fn the_peak_is_that_of_a_tenth_of_a_second() {
        assert_eq!(peak_rate(&entries(&[0, 1, 2, S, S + 1])), 30.0);
        assert_eq!(peak_rate(&[]), 0.0);
    }
}
