//! What can go wrong, said so that a person knows what to do next.

use std::io;

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call into the kernel failed.
    #[error("cannot {action}: {source}; {remedy}")]
    System {
        /// What was tried.
        action: String,
        /// Its errno.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// What carries the messages refused, in its own words.
    #[error("{0}")]
    Road(String),
    /// The other process ended.
    #[error("the second process ended in the middle ({0})")]
    Partner(String),
    /// Nothing has moved for too long.
    #[error(
        "no message moved for {0} s; end other programs that use these CPUs, or report the \
         transport that does so"
    )]
    Stalled(u64),
    /// The program that started this process wants it to end.
    #[error("stopped before the end: its standard input was closed")]
    Stopped,
}

impl Error {
    /// The refusal of a transport or a library.
    pub fn road(cause: impl std::fmt::Display) -> Error {
        Error::Road(cause.to_string())
    }
}

/// The result of everything here.
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
