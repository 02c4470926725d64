//! Medians, and confidence intervals of ratios.
//!
//! The unit of evidence is the round: measurements within one round found the same conditions. A
//! round's ratio is the geometric mean over its pairs of slots (A B, then B A, so that a steady
//! drift cancels), and the reported ratio is the geometric mean over rounds. Its interval is
//! Student's t interval on the logarithms of the rounds' ratios, so A/B and B/A are exact mirror
//! images. With three rounds such an interval is wide, as it has to be; fewer than [`LEAST_ROUNDS`]
//! give none. The tests simulate how often intervals do not contain the true value.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::engine::autocorrelation::Correlation;

/// Fewer rounds give no interval: two rounds agree by chance too often.
pub(crate) const LEAST_ROUNDS: usize = 3;
/// Default probability that an interval contains the true value.
const CONFIDENCE: f64 = 0.95;

/// Returns the median, interpolated between the two middle values; `None` without values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some(sorted[middle - 1].midpoint(sorted[middle])),
    }
}

/// An estimate of a positive figure with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Interval {
    pub(crate) estimate: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Interval {
    /// The ratio of a subject to itself.
    pub(crate) const ONE: Interval = Interval { estimate: 1.0, low: 1.0, high: 1.0 };

    /// Widens the interval for the strongest of `claims` claims, from so many rounds: Bonferroni's
    /// correction, so that 95 % of such sentences are true.
    pub(crate) fn among(&self, claims: usize, rounds: usize) -> Option<Interval> {
        let freedom = rounds.checked_sub(1)? as f64;
        let wider = t(confidence_among(claims), freedom)? / t(CONFIDENCE, freedom)?;
        let half_width = (self.high / self.low).ln() / 2.0 * wider;
        Some(Interval::around(self.estimate.ln(), half_width))
    }

    pub(crate) fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// Returns the interval from `estimate` divided by a factor to `estimate` times it; both given
    /// as logarithms.
    fn around(log_estimate: f64, half_width: f64) -> Interval {
        Interval {
            estimate: log_estimate.exp(),
            low: (log_estimate - half_width).exp(),
            high: (log_estimate + half_width).exp(),
        }
    }
}

/// Returns the interval of a ratio from its pairs, grouped by round. Rounds without a pair are
/// ignored.
pub(crate) fn ratio_interval(rounds: &[Vec<f64>]) -> Option<Interval> {
    interval_at(&round_means(rounds), CONFIDENCE)
}

/// Returns the interval of a positive figure that every round has.
fn interval_at(rounds: &[f64], confidence: f64) -> Option<Interval> {
    let sample = Sample::of(rounds)?;
    let half_width = t(confidence, sample.count - 1.0)? * sample.variance_of_mean().sqrt();
    Some(Interval::around(sample.mean, half_width))
}

/// Returns the geometric mean; `None` without values.
pub(crate) fn geometric_mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| mean(values.iter().map(|value| value.ln())).exp())
}

/// Returns the geometric mean of every round that has a pair.
fn round_means(rounds: &[Vec<f64>]) -> Vec<f64> {
    rounds.iter().filter_map(|pairs| geometric_mean(pairs)).collect()
}

/// Returns the interval of the ratio of two figures, new to old, whose rounds were not paired:
/// Welch's t interval, which allows different variances. It is one of so many claims, all of which
/// hold with 95 %, and successive rounds may be correlated.
pub(crate) fn change_interval(
    old: &[f64],
    new: &[f64],
    claims: usize,
    correlation: Correlation,
) -> Option<Interval> {
    let samples = [Sample::of(old)?, Sample::of(new)?];
    let (mut variance, mut parts) = (0.0, 0.0);
    for sample in &samples {
        let effect = correlation.effect(sample.count as usize);
        let of_mean = sample.variance_of_mean() * effect.factor;
        variance += of_mean;
        parts += of_mean * of_mean / effect.freedom;
    }
    // Satterthwaite's approximation; without any variance its value does not matter.
    let freedom = variance * variance / parts;
    let freedom = if freedom.is_finite() { freedom } else { 1.0 };
    let half_width = t(confidence_among(claims), freedom)? * variance.sqrt();
    let [old, new] = samples;
    Some(Interval::around(new.mean - old.mean, half_width))
}

/// Returns the confidence of each of so many claims with which all of them hold (Bonferroni).
fn confidence_among(claims: usize) -> f64 {
    1.0 - (1.0 - CONFIDENCE) / claims.max(1) as f64
}

/// Mean and variance of the logarithms of the rounds' values.
struct Sample {
    count: f64,
    mean: f64,
    variance: f64,
}

