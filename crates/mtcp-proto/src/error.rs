//! Defines the errors that calls of a stack return.

/// The reason why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call would block; an event reports when to try again. `EAGAIN`.
    #[error("not ready: wait for an event")]
    WouldBlock,
    /// There is no socket with this number, or no longer. `EBADF`.
    #[error("no such socket")]
    UnknownSocket,
    /// The address is used by a listener or connection. `EADDRINUSE`.
    #[error("the address is in use")]
    AddressInUse,
    /// The address does not belong to the stack, or is of another family than the remote one.
    /// `EADDRNOTAVAIL`.
    #[error("the address is none of this stack's")]
    AddressNotAvailable,
    /// All ephemeral ports to this destination are in use. `EADDRNOTAVAIL`.
    #[error("no free port: all ephemeral ports to this destination are in use")]
    NoPorts,
    /// The limit of sockets is reached. `ENFILE`.
    #[error("too many sockets: raise max_sockets")]
    TooMany,
    /// The socket does not listen. `EINVAL`.
    #[error("the socket does not listen")]
    NotListening,
    /// The socket is not connected. `ENOTCONN`.
    #[error("the socket is not connected")]
    NotConnected,
    /// This direction was shut down. `EPIPE`.
    #[error("this direction was shut down")]
    Shutdown,
    /// The peer reset the connection. `ECONNRESET`.
    #[error("the peer has reset the connection")]
    Reset,
    /// No socket listens on the port. `ECONNREFUSED`.
    #[error("the connection was refused")]
    Refused,
    /// The peer does not answer. `ETIMEDOUT`.
    #[error("the connection timed out")]
    TimedOut,
    /// A router reports that there is no route. `EHOSTUNREACH`.
    #[error("the host is unreachable")]
    Unreachable,
    /// The address to which the connection was bound was removed, or the connection was aborted
    /// locally, also because others lacked the memory that its buffers held without progress.
    /// `ECONNABORTED`.
    #[error("the connection was aborted")]
    Aborted,
    /// A setting is out of range. `EINVAL`.
    #[error("{0}")]
    Config(OutOfRange),
}

/// A setting that is out of its range. Times are in milliseconds, and their names end with `_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {value}; it must be {least} to {most}")]
pub struct OutOfRange {
    /// The setting.
    pub setting: &'static str,
    /// Its value.
    pub value: u64,
    /// The smallest permitted value.
    pub least: u64,
    /// The largest permitted value.
    pub most: u64,
}
