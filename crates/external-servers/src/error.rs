//! Errors of the program: each has its cause and a remedy.

use std::io;

use thiserror::Error;

/// An error that ends the server. Each message names the cause and then the remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// A call into the kernel or a runtime failed.
    #[error("cannot {action}: {source}; {remedy}")]
    System { action: String, source: io::Error, remedy: &'static str },
    /// The request cannot be executed.
    #[error("{cause}; {remedy}")]
    Setup { cause: String, remedy: &'static str },
    /// A measurement of `ipc` ended early, for the reason that the error gives.
    #[cfg(any(feature = "iceoryx2", feature = "zeromq"))]
    #[error(transparent)]
    Ipc(#[from] ipcload::Error),
}

/// The result type of this program.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Adds the action and the remedy to an I/O error.
pub(crate) trait Context<T> {
    fn context(self, action: impl Into<String>, remedy: &'static str) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, action: impl Into<String>, remedy: &'static str) -> Result<T> {
        self.map_err(|source| Error::System { action: action.into(), source, remedy })
    }
}
