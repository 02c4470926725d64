//! What `fable` does: questions and orders to the daemon.

mod connection;
mod events;
mod names;
mod orders;
mod pages;
mod prose;
mod table;
mod top;

use std::io;
use std::path::PathBuf;

pub use connection::Connection;
pub use events::{EventsArguments, events};
pub use names::{LsArguments, ls};
pub use orders::{MoveArguments, ProtectArguments, WhyArguments, move_flow, protect, why};
pub use pages::{CompletionsArguments, completions, manual};
pub use top::{TopArguments, top};

/// Why a command failed. The message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// There is no daemon.
    #[error(
        "no daemon at {}: {source}; start it with `fabled`, or name its socket with --socket",
        path.display()
    )]
    NoDaemon {
        /// Where it was looked for.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The daemon said no.
    #[error("{0}")]
    Refused(String),
    /// The daemon went away or does not answer.
    #[error("the daemon {0}; its log on standard error may say why")]
    Lost(String),
    /// A flow that is none.
    #[error("{0}")]
    NoFlow(String),
    /// Standard output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(io::Error),
}

/// Writes to standard output. False if its reader has gone away.
fn print(text: &str) -> Result<bool, CommandError> {
    use io::Write;
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CommandError::Output(error)),
    }
}

fn json<T: serde::Serialize>(value: &T) -> Result<String, CommandError> {
    let text = serde_json::to_string(value);
    text.map_err(|error| CommandError::Output(error.into()))
}
