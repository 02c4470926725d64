//! What is measured, as the load sees it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::error::Result;

/// How long an end waits at most before it says that nothing has happened: the load looks then
/// whether it is to stop and whether the other process still lives. An end whose calls have no time
/// limit calls [`crate::interrupt_calls_when_stopping`] instead.
pub const PATIENCE: Duration = Duration::from_millis(2);

/// One end of a path that carries messages both ways, in order, with their boundaries.
pub trait End {
    /// Sends a message of `bytes`, which `fill` writes, as early as the path's batching allows.
    /// False if there was no room within [`PATIENCE`]; then nothing was sent, even if `fill` was
    /// called.
    ///
    /// # Errors
    /// [`crate::Error::Road`] if the path is broken or cannot carry so much.
    fn send(&mut self, bytes: usize, fill: impl Fn(&mut [u8])) -> Result<bool>;

    /// Hands over what batching has held back. False if that was not possible within [`PATIENCE`].
    ///
    /// # Errors
    /// As [`End::send`].
    fn flush(&mut self) -> Result<bool>;

    /// Shows the next message to `look`. False if none came within [`PATIENCE`].
    ///
    /// # Errors
    /// As [`End::send`].
    fn receive(&mut self, look: impl FnOnce(&[u8])) -> Result<bool>;

    /// Whether threads of its own work for this end, beside the one that calls it.
    fn has_helpers(&self) -> bool {
        false
    }
}

/// What the second process needs to open its end.
#[derive(Debug, Default)]
pub struct Invitation {
    /// The value of its option `--join`.
    pub join: String,
    /// Descriptors that it inherits under the same numbers.
    pub descriptors: Vec<OwnedFd>,
}
