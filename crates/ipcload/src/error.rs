//! Errors of a measurement: each has its cause and, where there is one, a remedy.

use std::io;

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {action}: {source}; {remedy}")]
    System {
        /// The action that failed.
        action: String,
        /// The error of the system call.
        source: io::Error,
        /// The remedy.
        remedy: &'static str,
    },
    /// The transport or library failed, with its own message.
    #[error("{0}")]
    Transport(String),
    /// The other process ended.
    #[error("the second process ended in the middle ({0})")]
    Partner(String),
    /// No message moved for too long.
    #[error(
        "no message moved for {0} s; end other programs that use these CPUs, or report the \
         transport that does so"
    )]
    Stalled(u64),
    /// The program that started this process asked it to end.
    #[error("stopped before the end: its standard input was closed")]
    Stopped,
}

impl Error {
    /// Makes an error of a transport or a library.
    pub fn transport(cause: impl std::fmt::Display) -> Error {
        Error::Transport(cause.to_string())
    }
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Adds the action and the remedy to an I/O error.
pub(crate) trait Context<T> {
    fn context(self, action: impl Into<String>, remedy: &'static str) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, action: impl Into<String>, remedy: &'static str) -> Result<T> {
        self.map_err(|source| Error::System { action: action.into(), source, remedy })
    }
}
