//! Why calls of a stack fail.

/// Why a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not now; an event tells when. `EAGAIN`.
    #[error("not ready: wait for an event")]
    WouldBlock,
    /// The number names no socket (any more). `EBADF`.
    #[error("no such socket")]
    UnknownSocket,
    /// The address has a listener or connection already. `EADDRINUSE`.
    #[error("the address is in use")]
    AddressInUse,
    /// The address is none of the stack's, or of another family than the remote one.
    /// `EADDRNOTAVAIL`.
    #[error("the address is none of this stack's")]
    AddressNotAvailable,
    /// All ephemeral ports to this destination are in use. `EADDRNOTAVAIL`.
    #[error("no free port: all ephemeral ports to this destination are in use")]
    NoPorts,
    /// The bound on sockets is reached. `ENFILE`.
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
    /// Nobody listens there. `ECONNREFUSED`.
    #[error("the connection was refused")]
    Refused,
    /// The peer does not answer. `ETIMEDOUT`.
    #[error("the connection timed out")]
    TimedOut,
    /// A router says that there is no way. `EHOSTUNREACH`.
    #[error("the host is unreachable")]
    Unreachable,
    /// The address that the connection was bound to is gone, or the connection was aborted here.
    /// `ECONNABORTED`.
    #[error("the connection was aborted")]
    Aborted,
    /// A setting is out of range. `EINVAL`.
    #[error("{0}")]
    Config(&'static str),
}
