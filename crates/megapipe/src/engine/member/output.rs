//! Tracks the queued output of a member.

use crate::engine::request::{Lane, Request};
use crate::error::Error;
use crate::slab::Key;

/// Approximate memory of a waiting request in addition to its bytes, so that many small requests do
/// not take more memory than a few large ones.
const REQUEST_BYTES: usize = 256;

/// The queued output of a member, behind the request in flight.
#[derive(Clone, Copy, Default)]
pub(crate) struct Output {
    pub(crate) bytes: usize,
    pub(crate) requests: u32,
    /// Whether repeating receives pause until less is waiting: those of the partner or, without
    /// one, of the member itself.
    pub(crate) paused: bool,
    pub(crate) partner: Option<Key>,
}

impl Output {
    /// Returns the error if a request must not be queued.
    pub(crate) fn refusal(&self, request: &Request, limit: usize) -> Option<Error> {
        let full = self.bytes >= limit && request.lane == Lane::Outbound && request.is_output();
        full.then_some(Error::OutputFull { queued: self.bytes, limit })
    }

    /// Returns the memory that the queue takes.
    pub(crate) fn footprint(&self) -> usize {
        self.bytes.saturating_add(self.requests as usize * REQUEST_BYTES)
    }
}
