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

use crate::stack::Error;

/// How the sender reacts to loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Congestion {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// NewReno (RFC 5681, RFC 6582).
    NewReno,
}

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

/// The state of a connection (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A SYN was sent.
    SynSent,
    /// A SYN has come and was answered.
    SynReceived,
    /// Data flows.
    Established,
    /// Our FIN was sent, or waits behind data.
    FinWait1,
    /// Our FIN was acknowledged.
    FinWait2,
    /// The peer's FIN has come.
    CloseWait,
    /// Both FINs are under way.
    Closing,
    /// The peer's FIN has come, and ours waits for its acknowledgement.
    LastAck,
    /// Both sides have ended; late segments may come.
    TimeWait,
    /// There is no connection (any more).
    Closed,
}
