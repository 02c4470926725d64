//! Records a client thread's transactions: a count and a latency histogram per slice, all allocated
//! before the measurement starts.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::client::faults::FaultCounts;
use crate::figures::Times;

/// Longest latency that is recorded exactly, 60 s; longer ones count as 60 s.
const HIGHEST_LATENCY_NS: u64 = 60_000_000_000;
/// The unit of latencies. A larger one would be the error of short latencies.
const UNIT_NS: u64 = 1;
/// Two digits keep a slice's histogram near 15 KiB, so that recording stays in the cache. Merged by
/// the middle of its bucket, a latency is wrong by at most 0.4 %, with a mean error of zero.
const SIGNIFICANT_DIGITS: u8 = 2;

/// Silences up to 20 ms are never suspicious. See `Tally::longest_silence_ns` for the part of the
/// measured time (1/5) and the multiple of the 99th percentile.
const LEAST_SILENCE_NS: u64 = 20_000_000;
const SILENT_PART: u64 = 5;
const SILENT_TIMES: u64 = 4;

/// Default length of a slice: long compared with a timer tick, short compared with the time that
/// the host takes at once (steal).
pub(crate) const SLICE_NS: u64 = 25_000_000;

/// The latencies of one slice.
pub(crate) type Latencies = Histogram<u32>;

/// Returns an empty histogram of a slice.
pub(crate) fn new_latencies() -> Latencies {
    Latencies::new_with_bounds(UNIT_NS, HIGHEST_LATENCY_NS, SIGNIFICANT_DIGITS)
        .expect("the bounds are constants that the histogram accepts")
}

/// Merges a slice's histogram into that of a whole slot or run, which has a higher resolution.
pub(crate) fn add_latencies(sum: &mut Times, slice: &Latencies) {
    for value in slice.iter_recorded() {
        let middle_ns = slice.median_equivalent(value.value_iterated_to());
        sum.saturating_record_n(middle_ns, u64::from(value.count_at_value()));
    }
}

/// Adds censored latencies, which are known to be at least as long as these ages. Each counts as
/// one of the longer latencies with equal probability, or as its age if none is longer: the
/// estimate of Kaplan and Meier (1958), with redistribution to the right. So connections that no
/// longer answer cannot improve the percentiles, and young requests cannot change them.
pub(crate) fn add_open(latencies: &mut Histogram<u64>, ages_ns: impl IntoIterator<Item = u64>) {
    let mut ages_ns = ages_ns.into_iter().collect::<Vec<u64>>();
    ages_ns.sort_unstable();
    let completed: Vec<(u64, u64)> = latencies
        .iter_recorded()
        .map(|step| (step.value_iterated_to(), step.count_at_value()))
        .collect();
    // How many values are at least as long as the next one, and the weight of each.
    let (mut longer, mut weight) = (latencies.len() + ages_ns.len() as u64, 1.0);
    let (mut sum, mut recorded) = (0.0_f64, 0);
    latencies.reset();
    let mut record = |value_ns: u64, weight: f64| {
        sum += weight;
        let count = sum.round() as u64 - recorded;
        recorded += count;
        latencies.saturating_record_n(value_ns, count);
    };
    let mut ages_ns = ages_ns.into_iter().peekable();
    for (value_ns, count) in completed {
        while ages_ns.next_if(|&age_ns| age_ns < value_ns).is_some() {
            weight *= longer as f64 / (longer - 1) as f64;
            longer -= 1;
        }
        longer -= count;
        record(value_ns, weight * count as f64);
    }
    ages_ns.for_each(|age_ns| record(age_ns, weight));
}

/// Most slices that are judged for disturbance, and their least length.
const MOST_JUDGED: u64 = 400;
const JUDGED_NS: u64 = 100_000_000;

/// The division of the time after `measure_from` into slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slicing {
    pub(crate) count: usize,
    pub(crate) length_ns: u64,
}

impl Slicing {
    /// Divides `total_ns` into slices of at most `length_ns`.
    pub(crate) fn divide(total_ns: u64, length_ns: u64) -> Slicing {
        let count = total_ns.div_ceil(length_ns).max(1);
        Slicing { count: count as usize, length_ns: total_ns / count }
    }

    /// Divides the measured time into slices that are judged for disturbance.
    pub(crate) fn judged(total_ns: u64) -> Slicing {
        Slicing::divide(total_ns, JUDGED_NS.max(total_ns / MOST_JUDGED))
    }

    pub(crate) fn total_ns(&self) -> u64 {
        self.count as u64 * self.length_ns
    }
}

/// One slice of one thread.
#[derive(Debug, Clone)]
pub(crate) struct Slice {
    pub(crate) transactions: u64,
    pub(crate) latencies: Latencies,
}

