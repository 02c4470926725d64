//! Errors of flows and of transports.

use std::io;
use std::path::PathBuf;

use crate::name::BadName;

/// The result of a call of the library.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing can be read now, or there is no room to write: wait for the flow's descriptor, or
    /// call the function that waits.
    #[error("the call would block: wait for the flow's descriptor, or call the variant that waits")]
    WouldBlock,
    /// The time-out has passed.
    #[error("the time-out has expired: allow more time, or check that the peer runs")]
    TimedOut,
    /// The message is longer than every transport of the flow has to accept.
    #[error(
        "a message of {bytes} bytes exceeds the limit of {bytes_max} of this flow: send it in \
         parts, or raise ring_bytes"
    )]
    TooLong {
        /// The requested length.
        bytes: usize,
        /// The longest possible length.
        bytes_max: usize,
    },
    /// The application holds too many buffers (`ENOSPC` of section 3.1.3 of the paper).
    #[error("{held} buffers of this flow are held: release or commit some first")]
    TooManyBuffers {
        /// The number of held buffers.
        held: usize,
    },
    /// This direction of the flow has ended properly.
    #[error("the peer has ended this direction of the flow")]
    Ended,
    /// The peer is gone and has not ended the flow. Everything that it committed and that the
    /// transport could deliver was read.
    #[error("the peer's process has died, or dropped the flow without ending it: connect again")]
    PeerDied,
    /// The flow was closed before every committed message was delivered.
    #[error(
        "{messages} messages ({bytes} bytes) were not delivered when the flow was closed: the peer \
         has gone or does not read; allow more time, or let it acknowledge them"
    )]
    Undelivered {
        /// The number of undelivered messages.
        messages: u64,
        /// The sum of their lengths.
        bytes: u64,
    },
    /// The peer violated the protocol. The flow cannot be used any more.
    #[error("the peer violated the protocol: {what}; close the flow")]
    Corrupt {
        /// The violated rule.
        what: String,
    },
    /// The peer, the daemon or the policy refused.
    #[error("the request was refused: {reason}")]
    Refused {
        /// Cause and remedy.
        reason: String,
    },
    /// The name belongs to another user than [`crate::EndpointOptions::owner`] requires.
    #[error(
        "{name} belongs to user {found}, and the connection requires user {expected}: `fable ls` \
         shows which process has the name; stop that process, or require its user if it is right"
    )]
    OtherOwner {
        /// The name that was connected to.
        name: String,
        /// The required user.
        expected: u32,
        /// The user that owns it.
        found: u32,
    },
    /// No name daemon answers.
    #[error("no name daemon answers at {}: {remedy}", path.display())]
    NoDaemon {
        /// The path of the daemon's socket.
        path: PathBuf,
        /// How to start a daemon.
        remedy: String,
    },
    /// The text is not a name.
    #[error(transparent)]
    BadName(#[from] BadName),
    /// A flow is used in a child of the process that opened it.
    #[error("the flow belongs to the parent process: open another one after fork")]
    Forked,
    /// A channel did not accept the flow.
    #[error("the channel refused the flow: {0}")]
    Channel(#[source] megapipe::Error),
    /// A transport failed.
    #[error(transparent)]
    Transport(TransportError),
    /// A system call failed.
    #[error("{call} failed: {source}{}", remedy(source))]
    System {
        /// The system call and its purpose.
        call: &'static str,
        /// Its errno.
        source: io::Error,
    },
}

impl Error {
    /// Returns a function that converts a system call's error, with what the call was for.
    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> Error {
        move |source| Error::System { call, source: source.into() }
    }

    /// Returns the error for received descriptors that this process had no room for.
    pub(crate) fn lost_descriptors() -> Error {
        let source = io::Error::from_raw_os_error(libc::EMFILE);
        Error::System { call: "recvmsg of a flow's descriptors", source }
    }
}

/// Returns the remedy for an error of the operating system, where one is known.
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

/// Converts an error of a transport to an error of a flow.
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

/// Why a call of a transport failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The message is longer than the transport can ever take.
    #[error(
        "a message of {bytes} bytes exceeds the limit of {bytes_max} of {transport}: send it in \
         parts"
    )]
    TooLong {
        /// The requested length.
        bytes: usize,
        /// The longest possible length.
        bytes_max: usize,
        /// The transport.
        transport: &'static str,
    },
    /// The application holds too many buffers (`ENOSPC` of section 3.1.3): release or commit some.
    #[error("{held} buffers of this transport are held: release or commit some first")]
    TooManySlots {
        /// The number of held buffers.
        held: usize,
    },
    /// The peer is gone, and everything that it committed has been read.
    #[error("the peer has closed the transport: connect again")]
    Closed,
    /// The peer wrote invalid data. The path cannot be used any more.
    #[error("the peer violated the protocol of {transport}: {what}")]
    Corrupt {
        /// The transport.
        transport: &'static str,
        /// The violated rule.
        what: &'static str,
    },
    /// The slot belongs to another transport.
    #[error("this buffer belongs to another transport: commit or release it there")]
    Foreign,
    /// A descriptor or memory from the peer is not as the transport requires.
    #[error("the transport that the peer offered was refused: {0}")]
    BadOffer(&'static str),
    /// An end does not have the key that the other one expects, or does not speak TLS.
    #[error(
        "the TLS handshake failed: {0}; check that both hosts' fabled run in one zone, with the \
         same --zone-secret"
    )]
    Handshake(String),
    /// A system call failed.
    #[error("{call} failed: {source}{}", remedy(source))]
    System {
        /// The system call and its purpose.
        call: &'static str,
        /// Its errno.
        source: io::Error,
    },
}

