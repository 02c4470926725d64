//! Implements a table whose keys carry a generation, so that a stale key never finds a later
//! value.

use std::num::NonZeroU32;

/// Identifies one value of one slot: the key of an earlier value of the same slot is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) index: u32,
    /// Counts from 1, so that an `Option<Key>` has the size of a key.
    pub(crate) generation: NonZeroU32,
}

const FIRST_GENERATION: NonZeroU32 = NonZeroU32::MIN;

impl Key {
    /// The key that no value has: tables never have that many slots, because such an index would
    /// collide with the tags of drivers' own operations.
    pub(crate) const NONE: Key = Key { index: u32::MAX, generation: FIRST_GENERATION };

    /// Returns the key with these numbers; `None` if no value can have it.
    pub(crate) fn new(index: u32, generation: u32) -> Option<Key> {
        Some(Key { index, generation: NonZeroU32::new(generation)? })
    }

    /// Packs the key into the 64 bits that a driver carries with each operation.
    pub(crate) fn tag(self) -> u64 {
        u64::from(self.generation.get()) << 32 | u64::from(self.index)
    }

    /// Returns the key of a tag; `None` for a tag that `tag` never makes.
    pub(crate) fn from_tag(tag: u64) -> Option<Key> {
        Key::new(tag as u32, (tag >> 32) as u32)
    }

    /// Returns the index in a tag.
    pub(crate) fn index_in(tag: u64) -> usize {
        tag as u32 as usize
    }
}

struct Slot<T> {
    generation: NonZeroU32,
    value: Option<T>,
}

/// A bounded table with stable indices. Slots are reused last-in first-out, so they stay in cache.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    limit: u32,
}

impl<T> Slab<T> {
    /// Creates an empty table for at most `limit` values.
    pub(crate) fn new(limit: u32) -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new(), limit }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Stores `value`, or returns it if the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Result<Key, T> {
        if self.len() >= self.limit as usize { Err(value) } else { Ok(self.insert_beyond(value)) }
    }

    /// Stores `value` even in a full table, for values that the caller limits by other means.
    pub(crate) fn insert_beyond(&mut self, value: T) -> Key {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Key { index, generation: slot.generation };
        }
        let index = self.slots.len() as u32;
        let generation = FIRST_GENERATION;
        self.slots.push(Slot { generation, value: Some(value) });
        Key { index, generation }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.checked_add(1).unwrap_or(FIRST_GENERATION);
        self.free.push(key.index);
        Some(value)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// Iterates over the keys of all present values, in index order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.value.is_some())
            .map(|(index, slot)| Key { index: index as u32, generation: slot.generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_is_refused() {
        let mut slab = Slab::new(8);
        let first = slab.insert("first").unwrap();
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second").unwrap();
        assert_eq!(second.index, first.index);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"second"));
    }

    #[test]
    fn the_limit_holds_and_the_value_comes_back() {
        let mut slab = Slab::new(2);
        let key = slab.insert(1).unwrap();
        slab.insert(2).unwrap();
        assert_eq!(slab.insert(3), Err(3));
        slab.remove(key);
        assert!(slab.insert(3).is_ok());
        assert_eq!(slab.len(), 2);
        assert_eq!(slab.keys().count(), 2);
    }

    #[test]
    fn tags_round_trip() {
        let key = Key::new(0xdead_beef, 0x1234_5678).unwrap();
        assert_eq!(Key::from_tag(key.tag()), Some(key));
        assert_eq!(Key::index_in(key.tag()), 0xdead_beef);
        assert_eq!(Key::from_tag(0xdead_beef), None, "no tenant has generation 0");
    }

    #[test]
    fn no_key_takes_no_room_and_names_nothing() {
        assert_eq!(size_of::<Option<Key>>(), size_of::<Key>());
        let mut slab = Slab::new(2);
        slab.insert(1).unwrap();
        assert_eq!(slab.get(Key::NONE), None);
        assert_eq!(slab.remove(Key::NONE), None);
    }
}
