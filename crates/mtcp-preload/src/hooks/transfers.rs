//! Implements the hooks for read(2), write(2) and related calls.

use super::{Library, send_with, socket};
use crate::outcome::{failure, long};
use crate::table::{self, Handle, Kind};
use crate::vectors::Vectors;
use crate::{report, stream};
use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, off_t, size_t, ssize_t};
use preload::hooks::transfers::Transfers;

/// Returns a vector of one buffer, limited to the length that a slice can have.
fn one(base: *mut c_void, length: size_t) -> iovec {
    iovec { iov_base: base, iov_len: length.min(isize::MAX as usize) }
}

/// # Safety
/// The list has `count` buffers, which can be written.
unsafe fn receive_list(socket: Handle, list: *const iovec, count: c_int, flags: c_int) -> ssize_t {
    // SAFETY: the caller guarantees this. A negative number is too many.
    let rooms = unsafe { Vectors::new(list, count as c_uint as usize, libc::EINVAL) };
    long(match rooms {
        Ok(rooms) if rooms.is_empty() => Ok(0),
        rooms => rooms.and_then(|rooms| stream::receive(socket, rooms, flags)),
    })
}

/// # Safety
/// The list has `count` buffers, which can be read.
unsafe fn send_list(socket: Handle, list: *const iovec, count: c_int, flags: c_int) -> ssize_t {
    // SAFETY: the caller guarantees this. A negative number is too many.
    let parts = unsafe { Vectors::new(list, count as c_uint as usize, libc::EINVAL) };
    long(match parts {
        Ok(parts) if parts.is_empty() => Ok(0),
        parts => parts.and_then(|parts| stream::transmit(socket, parts, flags)),
    })
}

/// Returns whether the call is readv(2) or writev(2) with flags: preadv2(2) and pwritev2(2) with
/// offset -1. A socket supports no other offset.
fn is_vector_call(at: off_t, flags: c_int) -> bool {
    at == -1 && flags & !libc::RWF_NOWAIT == 0
}

fn flags_of(flags: c_int) -> c_int {
    if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 }
}

impl Transfers for Library {
    unsafe fn receive(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> Option<ssize_t> {
        let socket = socket(fd)?;
        let vector = one(to, length);
        // SAFETY: the application's buffer, valid as the manual page requires.
        let room = unsafe { Vectors::one(&vector) };
        Some(long(room.and_then(|room| stream::receive(socket, room, flags))))
    }

    unsafe fn send(
        fd: c_int,
        from: *const c_void,
        length: size_t,
        flags: c_int,
    ) -> Option<ssize_t> {
        send_with(fd, |socket| {
            let vector = one(from.cast_mut(), length);
            // SAFETY: the application's buffer, as send(2) asks.
            let data = unsafe { Vectors::one(&vector) };
            long(data.and_then(|data| stream::transmit(socket, data, flags)))
        })
    }

    unsafe fn read_list(fd: c_int, list: *const iovec, count: c_int) -> Option<ssize_t> {
        // SAFETY: the application's list, as readv(2) asks.
        socket(fd).map(|socket| unsafe { receive_list(socket, list, count, 0) })
    }

    unsafe fn write_list(fd: c_int, list: *const iovec, count: c_int) -> Option<ssize_t> {
        // SAFETY: the application's list, as writev(2) asks.
        send_with(fd, |socket| unsafe { send_list(socket, list, count, 0) })
    }

    unsafe fn read_list_at(
        fd: c_int,
        list: *const iovec,
        count: c_int,
        at: off_t,
        flags: c_int,
    ) -> Option<ssize_t> {
        let socket = socket(fd).filter(|_| is_vector_call(at, flags))?;
        // SAFETY: the application's list, as preadv2(2) asks.
        Some(unsafe { receive_list(socket, list, count, flags_of(flags)) })
    }

    unsafe fn write_list_at(
        fd: c_int,
        list: *const iovec,
        count: c_int,
        at: off_t,
        flags: c_int,
    ) -> Option<ssize_t> {
        if matches!(table::kind(fd), Kind::Socket(_)) && !is_vector_call(at, flags) {
            return None;
        }
        // SAFETY: the application's list, as pwritev2(2) asks.
        send_with(fd, |socket| unsafe { send_list(socket, list, count, flags_of(flags)) })
    }

    unsafe fn send_file(
        to: c_int,
        from: c_int,
        offset: *mut off_t,
        count: size_t,
    ) -> Option<ssize_t> {
        if socket(from).is_some() {
            return Some(long(failure(libc::EINVAL)));
        }
        send_with(to, |socket| {
            // SAFETY: the application's offset, which is null or valid.
            long(stream::send_file(socket, from, unsafe { offset.as_mut() }, count))
        })
    }

    unsafe fn splice(
        from: c_int,
        _: *mut off_t,
        to: c_int,
        _: *mut off_t,
        _: size_t,
        _: c_uint,
    ) -> Option<ssize_t> {
        if socket(from).is_none() && socket(to).is_none() {
            return None;
        }
        report::note(format_args!("splice(2) with a socket of the stack: EINVAL"));
        Some(long(failure(libc::EINVAL)))
    }
}
