//! Generates random numbers (SplitMix64). A seed gives the same script on every machine and with
//! every version of every library.

/// The state of the generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator whose numbers follow from the seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next number.
    #[expect(clippy::should_implement_trait, reason = "a generator is no iterator: it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `limit`, which is above zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns a number of `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true in `percent` of 100 calls.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of the items.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// Returns one of the items, with probabilities in proportion to the weights.
    pub fn weighted<T: Copy>(&mut self, items: &[(u64, T)]) -> T {
        let total = items.iter().map(|(weight, _)| weight).sum::<u64>().max(1);
        let mut at = self.below(total);
        for (weight, item) in items {
            if at < *weight {
                return *item;
            }
            at -= weight;
        }
        items[0].1
    }
}

/// Maps a number to another one without a visible pattern; a bijection of 64-bit numbers.
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.range(3, 9)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert!(numbers(7).iter().all(|number| (3..=9).contains(number)));
    }

    #[test]
    fn an_item_without_weight_never_comes() {
        let mut random = Random::new(1);
        let items = [(0, 'a'), (1, 'b'), (3, 'c')];
        let drawn: Vec<char> = (0..1000).map(|_| random.weighted(&items)).collect();
        let count = |item| drawn.iter().filter(|drawn| **drawn == item).count();
        assert_eq!(count('a'), 0);
        assert!(count('c') > count('b') && count('b') > 100);
    }
}
