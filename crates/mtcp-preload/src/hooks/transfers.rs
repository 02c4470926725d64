//! read(2), write(2) and their kin.

use crate::outcome::{failure, long};
use crate::table::{self, Handle, Kind};
use crate::vectors::Vectors;
use crate::{report, stream};
use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};
use preload::fortify::check_room;
use preload::real;

/// # Safety
/// `length` bytes can be written.
unsafe fn receive_one(socket: Handle, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    let vector = one(to, length);
    // SAFETY: promised by the caller.
    long(unsafe { Vectors::one(&vector) }.and_then(|room| stream::receive(socket, room, flags)))
}

/// # Safety
/// `length` bytes can be read.
unsafe fn send_one(socket: Handle, from: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    let vector = one(from.cast_mut(), length);
    // SAFETY: promised by the caller.
    long(unsafe { Vectors::one(&vector) }.and_then(|data| stream::transmit(socket, data, flags)))
}

/// A buffer; no more of it than a slice can have.
fn one(base: *mut c_void, length: size_t) -> iovec {
    iovec { iov_base: base, iov_len: length.min(isize::MAX as usize) }
}

/// # Safety
/// The list has `count` buffers, which can be written.
unsafe fn receive_list(socket: Handle, list: *const iovec, count: c_int, flags: c_int) -> ssize_t {
    // SAFETY: promised by the caller. A negative number is too many.
    let rooms = unsafe { Vectors::new(list, count as c_uint as usize, libc::EINVAL) };
    long(match rooms {
        Ok(rooms) if rooms.is_empty() => Ok(0),
        rooms => rooms.and_then(|rooms| stream::receive(socket, rooms, flags)),
    })
}

/// # Safety
/// The list has `count` buffers, which can be read.
unsafe fn send_list(socket: Handle, list: *const iovec, count: c_int, flags: c_int) -> ssize_t {
    // SAFETY: promised by the caller. A negative number is too many.
    let parts = unsafe { Vectors::new(list, count as c_uint as usize, libc::EINVAL) };
    long(match parts {
        Ok(parts) if parts.is_empty() => Ok(0),
        parts => parts.and_then(|parts| stream::transmit(socket, parts, flags)),
    })
}

/// A child sends on a connection of its parent: the kernel's socket behind the number would answer
/// with a signal.
pub(super) fn refused(fd: c_int) -> ssize_t {
    report::note(format_args!("descriptor {fd} is a connection of the parent's: ENOTCONN"));
    long(failure(libc::ENOTCONN))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t {
    match table::kind(fd) {
        Kind::Socket(_) if length == 0 => 0,
        // SAFETY: the application's buffer; as in all functions here.
        Kind::Socket(socket) => unsafe { receive_one(socket, to, length, 0) },
        // SAFETY: as above.
        _ => unsafe { real::read(fd, to, length) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    room: size_t,
) -> ssize_t {
    check_room(length, room);
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
    unsafe { receive_list(socket, list, count, 0) }
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
    unsafe { send_list(socket, list, count, 0) }
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
    check_room(length, room);
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
    check_room(length, room);
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
            unsafe { receive_list(socket, list, count, flags_of(flags)) }
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
            unsafe { send_list(socket, list, count, flags_of(flags)) }
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
