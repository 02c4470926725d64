//! Live figures of a running generator for the progress display: counts and coarse histograms, each
//! written by one thread with plain stores and read by another.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of buckets per doubling of time.
const FINENESS: u64 = 4;
const BUCKETS: usize = 40 * FINENESS as usize;

/// A histogram with steps of a quarter of a doubling, from 1 ns to some 15 minutes.
pub(crate) struct LiveTimes([AtomicU64; BUCKETS]);

impl LiveTimes {
    fn new() -> LiveTimes {
        LiveTimes([const { AtomicU64::new(0) }; BUCKETS])
    }

    /// Called by one thread only, so it needs no read-modify-write.
    #[inline]
    pub(crate) fn record(&self, time_ns: u64) {
        let bucket = &self.0[bucket_of(time_ns)];
        bucket.store(bucket.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Counts {
        Counts(std::array::from_fn(|bucket| self.0[bucket].load(Ordering::Relaxed)))
    }
}

fn bucket_of(time_ns: u64) -> usize {
    let time_ns = time_ns.max(FINENESS);
    let doubling = u64::from(time_ns.ilog2());
    let part = (time_ns >> (doubling - 2)) & (FINENESS - 1);
    ((doubling * FINENESS + part) as usize).min(BUCKETS - 1)
}

/// Returns the longest time of a bucket.
fn top_of(bucket: usize) -> u64 {
    let (doubling, part) = (bucket as u64 / FINENESS, bucket as u64 % FINENESS);
    (1 << doubling) / FINENESS * (FINENESS + part + 1)
}

/// A histogram's counts at one moment.
#[derive(Clone)]
pub(crate) struct Counts([u64; BUCKETS]);

impl Counts {
    pub(crate) fn empty() -> Counts {
        Counts([0; BUCKETS])
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        for (ours, theirs) in self.0.iter_mut().zip(other.0) {
            *ours += theirs;
        }
    }

    /// Returns the counts recorded since `earlier`.
    pub(crate) fn since(&self, earlier: &Counts) -> Counts {
        Counts(std::array::from_fn(|bucket| self.0[bucket].saturating_sub(earlier.0[bucket])))
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns a quantile in microseconds; at most a quarter too long.
    pub(crate) fn quantile_us(&self, quantile: f64) -> Option<f64> {
        let wanted = (self.total() as f64 * quantile).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.0.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Some(top_of(bucket) as f64 / 1e3)
    }
}

/// Live figures of one generator.
pub(crate) struct Live {
    /// Written by the sender: requests scheduled so far, and their send lag.
    pub(crate) lag: LiveTimes,
    /// Written by the receiver: requests answered so far, and their service time.
    pub(crate) service: LiveTimes,
}

impl Live {
    pub(crate) fn new() -> Live {
        Live { lag: LiveTimes::new(), service: LiveTimes::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_within_a_quarter() {
        let times = LiveTimes::new();
        for time_us in 1..=1_000 {
            times.record(time_us * 1_000);
        }
        let counts = times.read();
        assert_eq!(counts.total(), 1_000);
        for quantile in [0.01, 0.5, 0.99, 1.0] {
            let (found, true_us) = (counts.quantile_us(quantile).unwrap(), quantile * 1_000.0);
            assert!(found >= true_us && found <= true_us * 1.26, "{quantile}: {found}");
        }
        assert_eq!(counts.since(&counts).quantile_us(0.5), None);
    }

    #[test]
    fn any_time_has_a_bucket() {
        for time_ns in [0, 1, 3, 4, 5, 1 << 39, u64::MAX] {
            assert!(bucket_of(time_ns) < BUCKETS);
        }
        assert!((8..200_u64).all(|time_ns| top_of(bucket_of(time_ns)) >= time_ns));
    }
}
