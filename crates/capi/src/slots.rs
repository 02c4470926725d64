//! Implements tables of objects that Rust owns, and that C identifies by numbers.

/// Bits of a number with its serial number; the bits above them have the index.
const SERIAL_BITS: u32 = 43;
/// Maximum number of objects in one table.
const SLOTS_MAX: usize = 1 << 20;

/// A table of objects with numbers of 1 or more. A number is never reused, so a stale number never
/// names another object.
pub(crate) struct Slots<T> {
    slots: Vec<(u64, Option<T>)>,
    free: Vec<u32>,
    serial: u64,
}

impl<T> Slots<T> {
    pub(crate) const fn new() -> Slots<T> {
        Slots { slots: Vec::new(), free: Vec::new(), serial: 0 }
    }

    /// Returns whether the table is full.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= SLOTS_MAX
    }

    /// Stores an object under a number that no other object of this table has.
    pub(crate) fn keep(&mut self, thing: T) -> i64 {
        let serial = self.serial + 1;
        self.keep_as(serial, thing)
    }

    /// Stores an object under a number that differs from all numbers with other serial numbers, in
    /// any table.
    pub(crate) fn keep_as(&mut self, serial: u64, thing: T) -> i64 {
        self.serial = serial & ((1 << SERIAL_BITS) - 1);
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        self.slots[index as usize] = (self.serial, Some(thing));
        i64::from(index) << SERIAL_BITS | self.serial as i64
    }

    fn slot(&mut self, number: i64) -> Option<(u32, &mut Option<T>)> {
        let index = u32::try_from(number >> SERIAL_BITS).ok()?;
        let (serial, slot) = self.slots.get_mut(index as usize)?;
        let given = number as u64 & ((1 << SERIAL_BITS) - 1);
        (*serial == given).then_some((index, slot))
    }

    pub(crate) fn get(&mut self, number: i64) -> Option<&mut T> {
        self.slot(number)?.1.as_mut()
    }

    pub(crate) fn take(&mut self, number: i64) -> Option<T> {
        let (index, slot) = self.slot(number)?;
        let thing = slot.take()?;
        self.free.push(index);
        Some(thing)
    }

    /// Stores an object again that `take` has returned, under the same number.
    pub(crate) fn put_back(&mut self, number: i64, thing: T) {
        if let Some((index, slot)) = self.slot(number) {
            *slot = Some(thing);
            if let Some(at) = self.free.iter().rposition(|free| *free == index) {
                self.free.swap_remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_stale_and_come_back_only_on_purpose() {
        let mut slots = Slots::new();
        let (first, second) = (slots.keep('a'), slots.keep('b'));
        assert!(first > 0 && second > 0 && first != second);
        assert_eq!(slots.take(first), Some('a'));
        assert_eq!(slots.take(first), None);
        slots.put_back(first, 'A');
        assert_eq!(slots.get(first), Some(&mut 'A'));
        let third = slots.keep('c');
        assert_eq!(slots.take(first), Some('A'));
        let fourth = slots.keep('d');
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.take(fourth), Some('d'));
        assert_eq!(slots.take(third), Some('c'));
        for wrong in [0, -1, i64::MIN, i64::MAX, second + 1] {
            assert_eq!(slots.take(wrong), None);
        }
    }
}
