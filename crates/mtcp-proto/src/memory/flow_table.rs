//! Maps keyed hashes of a connection's addresses to the index of the connection.

/// Slots of a table's first array.
const FIRST_SLOTS: usize = 64;

/// Slots of the old table that are moved when an entry is added or removed. Three would be enough
/// to finish before the new table is full.
const STEPS: usize = 8;

/// Maps keyed hashes of addresses, of which it uses the lower 32 bits, to indices: open addressing
/// with linear probing.
///
/// A slot holds 32 bits of the hash, which determine its home slot and make comparisons with wrong
/// connections rare. Removal leaves no tombstones: later entries move up. Growing causes no pause:
/// the entries of the old table move a few at a time.
#[derive(Debug)]
pub(crate) struct FlowTable {
    slots: Slots,
    /// The array before the last growth. Its entries from `moved` on have not moved to the new one
    /// yet.
    old: Slots,
    moved: usize,
}

impl FlowTable {
    /// An empty table.
    pub(crate) fn new() -> FlowTable {
        FlowTable { slots: Slots::new(FIRST_SLOTS), old: Slots::new(0), moved: 0 }
    }

    /// Number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.slots.entries + self.old.entries
    }

    /// The index that is stored under this hash and for which `is_it` confirms the addresses.
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        if let Some(place) = self.slots.find(hash as u32, &mut is_it) {
            return Some(self.slots.index(place));
        }
        if self.old.entries == 0 {
            return None;
        }
        self.old.find(hash as u32, &mut is_it).map(|place| self.old.index(place))
    }

    /// Adds an index, which must not be `u32::MAX` nor be in the table under this hash.
    pub(crate) fn insert(&mut self, hash: u64, index: u32) {
        debug_assert!(index != u32::MAX);
        self.move_some();
        if self.slots.is_crowded() {
            while self.old.entries > 0 {
                self.move_some();
            }
            let larger = Slots::new(self.slots.array.len() * 2);
            self.old = std::mem::replace(&mut self.slots, larger);
            self.moved = 0;
        }
        self.slots.insert(hash as u32, index);
    }

    /// Removes an index under its hash. False if it is not there.
    pub(crate) fn remove(&mut self, hash: u64, index: u32) -> bool {
        self.move_some();
        for slots in [&mut self.slots, &mut self.old] {
            if let Some(place) = slots.find(hash as u32, &mut |found| found == index) {
                slots.remove(place);
                return true;
            }
        }
        false
    }

    /// Replaces `index` by `other` under this hash. False if it is not there.
    pub(crate) fn replace(&mut self, hash: u64, index: u32, other: u32) -> bool {
        for slots in [&mut self.slots, &mut self.old] {
            if let Some(place) = slots.find(hash as u32, &mut |found| found == index) {
                slots.array[place] = slot_of(hash as u32, other);
                return true;
            }
        }
        false
    }

    fn move_some(&mut self) {
        for _ in 0..STEPS {
            if self.old.entries == 0 {
                if !self.old.array.is_empty() {
                    self.old = Slots::new(0);
                }
                return;
            }
            // Removing may bring the next entry into this place, so the loop passes only an empty
            // place.
            let slot = self.old.array[self.moved];
            if slot == EMPTY {
                self.moved += 1;
            } else {
                self.old.remove(self.moved);
                self.slots.insert(hash_of(slot), index_of(slot));
            }
        }
    }
}

/// An empty slot. An occupied slot has the hash in its upper half and the index plus one in its
/// lower half. Because empty is zero, a large table can begin as untouched zero pages.
const EMPTY: u64 = 0;

fn slot_of(hash: u32, index: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(index.wrapping_add(1))
}

fn hash_of(slot: u64) -> u32 {
    (slot >> 32) as u32
}

fn index_of(slot: u64) -> u32 {
    (slot as u32).wrapping_sub(1)
}

#[derive(Debug)]
struct Slots {
    /// Empty, or a power of two long.
    array: Vec<u64>,
    entries: usize,
}

impl Slots {
    fn new(slots: usize) -> Slots {
        Slots { array: vec![EMPTY; slots], entries: 0 }
    }

    fn mask(&self) -> usize {
        self.array.len() - 1
    }

    fn index(&self, place: usize) -> u32 {
        index_of(self.array[place])
    }

    /// Whether more than five eighths are in use, beyond which probing becomes slow.
    fn is_crowded(&self) -> bool {
        self.entries >= self.array.len() / 8 * 5
    }

    fn find(&self, hash: u32, is_it: &mut impl FnMut(u32) -> bool) -> Option<usize> {
        if self.entries == 0 {
            return None;
        }
        let mut place = hash as usize & self.mask();
        loop {
            let slot = self.array[place];
            if slot == EMPTY {
                return None;
            }
            if hash_of(slot) == hash && is_it(index_of(slot)) {
                return Some(place);
            }
            place = (place + 1) & self.mask();
        }
    }

