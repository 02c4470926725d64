//! Counts messages and records latencies by slice.

use hdrhistogram::Histogram;

use crate::report::SliceReport;

/// Longest latency that is recorded exactly, one minute.
const HIGHEST_NS: u64 = 60_000_000_000;
/// The error of a recorded latency is at most 0.1 %.
const SIGNIFICANT_DIGITS: u8 = 3;

#[derive(Debug)]
struct Slice {
    messages: u64,
    /// Present only for round trips.
    latencies: Option<Histogram<u32>>,
}

/// The slices of one measurement. Nothing is allocated while measuring.
#[derive(Debug)]
pub(crate) struct Tally {
    slices: Vec<Slice>,
    slice_ns: u64,
    start_ns: u64,
    current: usize,
    current_end_ns: u64,
}

impl Tally {
    /// Allocates the counters of all slices.
    pub(crate) fn new(slices: u64, slice_ns: u64, with_latencies: bool) -> Tally {
        let histogram = || {
            Histogram::new_with_bounds(1, HIGHEST_NS, SIGNIFICANT_DIGITS)
                .expect("the bounds are constants that the histogram accepts")
        };
        let slice = |_| Slice { messages: 0, latencies: with_latencies.then(histogram) };
        let slices = (0..slices).map(slice).collect();
        Tally { slices, slice_ns, start_ns: u64::MAX, current: 0, current_end_ns: 0 }
    }

    /// Starts the first slice; earlier messages do not count.
    pub(crate) fn begin(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
        self.current_end_ns = start_ns + self.slice_ns;
    }

    /// Records messages that were complete at `now_ns`; times are ascending. False after the last
    /// slice.
    #[inline]
    pub(crate) fn count(&mut self, now_ns: u64, messages: u64) -> bool {
        if let Some(slice) = self.slice_at(now_ns) {
            slice.messages += messages;
        }
        self.current < self.slices.len()
    }

    /// Records one round trip that was complete at `now_ns`. False after the last slice.
    #[inline]
    pub(crate) fn time(&mut self, now_ns: u64, latency_ns: u64) -> bool {
        if let Some(slice) = self.slice_at(now_ns) {
            slice.messages += 1;
            if let Some(latencies) = &mut slice.latencies {
                latencies.saturating_record(latency_ns);
            }
        }
        self.current < self.slices.len()
    }

    #[inline]
    fn slice_at(&mut self, now_ns: u64) -> Option<&mut Slice> {
        if now_ns < self.start_ns {
            return None;
        }
        while now_ns >= self.current_end_ns && self.current < self.slices.len() {
            self.current += 1;
            self.current_end_ns += self.slice_ns;
        }
        self.slices.get_mut(self.current)
    }

    /// Returns the results of all slices.
    pub(crate) fn report(&self) -> Vec<SliceReport> {
        let recorded = |latencies: &Histogram<u32>| {
            let values = latencies.iter_recorded();
            values.map(|v| (v.value_iterated_to(), u64::from(v.count_at_value()))).collect()
        };
        let of_slice = |slice: &Slice| SliceReport {
            messages: slice.messages,
            latencies: slice.latencies.as_ref().map(recorded).unwrap_or_default(),
        };
        self.slices.iter().map(of_slice).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_counts_where_it_ends() {
        let mut tally = Tally::new(3, 100, true);
        assert!(tally.time(990, 5));
        tally.begin(1_000);
        for now_ns in [999, 1_000, 1_099, 1_100, 1_299] {
            assert!(tally.time(now_ns, 7));
        }
        assert!(tally.count(1_299, 10));
        assert!(!tally.time(1_300, 7));
        let report = tally.report();
        assert_eq!(report.iter().map(|slice| slice.messages).collect::<Vec<_>>(), [2, 1, 11]);
        assert_eq!(report[0].latencies, [(7, 2)]);
    }
}
