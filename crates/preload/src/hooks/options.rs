//! Defines the hooks for getsockopt(2), setsockopt(2) and ioctl(2).

use super::types::*;
use crate::real;

/// The library's implementation of these hooks. `None`: the hook calls the real function.
pub trait Options {
    /// getsockopt(2).
    ///
    /// # Safety
    /// As getsockopt(2).
    unsafe fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        size: *mut socklen_t,
    ) -> Option<c_int>;

    /// setsockopt(2).
    ///
    /// # Safety
    /// As setsockopt(2).
    unsafe fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        size: socklen_t,
    ) -> Option<c_int>;

    /// ioctl(2), whose argument is as large as a register.
    ///
    /// # Safety
    /// As ioctl(2).
    unsafe fn ioctl(fd: c_int, request: usize, argument: usize) -> Option<c_int>;
}

family! { $ options L: Options;
    fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        size: *mut socklen_t,
    ) -> c_int {
        L::getsockopt(fd, level, name, value, size)
            .unwrap_or_else(|| real::getsockopt(fd, level, name, value, size))
    }

    fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        size: socklen_t,
    ) -> c_int {
        L::setsockopt(fd, level, name, value, size)
            .unwrap_or_else(|| real::setsockopt(fd, level, name, value, size))
    }

    fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int {
        L::ioctl(fd, request, argument).unwrap_or_else(|| real::ioctl(fd, request, argument))
    }
}
