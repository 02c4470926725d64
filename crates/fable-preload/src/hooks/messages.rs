//! recvmsg(2), sendmsg(2), and their plural forms.

use core::ffi::{c_int, c_uint};
use preload::real;

use libc::{cmsghdr, mmsghdr, msghdr, ssize_t, timespec};

use super::answer;
use super::transfers::{receive_many, send_many};
use crate::statistics::Why;
use crate::table;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if !table::is_foreign(fd) && !message.is_null() {
        // SAFETY: the message is the application's, as in all functions here.
        let (list, count) = unsafe { ((*message).msg_iov, (*message).msg_iovlen) };
        // SAFETY: as above.
        if let Some(received) = unsafe { receive_many(fd, list, count, flags) } {
            if received >= 0 {
                // SAFETY: as above. A stream names no sender and carries no control data.
                unsafe {
                    (*message).msg_namelen = 0;
                    (*message).msg_controllen = 0;
                    (*message).msg_flags = 0;
                }
            }
            return received;
        }
    }
    // SAFETY: as above.
    unsafe { real::recvmsg(fd, message, flags) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the message is the application's.
    let Some(content) = (unsafe { message.as_ref() }) else {
        // SAFETY: the kernel refuses it.
        return unsafe { real::sendmsg(fd, message, flags) };
    };
    if content.msg_controllen > 0 {
        // SAFETY: as above.
        unsafe { leave_passed(content) };
        if let Some(connection) = table::connection(fd)
            && let Some(failure) = answer(connection.withdraw(fd, Why::Call).map(|()| None))
        {
            return failure;
        }
        // SAFETY: as above.
        return unsafe { real::sendmsg(fd, message, flags) };
    }
    // SAFETY: as above.
    unsafe {
        send_many(fd, content.msg_iov, content.msg_iovlen, flags)
            .unwrap_or_else(|| real::sendmsg(fd, message, flags))
    }
}

/// Descriptors that are passed to another process go back to TCP first (SCM_RIGHTS, unix(7)).
///
/// # Safety
/// The control data are as long as the message says.
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
                if let Some(connection) = table::connection(passed) {
                    connection.leave(passed, Why::Descriptor);
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recvmmsg(
    fd: c_int,
    list: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if table::connection(fd).is_none() || count == 0 || list.is_null() {
        // SAFETY: the arguments are the application's.
        return unsafe { real::recvmmsg(fd, list, count, flags, timeout) };
    }
    // One message is an answer that is allowed; a stream has no boundaries to keep.
    let flags = flags & !libc::MSG_WAITFORONE;
    // SAFETY: there is at least one entry.
    unsafe {
        let received = recvmsg(fd, &mut (*list).msg_hdr, flags);
        if received < 0 {
            return -1;
        }
        (*list).msg_len = received as c_uint;
    }
    1
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sendmmsg(
    fd: c_int,
    list: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if table::connection(fd).is_none() || list.is_null() {
        for index in 0..if list.is_null() { 0 } else { count.min(1024) as usize } {
            // SAFETY: the list has so many entries, of which the kernel takes 1024 at most.
            unsafe { leave_passed(&(*list.add(index)).msg_hdr) };
        }
        // SAFETY: the arguments are the application's.
        return unsafe { real::sendmmsg(fd, list, count, flags) };
    }
    let mut sent = 0;
    while sent < count.min(1024) {
        // SAFETY: the list has so many entries.
        let entry = unsafe { &mut *list.add(sent as usize) };
        // SAFETY: as above.
        let moved = unsafe { sendmsg(fd, &entry.msg_hdr, flags) };
        if moved < 0 {
            return if sent == 0 { -1 } else { sent as c_int };
        }
        entry.msg_len = moved as c_uint;
        sent += 1;
    }
    sent as c_int
}
