//! What can go wrong, said so that a person knows what to do next.

use std::io;

use thiserror::Error;

/// A failure that ends the command. Each message names the cause and then the remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// A call into the kernel failed.
    #[error("cannot {action}: {source}; {remedy}")]
    System { action: String, source: io::Error, remedy: &'static str },
    /// The request cannot be carried out on this machine or makes no sense.
    #[error("{cause}; {remedy}")]
    Setup { cause: String, remedy: String },
    /// A measurement of `ipc` ended early, for the reason that the error gives.
    #[error(transparent)]
    Ipc(#[from] ipcload::Error),
    /// The user (or a supervisor) asked for the end.
    #[error("interrupted; nothing was written")]
    Interrupted,
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn setup(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::Setup { cause: cause.into(), remedy: remedy.into() }
    }
}

/// Adds the action and the remedy to an I/O error.
pub(crate) trait Context<T> {
    fn context(self, action: impl Into<String>, remedy: &'static str) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, action: impl Into<String>, remedy: &'static str) -> Result<T> {
        self.map_err(|source| Error::System { action: action.into(), source, remedy })
    }
}
