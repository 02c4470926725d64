//! Generates content that is a function of a number, so that mixed-up answers are detected without
//! a copy of all content in memory.

use crate::random::SplitMix64;

/// A prime, so that pieces of a file at multiples of the page size never begin with the same bytes.
const PERIOD_BYTES: usize = 65_521;
/// Distance between the contents of consecutive numbers; no divisor of the period.
const STRIDE_BYTES: usize = 7_919;

/// A fixed sequence of random bytes, of which every content is a part.
#[derive(Debug)]
pub(crate) struct Pattern {
    /// Twice the period, so that every piece up to a period is contiguous.
    bytes: Vec<u8>,
}

impl Pattern {
    pub(crate) fn new() -> Pattern {
        let mut random = SplitMix64::new(0x6d65_6761_7069_7065);
        let mut bytes: Vec<u8> =
            (0..PERIOD_BYTES.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
        bytes.truncate(PERIOD_BYTES);
        bytes.extend_from_within(..);
        Pattern { bytes }
    }

    /// Returns a contiguous piece of a content from a position on, as long as possible.
    pub(crate) fn piece(&self, number: u32, at: u64) -> &[u8] {
        let period = PERIOD_BYTES as u64;
        let start = (u64::from(number) % period * STRIDE_BYTES as u64 + at % period) % period;
        &self.bytes[start as usize..start as usize + PERIOD_BYTES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_begin_differently_and_repeat_by_their_period() {
        let pattern = Pattern::new();
        let mut beginnings: Vec<&[u8]> =
            (0..5_000).map(|number| &pattern.piece(number, 0)[..16]).collect();
        beginnings.sort_unstable();
        beginnings.dedup();
        assert_eq!(beginnings.len(), 5_000);
        assert_eq!(pattern.piece(3, 0), pattern.piece(3, PERIOD_BYTES as u64));
        assert_eq!(pattern.piece(3, 1)[..9], pattern.piece(3, 0)[1..10]);
    }
}
