//! Generates random numbers that a seed reproduces (SplitMix64, Steele et al. 2014).

/// A generator; copies produce the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers the seed determines.
    #[inline]
    pub fn new(seed: u64) -> Random {
        // Neighbouring seeds must not give neighbouring streams.
        let mut random = Random(seed ^ 0x6d74_6370_7369_6d00);
        Random(random.next_u64())
    }

    /// The next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a separate generator, so that the numbers that one part draws do not change those of
    /// another.
    #[inline]
    pub fn fork(&mut self) -> Random {
        Random(self.next_u64())
    }

    /// A number below `bound`, which must not be zero.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `least` to `most`, both included.
    #[inline]
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// A number between the two, where each order of magnitude is equally likely.
    #[inline]
    pub fn spread(&mut self, least: u64, most: u64) -> u64 {
        let (low, high) = ((least.max(1) as f64).ln(), (most as f64 + 1.0).ln());
        let drawn = (low + (high - low) * self.unit()).exp() as u64;
        drawn.clamp(least, most)
    }

    /// A number from 0 to below 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability, from 0 to 1.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// One of `among`, which must not be empty.
    #[inline]
    pub fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len() as u64) as usize]
    }
}

#[test]
fn numbers_repeat_and_stay_in_their_bounds() {
    let (mut one, mut same) = (Random::new(7), Random::new(7));
    for _ in 0..1000 {
        assert_eq!(one.next_u64(), same.next_u64());
        assert!((3..=5).contains(&one.between(3, 5)));
        assert!((10..=100_000).contains(&one.spread(10, 100_000)));
        same = one.clone();
    }
    assert_ne!(Random::new(7).next_u64(), Random::new(8).next_u64());
}
