//! Hooks for getsockopt(2), setsockopt(2) and ioctl(2).

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use preload::real;

use libc::socklen_t;
use preload::hooks::options::Options;

use super::{Library, refused};
use crate::connection::Connection;
use crate::statistics::Why;
use crate::sys::Errno;
use crate::table;

/// Options that affect bytes which pass through TCP from now on.
const LATE: [c_int; 8] = [
    libc::SO_RCVLOWAT,
    libc::SO_ZEROCOPY,
    libc::SO_TIMESTAMP,
    libc::SO_TIMESTAMPNS,
    libc::SO_TIMESTAMPING,
    libc::SO_ATTACH_FILTER,
    libc::SO_ATTACH_BPF,
    libc::SO_OOBINLINE,
];

/// Options that limit the bytes in flight.
const BUFFERS: [c_int; 4] =
    [libc::SO_SNDBUF, libc::SO_RCVBUF, libc::SO_SNDBUFFORCE, libc::SO_RCVBUFFORCE];

/// Returns whether the library supports the option. SO_PEEK_OFF and others change how the stream is
/// read.
fn is_followed(level: c_int, name: c_int) -> bool {
    const TCP_REPAIR_OPTIONS: c_int = 22;
    match level {
        libc::SOL_SOCKET => name != libc::SO_PEEK_OFF,
        libc::IPPROTO_TCP => !matches!(
            name,
            libc::TCP_ULP | libc::TCP_REPAIR | TCP_REPAIR_OPTIONS | libc::TCP_MD5SIG
        ),
        libc::IPPROTO_IP | libc::IPPROTO_IPV6 => true,
        _ => false,
    }
}

/// Requests about interfaces and routes, possible on any socket (netdevice(7)).
const INTERFACES: core::ops::RangeInclusive<usize> = 0x8910..=0x89ff;

impl Options for Library {
    unsafe fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        size: socklen_t,
    ) -> Option<c_int> {
        if let Some(failure) = refused(fd) {
            return Some(failure);
        }
        if !is_followed(level, name) {
            if let Some(connection) = table::get::<Connection>(fd) {
                connection.leave(fd, Why::Option);
            }
            table::refuse(fd);
        } else if level == libc::SOL_SOCKET && LATE.contains(&name) {
            if let Some(connection) = table::get::<Connection>(fd) {
                // Bytes that are being sent again continue to be sent; this call writes none.
                let _ = connection.withdraw(fd, Why::Option);
            }
            table::refuse(fd);
        }
        if level == libc::IPPROTO_TCP
            && size as usize >= size_of::<c_int>()
            && !value.is_null()
            && let Some(connection) = table::get::<Connection>(fd)
            && let Some(word) = connection.stand_in(name)
        {
            // SAFETY: the size was checked.
            let value = unsafe { value.cast::<c_int>().read_unaligned() };
            word.store(u32::from(value != 0), Ordering::Relaxed);
            return Some(0);
        }
        if level == libc::SOL_SOCKET
            && (BUFFERS.contains(&name) || name == libc::SO_LINGER)
            && let Some(connection) = table::get::<Connection>(fd)
        {
            // SAFETY: the arguments are the application's, as all arguments of hooks.
            let result = unsafe { real::setsockopt(fd, level, name, value, size) };
            connection.note_buffers(fd);
            connection.note_linger(fd);
            return Some(result);
        }
        None
    }

    unsafe fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        size: *mut socklen_t,
    ) -> Option<c_int> {
        const TCP_ZEROCOPY_RECEIVE: c_int = 35;
        if let Some(failure) = refused(fd) {
            return Some(failure);
        }
        if level == libc::IPPROTO_TCP
            && name == TCP_ZEROCOPY_RECEIVE
            && let Some(connection) = table::get::<Connection>(fd)
        {
            connection.leave(fd, Why::Option);
        }
        if level == libc::IPPROTO_TCP
            && !value.is_null()
            && !size.is_null()
            && let Some(connection) = table::get::<Connection>(fd)
            && let Some(word) = connection.stand_in(name)
        {
            // SAFETY: the pointers are the application's, and are not null.
            return Some(unsafe { give(word.load(Ordering::Relaxed), value, size) });
        }
        if level == libc::SOL_SOCKET
            && name == libc::SO_ERROR
            && !value.is_null()
            && !size.is_null()
            && let Some(connection) = table::get::<Connection>(fd)
            && let Some(Errno(errno)) = connection.own().take_error()
        {
            // SAFETY: the pointers are the application's, and are not null.
            return Some(unsafe { give(errno as u32, value, size) });
        }
        None
    }

    unsafe fn ioctl(fd: c_int, request: usize, argument: usize) -> Option<c_int> {
        let Some(connection) = table::get::<Connection>(fd) else { return refused(fd) };
        let request_number = request as libc::Ioctl;
        let counts = matches!(request_number, libc::FIONREAD | libc::TIOCOUTQ);
        if !counts
            && !matches!(
                request_number,
                libc::FIONBIO | libc::FIOCLEX | libc::FIONCLEX | libc::TCGETS
            )
            && !INTERFACES.contains(&request)
        {
            connection.leave(fd, Why::Call);
        }
        if request_number == libc::FIONREAD && connection.progress(fd) == Ok(false) {
            return None;
        }
        // SAFETY: the argument is the application's, and passed on unchanged.
        let result = unsafe { real::ioctl(fd, request, argument) };
        if result != 0 {
            return Some(result);
        }
        let number = argument as *mut c_int;
        // SAFETY: the kernel has just read or written this number, so it is accessible.
        unsafe {
            match request_number {
                libc::FIONBIO => connection.own().set_nonblocking(*number != 0),
                libc::FIONREAD => *number = connection.readable_bytes(fd, *number),
                libc::TIOCOUTQ => *number += connection.unsent_bytes() as c_int,
                _ => (),
            }
        }
        Some(result)
    }
}

/// Answers getsockopt(2) with a number.
///
/// # Safety
/// `value` must have as much room as `size` says.
unsafe fn give(number: u32, value: *mut c_void, size: *mut socklen_t) -> c_int {
    let bytes = number.to_ne_bytes();
    // SAFETY: the caller guarantees the room; no more than it is written.
    unsafe {
        let room = (*size as usize).min(bytes.len());
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), room);
        *size = room as socklen_t;
    }
    0
}
