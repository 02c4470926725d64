//! Defines the errors of creating a channel and of submitting a request.

use crate::driver_api::UnknownDriver;
use std::io;

/// The result of a call on a channel.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a channel could not be created or refused a request.
///
/// The failure of an accepted request is not an `Error`: its [`Event`](crate::Event) has an
/// [`io::Error`] with the kernel's `errno`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is out of range.
    #[error("the channel's configuration is out of range: {0}; correct that field of Config")]
    Config(&'static str),
    /// `MEGAPIPE_DRIVER` names no driver.
    #[error(transparent)]
    UnknownDriver(#[from] UnknownDriver),
    /// The channel's resources cannot be set up.
    #[error("cannot set up the channel ({step}): {source}; {remedy}")]
    Setup {
        /// The step of the set-up that failed.
        step: &'static str,
        /// The remedy.
        remedy: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The locked memory for the rings of several channels is not free; from
    /// [`Config::check_locked_memory`](crate::Config::check_locked_memory).
    #[error(
        "the rings of {channels} channels take {} KiB of locked memory, and not so much is left of \
         the {limit} that all rings of a user may take; raise the limit (ulimit -l), configure \
         fewer completions, or use the epoll driver",
        bytes >> 10
    )]
    LockedMemory {
        /// The number of channels.
        channels: usize,
        /// The bytes that all their rings take.
        bytes: usize,
        /// The limit, with its unit.
        limit: String,
    },
    /// The io_uring driver was requested, and the kernel lacks a feature that it needs.
    #[error(
        "the kernel lacks a feature that the io_uring driver needs: {feature} (Linux {since}): \
         {source}; use a newer kernel, or the epoll driver"
    )]
    MissingFeature {
        /// The feature.
        feature: &'static str,
        /// The version of Linux that introduced it.
        since: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// An installed driver cannot be started.
    #[error("cannot start the driver {name}: {source}")]
    Installed {
        /// The driver's name.
        name: &'static str,
        /// The driver's error.
        source: io::Error,
    },
    /// The handle is not, or no longer, registered with this channel.
    #[error(
        "the handle is not registered with this channel: it was closed, or belongs to another \
         channel; register the socket, and use the handle until its Event::Close"
    )]
    UnknownHandle,
    /// The request does not suit the handle's type, such as an accept on a pipe.
    #[error("{request} is not possible on {kind}; {}", needs(request, kind))]
    WrongKind {
        /// The request.
        request: &'static str,
        /// The kind of the handle.
        kind: &'static str,
    },
    /// An argument is invalid, such as a read without spare capacity.
    #[error("{0}")]
    Invalid(&'static str),
    /// `Config::max_requests` are outstanding: dispatch some completions, then submit the request
    /// again.
    #[error(
        "{limit} requests are outstanding, the channel's limit: dispatch completions, then submit \
         the request again, or raise Config::max_requests"
    )]
    TooManyRequests {
        /// The limit.
        limit: u32,
    },
    /// Too many bytes are queued on the handle: the peer does not read.
    #[error(
        "{queued} bytes are queued of at most {limit}: the peer does not read them; wait for Write \
         completions, abort the handle, or raise Config::output_limit"
    )]
    OutputFull {
        /// The queued bytes, without those of the current write.
        queued: usize,
        /// [`Config::output_limit`](crate::Config::output_limit).
        limit: usize,
    },
    /// The driver has no room for another operation: dispatch some completions, then submit the
    /// request again.
    #[error(
        "the driver's queue is full of completions that were not dispatched: dispatch them, then \
         submit the request again"
    )]
    QueueFull,
    /// `Config::max_handles` are registered.
    #[error(
        "{limit} handles are registered, the channel's limit: close some, or raise \
         Config::max_handles"
    )]
    TooManyHandles {
        /// The limit.
        limit: u32,
    },
    /// Accepts of another kind (descriptors or lightweight sockets, with or without the peer's
    /// address) are outstanding.
    #[error(
        "accepts of another kind (descriptors or lightweight sockets) are outstanding on this \
         listener: cancel them first"
    )]
    MixedAccept,
    /// The channel was created before a fork and belongs to the parent process.
    #[error("the channel belongs to the process that created it: create one after the fork")]
    Forked,
    /// A listening socket could not be shared among channels.
    #[error(transparent)]
    Listener(#[from] crate::partition::ListenerError),
    /// A system call failed.
    #[error("{call} failed: {source}{}", remedy(source))]
    System {
        /// The call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The reason why an accept failed: all lightweight sockets of the channel are in use. The
/// [`io::Error`] of an [`Event::Accept`](crate::Event::Accept) contains it, instead of an `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "all {limit} lightweight sockets of the channel are in use: close some, or raise \
     Config::max_lightweight and the limit on open files (ulimit -n), to which the kernel cuts it"
)]
pub struct TooManyLightweight {
    /// The largest possible number.
    pub limit: u32,
}

