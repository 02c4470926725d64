//! Fits a line to a series of samples, one for each cycle, with a confidence interval.

/// Two-sided 99 % of the normal distribution.
const QUANTILE: f64 = 2.576;
/// The most samples that are compared in pairs. Of a longer series every so many count.
const SAMPLES_MAX: usize = 1000;

/// Growth per cycle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trend {
    pub(crate) slope: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Trend {
    /// The median of the slopes between all pairs of samples, with Sen's interval (Sen 1968, J. Am.
    /// Stat. Assoc. 63). Unlike least squares it ignores single samples that are far off, and a
    /// step is no slope: an allocator that takes a large piece once does not leak. With less than
    /// six samples the interval is infinite.
    pub(crate) fn of(values: &[f64]) -> Trend {
        let stride = values.len().div_ceil(SAMPLES_MAX).max(1);
        let values: Vec<f64> = values.iter().step_by(stride).copied().collect();
        let mut slopes = Vec::with_capacity(values.len() * values.len() / 2);
        for (at, first) in values.iter().enumerate() {
            let later = values[at + 1..].iter().zip(1_usize..);
            slopes.extend(later.map(|(value, steps)| (value - first) / (steps * stride) as f64));
        }
        slopes.sort_by(f64::total_cmp);
        let count = values.len() as f64;
        let spread = QUANTILE * (count * (count - 1.0) * (2.0 * count + 5.0) / 18.0).sqrt();
        let pairs = slopes.len() as f64;
        let at = |rank: f64| slopes.get(rank as usize).filter(|_| rank >= 0.0).copied();
        Trend {
            slope: at((pairs / 2.0).floor()).unwrap_or_default(),
            low: at(((pairs - spread) / 2.0).floor()).unwrap_or(f64::NEG_INFINITY),
            high: at(((pairs + spread) / 2.0).ceil()).unwrap_or(f64::INFINITY),
        }
    }
}

#[test]
fn a_leak_has_a_slope_and_a_step_has_none() {
    let noise = |at: u32| f64::from(at * 7919 % 13);
    let leak: Vec<f64> = (0..40).map(|at| 1000.0 + 2.0 * f64::from(at) + noise(at)).collect();
    let Trend { slope, low, high } = Trend::of(&leak);
    assert!((1.8..2.2).contains(&slope) && low > 1.5 && high < 2.5, "{slope} [{low}, {high}]");
    let step: Vec<f64> = (0..40).map(|at| if at < 8 { 1000.0 } else { 9000.0 }).collect();
    assert_eq!(Trend::of(&step), Trend { slope: 0.0, low: 0.0, high: 0.0 });
    let level: Vec<f64> = (0..40).map(noise).collect();
    let Trend { low, high, .. } = Trend::of(&level);
    assert!(low <= 0.0 && high >= 0.0, "[{low}, {high}]");
}

#[test]
fn days_of_cycles_are_judged_by_a_part_of_them() {
    let leak: Vec<f64> = (0..2_000_000).map(|at| f64::from(at / 2)).collect();
    let Trend { slope, low, high } = Trend::of(&leak);
    assert!((0.49..0.51).contains(&slope) && low > 0.49 && high < 0.51, "{slope} [{low}, {high}]");
}

#[test]
fn few_samples_prove_nothing() {
    for count in 0..6 {
        let values: Vec<f64> = (0..count).map(f64::from).collect();
        assert_eq!(Trend::of(&values).low, f64::NEG_INFINITY, "{count}");
    }
    let values: Vec<f64> = (0..8).map(f64::from).collect();
    assert_eq!(Trend::of(&values), Trend { slope: 1.0, low: 1.0, high: 1.0 });
}
