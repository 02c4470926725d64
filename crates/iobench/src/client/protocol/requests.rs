//! The number of requests of a connection.

use std::fmt;

use crate::random::SplitMix64;

/// Steps of a bisection; more do not improve a double.
const BISECTIONS: usize = 80;

/// Requests per connection.
#[derive(Debug, Clone)]
pub(crate) enum Requests {
    /// 0: connections persist.
    Fixed(u32),
    /// Each entry is the probability of at most so many requests as its index plus one.
    Drawn { at_most: Vec<f64>, mean: f64 },
}

impl Requests {
    /// Returns the distribution that falls with a power of the count and has this mean.
    pub(crate) fn zipf(most: u32, mean: f64) -> Requests {
        let weights = |power: f64| {
            (1..=most).map(move |count| (f64::from(count), f64::from(count).powf(-power)))
        };
        let mean_of = |power: f64| {
            let (sum, total) = weights(power).fold((0.0, 0.0), |(sum, total), (count, weight)| {
                (sum + count * weight, total + weight)
            });
            sum / total
        };
        let power = bisect(0.5, 10.0, |power| mean_of(power) > mean);
        let total: f64 = weights(power).map(|(_, weight)| weight).sum();
        let mut sum = 0.0;
        let at_most = weights(power)
            .map(|(_, weight)| {
                sum += weight / total;
                sum
            })
            .collect();
        Requests::Drawn { at_most, mean }
    }

    /// Draws the number of requests of one connection.
    pub(crate) fn draw(&self, random: &mut SplitMix64) -> u32 {
        match self {
            Requests::Fixed(count) => *count,
            Requests::Drawn { at_most, .. } => {
                // An f64 has a fraction of 53 bits.
                let chance = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
                let place = at_most.partition_point(|&sum| sum <= chance);
                place.min(at_most.len() - 1) as u32 + 1
            }
        }
    }

    /// Returns the mean as a whole number, for a column of a table.
    pub(crate) fn rounded(&self) -> u32 {
        match self {
            Requests::Fixed(count) => *count,
            Requests::Drawn { mean, .. } => mean.round() as u32,
        }
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Requests::Fixed(0) => to.write_str("persistent connections"),
            Requests::Fixed(1) => to.write_str("1 request per connection"),
            Requests::Fixed(count) => write!(to, "{count} requests per connection"),
            Requests::Drawn { at_most, mean } => {
                write!(to, "1 to {} requests per connection, {mean} on average", at_most.len())
            }
        }
    }
}

/// Finds by bisection where a function falls below its target; `above` tells on which side a value
/// is.
pub(crate) fn bisect(mut low: f64, mut high: f64, above: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..BISECTIONS {
        let middle = (low + high) / 2.0;
        if above(middle) { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_draws_are_mostly_short_with_the_mean_that_was_asked_for() {
        let requests = Requests::zipf(1_000, 2.0);
        let mut random = SplitMix64::new(7);
        let draws: Vec<u32> = (0..100_000).map(|_| requests.draw(&mut random)).collect();
        let mean = draws.iter().map(|&count| f64::from(count)).sum::<f64>() / draws.len() as f64;
        assert!((mean - 2.0).abs() < 0.2, "{mean}");
        assert!(draws.iter().all(|count| (1..=1_000).contains(count)));
        assert_eq!(requests.rounded(), 2);
    }

    #[test]
    fn a_bisection_finds_where_a_function_falls_to_its_target() {
        let found = bisect(0.0, 10.0, |x| 1.0 / x > 0.25);
        assert!((found - 4.0).abs() < 1e-9, "{found}");
    }
}
