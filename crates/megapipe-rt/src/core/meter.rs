//! Counts what a core does, for the feature `metrics`. `no_meter.rs` has the same methods without
//! effect.

use crate::counts::CoreMetrics;
use std::cell::{Cell, RefCell};
use std::time::Instant;

/// See the module. The fields of [`CoreMetrics`] that the core knows itself are filled in later.
#[derive(Default)]
pub(crate) struct Meter {
    counts: RefCell<CoreMetrics>,
    /// When the present turn began.
    turn_began: Cell<Option<Instant>>,
}

impl Meter {
    pub(crate) fn new() -> Meter {
        Meter::default()
    }

    fn add(&self, count: impl FnOnce(&mut CoreMetrics)) {
        count(&mut self.counts.borrow_mut());
    }

    pub(crate) fn polled(&self) {
        self.add(|counts| counts.polls += 1);
    }

    pub(crate) fn connection_opened(&self) {
        self.add(|counts| counts.connections_opened += 1);
    }

    pub(crate) fn connection_accepted(&self) {
        self.add(|counts| counts.connections_accepted += 1);
    }

    pub(crate) fn connection_closed(&self) {
        self.add(|counts| counts.connections_closed += 1);
    }

    pub(crate) fn took_messages(&self, count: usize) {
        self.add(|counts| counts.messages += count as u64);
    }

    pub(crate) fn fired_timers(&self, count: usize) {
        self.add(|counts| counts.timers_fired += count as u64);
    }

    /// Counts the end of a turn, before the core looks for completions.
    pub(crate) fn turn_ends(&self, may_sleep: bool) {
        self.add(|counts| {
            counts.sleeps += u64::from(may_sleep);
            if let Some(began) = self.turn_began.take() {
                counts.loop_lag_ns.add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(0));
            }
        });
    }

    /// Counts a turn that begins with these completions.
    pub(crate) fn turn_begins(&self, completions: usize) {
        self.turn_began.set(Some(Instant::now()));
        self.add(|counts| counts.batches.add(completions as u64));
    }

    pub(crate) fn counts(&self) -> CoreMetrics {
        self.counts.borrow().clone()
    }
}
