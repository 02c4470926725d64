//! Defines the layout of C's handles: the index of the channel in the table, and the index and
//! generation of the member within the channel.

use crate::types::mp_handle;
use channel::Handle;

/// Number of channels that may exist at once in a process.
pub(crate) const SLOTS: usize = 1 << 11;
/// Number of handles that one channel may have.
pub(crate) const HANDLES_MAX: u32 = 1 << 20;

const INDEX_SHIFT: u32 = 32;
const PLACE_SHIFT: u32 = 52;

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
        (self.place as i64) << PLACE_SHIFT | i64::from(index) << INDEX_SHIFT | i64::from(generation)
    }

    /// Returns index and generation of a handle of this channel; `None` for another channel's.
    #[inline]
    pub(crate) fn decode(self, handle: mp_handle) -> Option<(u32, u32)> {
        let index = (handle >> INDEX_SHIFT) as u32 & (HANDLES_MAX - 1);
        let generation = (handle as u32).wrapping_sub(self.base);
        (place_of(handle) == Some(self.place)).then_some((index, generation))
    }
}

/// Returns the channel's index in the table, below [`SLOTS`]; `None` for a handle that `encode`
/// cannot make.
#[inline]
pub(crate) fn place_of(handle: mp_handle) -> Option<usize> {
    usize::try_from(handle >> PLACE_SHIFT).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use channel::Channel;

    #[test]
    fn handles_round_trip_and_are_never_negative() {
        let channel: Channel<()> = Channel::new().unwrap();
        let widest = channel.handle(HANDLES_MAX - 1, u32::MAX);
        let number = Numbering { place: SLOTS - 1, base: 7 }.encode(widest);
        assert!(number >= 0);
        assert_eq!(place_of(number), Some(SLOTS - 1));
        let decoded = |place| Numbering { place, base: 7 }.decode(number);
        assert_eq!(decoded(SLOTS - 1), Some((HANDLES_MAX - 1, u32::MAX)));
        assert_eq!(decoded(0), None);
        assert_eq!(Numbering { place: 0, base: 7 }.decode(-1), None);
    }
}
