//! Correlation of successive rounds, which slow changes of the machine cause.
//!
//! Rounds are modelled as a process AR(1): the correlation of two rounds is the coefficient to the
//! power of their distance. Positive correlation makes a mean less certain than its rounds'
//! scatter tells: with a coefficient of 0.5 a 95 % interval that ignores it contains the true value
//! in 75 to 86 % of cases. One series of five rounds tells next to nothing about the coefficient,
//! so it is estimated from all series of a comparison together.

use std::collections::HashMap;

/// Largest coefficient that is allowed for. Stronger correlation is drift, which more rounds do
/// not average out.
const COEFFICIENT_MAX: f64 = 0.7;
/// Coefficients that are tried, from 0 in equal steps.
const STEPS: usize = 14;
/// Longest series for which the model is computed; longer ones are extrapolated.
const ROUNDS_MAX: usize = 50;
/// A smaller sum of squares comes from rounding.
const NO_SCATTER: f64 = 1e-24;

/// The correlation of successive rounds, 0 to [`COEFFICIENT_MAX`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Correlation(f64);

/// What correlation does to the mean of a series.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effect {
    /// The variance of the mean, divided by what follows from the scatter of the values.
    pub(crate) factor: f64,
    /// Degrees of freedom of the variance.
    pub(crate) freedom: f64,
}

impl Correlation {
    #[cfg(test)]
    pub(crate) const NONE: Correlation = Correlation(0.0);

    /// Estimates the coefficient from series of at least three values: the least one whose expected
    /// lag-one ratio over all series is the one found, and a standard error more.
    pub(crate) fn estimate<'a>(series: impl Iterator<Item = &'a [f64]>) -> Correlation {
        // The squares by length; a ratio for each series would be biased for short ones.
        let mut squares_by_length: HashMap<usize, f64> = HashMap::new();
        let (mut count, mut values) = (0.0, 0.0);
        let (mut products, mut squares, mut fourths) = (0.0, 0.0, 0.0);
        for one in series {
            let (of_lag, of_own) = products_and_squares(one);
            *squares_by_length.entry(one.len()).or_default() += of_own;
            (count, values) = (count + 1.0, values + one.len() as f64);
            products += of_lag;
            squares += of_own;
            fourths += of_own * of_own;
        }
        if squares < NO_SCATTER {
            return Correlation(0.0);
        }
        // Series with little scatter tell little.
        let effective = values * squares * squares / (count * fourths);
        let upper = products / squares + 1.0 / effective.sqrt();
        let coefficient = |step: usize| COEFFICIENT_MAX * step as f64 / STEPS as f64;
        let expected = |coefficient: f64| -> f64 {
            let of_length = |(&rounds, &weight): (&usize, &f64)| {
                weight / squares * Model::new(coefficient, rounds).lag_one()
            };
            squares_by_length.iter().map(of_length).sum()
        };
        let least = (0..STEPS).map(coefficient).find(|&it| expected(it) >= upper);
        Correlation(least.unwrap_or(COEFFICIENT_MAX))
    }

    pub(crate) fn coefficient(self) -> f64 {
        self.0
    }

    /// Returns the effect on the mean of so many rounds, at least two.
    pub(crate) fn effect(self, rounds: usize) -> Effect {
        let model = Model::new(self.0, rounds);
        let count = model.count as f64;
        // More rounds than the model's give as many more degrees of freedom.
        let longer = (rounds - 1) as f64 / (count - 1.0);
        Effect {
            factor: model.variance_of_mean * count * (count - 1.0) / model.trace(),
            freedom: longer * model.trace().powi(2) / model.squares(),
        }
    }
}

/// Returns the sum of the products of successive deviations from the mean of the logarithms, and
/// that of the squares.
fn products_and_squares(values: &[f64]) -> (f64, f64) {
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let deviations: Vec<f64> = logs.iter().map(|log| log - mean).collect();
    let products = deviations.windows(2).map(|pair| pair[0] * pair[1]).sum();
    (products, deviations.iter().map(|deviation| deviation * deviation).sum())
}

/// Covariances of the deviations of a series of unit variance from its own mean.
struct Model {
    count: usize,
    coefficient: f64,
    /// The mean correlation of each round with all, itself included.
    means: Vec<f64>,
    /// The mean of these: the variance of the series' mean.
    variance_of_mean: f64,
}

impl Model {
    fn new(coefficient: f64, rounds: usize) -> Model {
        let count = rounds.min(ROUNDS_MAX);
        let power = |a: usize, b: usize| coefficient.powi(a.abs_diff(b) as i32);
        let mean = |row| (0..count).map(|column| power(row, column)).sum::<f64>() / count as f64;
        let means: Vec<f64> = (0..count).map(mean).collect();
        let variance_of_mean = means.iter().sum::<f64>() / count as f64;
        Model { count, coefficient, means, variance_of_mean }
    }

    fn covariance(&self, a: usize, b: usize) -> f64 {
        let own = self.coefficient.powi(a.abs_diff(b) as i32);
        own - self.means[a] - self.means[b] + self.variance_of_mean
    }

    fn trace(&self) -> f64 {
        (0..self.count).map(|place| self.covariance(place, place)).sum()
    }

    fn squares(&self) -> f64 {
        let row = |a| (0..self.count).map(move |b| self.covariance(a, b).powi(2));
        (0..self.count).flat_map(row).sum()
    }

    /// Returns the expected lag-one ratio.
    fn lag_one(&self) -> f64 {
        let products = (1..self.count).map(|place| self.covariance(place - 1, place));
        products.sum::<f64>() / self.trace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::statistics::tests::correlated;
    use crate::random::SplitMix64;

    #[test]
    fn independent_rounds_have_the_usual_effect() {
        for rounds in [2, 3, 10, 200] {
            let Effect { factor, freedom } = Correlation::NONE.effect(rounds);
            assert!((factor - 1.0).abs() < 1e-9, "{rounds}: {factor}");
            assert!((freedom - (rounds - 1) as f64).abs() < 1e-6, "{rounds}: {freedom}");
        }
    }

    /// For long series the variance of the mean is larger by (1 + c) / (1 - c).
    #[test]
    fn correlated_rounds_make_a_mean_less_certain() {
        let of_three = Correlation(0.5).effect(3);
        // The variance of the mean is 11/18, the expected scatter 7/12.
        assert!((of_three.factor - 3.0 * (11.0 / 18.0) / (7.0 / 12.0)).abs() < 1e-9);
        let of_many = Correlation(0.5).effect(1_000);
        assert!((2.8..3.2).contains(&of_many.factor), "{of_many:?}");
        assert!((500.0..700.0).contains(&of_many.freedom), "{of_many:?}");
    }

    #[test]
    fn the_coefficient_is_found_from_many_short_series() {
        let mut random = SplitMix64::new(0xa11);
        for (coefficient, range) in [(0.0, 0.0..0.21), (0.5, 0.4..0.66), (0.95, 0.69..0.71)] {
            let series: Vec<Vec<f64>> =
                (0..200).map(|_| correlated(&mut random, 5, coefficient, 0.05)).collect();
            let found = Correlation::estimate(series.iter().map(Vec::as_slice)).coefficient();
            assert!(range.contains(&found), "{coefficient}: {found}");
        }
        let constant = Correlation::estimate([[2.0; 5].as_slice()].into_iter());
        assert!(constant.coefficient() < f64::EPSILON);
    }
}
