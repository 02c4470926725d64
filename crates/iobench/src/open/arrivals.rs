//! Draws the times at which requests are scheduled. The schedule does not depend on the server:
//! this makes the loop open.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::open::phases::Course;
use crate::random::SplitMix64;

/// The arrival process: how requests are spread over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arrivals {
    /// One in every slot of 1/rate, at a random time within it (Kawai and Yamaguchi, Figure 2):
    /// no two clients stay in step, and no burst is longer than two.
    #[default]
    Slots,
    /// A Poisson process: independent users.
    Poisson,
    /// Evenly spaced.
    Uniform,
}

impl Arrivals {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Arrivals::Slots => "slots",
            Arrivals::Poisson => "poisson",
            Arrivals::Uniform => "uniform",
        }
    }
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Arrivals, String> {
        [Arrivals::Slots, Arrivals::Poisson, Arrivals::Uniform]
            .into_iter()
            .find(|arrivals| arrivals.name() == text)
            .ok_or_else(|| "choose slots, poisson or uniform".to_owned())
    }
}

/// The scheduled times of a run, ascending, in nanoseconds since the start of the growth.
pub(crate) struct Schedule {
    arrivals: Arrivals,
    course: Course,
    random: SplitMix64,
    /// Number of slots begun, or the time of the unit-rate process.
    slot: u64,
    unit_time: f64,
}

impl Schedule {
    pub(crate) fn new(arrivals: Arrivals, course: Course, seed: u64) -> Schedule {
        Schedule { arrivals, course, random: SplitMix64::new(seed), slot: 0, unit_time: 0.0 }
    }

    /// Uniform in [0, 1).
    fn fraction(&mut self) -> f64 {
        (self.random.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let count = match self.arrivals {
            Arrivals::Slots => self.slot as f64 + self.fraction(),
            Arrivals::Uniform => self.slot as f64 + 0.5,
            Arrivals::Poisson => {
                self.unit_time -= (1.0 - self.fraction()).ln();
                self.unit_time
            }
        };
        self.slot += 1;
        let due_ns = self.course.time_of(count) as u64;
        (due_ns < self.course.end_ns()).then_some(due_ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schedule(arrivals: Arrivals, rate: f64, seed: u64) -> Vec<u64> {
        let course = Course {
            rate,
            growth_ns: 200_000_000,
            steady_ns: 100_000_000,
            measure_ns: 1_000_000_000,
        };
        let measured_from = course.measure_from_ns();
        let times: Vec<u64> = Schedule::new(arrivals, course, seed).collect();
        assert!(times.is_sorted() && times.iter().all(|due_ns| *due_ns < course.end_ns()));
        times.into_iter().filter(|due_ns| *due_ns >= measured_from).collect()
    }

    #[test]
    fn names_are_read_back() {
        for arrivals in [Arrivals::Slots, Arrivals::Poisson, Arrivals::Uniform] {
            assert_eq!(arrivals.name().parse(), Ok(arrivals));
        }
        assert!("bursts".parse::<Arrivals>().is_err());
    }

    #[test]
    fn even_spacing_is_even() {
        let times = schedule(Arrivals::Uniform, 1_000.0, 1);
        assert!(times.windows(2).all(|pair| (pair[1] - pair[0]).abs_diff(1_000_000) <= 1));
        assert!((999..=1_001).contains(&times.len()), "{}", times.len());
    }

    proptest! {
        /// Every slot has one request, so any period has as many requests as slots, plus or minus
        /// two.
        #[test]
        fn slots_keep_the_rate_in_every_stretch(seed: u64, rate in 100.0..10_000.0_f64,
                                                from in 0.0..0.5_f64, length in 0.0..0.5_f64) {
            let times = schedule(Arrivals::Slots, rate, seed);
            let from_ns = 300_000_000 + (from * 1e9) as u64;
            let to_ns = from_ns + (length * 1e9) as u64;
            let count = times.iter().filter(|t| (from_ns..to_ns).contains(t)).count() as f64;
            prop_assert!((count - length * rate).abs() <= 2.0, "{count}");
        }

        /// A tolerance of six standard deviations: a correct generator fails once in five hundred
        /// million tries.
        #[test]
        fn poisson_arrivals_have_the_mean_and_the_scatter(seed: u64) {
            let times = schedule(Arrivals::Poisson, 2_000.0, seed);
            let count = times.len() as f64;
            prop_assert!((count - 2_000.0).abs() < 6.0 * 2_000.0_f64.sqrt(), "{count}");
            // Gaps of an exponential distribution: 1/e of them are longer than the mean.
            let long = times.windows(2).filter(|pair| pair[1] - pair[0] > 500_000).count() as f64;
            prop_assert!((long / count - 0.368).abs() < 0.066, "{}", long / count);
        }

        #[test]
        fn a_seed_repeats(seed: u64) {
            prop_assert_eq!(schedule(Arrivals::Poisson, 500.0, seed),
                            schedule(Arrivals::Poisson, 500.0, seed));
        }
    }
}
