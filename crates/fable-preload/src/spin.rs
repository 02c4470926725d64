//! Decides how long to spin on memory before sleeping.
//!
//! Spinning uses the CPU; sleeping costs the peer a system call and both ends a wake-up. The time
//! is the maximum after a spin that succeeded, and is halved after each that did not. At intervals
//! the maximum is tried again, to detect a peer that has become fast.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::settings;

const SHORTEST_NS: u32 = 1_000;
const TRY_EVERY: u32 = 32;

/// The results of earlier spins.
pub(crate) struct Spin {
    budget_ns: AtomicU32,
    failures: AtomicU32,
}

impl Spin {
    /// Creates the state before the first spin.
    pub(crate) const fn new() -> Self {
        Spin { budget_ns: AtomicU32::new(0), failures: AtomicU32::new(0) }
    }

    /// Clears the results, so that the next spin has the maximum time.
    pub(crate) fn reset(&self) {
        self.budget_ns.store(settings::get().spin_ns, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Returns how long to spin this time.
    pub(crate) fn budget_ns(&self) -> u64 {
        let longest = settings::get().spin_ns;
        let again = self.failures.load(Ordering::Relaxed) % TRY_EVERY == TRY_EVERY - 1;
        let budget = if again { longest } else { self.budget_ns.load(Ordering::Relaxed) };
        u64::from(budget.min(longest))
    }

    /// Records that a spin succeeded.
    pub(crate) fn succeeded(&self) {
        let longest = settings::get().spin_ns;
        if self.budget_ns.load(Ordering::Relaxed) != longest {
            self.budget_ns.store(longest, Ordering::Relaxed);
        }
    }

    /// Records that a spin did not succeed.
    pub(crate) fn failed(&self) {
        let budget = self.budget_ns.load(Ordering::Relaxed);
        self.budget_ns.store((budget / 2).max(SHORTEST_NS), Ordering::Relaxed);
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}
