//! One connection: an idea a file.

mod acknowledge;
mod closing;
mod congestion;
pub(crate) mod connection;
mod defence;
mod ecn;
mod handshake;
mod input;
mod output;
mod path;
mod probe;
mod progress;
mod rack;
mod reassembly;
mod receiver;
mod recovery;
mod rtt;
mod scoreboard;
mod sender;
mod settings;
mod timers;
mod timestamps;
mod urgent;

#[cfg(test)]
mod tests;

use crate::error::Error;

/// Why a connection fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Reset,
    /// A reset after the peer's FIN: only what is sent meets it, as on Linux.
    Broken,
    Refused,
    TimedOut,
    Unreachable,
    Aborted,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Reset => Error::Reset,
            Failure::Broken => Error::Shutdown,
            Failure::Refused => Error::Refused,
            Failure::TimedOut => Error::TimedOut,
            Failure::Unreachable => Error::Unreachable,
            Failure::Aborted => Error::Aborted,
        }
    }
}
