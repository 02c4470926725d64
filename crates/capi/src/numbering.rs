//! Defines the layout of C's handles: the index of the channel in the table, and the index and
//! generation of the member within the channel.
//!
//! From the highest bit: 0, 1, the generation (32 bits), the channel (10), the member (20). A
//! handle that a program has kept in an `int` lacks the 1, or is negative, and is refused: it must
//! not be a valid handle of another connection. In the low 32 bits the members differ, so that two
//! of them do not seem to be one.

use crate::types::mp_handle;
use channel::Handle;

/// Number of channels that may exist at once in a process.
pub(crate) const SLOTS: usize = 1 << 10;
/// Number of handles that one channel may have, and the highest index of a member.
pub(crate) const HANDLES_MAX: u32 = (1 << PLACE_SHIFT) - 1;

const PLACE_SHIFT: u32 = 20;
const GENERATION_SHIFT: u32 = 30;
const MARK_SHIFT: u32 = 62;

/// The part of its handles that identifies a channel.
#[derive(Clone, Copy)]
pub(crate) struct Numbering {
    pub(crate) place: usize,
    /// Added to the generations of the channel's handles.
    pub(crate) base: u32,
}

impl Numbering {
    pub(crate) fn encode(self, handle: Handle) -> mp_handle {
        let (index, generation) = (handle.index(), handle.generation());
        let generation = generation.wrapping_add(self.base);
        1 << MARK_SHIFT
            | i64::from(generation) << GENERATION_SHIFT
            | (self.place as i64) << PLACE_SHIFT
            | i64::from(index)
    }

    /// Returns index and generation of a handle of this channel; `None` for another channel's.
    #[inline]
    pub(crate) fn decode(self, handle: mp_handle) -> Option<(u32, u32)> {
        let index = handle as u32 & HANDLES_MAX;
        let generation = ((handle >> GENERATION_SHIFT) as u32).wrapping_sub(self.base);
        (place_of(handle) == Some(self.place)).then_some((index, generation))
    }
}

/// Returns the channel's index in the table, below [`SLOTS`]; `None` for a handle that `encode`
/// cannot make.
#[inline]
pub(crate) fn place_of(handle: mp_handle) -> Option<usize> {
    let is_marked = handle >> MARK_SHIFT == 1;
    is_marked.then_some((handle >> PLACE_SHIFT) as usize & (SLOTS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use channel::Channel;

    #[test]
    fn handles_round_trip_and_are_never_negative() {
        let channel: Channel<()> = Channel::new().unwrap();
        let widest = channel.handle(HANDLES_MAX, u32::MAX);
        let number = Numbering { place: SLOTS - 1, base: 7 }.encode(widest);
        assert!(number >= 0);
        assert_eq!(place_of(number), Some(SLOTS - 1));
        let decoded = |place| Numbering { place, base: 7 }.decode(number);
        assert_eq!(decoded(SLOTS - 1), Some((HANDLES_MAX, u32::MAX)));
        assert_eq!(decoded(0), None);
        assert_eq!(Numbering { place: 0, base: 7 }.decode(-1), None);
    }

    #[test]
    fn a_handle_kept_in_an_int_is_refused_and_differs_from_others() {
        let channel: Channel<()> = Channel::new().unwrap();
        let mut seen = std::collections::HashSet::new();
        for (place, base) in [(0, 0), (0, u32::MAX), (1, 7), (SLOTS - 1, 1 << 31)] {
            for index in [0, 1, 2, HANDLES_MAX] {
                let number = Numbering { place, base }.encode(channel.handle(index, 1));
                let kept = number as i32;
                assert!(seen.insert(kept), "{place}, {base}, {index}: {kept:#x}");
                assert_eq!(place_of(i64::from(kept)), None, "int, {number:#x}");
                assert_eq!(place_of(i64::from(kept as u32)), None, "unsigned, {number:#x}");
            }
        }
    }
}
