//! What can go wrong when a channel is created or a request is filed.

use crate::road::UnknownDriver;
use std::io;

/// The result of a call on a channel.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a channel could not be created or refused a request.
///
/// The failure of an operation that was accepted is no `Error`: it comes in the operation's
/// [`Event`](crate::Event), as an [`io::Error`] with the kernel's `errno`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is out of range.
    #[error("the channel's configuration is out of range: {0}")]
    Config(&'static str),
    /// `MEGAPIPE_DRIVER` names no driver.
    #[error(transparent)]
    UnknownDriver(#[from] UnknownDriver),
    /// The channel's resources cannot be set up.
    #[error("cannot set up the channel ({step}): {source}; {remedy}")]
    Setup {
        /// What was being set up.
        step: &'static str,
        /// What would help.
        remedy: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The io_uring driver was asked for, and the kernel lacks a feature that it needs.
    #[error(
        "the kernel lacks a feature that the io_uring driver needs: {feature} (Linux {since}): \
         {source}; use a newer kernel, or the epoll driver"
    )]
    MissingFeature {
        /// The feature.
        feature: &'static str,
        /// The version of Linux that it came with.
        since: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// An installed driver cannot be started.
    #[error("cannot start the driver {name}: {source}")]
    Installed {
        /// Its name.
        name: &'static str,
        /// What it says.
        source: io::Error,
    },
    /// The handle is not, or no longer, registered with this channel.
    #[error("the handle is not registered with this channel (any more)")]
    UnknownHandle,
    /// The request does not suit the handle's type, such as an accept on a pipe.
    #[error("{request} is not possible on {kind}")]
    WrongKind {
        /// The request.
        request: &'static str,
        /// What the handle is.
        kind: &'static str,
    },
    /// An argument is unusable, such as a read without room.
    #[error("{0}")]
    Invalid(&'static str),
    /// `Config::max_requests` are outstanding: dispatch some completions, then file the request
    /// again.
    #[error("{limit} requests are outstanding, the channel's limit: dispatch, then file again")]
    TooManyRequests {
        /// The limit.
        limit: u32,
    },
    /// So many bytes wait to be written to the handle: the peer does not read.
    #[error(
        "{queued} bytes wait to be written, of at most {limit}: the peer does not read; await \
         completions, or abort the handle"
    )]
    OutputFull {
        /// The bytes that wait, without those being written.
        queued: usize,
        /// [`Config::output_limit`](crate::Config::output_limit).
        limit: usize,
    },
    /// The driver has no room for another operation: dispatch some completions, then file the
    /// request again.
    #[error(
        "the driver's queue is full of what has not been dispatched: dispatch, then file again"
    )]
    QueueFull,
    /// `Config::max_handles` are registered.
    #[error("{limit} handles are registered, the channel's limit: raise Config::max_handles")]
    TooManyHandles {
        /// The limit.
        limit: u32,
    },
    /// Accepts of another kind (descriptors or lightweight sockets, with or without the peer's
    /// address) are outstanding.
    #[error("accepts of another kind are outstanding on this listener: cancel them first")]
    MixedAccept,
    /// The channel was created before a fork and is the parent's.
    #[error("the channel belongs to the process that created it: create one after the fork")]
    Forked,
    /// A listening socket could not be shared among channels.
    #[error(transparent)]
    Listener(#[from] crate::partition::ListenerError),
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Why an accept failed: the channel has no room for another lightweight socket. The [`io::Error`]
/// of an [`Event::Accept`](crate::Event::Accept) contains it, in place of an `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "all {limit} lightweight sockets of the channel are in use: close some, or raise \
     Config::max_lightweight and the limit on open files (ulimit -n), to which the kernel cuts it"
)]
pub struct TooManyLightweight {
    /// How many there can be.
    pub limit: u32,
}

impl Error {
    /// For `map_err`: wraps the error of the named system call.
    pub(crate) fn system(call: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { call, source }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Setup { source, .. }
            | Error::MissingFeature { source, .. }
            | Error::Installed { source, .. }
            | Error::System { source, .. } => source.kind(),
            Error::TooManyRequests { .. } | Error::QueueFull | Error::OutputFull { .. } => {
                io::ErrorKind::WouldBlock
            }
            Error::UnknownHandle => io::ErrorKind::NotFound,
            Error::Config(_)
            | Error::UnknownDriver(_)
            | Error::WrongKind { .. }
            | Error::Invalid(_) => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
