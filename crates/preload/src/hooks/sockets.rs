//! Defines the hooks for sockets: socket(2), listen(2), connect(2), accept(2) and shutdown(2).

use super::types::*;
use crate::real;

/// The library's implementation of these hooks. `None`: the hook calls the real function.
pub trait Sockets {
    /// Called after socket(2), whether it has succeeded or not.
    fn opened(fd: c_int, family: c_int, kind: c_int, protocol: c_int);

    /// listen(2).
    fn listen(fd: c_int, backlog: c_int) -> Option<c_int>;

    /// connect(2).
    ///
    /// # Safety
    /// As connect(2).
    unsafe fn connect(fd: c_int, address: *const sockaddr, size: socklen_t) -> Option<c_int>;

    /// accept4(2).
    ///
    /// # Safety
    /// As accept4(2).
    unsafe fn accept(
        listener: c_int,
        address: *mut sockaddr,
        size: *mut socklen_t,
        flags: c_int,
    ) -> Option<c_int>;

    /// Called after the real accept4(2), whether it has succeeded or not.
    fn accepted(listener: c_int, fd: c_int);

    /// shutdown(2).
    fn shutdown(fd: c_int, how: c_int) -> Option<c_int>;
}

family! { $ sockets L: Sockets;
    fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = real::socket(family, kind, protocol);
        L::opened(fd, family, kind, protocol);
        fd
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        L::listen(fd, backlog).unwrap_or_else(|| real::listen(fd, backlog))
    }

    fn connect(fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int {
        L::connect(fd, address, size).unwrap_or_else(|| real::connect(fd, address, size))
    }

    fn accept4(
        listener: c_int,
        address: *mut sockaddr,
        size: *mut socklen_t,
        flags: c_int,
    ) -> c_int {
        L::accept(listener, address, size, flags).unwrap_or_else(|| {
            let fd = real::accept4(listener, address, size, flags);
            L::accepted(listener, fd);
            fd
        })
    }

    fn accept(listener: c_int, address: *mut sockaddr, size: *mut socklen_t) -> c_int {
        accept4::<L>(listener, address, size, 0)
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        L::shutdown(fd, how).unwrap_or_else(|| real::shutdown(fd, how))
    }
}
