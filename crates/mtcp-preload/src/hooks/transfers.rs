//! read(2), write(2) and their kin.

use crate::outcome::{failure, long};
use crate::table::{self, Handle, Kind};
use crate::{report, stream};
use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};
use std::io::{IoSlice, IoSliceMut};

/// What readv(2) takes at most.
const VECTORS: c_int = 1024;

/// # Safety
/// `length` bytes can be written.
unsafe fn receive_one(socket: Handle, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    if length == 0 {
        return 0;
    }
    if to.is_null() {
        return long(failure(libc::EFAULT));
    }
    // SAFETY: promised by the caller; no more than a slice can have.
    let room =
        unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length.min(isize::MAX as usize)) };
    long(stream::receive(socket, &mut [IoSliceMut::new(room)], flags))
}

/// # Safety
/// `length` bytes can be read.
unsafe fn send_one(socket: Handle, from: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    if from.is_null() && length > 0 {
        return long(failure(libc::EFAULT));
    }
    let data: &[u8] = if length == 0 {
        &[]
    } else {
        // SAFETY: promised by the caller; no more than a slice can have.
        unsafe { std::slice::from_raw_parts(from.cast(), length.min(isize::MAX as usize)) }
    };
    long(stream::transmit(socket, &[IoSlice::new(data)], flags))
}

/// A child sends on a connection of its parent: the kernel's socket behind the number would answer
/// with a signal.
pub(super) fn refused(fd: c_int) -> ssize_t {
    report::note(format_args!("descriptor {fd} is a connection of the parent's: ENOTCONN"));
    long(failure(libc::ENOTCONN))
}

/// The application's buffers; `None` if there are too many, or none.
///
/// # Safety
/// The list has so many entries, each with so many bytes, for as long as the result is used.
pub(super) unsafe fn rooms<'a>(
    list: *const iovec,
    count: c_int,
) -> Option<&'a mut [IoSliceMut<'a>]> {
    if !(1..=VECTORS).contains(&count) || list.is_null() {
        return None;
    }
    // SAFETY: promised by the caller; IoSliceMut has the layout of iovec. It is not written to.
    Some(unsafe { std::slice::from_raw_parts_mut(list.cast_mut().cast(), count as usize) })
}

