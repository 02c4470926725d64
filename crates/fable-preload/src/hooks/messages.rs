//! Hooks for recvmsg(2), sendmsg(2), recvmmsg(2) and sendmmsg(2).

use core::ffi::{c_int, c_uint};

use libc::{cmsghdr, mmsghdr, msghdr, ssize_t, timespec};
use preload::hooks::messages::{self, Messages};

use super::transfers::{receive_many, send_many};
use super::{Library, answer};
use crate::connection::Connection;
use crate::statistics::Why;
use crate::table;

impl Messages for Library {
    unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<ssize_t> {
        if table::is_foreign(fd) || message.is_null() {
            return None;
        }
        // SAFETY: the message is the application's, as all arguments of hooks.
        let (list, count) = unsafe { ((*message).msg_iov, (*message).msg_iovlen) };
        // SAFETY: the list is part of the application's message.
        let received = unsafe { receive_many(fd, list, count, flags) }?;
        if received >= 0 {
            // SAFETY: the message is the application's. A stream has no sender address and no
            // ancillary data.
            unsafe {
                (*message).msg_namelen = 0;
                (*message).msg_controllen = 0;
                (*message).msg_flags = 0;
            }
        }
        Some(received)
    }

    unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
        // SAFETY: the message is the application's; without one the kernel refuses the call.
        let content = unsafe { message.as_ref() }?;
        if content.msg_controllen > 0 {
            // SAFETY: the ancillary data are part of the application's message.
            unsafe { leave_passed(content) };
            let connection = table::get::<Connection>(fd)?;
            return answer(connection.withdraw(fd, Why::Call).map(|()| None));
        }
        // SAFETY: the list is part of the application's message.
        unsafe { send_many(fd, content.msg_iov, content.msg_iovlen, flags) }
    }

    unsafe fn recvmmsg(
        fd: c_int,
        list: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        _: *mut timespec,
    ) -> Option<c_int> {
        if table::get::<Connection>(fd).is_none() || count == 0 || list.is_null() {
            return None;
        }
        // One message is a valid result, and a stream has no message boundaries.
        let flags = flags & !libc::MSG_WAITFORONE;
        // SAFETY: there is at least one entry.
        Some(unsafe {
            messages::each(list, 1, |message| messages::recvmsg::<Library>(fd, message, flags))
        })
    }

    unsafe fn sendmmsg(
        fd: c_int,
        list: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
    ) -> Option<c_int> {
        if table::get::<Connection>(fd).is_none() || list.is_null() {
            for index in 0..if list.is_null() { 0 } else { count.min(1024) as usize } {
                // SAFETY: `index` is less than the list's length, of which the kernel takes 1024 at
                // most.
                unsafe { leave_passed(&(*list.add(index)).msg_hdr) };
            }
            return None;
        }
        // SAFETY: `index` is less than the length of the list.
        Some(unsafe {
            messages::each(list, count, |message| messages::sendmsg::<Library>(fd, message, flags))
        })
    }
}

/// Returns connections whose descriptors are passed to another process to TCP (SCM_RIGHTS,
/// unix(7)).
///
/// # Safety
/// The control data must be as long as the message says.
unsafe fn leave_passed(message: &msghdr) {
    if message.msg_controllen == 0 {
        return;
    }
    // SAFETY: the macros stay within the announced length.
    unsafe {
        let mut header: *const cmsghdr = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let rights =
                (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS;
            let bytes = (*header).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let data = libc::CMSG_DATA(header).cast::<c_int>();
            for index in 0..if rights { bytes / size_of::<c_int>() } else { 0 } {
                let passed = data.add(index).read_unaligned();
                if let Some(connection) = table::get::<Connection>(passed) {
                    connection.leave(passed, Why::Descriptor);
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}
