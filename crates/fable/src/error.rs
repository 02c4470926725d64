//! What can go wrong with a flow, and below it.

use std::io;
use std::path::PathBuf;

use crate::name::BadName;

/// The result of a call of the library.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing to read now, or no room to write: wait for the flow's descriptor, or call the
    /// variant that waits.
    #[error("the call would have to wait")]
    WouldBlock,
    /// The time is over.
    #[error("the time-out has passed")]
    TimedOut,
    /// A message that no transport of the flow need take.
    #[error("a message of {bytes} bytes is longer than the {bytes_max} that this flow takes")]
    TooLong {
        /// What was asked for.
        bytes: usize,
        /// The most that there can be.
        bytes_max: usize,
    },
    /// The application holds too many buffers (`ENOSPC` of section 3.1.3 of the paper).
    #[error("{held} buffers of this flow are held: release or commit some first")]
    TooManyBuffers {
        /// How many are held.
        held: usize,
    },
    /// This direction of the flow was ended in good order.
    #[error("the flow has ended")]
    Ended,
    /// The peer is gone without having ended the flow; all that it committed and the transport
    /// could deliver was read.
    #[error("the peer has died, or dropped the flow without ending it")]
    PeerDied,
    /// The flow was closed before all that was committed was delivered.
    #[error(
        "{messages} messages ({bytes} bytes) were not delivered when the flow was closed: the peer \
         is gone, does not read, or is far away; give it more time, or let it answer"
    )]
    Undelivered {
        /// How many.
        messages: u64,
        /// The sum of their lengths.
        bytes: u64,
    },
    /// The peer broke the rules. The flow cannot be used any more.
    #[error("the peer broke the rules: {what}")]
    Corrupt {
        /// Which.
        what: String,
    },
    /// The peer, the daemon or the policy said no.
    #[error("refused: {reason}")]
    Refused {
        /// Cause and remedy.
        reason: String,
    },
    /// No name daemon answers.
    #[error("no name daemon answers at {}: {remedy}", path.display())]
    NoDaemon {
        /// Its socket.
        path: PathBuf,
        /// What to do about it.
        remedy: String,
    },
    /// Not a name.
    #[error(transparent)]
    BadName(#[from] BadName),
    /// A flow is used in a child of the process that opened it.
    #[error("the flow belongs to the parent process: open one of your own after fork")]
    Forked,
    /// A channel did not take the flow.
    #[error("the channel refused: {0}")]
    Channel(#[source] megapipe::Error),
    /// Below the flow.
    #[error(transparent)]
    Transport(TransportError),
    /// The operating system failed.
    #[error("{call}: {source}{}", remedy(source))]
    System {
        /// The system call, with what it was for.
        call: &'static str,
        /// Its errno.
        source: io::Error,
    },
}

impl Error {
    /// What a system call's error is, with what the call was for.
    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> Error {
        move |source| Error::System { call, source: source.into() }
    }

    /// Descriptors that were sent to this process found no room.
    pub(crate) fn lost_descriptors() -> Error {
        let source = io::Error::from_raw_os_error(libc::EMFILE);
        Error::System { call: "recvmsg of a flow's descriptors", source }
    }
}

/// What helps against an error of the operating system, where that is known.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => {
            "; EMFILE: the process has no descriptors left; raise its limit (`ulimit -n`)"
        }
        Some(libc::ENFILE) => {
            "; ENFILE: the host has no descriptors left; raise its limit (`sysctl fs.file-max`)"
        }
        _ => "",
    }
}

/// What a transport says, in the words of a flow.
impl From<TransportError> for Error {
    fn from(error: TransportError) -> Error {
        match error {
            TransportError::TooLong { bytes, bytes_max, .. } => Error::TooLong { bytes, bytes_max },
            TransportError::TooManySlots { held } => Error::TooManyBuffers { held },
            TransportError::Closed => Error::PeerDied,
            TransportError::Corrupt { .. } => Error::Corrupt { what: error.to_string() },
            TransportError::System { call, source } => Error::System { call, source },
            other => Error::Transport(other),
        }
    }
}

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
    #[error("{call}: {source}{}", remedy(source))]
    System {
        /// The system call, with what it was for.
        call: &'static str,
        /// Its errno.
        source: io::Error,
    },
}

impl TransportError {
    /// What a system call's error is, with what the call was for.
    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> TransportError {
        move |source| TransportError::System { call, source: source.into() }
    }
}