impl TransportError {
    /// Returns a function that converts a system call's error, with what the call was for.
    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> TransportError {
        move |source| TransportError::System { call, source: source.into() }
    }

    /// Returns the error for a question about an offered descriptor: only `ENOTSOCK` is the peer's
    /// fault, which `no_socket` describes.
    pub(crate) fn of_offered_socket(no_socket: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::ENOTSOCK) => TransportError::BadOffer(no_socket),
            _ => TransportError::System { call: "getsockopt of an offered socket", source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::assert_texts;

    fn errno(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    #[test]
    fn every_error_of_a_flow_names_cause_and_remedy() {
        let no_name = || "tcp:".parse::<crate::Name>().expect_err("no name");
        let no_daemon = || {
            let remedy = "no such file; start it with `fabled`".to_owned();
            Error::NoDaemon { path: "/run/f.sock".into(), remedy }
        };
        assert_texts!(Error;
            Error::WouldBlock => Error::WouldBlock, ["would block", "wait for the flow's"];
            Error::TimedOut => Error::TimedOut, ["has expired", "allow more time"];
            Error::TooLong { .. } => Error::TooLong { bytes: 9, bytes_max: 8 },
                ["9 bytes", "limit of 8", "send it in parts"];
            Error::TooManyBuffers { .. } => Error::TooManyBuffers { held: 3 },
                ["3 buffers", "release or commit some first"];
            Error::Ended => Error::Ended, ["the peer has ended"];
            Error::PeerDied => Error::PeerDied, ["has died", "connect again"];
            Error::Undelivered { .. } => Error::Undelivered { messages: 2, bytes: 7 },
                ["2 messages (7 bytes)", "does not read", "allow more time"];
            Error::Corrupt { .. } => Error::Corrupt { what: "a bad length".into() },
                ["violated the protocol: a bad length", "close the flow"];
            Error::Refused { .. } => Error::Refused { reason: "no listener; start it".into() },
                ["was refused: no listener; start it"];
            Error::OtherOwner { .. } =>
                Error::OtherOwner { name: "fable://bank".into(), expected: 1000, found: 12345 },
                ["fable://bank belongs to user 12345", "requires user 1000", "`fable ls` shows"];
            Error::NoDaemon { .. } => no_daemon(), ["/run/f.sock", "start it with `fabled`"];
            Error::BadName(_) => no_name().into(), ["`tcp:` names no endpoint"];
            Error::Forked => Error::Forked, ["the parent process", "open another one after fork"];
            Error::Channel(_) => Error::Channel(megapipe::Error::Forked), ["after the fork"];
            Error::Transport(_) => Error::Transport(TransportError::Foreign),
                ["another transport"];
            Error::System { .. } => Error::System { call: "mmap", source: errno(libc::ENFILE) },
                ["mmap failed", "raise its limit", "sysctl fs.file-max"];
        );
    }

    #[test]
    fn every_error_of_a_transport_names_cause_and_remedy() {
        assert_texts!(TransportError;
            TransportError::TooLong { .. } =>
                TransportError::TooLong { bytes: 9, bytes_max: 8, transport: "unix" },
                ["9 bytes", "limit of 8 of unix", "send it in parts"];
            TransportError::TooManySlots { .. } => TransportError::TooManySlots { held: 3 },
                ["3 buffers", "release or commit some first"];
            TransportError::Closed => TransportError::Closed, ["has closed", "connect again"];
            TransportError::Corrupt { .. } =>
                TransportError::Corrupt { transport: "unix", what: "a bad length" },
                ["violated the protocol of unix: a bad length"];
            TransportError::Foreign => TransportError::Foreign, ["commit or release it there"];
            TransportError::BadOffer(_) => TransportError::BadOffer("no memory file"),
                ["was refused: no memory file"];
            TransportError::Handshake(_) => TransportError::Handshake("expired".into()),
                ["handshake failed: expired", "check that both hosts' fabled"];
            TransportError::System { .. } =>
                TransportError::System { call: "pipe2", source: errno(libc::EMFILE) },
                ["pipe2 failed", "EMFILE", "ulimit -n"];
        );
    }
}
