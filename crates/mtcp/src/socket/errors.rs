//! Maps the stack's errors to the errno values of the man pages.

use mtcp_proto::Error;
use std::io;

/// The errno of an error of the stack.
pub(crate) fn errno(error: Error) -> i32 {
    match error {
        Error::WouldBlock => libc::EAGAIN,
        Error::UnknownSocket => libc::EBADF,
        Error::AddressInUse => libc::EADDRINUSE,
        Error::AddressNotAvailable | Error::NoPorts => libc::EADDRNOTAVAIL,
        Error::TooMany => libc::ENFILE,
        Error::NotConnected => libc::ENOTCONN,
        Error::Shutdown => libc::EPIPE,
        Error::Reset => libc::ECONNRESET,
        Error::Refused => libc::ECONNREFUSED,
        Error::TimedOut => libc::ETIMEDOUT,
        Error::Unreachable => libc::EHOSTUNREACH,
        Error::Aborted => libc::ECONNABORTED,
        // An invalid argument, and errors that a later version of the stack may add.
        _ => libc::EINVAL,
    }
}

/// The result of a socket call that failed with this error.
pub(crate) fn failure(error: Error) -> io::Error {
    from(errno(error))
}

/// The error with this errno.
pub(crate) fn from(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
