//! recvmsg(2), sendmsg(2), and their plural forms.

use super::types::*;
use crate::real;

/// What a library does about messages; `None`: the next definition does it.
pub trait Messages {
    /// recvmsg(2).
    ///
    /// # Safety
    /// As recvmsg(2).
    unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<ssize_t>;

    /// sendmsg(2).
    ///
    /// # Safety
    /// As sendmsg(2).
    unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t>;

    /// recvmmsg(2).
    ///
    /// # Safety
    /// As recvmmsg(2).
    unsafe fn recvmmsg(
        fd: c_int,
        list: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> Option<c_int>;

    /// sendmmsg(2).
    ///
    /// # Safety
    /// As sendmmsg(2).
    unsafe fn sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int)
    -> Option<c_int>;
}

family! { $ messages L: Messages;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        L::recvmsg(fd, message, flags).unwrap_or_else(|| real::recvmsg(fd, message, flags))
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        L::sendmsg(fd, message, flags).unwrap_or_else(|| real::sendmsg(fd, message, flags))
    }

    fn recvmmsg(
        fd: c_int,
        list: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int {
        L::recvmmsg(fd, list, count, flags, timeout)
            .unwrap_or_else(|| real::recvmmsg(fd, list, count, flags, timeout))
    }

    fn sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        L::sendmmsg(fd, list, count, flags)
            .unwrap_or_else(|| real::sendmmsg(fd, list, count, flags))
    }
}
