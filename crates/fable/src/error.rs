//! What can go wrong below a flow.

use std::io;

/// The result of a transport's call.
pub type TransportResult<T> = std::result::Result<T, TransportError>;

/// Why a transport refused, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// A message that will never fit.
    #[error("a message of {bytes} bytes is longer than the {bytes_max} that {transport} takes")]
    TooLong {
        /// What was asked for.
        bytes: usize,
        /// The most that there can be.
        bytes_max: usize,
        /// The transport.
        transport: &'static str,
    },
    /// The application holds too many buffers (`ENOSPC` of section 3.1.3): release or commit some.
    #[error("{held} buffers of this path are held: release or commit some first")]
    TooManySlots {
        /// How many are held.
        held: usize,
    },
    /// The peer is gone, and all that it had committed has been read.
    #[error("the peer has closed the path")]
    Closed,
    /// The peer wrote what it must not. The path cannot be used any more.
    #[error("the peer broke the rules of {transport}: {what}")]
    Corrupt {
        /// The transport.
        transport: &'static str,
        /// What was wrong.
        what: &'static str,
    },
    /// A slot of another transport was handed in.
    #[error("this buffer belongs to another path")]
    Foreign,
    /// A descriptor or a piece of memory from the peer that is not what it should be.
    #[error("the offered path was refused: {0}")]
    BadOffer(&'static str),
    /// The ends do not trust each other: a certificate of the wrong authority, for another name,
    /// or expired. The text says which.
    #[error(
        "the TLS handshake failed: {0}; both hosts' daemons must have exchanged authorities, \
             and their clocks must agree"
    )]
    Handshake(String),
    /// The operating system failed.
    #[error("{call}: {source}")]
    System {
        /// The system call, with what it was for.
        call: &'static str,
        /// Its errno.
        source: io::Error,
    },
}

impl TransportError {
    /// The error of the system call that has just failed.
    pub(crate) fn last(call: &'static str) -> TransportError {
        TransportError::System { call, source: io::Error::last_os_error() }
    }
}
