//! Compares and adds sequence numbers, which wrap (RFC 9293, section 3.4).

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A sequence number: 32 bits that wrap. Two of them compare by which is ahead within half of the
/// number space, so it is no total order and deliberately not `Ord`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sequence(pub u32);

impl Sequence {
    /// How far this number is ahead of `other`; negative if it is behind.
    pub const fn distance(self, other: Sequence) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Bytes from `other` up to this number, which must not be behind `other`.
    pub const fn since(self, other: Sequence) -> u32 {
        self.0.wrapping_sub(other.0)
    }

    /// The number that is ahead.
    pub fn max(self, other: Sequence) -> Sequence {
        if self > other { self } else { other }
    }

    /// The number that is behind.
    pub fn min(self, other: Sequence) -> Sequence {
        if self < other { self } else { other }
    }

    /// Whether this number is in the half-open window of `bytes` that begins at `start`.
    pub const fn within(self, start: Sequence, bytes: u32) -> bool {
        self.since(start) < bytes
    }
}

impl PartialOrd for Sequence {
    fn partial_cmp(&self, other: &Sequence) -> Option<Ordering> {
        Some(self.distance(*other).cmp(&0))
    }
}

impl Add<u32> for Sequence {
    type Output = Sequence;

    fn add(self, bytes: u32) -> Sequence {
        Sequence(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Sequence {
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for Sequence {
    type Output = Sequence;

    fn sub(self, bytes: u32) -> Sequence {
        Sequence(self.0.wrapping_sub(bytes))
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_wraps() {
        let (before, after) = (Sequence(u32::MAX - 1), Sequence(3));
        assert!(before < after);
        assert!(after > before);
        assert_eq!(after.distance(before), 5);
        assert_eq!(before.max(after), after);
        assert_eq!(before.min(after), before);
        assert_eq!(before + 5, after);
        assert_eq!(after - 5, before);
        assert!(after.within(before, 6) && !after.within(before, 5) && !before.within(after, 6));
    }
}
