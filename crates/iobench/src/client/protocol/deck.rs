//! Draws random numbers without replacement, in a sequence that repeats from slot to slot.

use crate::random::SplitMix64;

/// All numbers below a bound in a random order, then again in another order. So rare numbers, such
/// as that of the largest file, occur equally often in slots of equal length.
#[derive(Debug, Clone)]
pub(crate) struct Deck {
    numbers: Vec<u32>,
    next: usize,
    random: SplitMix64,
    seed: u64,
}

impl Deck {
    /// `count` is at least 1.
    pub(crate) fn new(count: u32, seed: u64) -> Deck {
        let mut deck = Deck {
            numbers: (0..count.max(1)).collect(),
            next: 0,
            random: SplitMix64::new(seed),
            seed,
        };
        deck.restart();
        deck
    }

    /// Restarts the sequence.
    pub(crate) fn restart(&mut self) {
        self.random = SplitMix64::new(self.seed);
        for (number, place) in (0..).zip(&mut self.numbers) {
            *place = number;
        }
        self.shuffle();
    }

    /// Draws the next number.
    pub(crate) fn draw(&mut self) -> u32 {
        if self.next == self.numbers.len() {
            self.shuffle();
        }
        self.next += 1;
        self.numbers[self.next - 1]
    }

    /// The shuffle of Fisher and Yates.
    fn shuffle(&mut self) {
        for end in (1..self.numbers.len()).rev() {
            let other = self.random.below(end + 1);
            self.numbers.swap(end, other);
        }
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once_in_a_turn_and_the_sequence_repeats() {
        let mut deck = Deck::new(100, 7);
        let mut draw = || (0..250).map(|_| deck.draw()).collect::<Vec<u32>>();
        let first = draw();
        let mut turn = first[..100].to_vec();
        assert_ne!(turn, first[100..200]);
        turn.sort_unstable();
        assert_eq!(turn, (0..100).collect::<Vec<u32>>());
        deck.restart();
        assert_eq!((0..250).map(|_| deck.draw()).collect::<Vec<u32>>(), first);
    }
}
