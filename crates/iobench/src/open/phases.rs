//! The course of a run's request rate (Kawai and Yamaguchi, Figure 5): it grows exponentially to
//! the target, is held while the system reaches a steady state, and is held while measured.

use serde::{Deserialize, Serialize};

/// The growth starts at this part of the target.
const FIRST_PART: f64 = 0.01;

/// The phase of a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    Growth,
    Steady,
    Measure,
}

impl Phase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Growth => "growth",
            Phase::Steady => "steady",
            Phase::Measure => "measure",
        }
    }
}

/// The rate over time, from the start of the growth. Times are nanoseconds since then.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Course {
    /// Requests per second after the growth.
    pub(crate) rate: f64,
    pub(crate) growth_ns: u64,
    pub(crate) steady_ns: u64,
    pub(crate) measure_ns: u64,
}

impl Course {
    pub(crate) fn measure_from_ns(&self) -> u64 {
        self.growth_ns + self.steady_ns
    }

    pub(crate) fn end_ns(&self) -> u64 {
        self.measure_from_ns() + self.measure_ns
    }

    pub(crate) fn phase(&self, at_ns: u64) -> Phase {
        match at_ns {
            at_ns if at_ns < self.growth_ns => Phase::Growth,
            at_ns if at_ns < self.measure_from_ns() => Phase::Steady,
            _ => Phase::Measure,
        }
    }

    /// Returns the same course with another rate.
    pub(crate) fn with_rate(self, rate: f64) -> Course {
        Course { rate, ..self }
    }

    /// Returns the time at which the expected number of requests reaches `count`: the inverse of
    /// the integral of the rate. A process with one event per unit of time, mapped by this
    /// function, has the course's rate.
    pub(crate) fn time_of(&self, count: f64) -> f64 {
        let growth_s = self.growth_ns as f64 / 1e9;
        // r(t) = a·R·e^(k·t/T) with a the first part, so that r(T) = R; its integral is
        // a·R·T/k·(e^(k·t/T) − 1).
        let exponent = -FIRST_PART.ln();
        let scale = FIRST_PART * self.rate * growth_s / exponent;
        let grown = scale * exponent.exp_m1();
        let seconds = if count < grown {
            growth_s / exponent * (count / scale).ln_1p()
        } else {
            growth_s + (count - grown) / self.rate
        };
        seconds * 1e9
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn course(rate: f64, growth_ns: u64) -> Course {
        Course { rate, growth_ns, steady_ns: SECOND, measure_ns: 2 * SECOND }
    }

    /// Returns the rate at a time, by the paper's formula.
    fn rate_at(course: &Course, at_ns: u64) -> f64 {
        if at_ns >= course.growth_ns {
            return course.rate;
        }
        let part = at_ns as f64 / course.growth_ns as f64;
        course.rate * FIRST_PART.powf(1.0 - part)
    }

    #[test]
    fn without_growth_the_rate_is_constant() {
        let course = course(1_000.0, 0);
        assert_eq!(course.time_of(0.0), 0.0);
        assert_eq!(course.time_of(500.0), 5e8);
        assert_eq!(course.phase(0), Phase::Steady);
        assert_eq!(course.phase(SECOND), Phase::Measure);
        assert_eq!(course.end_ns(), 3 * SECOND);
    }

    #[test]
    fn growth_is_exponential_and_ends_at_the_target() {
        let course = course(1_000.0, SECOND);
        assert!((rate_at(&course, 0) - 10.0).abs() < 1e-9);
        assert!((rate_at(&course, SECOND / 2) - 100.0).abs() < 1e-9);
        assert_eq!(rate_at(&course, SECOND), 1_000.0);
        // The integral over the growth: R·T·(1 − a)/ln(1/a).
        let grown = 1_000.0 * 0.99 / 100.0_f64.ln();
        assert!((course.time_of(grown) / 1e9 - 1.0).abs() < 1e-9);
        assert!((course.time_of(grown + 1_000.0) / 1e9 - 2.0).abs() < 1e-9);
    }

    proptest! {
        /// Between two counts the mean rate is the rate somewhere between their times.
        #[test]
        fn time_advances_at_the_rate(rate in 1.0..1e6_f64, growth_ms in 0..5_000_u64,
                                     count in 0.0..1e6_f64) {
            let course = course(rate, growth_ms * 1_000_000);
            let (from, to) = (course.time_of(count), course.time_of(count + 1.0));
            prop_assert!(to > from);
            let mean = 1e9 / (to - from);
            let (low, high) = (rate_at(&course, from as u64), rate_at(&course, to as u64 + 1));
            prop_assert!(mean > low * 0.99 && mean < high * 1.01, "{low} {mean} {high}");
        }
    }
}
