//! What waits to be written to a member.

use crate::engine::request::{Command, Lane, Request};
use crate::error::Error;

/// What a request that waits takes besides its bytes, roughly: many small ones must not take more
/// memory than a few large ones.
const REQUEST_BYTES: usize = 256;

/// What waits in the outbound lane of a member, behind the request under way.
#[derive(Clone, Copy, Default)]
pub(crate) struct Output {
    pub(crate) bytes: usize,
    pub(crate) requests: u32,
    /// Whether repeating receives pause until less is waiting.
    pub(crate) paused: bool,
}

impl Output {
    /// Why a request must not be filed behind what is waiting.
    pub(crate) fn refusal(&self, request: &Request, limit: usize) -> Option<Error> {
        let writes = request.writes() || matches!(request.command, Command::SendTo(_));
        let full = self.bytes >= limit && request.lane == Lane::Outbound && writes;
        full.then_some(Error::OutputFull { queued: self.bytes, limit })
    }

    /// What it takes of the memory.
    pub(crate) fn footprint(&self) -> usize {
        self.bytes.saturating_add(self.requests as usize * REQUEST_BYTES)
    }
}