    fn insert(&mut self, hash: u32, index: u32) {
        let mut place = hash as usize & self.mask();
        while self.array[place] != EMPTY {
            place = (place + 1) & self.mask();
        }
        self.array[place] = slot_of(hash, index);
        self.entries += 1;
    }

    fn remove(&mut self, place: usize) {
        let mut hole = place;
        let mut next = place;
        loop {
            next = (next + 1) & self.mask();
            let slot = self.array[next];
            if slot == EMPTY {
                break;
            }
            // An entry may move up to the hole only if its home slot does not lie behind the hole.
            let from_home = next.wrapping_sub(hash_of(slot) as usize) & self.mask();
            if from_home >= next.wrapping_sub(hole) & self.mask() {
                self.array[hole] = slot;
                hole = next;
            }
        }
        self.array[hole] = EMPTY;
        self.entries -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(100)
        })]

        /// The hashes are bad on purpose: few values, many of them at the end of the array.
        #[test]
        fn a_table_holds_what_its_model_holds(
            steps in prop::collection::vec((0u8..8, any::<u64>()), 1..3000),
            spread in prop_oneof![Just(0x3fu64), Just(u64::MAX), Just(0xfff0_0000_0000_003c)],
        ) {
            let mut table = FlowTable::new();
            let mut model: HashMap<u32, u64> = HashMap::new();
            let mut live: Vec<u32> = Vec::new();
            for (index, (step, random)) in (0u32..).zip(steps) {
                if step < 5 {
                    let hash = random & spread;
                    table.insert(hash, index);
                    model.insert(index, hash);
                    live.push(index);
                } else if !live.is_empty() {
                    let gone = live.swap_remove(random as usize % live.len());
                    let hash = model.remove(&gone).expect("it is live");
                    prop_assert!(table.remove(hash, gone));
                    prop_assert!(!table.remove(hash, gone));
                    prop_assert_eq!(table.find(hash, |found| found == gone), None);
                }
                if step == 4 {
                    let old = live.swap_remove(random as usize % live.len());
                    let hash = model.remove(&old).expect("it is live");
                    prop_assert!(table.replace(hash, old, old + 10_000));
                    prop_assert!(!table.replace(hash, old, old + 10_000));
                    model.insert(old + 10_000, hash);
                    live.push(old + 10_000);
                }
                prop_assert_eq!(table.len(), model.len());
                if let Some(index) = live.get(random as usize % live.len().max(1)) {
                    let found = table.find(model[index], |found| found == *index);
                    prop_assert_eq!(found, Some(*index));
                }
            }
            for (index, hash) in model {
                prop_assert_eq!(table.find(hash, |found| found == index), Some(index));
            }
        }
    }

    /// Counts the slots that a look-up examines, which determine its cost, in tables that are as
    /// full as they can be.
    #[test]
    fn a_look_up_costs_the_same_among_many_as_among_few() {
        let mix = |index: u32| {
            let mixed = u64::from(index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
        };
        for entries in [(1 << 7) * 5, (1 << 12) * 5, (1 << 17) * 5] {
            let mut table = FlowTable::new();
            (0..entries).for_each(|index| table.insert(mix(index), index));
            let steps = |hash: u64| {
                let (slots, mut place) = (&table.slots, hash as usize);
                let mut steps = 1;
                while slots.array[place & slots.mask()] != EMPTY {
                    (place, steps) = (place + 1, steps + 1);
                }
                steps
            };
            // The search for an absent entry ends at the first empty slot, and so is the longest.
            let strangers = entries..2 * entries;
            let all: usize = strangers.clone().map(|index| steps(mix(index))).sum();
            let most = strangers.map(|index| steps(mix(index))).max().unwrap_or(0);
            assert!(all < entries as usize * 5, "{all} steps for {entries} look-ups");
            assert!(most < 250, "{most} steps among {entries}");
        }
    }

    #[test]
    fn growing_never_stops_for_long_and_is_done_in_time() {
        let mut table = FlowTable::new();
        let hash = |index: u32| u64::from(index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7;
        for index in 0..200_000 {
            let moved = table.slots.array.len();
            let left = table.old.entries;
            table.insert(hash(index), index);
            if table.slots.array.len() != moved {
                assert_eq!(left, 0, "the move before was done");
            } else {
                assert!(left - table.old.entries <= STEPS);
            }
        }
        for index in 0..200_000 {
            assert_eq!(table.find(hash(index), |found| found == index), Some(index));
        }
        for index in 0..200_000 {
            assert!(table.remove(hash(index), index));
        }
        assert_eq!(table.len(), 0);
        assert_eq!(table.find(hash(1), |_| true), None);
    }
}
