//! Pseudo-random numbers that repeat with their seed.

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        // First outputs for seed 1234567 of the reference implementation.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    proptest! {
        #[test]
        fn random_numbers_stay_below_their_bound(seed: u64, bound in 1_usize..1_000_000) {
            prop_assert!(SplitMix64::new(seed).below(bound) < bound);
        }
    }
}