/// As [`rooms`], to be sent.
///
/// # Safety
/// As for [`rooms`].
pub(super) unsafe fn parts<'a>(list: *const iovec, count: c_int) -> Option<&'a [IoSlice<'a>]> {
    if !(1..=VECTORS).contains(&count) || list.is_null() {
        return None;
    }
    // SAFETY: promised by the caller; IoSlice has the layout of iovec.
    Some(unsafe { std::slice::from_raw_parts(list.cast(), count as usize) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t {
    match table::kind(fd) {
        // SAFETY: the application's buffer; as in all functions here.
        Kind::Socket(socket) => unsafe { receive_one(socket, to, length, 0) },
        // SAFETY: as above.
        _ => unsafe { real::read(fd, to, length) },
    }
}

/// What the checked variants do when the compiler knows that a buffer is too small.
fn abort_if(overflow: bool) {
    if overflow {
        // SAFETY: no arguments.
        unsafe { libc::abort() };
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    room: size_t,
) -> ssize_t {
    abort_if(length > room);
    // SAFETY: as above.
    unsafe { read(fd, to, length) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
    match table::kind(fd) {
        Kind::Inherited => refused(fd),
        // SAFETY: as above.
        Kind::Socket(socket) => unsafe { send_one(socket, from, length, 0) },
        // SAFETY: as above.
        _ => unsafe { real::write(fd, from, length) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    let Kind::Socket(socket) = table::kind(fd) else {
        // SAFETY: as above.
        return unsafe { real::readv(fd, list, count) };
    };
    // SAFETY: as above.
    match unsafe { rooms(list, count) } {
        Some(rooms) => long(stream::receive(socket, rooms, 0)),
        None => long(if count == 0 { Ok(0) } else { failure(libc::EINVAL) }),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    if table::kind(fd) == Kind::Inherited {
        return refused(fd);
    }
    let Kind::Socket(socket) = table::kind(fd) else {
        // SAFETY: as above.
        return unsafe { real::writev(fd, list, count) };
    };
    // SAFETY: as above.
    match unsafe { parts(list, count) } {
        Some(parts) => long(stream::transmit(socket, parts, 0)),
        None => long(if count == 0 { Ok(0) } else { failure(libc::EINVAL) }),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recv(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    match table::kind(fd) {
        // SAFETY: as above.
        Kind::Socket(socket) => unsafe { receive_one(socket, to, length, flags) },
        // SAFETY: as above.
        _ => unsafe { real::recv(fd, to, length, flags) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    abort_if(length > room);
    // SAFETY: as above.
    unsafe { recv(fd, to, length, flags) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    let Kind::Socket(socket) = table::kind(fd) else {
        // SAFETY: as above.
        return unsafe { real::recvfrom(fd, to, length, flags, address, size) };
    };
    // SAFETY: as above.
    let received = unsafe { receive_one(socket, to, length, flags) };
    if received >= 0 && !address.is_null() && !size.is_null() {
        // SAFETY: as above. A stream names no sender.
        unsafe { *size = 0 };
    }
    received
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    abort_if(length > room);
    // SAFETY: as above.
    unsafe { recvfrom(fd, to, length, flags, address, size) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn send(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    match table::kind(fd) {
        Kind::Inherited => refused(fd),
        // SAFETY: as above.
        Kind::Socket(socket) => unsafe { send_one(socket, from, length, flags) },
        // SAFETY: as above.
        _ => unsafe { real::send(fd, from, length, flags) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sendto(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    size: socklen_t,
) -> ssize_t {
    match table::kind(fd) {
        Kind::Inherited => refused(fd),
        // SAFETY: as above. A stream has one receiver, whatever the call says.
        Kind::Socket(socket) => unsafe { send_one(socket, from, length, flags) },
        // SAFETY: as above.
        _ => unsafe { real::sendto(fd, from, length, flags, address, size) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    match (table::kind(to), table::kind(from)) {
        (_, Kind::Socket(_)) => long(failure(libc::EINVAL)),
        (Kind::Inherited, _) => refused(to),
        (Kind::Socket(socket), _) => {
            // SAFETY: as above; the offset is null or valid.
            long(stream::send_file(socket, from, unsafe { offset.as_mut() }, count))
        }
        // SAFETY: as above.
        _ => unsafe { real::sendfile(to, from, offset, count) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { sendfile(to, from, offset, count) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn splice(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    let is_ours = |fd| matches!(table::kind(fd), Kind::Socket(_));
    if is_ours(from) || is_ours(to) {
        report::note(format_args!("splice(2) with a socket of the stack: EINVAL"));
        return long(failure(libc::EINVAL));
    }
    // SAFETY: as above.
    unsafe { real::splice(from, from_at, to, to_at, length, flags) }
}

/// With offset -1 these are readv(2) and writev(2) with flags; a socket has no other.
fn is_vector_call(at: off_t, flags: c_int) -> bool {
    at == -1 && flags & !libc::RWF_NOWAIT == 0
}

fn flags_of(flags: c_int) -> c_int {
    if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn preadv2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    match table::kind(fd) {
        Kind::Socket(socket) if is_vector_call(at, flags) => {
            // SAFETY: as above.
            match unsafe { rooms(list, count) } {
                Some(rooms) => long(stream::receive(socket, rooms, flags_of(flags))),
                None => long(if count == 0 { Ok(0) } else { failure(libc::EINVAL) }),
            }
        }
        // SAFETY: as above.
        _ => unsafe { real::preadv2(fd, list, count, at, flags) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pwritev2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    match table::kind(fd) {
        Kind::Inherited => refused(fd),
        Kind::Socket(socket) if is_vector_call(at, flags) => {
            // SAFETY: as above.
            match unsafe { parts(list, count) } {
                Some(parts) => long(stream::transmit(socket, parts, flags_of(flags))),
                None => long(if count == 0 { Ok(0) } else { failure(libc::EINVAL) }),
            }
        }
        // SAFETY: as above.
        _ => unsafe { real::pwritev2(fd, list, count, at, flags) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv64v2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { preadv2(fd, list, count, at, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev64v2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { pwritev2(fd, list, count, at, flags) }
}
