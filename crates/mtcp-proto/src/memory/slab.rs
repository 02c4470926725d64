//! Implements a table that reuses its slots with a new generation, so that a stale identifier finds
//! nothing.

/// Records in one allocation. The table grows by one chunk, so growth moves no record.
const CHUNK: usize = 256;

const NOWHERE: u32 = u32::MAX;

/// Records identified by an index and a generation.
///
/// The most recently freed slot is reused first, because it is still in the cache. A slot whose
/// generations are used up is not reused, so an identifier stays unique.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    limit: u32,
    /// Slots that were ever used.
    used: u32,
    free: u32,
    records: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    next_free: u32,
    record: Option<T>,
}

impl<T> Slab<T> {
    /// Creates an empty table for at most `limit` records, without memory.
    pub(crate) fn new(limit: u32) -> Slab<T> {
        Slab { chunks: Vec::new(), limit, used: 0, free: NOWHERE, records: 0 }
    }

    /// Number of records.
    pub(crate) fn len(&self) -> u32 {
        self.records
    }

    /// Places that were ever used; their indices are below.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Inserts a record and returns its index and generation; `None`, and the record is dropped, if
    /// the table is full.
    #[inline]
    pub(crate) fn insert(&mut self, record: T) -> Option<(u32, u32)> {
        let index = if self.free != NOWHERE {
            let index = self.free;
            let slot = self.slot_mut(index)?;
            slot.record = Some(record);
            self.free = slot.next_free;
            index
        } else {
            if self.used >= self.limit {
                return None;
            }
            let index = self.used;
            if (index as usize).is_multiple_of(CHUNK) {
                let rest = (self.limit - index) as usize;
                self.chunks.push(Vec::with_capacity(CHUNK.min(rest)));
            }
            let slot = Slot { generation: 0, next_free: NOWHERE, record: Some(record) };
            self.chunks[index as usize / CHUNK].push(slot);
            self.used += 1;
            index
        };
        self.records += 1;
        Some((index, self.slot(index)?.generation))
    }

    /// The record with this index and generation.
    pub(crate) fn get(&self, index: u32, generation: u32) -> Option<&T> {
        let slot = self.slot(index)?;
        if slot.generation == generation { slot.record.as_ref() } else { None }
    }

    /// The record with this index and generation.
    pub(crate) fn get_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        let slot = self.slot_mut(index)?;
        if slot.generation == generation { slot.record.as_mut() } else { None }
    }

    /// The record at this index, of any generation.
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.slot(index)?.record.as_ref()
    }

    /// The record at this index, of any generation.
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slot_mut(index)?.record.as_mut()
    }

    /// The generation of the record at this index.
    pub(crate) fn generation(&self, index: u32) -> Option<u32> {
        let slot = self.slot(index)?;
        slot.record.is_some().then_some(slot.generation)
    }

    /// Drops the record at this index, of any generation, in place. False if there is none.
    pub(crate) fn remove(&mut self, index: u32) -> bool {
        let free = self.free;
        let Some(slot) = self.slot_mut(index).filter(|slot| slot.record.is_some()) else {
            return false;
        };
        slot.record = None;
        if slot.generation < u32::MAX {
            slot.generation += 1;
            slot.next_free = free;
            self.free = index;
        }
        self.records -= 1;
        true
    }

    /// All records with their index and generation.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32, &T)> {
        self.chunks.iter().flatten().zip(0u32..).filter_map(|(slot, index)| {
            slot.record.as_ref().map(|record| (index, slot.generation, record))
        })
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        self.chunks.get(index as usize / CHUNK)?.get(index as usize % CHUNK)
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T>> {
        self.chunks.get_mut(index as usize / CHUNK)?.get_mut(index as usize % CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(100)
        })]

        #[test]
        fn a_slab_holds_what_its_model_holds(
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..2000),
            limit in 1u32..700,
        ) {
            let mut slab = Slab::new(limit);
            let mut model = HashMap::new();
            let mut live = Vec::new();
            let mut names = HashSet::new();
            for (value, (insert, which)) in steps.into_iter().enumerate() {
                if insert {
                    let name = slab.insert(value);
                    prop_assert_eq!(name.is_some(), live.len() < limit as usize);
                    if let Some(name) = name {
                        prop_assert!(name.0 < limit && names.insert(name), "a name came twice");
                        model.insert(name, value);
                        live.push(name);
                    }
                } else if !live.is_empty() {
                    let name = live.swap_remove(which.index(live.len()));
                    prop_assert_eq!(slab.remove(name.0), model.remove(&name).is_some());
                    prop_assert!(!slab.remove(name.0));
                }
                prop_assert_eq!(slab.len() as usize, model.len());
            }
            for (index, generation) in names {
                let expected = model.get(&(index, generation)).copied();
                prop_assert_eq!(slab.get(index, generation).copied(), expected);
                prop_assert_eq!(slab.get_mut(index, generation).copied(), expected);
            }
            let records: HashMap<_, _> =
                slab.iter().map(|(index, age, value)| ((index, age), *value)).collect();
            prop_assert_eq!(records, model);
            prop_assert!(slab.at(limit).is_none() && slab.at_mut(u32::MAX).is_none());
        }
    }

    #[test]
    fn records_stay_where_they_are_and_worn_out_places_are_left() {
        let mut slab = Slab::new(10_000);
        let (first, _) = slab.insert(0).expect("there is room");
        let address = std::ptr::from_ref(slab.at(first).expect("it is there"));
        for value in 1..5000 {
            slab.insert(value).expect("there is room");
        }
        assert!(std::ptr::eq(address, slab.at(first).expect("it is there")));
        slab.slot_mut(first).expect("a place").generation = u32::MAX;
        assert!(slab.remove(first));
        assert_eq!(slab.insert(1), Some((5000, 0)), "the worn out place is not used again");
        assert!(slab.generation(first).is_none() && slab.generation(5000) == Some(0));
    }
}