/// Everything that one thread recorded in one slot. The totals include warm-up and end, so that
/// they can be compared with the server's counters.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    pub(crate) slices: Vec<Slice>,
    pub(crate) faults: FaultCounts,
    /// Ages of the requests that were open when the last slice ended: lower bounds of their
    /// latencies.
    pub(crate) open_ages_ns: Vec<u64>,
    /// Why none of the thread's sockets can work any more.
    pub(crate) failure: Option<String>,
    pub(crate) transactions: u64,
    pub(crate) connections: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    slicing: Slicing,
    start_ns: u64,
    current: usize,
    current_end_ns: u64,
}

impl Tally {
    pub(crate) fn new(slicing: Slicing) -> Tally {
        let slice = Slice { transactions: 0, latencies: new_latencies() };
        Tally {
            slices: vec![slice; slicing.count],
            faults: FaultCounts::default(),
            open_ages_ns: Vec::new(),
            failure: None,
            transactions: 0,
            connections: 0,
            bytes_sent: 0,
            bytes_received: 0,
            slicing,
            start_ns: u64::MAX,
            current: 0,
            current_end_ns: 0,
        }
    }

    /// Clears everything for a new slot.
    pub(crate) fn restart(&mut self) {
        *self = Tally::new(self.slicing);
    }

    /// Length of the measured time.
    pub(crate) fn total_ns(&self) -> u64 {
        self.slicing.total_ns()
    }

    /// Starts the first slice at `start_ns`; transactions that end earlier are only totalled.
    pub(crate) fn begin(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
        self.current_end_ns = start_ns + self.slicing.length_ns;
    }

    /// Returns the longest silence of a connection that needs no explanation: four times the 99th
    /// percentile; at least 20 ms, because every machine has other work, and at least a fifth of
    /// the measured time (of its first second), because few transactions give a poor estimate; at
    /// most the measured time.
    pub(crate) fn longest_silence_ns(&self) -> u64 {
        let mut latencies = new_latencies();
        for slice in &self.slices {
            // All histograms have the same bounds, so this cannot fail.
            let _ = latencies.add(&slice.latencies);
        }
        let usual_ns = if latencies.is_empty() { 0 } else { latencies.value_at_quantile(0.99) };
        let total_ns = self.total_ns();
        let least_ns = LEAST_SILENCE_NS.max(total_ns.min(1_000_000_000) / SILENT_PART);
        (SILENT_TIMES * usual_ns).max(least_ns).min(total_ns)
    }

