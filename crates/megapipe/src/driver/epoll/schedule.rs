//! Decides when the kernel is asked for news although there is work left.
//!
//! Operations that end as they are submitted, and tasks that have more to do, would otherwise keep
//! the driver from asking, and those that wait for an edge would wait for all of them. What is read
//! of the clock costs next to nothing: it is looked at after a few outcomes or some data, never by
//! a channel that asks the kernel that often anyway.

use std::time::{Duration, Instant};

/// Outcomes that are handed over before the kernel is asked, however little time they take.
pub(super) const LOOK_EVERY: usize = 256;

/// Time after which the kernel is asked.
const LOOK_AFTER: Duration = Duration::from_millis(4);

/// Pieces of work after which the clock is read: an outcome is one, and so are so many bytes.
const CLOCK_EVERY: usize = 4;
const PIECE_BYTES: usize = 16 << 10;

/// What has been done since the last look.
pub(super) struct Schedule {
    clock: fn() -> Instant,
    /// When the clock was read for the first time.
    begun: Option<Instant>,
    /// Outcomes that were handed over.
    handed: usize,
    /// Pieces of work since the clock was read.
    pieces: usize,
    due: bool,
}

impl Schedule {
    pub(super) fn new() -> Schedule {
        Schedule { clock: Instant::now, begun: None, handed: 0, pieces: 0, due: false }
    }

    /// Notes an outcome, or a try that moved `bytes` bytes.
    pub(super) fn worked(&mut self, bytes: usize) {
        self.pieces += 1 + bytes / PIECE_BYTES;
    }

    pub(super) fn handed_over(&mut self, outcomes: usize) {
        self.handed += outcomes;
        self.due |= self.handed >= LOOK_EVERY;
    }

    pub(super) fn looked(&mut self) {
        *self = Schedule { clock: self.clock, ..Schedule::new() };
    }

    /// Whether the kernel is to be asked before anything else is done.
    pub(super) fn is_due(&mut self) -> bool {
        if !self.due && self.pieces >= CLOCK_EVERY {
            self.pieces = 0;
            let now = (self.clock)();
            let begun = *self.begun.get_or_insert(now);
            self.due = now.saturating_duration_since(begun) >= LOOK_AFTER;
        }
        self.due
    }

    #[cfg(test)]
    pub(super) fn use_clock(&mut self, clock: fn() -> Instant) {
        self.clock = clock;
    }
}
