//! Decides when the driver polls the kernel for readiness although it has work left.
//!
//! Without these polls, operations that complete when they are submitted, and tasks that can
//! continue, would keep the driver from polling, and operations that wait for an edge would wait
//! for all of them. The clock costs little: the driver reads it after a few outcomes or some data,
//! and never in a channel that polls that often anyway.

use std::time::{Duration, Instant};

/// Number of outcomes after which the driver polls the kernel, however little time they take.
pub(super) const LOOK_EVERY: usize = 256;

/// Time after which the driver polls the kernel.
const LOOK_AFTER: Duration = Duration::from_millis(4);

/// Units of work after which the clock is read: an outcome is one, and so are this many bytes.
const CLOCK_EVERY: usize = 4;
const PIECE_BYTES: usize = 16 << 10;

/// The work since the last poll.
pub(super) struct Schedule {
    clock: fn() -> Instant,
    /// When the clock was first read since the last poll.
    begun: Option<Instant>,
    /// Outcomes that were delivered.
    handed: usize,
    /// Units of work since the clock was read.
    pieces: usize,
    due: bool,
}

impl Schedule {
    pub(super) fn new() -> Schedule {
        Schedule { clock: Instant::now, begun: None, handed: 0, pieces: 0, due: false }
    }

    /// Counts an outcome, or an attempt that transferred `bytes` bytes.
    pub(super) fn worked(&mut self, bytes: usize) {
        self.pieces += 1 + bytes / PIECE_BYTES;
    }

    /// Counts outcomes that were delivered to the channel.
    pub(super) fn handed_over(&mut self, outcomes: usize) {
        self.handed += outcomes;
        self.due |= self.handed >= LOOK_EVERY;
    }

    /// Starts again after a poll of the kernel.
    pub(super) fn looked(&mut self) {
        *self = Schedule { clock: self.clock, ..Schedule::new() };
    }

    /// Returns whether the driver has to poll the kernel before anything else.
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