    /// Records a transaction that ended at `now_ns`; times come in ascending order.
    pub(crate) fn record(&mut self, now_ns: u64, latency_ns: u64) {
        self.transactions += 1;
        if now_ns < self.start_ns {
            return;
        }
        while now_ns >= self.current_end_ns && self.current < self.slices.len() {
            self.current += 1;
            self.current_end_ns += self.slicing.length_ns;
        }
        if let Some(slice) = self.slices.get_mut(self.current) {
            slice.transactions += 1;
            slice.latencies.saturating_record(latency_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::figures::new_times;

    #[test]
    fn merged_histograms_keep_their_counts() {
        let (mut sum, mut slice) = (new_times(), new_latencies());
        for latency_ns in [1_000, 50_000, 50_000, 3_000_000] {
            slice.saturating_record(latency_ns);
        }
        add_latencies(&mut sum, &slice);
        add_latencies(&mut sum, &slice);
        assert_eq!(sum.len(), 8);
        let median = sum.value_at_quantile(0.5);
        assert!((49_000..52_000).contains(&median), "{median}");
    }

    #[test]
    fn short_latencies_are_exact_and_have_no_bias() {
        for about_ns in [1_500, 20_000, 700_000] {
            let (mut sum, mut exact) = (new_times(), 0.0);
            let latencies = (about_ns..about_ns * 3 / 2).step_by(about_ns as usize / 500);
            for latency_ns in latencies {
                let (mut one, mut slice) = (new_times(), new_latencies());
                slice.saturating_record(latency_ns);
                add_latencies(&mut one, &slice);
                add_latencies(&mut sum, &slice);
                exact += latency_ns as f64;
                // Half a bucket of the slice, and one of the sum.
                let error = one.max().abs_diff(latency_ns) as f64 / latency_ns as f64;
                assert!(error < 0.005, "{latency_ns}: {}", one.max());
            }
            let bias = sum.mean() * sum.len() as f64 / exact - 1.0;
            assert!(bias.abs() < 0.001, "{about_ns}: {bias}");
        }
    }

    #[test]
    fn transactions_fall_into_the_slice_in_which_they_end() {
        let mut tally = Tally::new(Slicing { count: 3, length_ns: 100 });
        tally.record(990, 5_000);
        tally.begin(1_000);
        for now_ns in [999, 1_000, 1_099, 1_100, 1_299, 1_300, 9_000] {
            tally.record(now_ns, 5_000);
        }
        let counts: Vec<_> = tally.slices.iter().map(|slice| slice.transactions).collect();
        assert_eq!((counts, tally.transactions), (vec![2, 1, 1], 8));
        assert_eq!(tally.slices[0].latencies.len(), 2);
    }

    #[test]
    fn empty_slices_are_skipped() {
        let mut tally = Tally::new(Slicing { count: 4, length_ns: 10 });
        tally.begin(0);
        tally.record(35, 1);
        assert_eq!(tally.slices[3].transactions, 1);
    }

    #[test]
    fn extreme_latencies_are_clamped_and_counted() {
        let mut latencies = new_latencies();
        for latency_ns in [0, 1, 999, u64::MAX] {
            latencies.saturating_record(latency_ns);
        }
        assert_eq!(latencies.len(), 4);
        assert!(latencies.max() >= HIGHEST_LATENCY_NS);
    }

    #[test]
    fn time_is_divided_without_remainder_slices() {
        let slicing = Slicing::divide(250_000_000, 25_000_000);
        assert_eq!((slicing.count, slicing.length_ns), (10, 25_000_000));
        let slicing = Slicing::divide(260_000_000, 25_000_000);
        assert_eq!((slicing.count, slicing.length_ns), (11, 23_636_363));
        assert_eq!(Slicing::divide(1, 25_000_000).count, 1);
    }

    #[test]
    fn a_long_silence_is_one_for_this_server() {
        let tally = |total_ms: u64, latency_ns| {
            let mut tally = Tally::new(Slicing { count: 5, length_ns: total_ms * 200_000 });
            tally.begin(0);
            (1..=200).for_each(|at_ns| tally.record(at_ns, latency_ns));
            tally.longest_silence_ns() / 1_000_000
        };
        assert_eq!((tally(50, 100_000), tally(250, 100_000)), (20, 50));
        assert_eq!((tally(10_000, 100_000), tally(250, 20_000_000)), (200, 80));
        assert_eq!(tally(250, 100_000_000), 250);
        let nothing = Tally::new(Slicing { count: 1, length_ns: 100_000_000 });
        assert_eq!(nothing.longest_silence_ns(), 20_000_000);
    }

    fn histogram(values: &[u64]) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, HIGHEST_LATENCY_NS, 3).unwrap();
        values.iter().for_each(|&value| histogram.record(value).unwrap());
        histogram
    }

    #[test]
    fn open_requests_count_as_what_is_longer() {
        let mut latencies = histogram(&[100, 200, 300, 400]);
        add_open(&mut latencies, vec![250, 250, 1_000]);
        let counts = [100, 200, 300, 400, 1_000].map(|value| latencies.count_at(value));
        // Each of the two counts as a third of the three longer ones.
        assert_eq!((counts, latencies.len()), ([1, 1, 2, 1, 2], 7));
        let mut nothing = histogram(&[]);
        add_open(&mut nothing, vec![7, 7, 9]);
        assert_eq!((nothing.len(), nothing.value_at_quantile(0.5)), (3, 7));
    }

    #[test]
    fn young_requests_change_no_percentile_and_dead_ones_raise_them() {
        let latencies: Vec<u64> = (1..=10_000).map(|number| number * 1_000).collect();
        let p50 = |ages_ns| {
            let mut latencies = histogram(&latencies);
            add_open(&mut latencies, ages_ns);
            latencies.value_at_quantile(0.5)
        };
        let healthy = p50(Vec::new());
        assert_eq!(p50(vec![1; 1_000]), healthy);
        assert!(p50(vec![100_000_000; 1_000]) > healthy * 105 / 100);
    }

    proptest! {
        #[test]
        fn open_requests_make_no_percentile_better_and_none_is_lost(
            completed in prop::collection::vec(1_u64..1_000_000, 0..200),
            ages_ns in prop::collection::vec(1_u64..1_000_000, 0..200),
        ) {
            let before = histogram(&completed);
            let mut after = before.clone();
            add_open(&mut after, ages_ns.clone());
            prop_assert_eq!(after.len(), (completed.len() + ages_ns.len()) as u64);
            let above = |latencies: &Histogram<u64>, value| {
                let all = latencies.len().max(1) as f64;
                (latencies.len() - latencies.count_between(0, value)) as f64 / all
            };
            if !completed.is_empty() {
                for value in completed {
                    // Counts are whole numbers.
                    let slack = 1.0 / after.len() as f64;
                    prop_assert!(above(&after, value) >= above(&before, value) - slack);
                }
            }
        }
    }
}
