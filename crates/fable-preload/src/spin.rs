//! How long to look at memory before sleeping.
//!
//! Looking costs a processor; sleeping costs the peer a system call and both a wake-up. So the time
//! is the whole time once looking paid, and halves whenever it did not; and now and then the whole
//! time is tried again, so that a program whose peer becomes quick finds out.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::settings;

const SHORTEST_NS: u32 = 1_000;
const TRY_EVERY: u32 = 32;

/// What looking has brought so far.
pub(crate) struct Spin {
    budget_ns: AtomicU32,
    failures: AtomicU32,
}

impl Spin {
    pub(crate) const fn new() -> Self {
        Spin { budget_ns: AtomicU32::new(0), failures: AtomicU32::new(0) }
    }

    /// Nothing is known yet: the whole time.
    pub(crate) fn reset(&self) {
        self.budget_ns.store(settings::get().spin_ns, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
    }

    /// How long to look this time.
    pub(crate) fn budget_ns(&self) -> u64 {
        let longest = settings::get().spin_ns;
        let again = self.failures.load(Ordering::Relaxed) % TRY_EVERY == TRY_EVERY - 1;
        let budget = if again { longest } else { self.budget_ns.load(Ordering::Relaxed) };
        u64::from(budget.min(longest))
    }

    /// It paid.
    pub(crate) fn succeeded(&self) {
        let longest = settings::get().spin_ns;
        if self.budget_ns.load(Ordering::Relaxed) != longest {
            self.budget_ns.store(longest, Ordering::Relaxed);
        }
    }

    /// It did not.
    pub(crate) fn failed(&self) {
        let budget = self.budget_ns.load(Ordering::Relaxed);
        self.budget_ns.store((budget / 2).max(SHORTEST_NS), Ordering::Relaxed);
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}
