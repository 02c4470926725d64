//! Tracks the progress of a leaving member.

use super::input::Input;
use crate::slab::Key;
use std::time::{Duration, Instant};

/// The state of a leaving member.
pub(crate) struct Leaving {
    /// The request of the close event; `None` if there is no event.
    pub(crate) request: Option<Key>,
    /// The first error of a queued write.
    pub(crate) failure: Option<i32>,
    pub(crate) aborted: bool,
    pub(crate) closing: Closing,
    /// When the member is aborted unless something has been written, or closed once all is written.
    pub(crate) overdue: Option<Instant>,
    pub(crate) input: Input,
}

/// The state of the endpoint's close.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    NotYet,
    Asked,
    Done { result: i32 },
}

impl Leaving {
    /// Returns whether the member still has output to write, or discards input before it closes.
    pub(crate) fn is_writing(&self) -> bool {
        self.closing == Closing::NotYet && !self.aborted
    }

    /// Gives the member the time `timeout` again, if it has one, because something was written.
    pub(crate) fn note_progress(&mut self, timeout: Duration) {
        if self.overdue.is_some() {
            self.overdue = Instant::now().checked_add(timeout);
        }
    }

    /// Whether its queued output is discarded.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted
    }

    /// Whether the driver is closing the endpoint, or has closed it.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing != Closing::NotYet
    }

    /// Whether a queued write has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }
}
