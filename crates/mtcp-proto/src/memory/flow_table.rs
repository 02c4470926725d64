//! Maps keyed hashes of a connection's addresses to the index of the connection.

use hashbrown::HashTable;

/// The upper bits of a hash, which select one of the tables.
const TABLE_BITS: u32 = 6;

/// Maps keyed hashes of addresses, of which it uses the lower 32 bits, to indices.
///
/// An entry holds 32 bits of the hash, which make comparisons with wrong connections rare. Growing
/// causes no long pause, because each of the tables grows by itself: at 500,000 entries one holds
/// 8,000.
#[derive(Debug)]
pub(crate) struct FlowTable {
    tables: [HashTable<(u32, u32)>; 1 << TABLE_BITS],
}

/// Spreads a hash over 64 bits, of which a table uses the lowest and the uppermost.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn table_of(hash: u32) -> usize {
    (hash >> (u32::BITS - TABLE_BITS)) as usize
}

impl FlowTable {
    /// An empty table.
    pub(crate) fn new() -> FlowTable {
        FlowTable { tables: std::array::from_fn(|_| HashTable::new()) }
    }

    /// Number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.tables.iter().map(HashTable::len).sum()
    }

    /// The index that is stored under this hash and for which `is_it` confirms the addresses.
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let hash = hash as u32;
        self.tables[table_of(hash)]
            .find(spread(hash), |entry| entry.0 == hash && is_it(entry.1))
            .map(|entry| entry.1)
    }

    /// Adds an index, which must not be in the table under this hash.
    pub(crate) fn insert(&mut self, hash: u64, index: u32) {
        let hash = hash as u32;
        let table = &mut self.tables[table_of(hash)];
        table.insert_unique(spread(hash), (hash, index), |entry| spread(entry.0));
    }

    /// Removes an index under its hash. False if it is not there.
    pub(crate) fn remove(&mut self, hash: u64, index: u32) -> bool {
        let hash = hash as u32;
        let table = &mut self.tables[table_of(hash)];
        let entry = table.find_entry(spread(hash), |entry| *entry == (hash, index));
        entry.map(|entry| entry.remove()).is_ok()
    }

    /// Replaces `index` by `other` under this hash. False if it is not there.
    pub(crate) fn replace(&mut self, hash: u64, index: u32, other: u32) -> bool {
        let hash = hash as u32;
        let table = &mut self.tables[table_of(hash)];
        let entry = table.find_mut(spread(hash), |entry| *entry == (hash, index));
        entry.map(|entry| entry.1 = other).is_some()
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

        /// The hashes are bad on purpose: few values, many of them equal.
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

    #[test]
    fn growing_moves_a_small_part_of_the_entries_at_once() {
        const ENTRIES: u32 = 200_000;
        let mut table = FlowTable::new();
        let hash = |index: u32| u64::from(index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7;
        let mut most_moved = 0;
        for index in 0..ENTRIES {
            let grown = &table.tables[table_of(hash(index) as u32)];
            let (moved, capacity) = (grown.len(), grown.capacity());
            table.insert(hash(index), index);
            if table.tables[table_of(hash(index) as u32)].capacity() != capacity {
                most_moved = most_moved.max(moved);
            }
        }
        assert!(most_moved < ENTRIES as usize / 32, "{most_moved} entries at once");
        for index in 0..ENTRIES {
            assert_eq!(table.find(hash(index), |found| found == index), Some(index));
        }
        for index in 0..ENTRIES {
            assert!(table.remove(hash(index), index));
        }
        assert_eq!(table.len(), 0);
        assert_eq!(table.find(hash(1), |_| true), None);
    }
}
