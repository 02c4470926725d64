//! One connection: a mechanism a file, and `connection`, which joins them.

mod acknowledge;
mod congestion;
mod connection;
mod due;
mod ecn;
mod path;
mod probe;
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

pub(crate) use self::connection::{Birth, Connection, Context, Remains, Remembered};
pub(crate) use self::due::Urgency;

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