/// The remedy of a request on a handle of the wrong kind.
fn needs(request: &str, kind: &str) -> &'static str {
    match request {
        "an accept" => "it needs a listening socket",
        "a receive" if kind == "a datagram socket" => "use receive_from, which has the sender, too",
        "a receive" => "it needs a stream or packet socket, or a pipe",
        "a receive of datagrams" | "a send of datagrams" => "it needs a datagram socket",
        "a watch" => "it needs signals, a timer or a wake-up source",
        "the sending of a file" => "it sends a disk file over a stream socket",
        "a sync" => "it needs a disk file",
        request if request.ends_with("at an offset") => "it needs a disk file",
        _ => "it needs a socket, or where it has no message and no address, a pipe or a file",
    }
}

/// The remedy of a failed system call, where one is known.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "; raise the process's limit on open files (ulimit -n)",
        Some(libc::ENFILE) => "; raise the system's limit on open files (sysctl fs.file-max)",
        Some(libc::ENOMEM) => "; free memory, or raise the limit on locked memory (ulimit -l)",
        _ => "",
    }
}

impl Error {
    /// Returns a function for `map_err` that wraps the error of the named system call.
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
            Error::LockedMemory { .. } => io::ErrorKind::OutOfMemory,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::ListenerError;
    use testkit::assert_texts;

    fn errno(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    #[test]
    fn every_error_names_cause_and_remedy() {
        assert_texts!(Error;
            Error::Config(_) => Error::Config("batch must be 1 to 1024"),
                ["batch must be 1 to 1024", "correct that field"];
            Error::UnknownDriver(_) => UnknownDriver("kqueue".into()).into(),
                ["\"kqueue\"", "MEGAPIPE_DRIVER", "use auto, uring, epoll"];
            Error::Setup { .. } => Error::Setup {
                step: "map the buffers", remedy: "free memory", source: errno(libc::ENOMEM),
            }, ["cannot set up the channel (map the buffers)", "free memory"];
            Error::LockedMemory { .. } => Error::LockedMemory {
                channels: 100, bytes: 10_649_600, limit: "8 MiB".into(),
            }, ["100 channels take 10400 KiB", "the 8 MiB that", "raise the limit (ulimit -l)"];
            Error::MissingFeature { .. } => Error::MissingFeature {
                feature: "buffer rings", since: "5.19", source: errno(libc::EINVAL),
            }, ["buffer rings", "Linux 5.19", "use a newer kernel, or the epoll driver"];
            Error::Installed { .. } => Error::Installed {
                name: "mtcp", source: io::Error::other("no configuration; set MTCP_CONFIG"),
            }, ["cannot start the driver mtcp", "set MTCP_CONFIG"];
            Error::UnknownHandle => Error::UnknownHandle,
                ["was closed, or belongs to another channel", "register the socket"];
            Error::WrongKind { .. } => Error::WrongKind { request: "an accept", kind: "a pipe" },
                ["accept is not possible on a pipe", "it needs a listening socket"];
            Error::WrongKind { .. } => Error::WrongKind {
                request: "a receive", kind: "a datagram socket",
            }, ["a receive is not possible on a datagram socket", "use receive_from"];
            Error::Invalid(_) => Error::Invalid("the buffer has no spare capacity to read into"),
                ["no spare capacity"];
            Error::TooManyRequests { .. } => Error::TooManyRequests { limit: 64 },
                ["64 requests", "dispatch completions", "raise Config::max_requests"];
            Error::OutputFull { .. } => Error::OutputFull { queued: 9, limit: 8 },
                ["9 bytes", "at most 8", "the peer does not read", "raise Config::output_limit"];
            Error::QueueFull => Error::QueueFull, ["not dispatched", "dispatch them"];
            Error::TooManyHandles { .. } => Error::TooManyHandles { limit: 7 },
                ["7 handles", "close some, or raise Config::max_handles"];
            Error::MixedAccept => Error::MixedAccept, ["another kind", "cancel them first"];
            Error::Forked => Error::Forked, ["the process that created it", "after the fork"];
            Error::Listener(_) => ListenerError::NoCpu.into(), ["is empty", "name at least one"];
            Error::System { .. } => Error::System { call: "sendto", source: errno(libc::EPIPE) },
                ["sendto failed: Broken pipe"];
            Error::System { .. } => Error::System { call: "fstat", source: errno(libc::EMFILE) },
                ["fstat failed", "raise the process's limit", "ulimit -n"];
        );
    }
}
