//! Errors of the commands: each has its cause and a remedy.

use std::io;

use thiserror::Error;

/// An error that ends the command. Each message names the cause and then the remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// A call into the kernel failed.
    #[error("cannot {action}: {source}; {remedy}")]
    System { action: String, source: io::Error, remedy: &'static str },
    /// The request cannot be executed on this machine or makes no sense.
    #[error("{cause}; {remedy}")]
    Setup { cause: String, remedy: String },
    /// A measurement of `ipc` ended early, for the reason that the error gives.
    #[error(transparent)]
    Ipc(#[from] ipcload::Error),
    /// A manual page or a completion script cannot be written.
    #[error(transparent)]
    Page(#[from] ::cli::PageError),
    /// The user or a supervisor ended the run by a signal.
    #[error("interrupted before there were results; nothing was written")]
    Interrupted,
    /// The same, when there were results.
    #[error("interrupted; {0}")]
    Partial(String),
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

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, action: impl Into<String>, remedy: &'static str) -> Result<T> {
        self.map_err(|source| Error::System {
            action: action.into(),
            source: source.into(),
            remedy,
        })
    }
}
