//! Counts of one core, for the feature `metrics`.

use megapipe::Counters;

/// The counts of one core since its start.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CoreMetrics {
    /// The number of the core.
    pub core: usize,
    /// Stream connections that were accepted, connected or taken over.
    pub connections_opened: u64,
    /// Those of them that a listener accepted.
    pub connections_accepted: u64,
    /// Stream connections that were closed.
    pub connections_closed: u64,
    /// Tasks that have not ended.
    pub tasks: u64,
    /// Tasks that were started.
    pub tasks_spawned: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Messages of other threads: wake-ups, spawned tasks, requests of the runtime.
    pub messages: u64,
    /// Timers that have not fired.
    pub timers: u64,
    /// Timers that have fired.
    pub timers_fired: u64,
    /// Waits for completions that could sleep, because no task was ready.
    pub sleeps: u64,
    /// Completions of each wait. The number of waits is that of the loop's turns.
    pub batches: Histogram,
    /// How long each turn ran, in nanoseconds: from the completions to the polls of the tasks that
    /// they woke. An event that comes meanwhile waits so long at most.
    pub loop_lag_ns: Histogram,
    /// The counters of the channel.
    pub channel: Counters,
}

/// Counts of values by size: each bucket reaches four times as far as the one before.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Bucket `n` has the values up to 4ⁿ that the one before has not; the last has all others.
    buckets: [u64; Histogram::BUCKETS],
    sum: u64,
}

impl Histogram {
    const BUCKETS: usize = 18;

    pub(crate) fn add(&mut self, value: u64) {
        let bits = u64::BITS - value.saturating_sub(1).leading_zeros();
        let bucket = (bits.div_ceil(2) as usize).min(Histogram::BUCKETS - 1);
        self.buckets[bucket] += 1;
        self.sum = self.sum.wrapping_add(value);
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of the values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the number of values up to 4ⁿ.
    pub(crate) fn count_up_to(&self, n: usize) -> u64 {
        self.buckets[..=n].iter().sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_the_bucket_of_the_next_power_of_four() {
        let mut histogram = Histogram::default();
        for value in [0, 1, 2, 4, 5, 16, 17, 256, 1 << 32, (1 << 32) + 1, u64::MAX] {
            histogram.add(value);
        }
        assert_eq!(histogram.buckets[..6], [2, 2, 2, 1, 1, 0]);
        assert_eq!((histogram.buckets[16], histogram.buckets[17]), (1, 2));
        assert_eq!((histogram.count(), histogram.count_up_to(4)), (11, 8));
    }
}
