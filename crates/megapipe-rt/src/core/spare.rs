//! Keeps the memory of written buffers for later ones.

use std::cell::RefCell;

/// Most vectors that are kept.
const VECTORS_MAX: usize = 64;
/// Largest capacity of a kept vector, in bytes.
const CAPACITY_MAX: usize = 64 << 10;

/// Empty vectors of one core.
#[derive(Default)]
pub(crate) struct SpareVectors(RefCell<Vec<Vec<u8>>>);

impl SpareVectors {
    /// Returns an empty vector, with capacity if one was kept.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps the memory of a vector, unless it is too large or there are enough.
    pub(crate) fn keep(&self, mut vector: Vec<u8>) {
        let mut kept = self.0.borrow_mut();
        if kept.len() < VECTORS_MAX && (1..=CAPACITY_MAX).contains(&vector.capacity()) {
            vector.clear();
            kept.push(vector);
        }
    }
}
