//! Allocates descriptors: the lowest free number first, as POSIX requires.

use super::Descriptor;
use super::errors::from;
use std::io;

const WORD_BITS: usize = u64::BITS as usize;

/// A bounded table that finds free places through two levels of bits.
#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: Vec<Option<T>>,
    /// A bit for each used place.
    taken: Vec<u64>,
    /// A bit for each full word of `taken`.
    full: Vec<u64>,
    /// No word of `full` before this one has a free place.
    hint: usize,
    limit: usize,
}

impl<T> Table<T> {
    pub(crate) fn new(limit: usize) -> Table<T> {
        Table { entries: Vec::new(), taken: Vec::new(), full: Vec::new(), hint: 0, limit }
    }

    /// Stores a value in the lowest free place.
    ///
    /// # Errors
    /// `EMFILE` if all places are used.
    pub(crate) fn insert(&mut self, value: T) -> io::Result<Descriptor> {
        let index = self.lowest_free();
        if index >= self.limit {
            return Err(from(libc::EMFILE));
        }
        let word = index / WORD_BITS;
        if word == self.taken.len() {
            self.taken.push(0);
            if word / WORD_BITS == self.full.len() {
                self.full.push(0);
            }
        }
        self.taken[word] |= 1 << (index % WORD_BITS);
        if self.taken[word] == u64::MAX {
            self.full[word / WORD_BITS] |= 1 << (word % WORD_BITS);
        }
        if index == self.entries.len() {
            self.entries.push(Some(value));
        } else {
            self.entries[index] = Some(value);
        }
        Ok(Descriptor(index as u32))
    }

    fn lowest_free(&mut self) -> usize {
        while self.full.get(self.hint) == Some(&u64::MAX) {
            self.hint += 1;
        }
        let Some(full) = self.full.get(self.hint) else {
            return self.taken.len() * WORD_BITS;
        };
        let word = self.hint * WORD_BITS + full.trailing_ones() as usize;
        match self.taken.get(word) {
            Some(taken) => word * WORD_BITS + taken.trailing_ones() as usize,
            None => word * WORD_BITS,
        }
    }

    /// # Errors
    /// `EBADF` if the place is free.
    pub(crate) fn get(&self, descriptor: Descriptor) -> io::Result<&T> {
        let entry = self.entries.get(descriptor.0 as usize);
        entry.and_then(Option::as_ref).ok_or_else(|| from(libc::EBADF))
    }

    /// # Errors
    /// As [`Table::get`].
    pub(crate) fn get_mut(&mut self, descriptor: Descriptor) -> io::Result<&mut T> {
        let entry = self.entries.get_mut(descriptor.0 as usize);
        entry.and_then(Option::as_mut).ok_or_else(|| from(libc::EBADF))
    }

    /// # Errors
    /// As [`Table::get`].
    pub(crate) fn remove(&mut self, descriptor: Descriptor) -> io::Result<T> {
        let index = descriptor.0 as usize;
        let entry = self.entries.get_mut(index).and_then(Option::take);
        let value = entry.ok_or_else(|| from(libc::EBADF))?;
        let word = index / WORD_BITS;
        self.taken[word] &= !(1 << (index % WORD_BITS));
        self.full[word / WORD_BITS] &= !(1 << (word % WORD_BITS));
        self.hint = self.hint.min(word / WORD_BITS);
        Ok(value)
    }

    /// All descriptors, lowest first.
    pub(crate) fn descriptors(&self) -> Vec<Descriptor> {
        let taken = self.entries.iter().enumerate().filter(|(_, entry)| entry.is_some());
        taken.map(|(index, _)| Descriptor(index as u32)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_lowest_free_number_comes_first() {
        let mut table = Table::new(10_000);
        let mut model = BTreeMap::new();
        let mut state = 0x1234_5678_9abc_def0u64;
        for round in 0..12_000u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let place = ((state >> 33) % 2_500) as u32;
            if round < 2_000 || state >> 63 == 0 {
                let lowest = (0..).find(|number| !model.contains_key(number)).expect("a number");
                if lowest < 10_000 {
                    let got = table.insert(round).expect("room");
                    assert_eq!(got, Descriptor(lowest));
                    model.insert(lowest, round);
                }
            } else {
                let removed = table.remove(Descriptor(place)).ok();
                assert_eq!(removed, model.remove(&place));
            }
            if round > 2_000 && round % 97 != 0 {
                continue;
            }
            assert_eq!(table.get(Descriptor(place)).ok(), model.get(&place));
        }
        assert_eq!(table.descriptors().len(), model.len());
    }

    #[test]
    fn a_full_table_says_so() {
        let mut table = Table::new(130);
        for _ in 0..130 {
            table.insert(()).expect("room");
        }
        let error = table.insert(()).expect_err("no room");
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        table.remove(Descriptor(129)).expect("taken");
        table.remove(Descriptor(7)).expect("taken");
        assert_eq!(table.insert(()).expect("room"), Descriptor(7));
        assert_eq!(table.insert(()).expect("room"), Descriptor(129));
        assert_eq!(
            table.get(Descriptor(u32::MAX)).map(|_| ()).expect_err("none").raw_os_error(),
            Some(libc::EBADF)
        );
    }
}
