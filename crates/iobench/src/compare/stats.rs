//! Medians, the order of slots, and intervals for ratios.
//!
//! The unit of evidence is the round: its ratio is the median over its pairs of adjacent slots, the
//! reported ratio is the median over rounds, and a percentile bootstrap over rounds gives the 95 %
//! interval. With few rounds a bootstrap can collapse to almost nothing although single pairs
//! scatter, so the interval is widened where needed to the notch of a box plot over all pairs,
//! median ± 1.57 IQR / √n: about a 95 % interval for a median (McGill, Tukey and Larsen, 1978).
//! All of it happens on logarithms, so that A/B and B/A are exact mirror images.

use serde::{Deserialize, Serialize};

/// Resamples of the bootstrap.
const RESAMPLES: usize = 2_000;

/// A small generator with a known seed (SplitMix64), so that a report can be recomputed.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    /// Uniform below `bound`, by the multiply-and-shift of Lemire; its bias is below 2^-50 here.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// The value at `fraction` of a sorted, non-empty slice, interpolated linearly.
fn quantile_of_sorted(sorted: &[f64], fraction: f64) -> f64 {
    let position = fraction * (sorted.len() - 1) as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The median, or nothing of nothing.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| quantile_of_sorted(&sorted(values), 0.5))
}

/// A ratio with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Interval {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Interval {
    /// What a server is against itself.
    pub(crate) const ONE: Interval = Interval { median: 1.0, low: 1.0, high: 1.0 };

    pub(crate) fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// The interval of a ratio from its pairs, grouped by round; nothing from fewer than two pairs,
/// which do not scatter.
pub(crate) fn ratio_interval(rounds: &[Vec<f64>], seed: u64) -> Option<Interval> {
    let logs: Vec<Vec<f64>> =
        rounds.iter().map(|pairs| pairs.iter().map(|ratio| ratio.ln()).collect()).collect();
    let units: Vec<f64> = logs.iter().filter_map(|pairs| median(pairs)).collect();
    let pairs = logs.concat();
    if pairs.len() < 2 {
        return None;
    }
    let centre = median(&units)?;
    let (low, high) = bootstrap(&units, &mut SplitMix64::new(seed));
    let half_width = notch(&pairs);
    Some(Interval {
        median: centre.exp(),
        low: low.min(centre - half_width).exp(),
        high: high.max(centre + half_width).exp(),
    })
}

/// The interval of the ratio of two medians, new against old, whose rounds did not run side by side
/// and so make no pairs; nothing if one of them has fewer than two rounds. Like the interval of
/// pairs it is no narrower than the notches, whose widths add up in squares.
pub(crate) fn change_interval(old: &[f64], new: &[f64], seed: u64) -> Option<Interval> {
    if old.len() < 2 || new.len() < 2 {
        return None;
    }
    let [old, new] = [old, new].map(|values| values.iter().map(|v| v.ln()).collect::<Vec<f64>>());
    let centre = median(&new)? - median(&old)?;
    let mut random = SplitMix64::new(seed);
    let mut changes: Vec<f64> = resampled_medians(&new, &mut random);
    let others = resampled_medians(&old, &mut random);
    changes.iter_mut().zip(others).for_each(|(change, other)| *change -= other);
    let changes = sorted(&changes);
    let half_width = notch(&old).hypot(notch(&new));
    Some(Interval {
        median: centre.exp(),
        low: quantile_of_sorted(&changes, 0.025).min(centre - half_width).exp(),
        high: quantile_of_sorted(&changes, 0.975).max(centre + half_width).exp(),
    })
}

/// The 2.5th and 97.5th percentile of medians of resampled units.
fn bootstrap(units: &[f64], random: &mut SplitMix64) -> (f64, f64) {
    let medians = sorted(&resampled_medians(units, random));
    (quantile_of_sorted(&medians, 0.025), quantile_of_sorted(&medians, 0.975))
}

/// Medians of as many draws with replacement as there are units.
fn resampled_medians(units: &[f64], random: &mut SplitMix64) -> Vec<f64> {
    let mut resample = vec![0.0; units.len()];
    (0..RESAMPLES)
        .map(|_| {
            for value in &mut resample {
                *value = units[random.below(units.len())];
            }
            resample.sort_by(f64::total_cmp);
            quantile_of_sorted(&resample, 0.5)
        })
        .collect()
}

/// Half the width of a notched box plot's notch.
fn notch(values: &[f64]) -> f64 {
    let values = sorted(values);
    let spread = quantile_of_sorted(&values, 0.75) - quantile_of_sorted(&values, 0.25);
    1.57 * spread / (values.len() as f64).sqrt()
}

