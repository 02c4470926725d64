//! Defines the hooks for recvmsg(2), sendmsg(2), recvmmsg(2) and sendmmsg(2).

use super::types::*;
use crate::real;

/// The library's implementation of these hooks. `None`: the hook calls the real function.
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

/// Calls a function for each of several messages, until it fails for one. Returns how many calls
/// succeeded, or -1 if none did.
///
/// # Safety
/// The list has `count` entries, of which the kernel accepts at most 1024.
pub unsafe fn each(
    list: *mut mmsghdr,
    count: c_uint,
    mut act: impl FnMut(&mut msghdr) -> ssize_t,
) -> c_int {
    let mut done = 0;
    for index in 0..count.min(1024) {
        // SAFETY: the caller guarantees this.
        let entry = unsafe { &mut *list.add(index as usize) };
        let length = act(&mut entry.msg_hdr);
        if length < 0 {
            return if done > 0 { done } else { -1 };
        }
        entry.msg_len = length as c_uint;
        done += 1;
    }
    done
}
