//! Threads of a model: all have one number in the kernel, so each is given another.

use loom::sync::atomic::{AtomicU64, Ordering};

loom::lazy_static! {
    /// The threads that have died, a bit for each.
    static ref DEAD: AtomicU64 = AtomicU64::new(0);
}

loom::thread_local! {
    static THREAD: core::cell::Cell<u64> = core::cell::Cell::new(0);
}

/// A thread in a lock word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u64);

impl Owner {
    /// Returns this thread.
    pub fn this_thread() -> Owner {
        let number = THREAD.with(|thread| thread.get());
        assert_ne!(number, 0, "the thread has no number yet");
        Owner(number)
    }

    pub(in crate::lock) fn word(self) -> u64 {
        self.0
    }

    pub(in crate::lock) fn from_word(word: u64) -> Owner {
        Owner(word)
    }

    /// Returns whether the thread has died. The kernel reports that after everything that the
    /// thread has done: hence the ordering.
    pub(in crate::lock) fn is_dead(self) -> bool {
        DEAD.load(Ordering::Acquire) & 1 << self.0 != 0
    }
}

/// Gives this thread its number.
pub(in crate::lock) fn become_thread(number: u64) {
    THREAD.with(|thread| thread.set(number));
}

/// Records that a thread does nothing any more.
pub(in crate::lock) fn die(number: u64) {
    DEAD.fetch_or(1 << number, Ordering::AcqRel);
}

/// Clears the identity, as in a forked child.
pub fn forget_thread() {
    become_thread(0);
}
