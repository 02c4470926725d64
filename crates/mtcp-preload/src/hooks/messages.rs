//! Implements the hooks for sendmsg(2), recvmsg(2), sendmmsg(2) and recvmmsg(2).

use super::{Library, send_with, socket};
use crate::outcome::{failure, long, number};
use crate::table::Handle;
use crate::vectors::Vectors;
use crate::{report, stream};
use core::ffi::{c_int, c_uint};
use libc::{mmsghdr, msghdr, ssize_t, timespec};
use preload::hooks::messages::{self, Messages};

/// # Safety
/// `message` is valid as recvmsg(2) requires.
unsafe fn receive(socket: Handle, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the application's message, valid as recvmsg(2) requires.
    let Some(message) = (unsafe { message.as_mut() }) else {
        return long(failure(libc::EFAULT));
    };
    if flags & libc::MSG_ERRQUEUE != 0 {
        // The stack has no error queue, so it is always empty.
        return long(failure(libc::EAGAIN));
    }
    message.msg_namelen = 0;
    message.msg_controllen = 0;
    message.msg_flags = 0;
    // SAFETY: the list is part of the application's message.
    let rooms = unsafe { Vectors::new(message.msg_iov, message.msg_iovlen, libc::EMSGSIZE) };
    let received = rooms.and_then(|rooms| stream::receive(socket, rooms, flags));
    if flags & libc::MSG_OOB != 0 && received.is_ok() {
        // There may be no room for the byte.
        let is_cut = matches!(received, Ok(0));
        message.msg_flags = libc::MSG_OOB | if is_cut { libc::MSG_TRUNC } else { 0 };
    }
    long(received)
}

/// # Safety
/// `message` is valid as sendmsg(2) requires.
unsafe fn transmit(socket: Handle, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the application's message, valid as sendmsg(2) requires.
    let Some(message) = (unsafe { message.as_ref() }) else {
        return long(failure(libc::EFAULT));
    };
    if message.msg_controllen > 0 {
        report::note(format_args!("control messages on a socket of the stack: EOPNOTSUPP"));
        return long(failure(libc::EOPNOTSUPP));
    }
    // SAFETY: the list is part of the application's message.
    let parts = unsafe { Vectors::new(message.msg_iov, message.msg_iovlen, libc::EMSGSIZE) };
    long(parts.and_then(|parts| stream::transmit(socket, parts, flags)))
}

impl Messages for Library {
    unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<ssize_t> {
        // SAFETY: the application's pointers, valid as the manual page requires.
        socket(fd).map(|socket| unsafe { receive(socket, message, flags) })
    }

    unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
        // SAFETY: the application's pointers, as sendmsg(2) asks.
        send_with(fd, |socket| unsafe { transmit(socket, message, flags) })
    }

    unsafe fn recvmmsg(
        fd: c_int,
        list: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> Option<c_int> {
        let socket = socket(fd)?;
        if !timeout.is_null() {
            report::note(format_args!("recvmmsg(2) with a time on a socket of the stack: EINVAL"));
            return Some(number(failure(libc::EINVAL)));
        }
        // A single message is a valid result, and the next one may not have arrived.
        // SAFETY: the application's list, valid as recvmmsg(2) requires.
        Some(unsafe {
            messages::each(list, count.min(1), |message| receive(socket, message, flags))
        })
    }

    unsafe fn sendmmsg(
        fd: c_int,
        list: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
    ) -> Option<c_int> {
        let socket = socket(fd)?;
        // SAFETY: the application's list, as sendmmsg(2) asks.
        Some(unsafe {
            messages::each(list, count.min(1), |message| transmit(socket, message, flags))
        })
    }
}