/// The order in which the servers run in one pass of a round: A B, then B A, and so on. With more
/// than two servers the others rotate by round, so that none is always the farthest from the
/// baseline, which comes first or last.
pub(crate) fn slot_order(servers: usize, baseline: usize, round: usize, pass: usize) -> Vec<usize> {
    let mut others: Vec<usize> = (0..servers).filter(|&server| server != baseline).collect();
    if !others.is_empty() {
        let turns = round % others.len();
        others.rotate_left(turns);
    }
    let mut order = vec![baseline];
    order.append(&mut others);
    // Odd rounds begin with the reverse, so that neither order is always the earlier one.
    if (round + pass) % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn medians_interpolate() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn the_generator_is_the_published_one() {
        // First outputs for seed 1234567 of the reference implementation.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn two_servers_run_a_b_b_a() {
        let order = |round| [slot_order(2, 0, round, 0), slot_order(2, 0, round, 1)].concat();
        assert_eq!(order(0), [0, 1, 1, 0]);
        assert_eq!(order(1), [1, 0, 0, 1]);
    }

    #[test]
    fn four_servers_mirror_and_rotate() {
        assert_eq!(slot_order(4, 1, 0, 0), [1, 0, 2, 3]);
        assert_eq!(slot_order(4, 1, 0, 1), [3, 2, 0, 1]);
        assert_eq!(slot_order(4, 1, 1, 1), [1, 2, 3, 0]);
        assert_eq!(slot_order(1, 0, 5, 1), [0]);
    }

    #[test]
    fn equal_pairs_give_a_sharp_ratio() {
        let interval = ratio_interval(&[vec![1.5, 1.5], vec![1.5], vec![]], 1).unwrap();
        for value in [interval.median, interval.low, interval.high] {
            assert!((value - 1.5).abs() < 1e-12);
        }
        assert_eq!(ratio_interval(&[vec![], vec![]], 1), None);
        assert_eq!(ratio_interval(&[vec![1.5], vec![]], 1), None);
    }

    #[test]
    fn the_interval_is_never_narrower_than_the_notch_of_the_pairs() {
        // All rounds agree on 1, but within the rounds the pairs scatter by a factor of two.
        let rounds = vec![vec![0.5, 2.0]; 4];
        let interval = ratio_interval(&rounds, 7).unwrap();
        assert!((interval.median - 1.0).abs() < 1e-12);
        let notch = (1.57 * 4.0_f64.ln() / 8.0_f64.sqrt()).exp();
        assert!((interval.high - notch).abs() < 1e-9, "{interval:?}");
        assert!((interval.low - 1.0 / notch).abs() < 1e-9, "{interval:?}");
    }

    #[test]
    fn the_bootstrap_covers_the_scatter_of_rounds() {
        let rounds: Vec<Vec<f64>> =
            (0..21).map(|round| vec![1.0 + f64::from(round) / 20.0]).collect();
        let interval = ratio_interval(&rounds, 3).unwrap();
        assert!((interval.median - 1.5).abs() < 1e-9);
        assert!(interval.low > 1.05 && interval.low < 1.45, "{interval:?}");
        assert!(interval.high > 1.55 && interval.high < 1.95, "{interval:?}");
    }

    #[test]
    fn a_change_needs_rounds_on_both_sides_and_has_the_scatter_of_both() {
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
        let change = change_interval(&[2.0, 2.0], &[3.0, 3.0], 1).unwrap();
        assert!(near(change.median, 1.5) && near(change.low, 1.5) && near(change.high, 1.5));
        let noisy = change_interval(&[1.0, 2.0, 4.0], &[1.5, 3.0, 6.0], 1).unwrap();
        assert!(near(noisy.median, 1.5) && noisy.contains(1.0), "{noisy:?}");
        assert_eq!(change_interval(&[2.0], &[3.0, 3.0], 1), None);
        assert_eq!(change_interval(&[2.0, 2.0], &[], 1), None);
    }

    fn pairs() -> impl Strategy<Value = Vec<Vec<f64>>> {
        prop::collection::vec(prop::collection::vec(0.05..20.0_f64, 2..5), 1..8)
    }

    proptest! {
        #[test]
        fn intervals_hold_their_median_and_repeat(rounds in pairs(), seed: u64) {
            let interval = ratio_interval(&rounds, seed).unwrap();
            prop_assert!(interval.low > 0.0 && interval.contains(interval.median));
            prop_assert_eq!(ratio_interval(&rounds, seed).unwrap(), interval);
        }

        #[test]
        fn inverse_ratios_have_the_inverse_median(rounds in pairs(), seed: u64) {
            let invert = |round: &Vec<f64>| round.iter().map(|ratio| 1.0 / ratio).collect();
            let inverse: Vec<Vec<f64>> = rounds.iter().map(invert).collect();
            let (a, b) =
                (ratio_interval(&rounds, seed).unwrap(), ratio_interval(&inverse, seed).unwrap());
            prop_assert!((a.median * b.median - 1.0).abs() < 1e-9);
        }

        #[test]
        fn every_pass_runs_every_server_once(
            servers in 1_usize..7, baseline in 0_usize..7, round in 0_usize..20, pass in 0_usize..6
        ) {
            let baseline = baseline % servers;
            let order = slot_order(servers, baseline, round, pass);
            let mut all = order.clone();
            all.sort_unstable();
            prop_assert_eq!(all, (0..servers).collect::<Vec<_>>());
            prop_assert!(order[0] == baseline || order[servers - 1] == baseline);
            let mut mirrored = slot_order(servers, baseline, round, pass + 1);
            mirrored.reverse();
            prop_assert_eq!(order, mirrored);
        }

        #[test]
        fn random_numbers_stay_below_their_bound(seed: u64, bound in 1_usize..1_000_000) {
            prop_assert!(SplitMix64::new(seed).below(bound) < bound);
        }
    }
}
