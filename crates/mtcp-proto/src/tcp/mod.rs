//! Implements one TCP connection: one file per mechanism, and `connection`, which combines them.

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

pub(crate) use self::connection::{Connection, ConnectionParameters, Context, Remains, Remembered};
pub(crate) use self::due::Urgency;

use crate::error::Error;

/// The reason why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Reset,
    /// A reset after the peer's FIN: only sending reports it, as on Linux.
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
