//! Counts the output of all connections of a core.

use std::cell::Cell;

thread_local! {
    static QUEUED: Cell<usize> = const { Cell::new(0) };
}

/// Output that the kernel has not taken.
pub(crate) trait Queue {
    /// Returns the number of bytes that were submitted and are not written yet.
    fn queued_bytes(&self) -> usize;
}

pub(super) fn add(bytes: usize) {
    QUEUED.set(QUEUED.get() + bytes);
}

/// At the end of a runtime, the calling thread may be another one than the core's.
pub(super) fn remove(bytes: usize) {
    let _ = QUEUED.try_with(|queued| queued.set(queued.get().saturating_sub(bytes)));
}

/// Returns the number of bytes of all connections of the calling core.
pub(crate) fn queued_by_core() -> usize {
    QUEUED.get()
}
