//! How far a member that leaves has come.

use super::input::Input;
use crate::slab::Key;
use std::time::Instant;

/// A member on its way out.
pub(crate) struct Leaving {
    /// The request whose completion tells of the end; `None` if nothing is to be told.
    pub(crate) request: Option<Key>,
    /// The first error of a queued write.
    pub(crate) failure: Option<i32>,
    pub(crate) aborted: bool,
    pub(crate) closing: Closing,
    /// When it is aborted unless something has been written, or closed once all is written; and
    /// what the driver had written of the request under way when it was last asked.
    pub(crate) overdue: Option<Instant>,
    pub(crate) moved: usize,
    pub(crate) input: Input,
}

/// How far the endpoint's own close is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    NotYet,
    Asked,
    Done { result: i32 },
}

impl Leaving {
    /// Whether it still has something to write, or discards input before it closes.
    pub(crate) fn is_writing(&self) -> bool {
        self.closing == Closing::NotYet && !self.aborted
    }

    /// Whether what is queued is discarded.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted
    }

    /// Whether the endpoint is the driver's to close, or closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing != Closing::NotYet
    }

    /// Whether a queued write has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }
}