impl Sample {
    fn of(values: &[f64]) -> Option<Sample> {
        if values.len() < LEAST_ROUNDS {
            return None;
        }
        let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
        let (count, mean) = (logs.len() as f64, mean(logs.iter().copied()));
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        Some(Sample { count, mean, variance: squares / (count - 1.0) })
    }

    fn variance_of_mean(&self) -> f64 {
        self.variance / self.count
    }
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count() as f64
}

/// Returns the quantile of Student's t distribution with equal tails on both sides.
fn t(confidence: f64, freedom: f64) -> Option<f64> {
    let distribution = StudentsT::new(0.0, 1.0, freedom).ok()?;
    Some(distribution.inverse_cdf(f64::midpoint(1.0, confidence)))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn medians_interpolate() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn equal_rounds_give_a_sharp_ratio() {
        let rounds = [vec![1.5, 1.5], vec![1.5], vec![], vec![1.5]];
        let interval = ratio_interval(&rounds).unwrap();
        for value in [interval.estimate, interval.low, interval.high] {
            assert!((value - 1.5).abs() < 1e-12);
        }
    }

    #[test]
    fn too_few_rounds_have_no_interval() {
        assert_eq!(ratio_interval(&[]), None);
        assert_eq!(ratio_interval(&[vec![1.5, 1.5], vec![1.4, 1.6]]), None);
        assert_eq!(ratio_interval(&[vec![1.5], vec![1.4], vec![]]), None);
        assert!(ratio_interval(&[vec![1.5], vec![1.4], vec![1.6]]).is_some());
        let change = |old: &[f64]| change_interval(old, &[1.0, 2.0, 3.0], 1, Correlation::NONE);
        assert_eq!(change(&[1.0, 2.0]), None);
    }

    #[test]
    fn intervals_are_those_of_the_tables() {
        // t of 0.975 with 4 degrees of freedom is 2.776; the standard deviation of the logarithms
        // is the square root of 2.5 hundredths of a hundredth.
        let rounds: Vec<f64> = [-0.02, -0.01, 0.0, 0.01, 0.02].map(f64::exp).to_vec();
        let interval = interval_at(&rounds, CONFIDENCE).unwrap();
        let half_width = 2.776_445 * (0.00025_f64 / 5.0).sqrt();
        assert!((interval.high.ln() - half_width).abs() < 1e-6, "{interval:?}");
        assert!((interval.low.ln() + half_width).abs() < 1e-6, "{interval:?}");
        let wider = interval_at(&rounds, 0.99).unwrap();
        assert!((wider.high.ln() / interval.high.ln() - 4.604_095 / 2.776_445).abs() < 1e-5);
    }

    #[test]
    fn the_boldest_of_many_claims_has_a_wider_interval() {
        let interval = interval_at(&[1.0, 1.1, 1.21, 1.1, 1.1], CONFIDENCE).unwrap();
        let alone = interval.among(1, 5).unwrap();
        assert!((alone.high - interval.high).abs() < 1e-9, "{alone:?}");
        // t of 0.9975 against t of 0.975 with 4 degrees of freedom.
        let among_ten = interval.among(10, 5).unwrap();
        let wider = (among_ten.high / among_ten.low).ln() / (interval.high / interval.low).ln();
        assert!((wider - 5.597_568 / 2.776_445).abs() < 1e-4, "{wider}");
        assert!((among_ten.estimate - interval.estimate).abs() < 1e-12);
        assert_eq!(interval.among(10, 0), None);
    }

    #[test]
    fn a_change_has_the_scatter_of_both() {
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
        let interval =
            |old: &[f64], new: &[f64]| change_interval(old, new, 1, Correlation::NONE).unwrap();
        let change = interval(&[2.0; 3], &[3.0; 3]);
        assert!(near(change.estimate, 1.5) && near(change.low, 1.5) && near(change.high, 1.5));
        let noisy = interval(&[1.0, 2.0, 4.0], &[1.5, 3.0, 6.0]);
        assert!(near(noisy.estimate, 1.5) && noisy.contains(1.0), "{noisy:?}");
    }

    /// Returns a standard normal number, by the method of Box and Muller.
    fn normal(random: &mut SplitMix64) -> f64 {
        let mut uniform = || (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let (radius, angle) = ((-2.0 * (1.0 - uniform()).ln()).sqrt(), uniform());
        radius * (std::f64::consts::TAU * angle).cos()
    }

    /// Returns positive figures of rounds of which each is correlated with the one before.
    pub(crate) fn correlated(
        random: &mut SplitMix64,
        rounds: usize,
        coefficient: f64,
        noise: f64,
    ) -> Vec<f64> {
        let mut state = normal(random);
        let mut next = || {
            let value = (noise * state).exp();
            state = coefficient * state + (1.0 - coefficient * coefficient).sqrt() * normal(random);
            value
        };
        (0..rounds).map(|_| next()).collect()
    }

    /// Ten rows of two figures tell the correlation well enough for intervals that keep their
    /// promise; fewer give wider ones.
    #[test]
    fn changes_between_equal_runs_are_within_their_intervals() {
        const TRIALS: usize = 60;
        for (rounds, coefficient) in [(3, 0.0), (5, 0.0), (10, 0.0), (3, 0.5), (5, 0.5), (10, 0.5)]
        {
            for figures in [2, 20] {
                let mut random = SplitMix64::new(0x5eed + rounds as u64);
                let (mut missed, trials) = (0, TRIALS * 20 / figures);
                for _ in 0..trials {
                    let mut run = || correlated(&mut random, rounds, coefficient, 0.05);
                    let pairs: Vec<[Vec<f64>; 2]> = (0..figures).map(|_| [run(), run()]).collect();
                    let series = pairs.iter().flatten().map(Vec::as_slice);
                    let correlation = Correlation::estimate(series);
                    missed += pairs
                        .iter()
                        .map(|[old, new]| change_interval(old, new, 1, correlation).unwrap())
                        .filter(|interval| !interval.contains(1.0))
                        .count();
                }
                let missed = 100.0 * missed as f64 / (trials * figures) as f64;
                let case = format!("{rounds} rounds, {coefficient}, {figures} figures: {missed} %");
                assert!(missed < 5.0, "{case}");
            }
        }
    }

    /// Returns how often, in percent, the interval of so many rounds does not contain the true
    /// value 1.
    fn misses(rounds: usize, seed: u64, noise: impl Fn(&mut SplitMix64) -> f64) -> f64 {
        const TRIALS: usize = 20_000;
        let mut random = SplitMix64::new(seed);
        let missed = (0..TRIALS).filter(|_| {
            let rounds: Vec<f64> = (0..rounds).map(|_| noise(&mut random).exp()).collect();
            !interval_at(&rounds, CONFIDENCE).unwrap().contains(1.0)
        });
        100.0 * missed.count() as f64 / TRIALS as f64
    }

    /// Checks the numbers of rounds that commands choose, and the least one, with three kinds of
    /// noise: normal; normal with occasional rounds that deviate ten times as much; with long tails
    /// on both sides (Laplace).
    #[test]
    fn intervals_miss_as_rarely_as_they_promise() {
        for rounds in [3, 5, 10] {
            let seed = 0x5eed + rounds as u64;
            let of_normal = misses(rounds, seed, |random| 0.02 * normal(random));
            assert!((4.5..5.5).contains(&of_normal), "{rounds} rounds, normal: {of_normal} %");
            let outliers = |random: &mut SplitMix64| {
                let factor = if random.below(10) == 0 { 10.0 } else { 1.0 };
                0.02 * factor * normal(random)
            };
            let with_outliers = misses(rounds, seed, outliers);
            assert!(with_outliers < 5.5, "{rounds} rounds, outliers: {with_outliers} %");
            let laplace = |random: &mut SplitMix64| {
                let size = -0.02 * (1.0 - random.below(1 << 40) as f64 / (1_u64 << 40) as f64).ln();
                if random.below(2) == 0 { size } else { -size }
            };
            let of_laplace = misses(rounds, seed, laplace);
            assert!(of_laplace < 5.5, "{rounds} rounds, Laplace: {of_laplace} %");
        }
    }

    fn pairs() -> impl Strategy<Value = Vec<Vec<f64>>> {
        prop::collection::vec(prop::collection::vec(0.05..20.0_f64, 1..5), LEAST_ROUNDS..8)
    }

    proptest! {
        #[test]
        fn intervals_hold_their_estimate(rounds in pairs()) {
            let interval = ratio_interval(&rounds).unwrap();
            prop_assert!(interval.low > 0.0 && interval.contains(interval.estimate));
        }

        #[test]
        fn inverse_ratios_are_mirror_images(rounds in pairs()) {
            let invert = |round: &Vec<f64>| round.iter().map(|ratio| 1.0 / ratio).collect();
            let inverse: Vec<Vec<f64>> = rounds.iter().map(invert).collect();
            let (a, b) = (ratio_interval(&rounds).unwrap(), ratio_interval(&inverse).unwrap());
            prop_assert!((a.estimate * b.estimate - 1.0).abs() < 1e-9);
            prop_assert!((a.low * b.high - 1.0).abs() < 1e-9);
        }
    }
}
