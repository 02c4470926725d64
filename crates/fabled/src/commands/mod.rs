//! Implements the commands of `fable` that send requests to the daemon.

mod connection;
mod events;
mod names;
mod orders;
mod prose;
mod table;
mod top;
mod users;

use std::io;
use std::path::PathBuf;

pub use connection::Connection;
pub use events::{EventsArguments, events};
pub use names::{LsArguments, ls};
pub use orders::{MoveArguments, ProtectArguments, WhyArguments, move_flow, protect, why};
pub use top::{TopArguments, top};
pub use users::{StatArguments, stat};

/// Why a command failed. The message includes the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// There is no daemon.
    #[error(
        "no daemon at {}: {source}; start it with `fabled`, or name its socket with --socket",
        path.display()
    )]
    NoDaemon {
        /// The path of its socket.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The daemon refused the request.
    #[error("{0}")]
    Refused(String),
    /// The daemon closed the connection or does not answer.
    #[error("the daemon {0}; see its log (standard error), and restart it")]
    Lost(String),
    /// The digits match no flow, or more than one.
    #[error("{0}")]
    NoFlow(String),
    /// Standard output cannot be written to.
    #[error("cannot write to standard output: {0}; check the disk or pipe that it goes to")]
    Output(io::Error),
    /// A manual page or completion script cannot be written.
    #[error(transparent)]
    Page(#[from] cli::PageError),
}

/// Writes to standard output. Returns false if its reader has gone.
fn print(text: &str) -> Result<bool, CommandError> {
    cli::print(text.as_bytes()).map_err(CommandError::Output)
}

fn json<T: serde::Serialize>(value: &T) -> Result<String, CommandError> {
    let text = serde_json::to_string(value);
    text.map_err(|error| CommandError::Output(error.into()))
}
