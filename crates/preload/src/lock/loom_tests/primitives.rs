//! loom's parts of a lock.

pub(in crate::lock) use loom::cell::UnsafeCell;
pub(in crate::lock) use loom::sync::atomic::{AtomicU64, Ordering};

/// A waiting thread looks at the owner at its second attempt: loom tries all orders, so more
/// attempts would find nothing else.
pub(in crate::lock) const YIELDS: u32 = 1;
pub(in crate::lock) const NAPS_PER_LOOK: u32 = 1;

pub(in crate::lock) fn wait_a_turn(_attempts: u32) {
    loom::thread::yield_now();
}
