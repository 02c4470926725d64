//! The interface of the transport or library that is measured.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::error::Result;

/// Longest wait of an end before it reports that nothing has happened: the load then checks whether
/// it has to stop and whether the other process is alive. An end whose calls have no time limit
/// calls [`crate::interrupt_calls_when_stopping`] instead.
pub const TIME_LIMIT: Duration = Duration::from_millis(2);

/// One end of a path that carries messages in both directions, in order, with their boundaries.
pub trait End {
    /// Sends a message of `bytes`, which `fill` writes, as early as the path's batching allows.
    /// False if there was no room within [`TIME_LIMIT`]; then nothing was sent, even if `fill` was
    /// called.
    ///
    /// # Errors
    /// [`crate::Error::Transport`] if the path is broken or cannot carry so much.
    fn send(&mut self, bytes: usize, fill: impl Fn(&mut [u8])) -> Result<bool>;

    /// Sends the messages that batching has held back. False if that was not possible within
    /// [`TIME_LIMIT`].
    ///
    /// # Errors
    /// Those of [`End::send`].
    fn flush(&mut self) -> Result<bool>;

    /// Passes the next message to `look`. False if none arrived within [`TIME_LIMIT`].
    ///
    /// # Errors
    /// Those of [`End::send`].
    fn receive(&mut self, look: impl FnOnce(&[u8])) -> Result<bool>;

    /// Returns whether the end uses threads other than the calling one.
    fn has_helpers(&self) -> bool {
        false
    }
}

/// Parameters with which the second process opens its end.
#[derive(Debug, Default)]
pub struct Invitation {
    /// The value of its option `--join`.
    pub join: String,
    /// Descriptors that it inherits under the same numbers.
    pub descriptors: Vec<OwnedFd>,
}

impl Invitation {
    /// Names the descriptors by their numbers, with commas.
    pub fn by_numbers(descriptors: Vec<OwnedFd>) -> Invitation {
        let numbers = descriptors.iter().map(|fd| fd.as_raw_fd().to_string());
        Invitation { join: numbers.collect::<Vec<_>>().join(","), descriptors }
    }
}
