//! Defines the hooks for reading and writing: recv(2), send(2), readv(2), writev(2), sendfile(2),
//! splice(2).

use super::types::*;
use crate::fortify::check_room;
use crate::real;

/// The library's implementation of these hooks. `None`: the hook calls the real function.
pub trait Transfers {
    /// recv(2).
    ///
    /// # Safety
    /// As recv(2).
    unsafe fn receive(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> Option<ssize_t>;

    /// send(2).
    ///
    /// # Safety
    /// As send(2).
    unsafe fn send(fd: c_int, from: *const c_void, length: size_t, flags: c_int)
    -> Option<ssize_t>;

    /// readv(2).
    ///
    /// # Safety
    /// As readv(2).
    unsafe fn read_list(fd: c_int, list: *const iovec, count: c_int) -> Option<ssize_t>;

    /// writev(2).
    ///
    /// # Safety
    /// As writev(2).
    unsafe fn write_list(fd: c_int, list: *const iovec, count: c_int) -> Option<ssize_t>;

    /// preadv2(2).
    ///
    /// # Safety
    /// As preadv2(2).
    unsafe fn read_list_at(
        fd: c_int,
        list: *const iovec,
        count: c_int,
        at: off_t,
        flags: c_int,
    ) -> Option<ssize_t>;

    /// pwritev2(2).
    ///
    /// # Safety
    /// As pwritev2(2).
    unsafe fn write_list_at(
        fd: c_int,
        list: *const iovec,
        count: c_int,
        at: off_t,
        flags: c_int,
    ) -> Option<ssize_t>;

    /// sendfile(2).
    ///
    /// # Safety
    /// As sendfile(2).
    unsafe fn send_file(
        to: c_int,
        from: c_int,
        offset: *mut off_t,
        count: size_t,
    ) -> Option<ssize_t>;

    /// splice(2).
    ///
    /// # Safety
    /// As splice(2).
    unsafe fn splice(
        from: c_int,
        from_at: *mut off_t,
        to: c_int,
        to_at: *mut off_t,
        length: size_t,
        flags: c_uint,
    ) -> Option<ssize_t>;
}

family! { $ transfers L: Transfers;
    fn read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t {
        // With an empty buffer read(2) returns at once, while recv(2) waits.
        let received = if length == 0 { None } else { L::receive(fd, to, length, 0) };
        received.unwrap_or_else(|| real::read(fd, to, length))
    }

    fn __read_chk(fd: c_int, to: *mut c_void, length: size_t, room: size_t) -> ssize_t {
        check_room(length, room);
        read::<L>(fd, to, length)
    }

    fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
        L::send(fd, from, length, 0).unwrap_or_else(|| real::write(fd, from, length))
    }

    fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
        L::read_list(fd, list, count).unwrap_or_else(|| real::readv(fd, list, count))
    }

    fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
        L::write_list(fd, list, count).unwrap_or_else(|| real::writev(fd, list, count))
    }

    fn preadv2(
        fd: c_int,
        list: *const iovec,
        count: c_int,
        at: off_t,
        flags: c_int,
    ) -> ssize_t {
        L::read_list_at(fd, list, count, at, flags)
            .unwrap_or_else(|| real::preadv2(fd, list, count, at, flags))
    }

    fn preadv64v2(
        fd: c_int,
        list: *const iovec,
        count: c_int,
        at: off_t,
        flags: c_int,
    ) -> ssize_t {
        preadv2::<L>(fd, list, count, at, flags)
    }

    fn pwritev2(
        fd: c_int,
        list: *const iovec,
        count: c_int,
        at: off_t,
        flags: c_int,
    ) -> ssize_t {
        L::write_list_at(fd, list, count, at, flags)
            .unwrap_or_else(|| real::pwritev2(fd, list, count, at, flags))
    }

    fn pwritev64v2(
        fd: c_int,
        list: *const iovec,
        count: c_int,
        at: off_t,
        flags: c_int,
    ) -> ssize_t {
        pwritev2::<L>(fd, list, count, at, flags)
    }

    fn recv(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
        L::receive(fd, to, length, flags).unwrap_or_else(|| real::recv(fd, to, length, flags))
    }

    fn __recv_chk(
        fd: c_int,
        to: *mut c_void,
        length: size_t,
        room: size_t,
        flags: c_int,
    ) -> ssize_t {
        check_room(length, room);
        recv::<L>(fd, to, length, flags)
    }

    fn recvfrom(
        fd: c_int,
        to: *mut c_void,
        length: size_t,
        flags: c_int,
        address: *mut sockaddr,
        size: *mut socklen_t,
    ) -> ssize_t {
        let Some(received) = L::receive(fd, to, length, flags) else {
            return real::recvfrom(fd, to, length, flags, address, size);
        };
        if received >= 0 && !address.is_null() && !size.is_null() {
            // A stream has no sender address.
            *size = 0;
        }
        received
    }

    fn __recvfrom_chk(
        fd: c_int,
        to: *mut c_void,
        length: size_t,
        room: size_t,
        flags: c_int,
        address: *mut sockaddr,
        size: *mut socklen_t,
    ) -> ssize_t {
        check_room(length, room);
        recvfrom::<L>(fd, to, length, flags, address, size)
    }

    fn send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t {
        L::send(fd, from, length, flags).unwrap_or_else(|| real::send(fd, from, length, flags))
    }

    fn sendto(
        fd: c_int,
        from: *const c_void,
        length: size_t,
        flags: c_int,
        address: *const sockaddr,
        size: socklen_t,
    ) -> ssize_t {
        // A stream has one receiver, whatever address the call has.
        L::send(fd, from, length, flags)
            .unwrap_or_else(|| real::sendto(fd, from, length, flags, address, size))
    }

    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        L::send_file(to, from, offset, count)
            .unwrap_or_else(|| real::sendfile(to, from, offset, count))
    }

    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        sendfile::<L>(to, from, offset, count)
    }

    fn splice(
        from: c_int,
        from_at: *mut off_t,
        to: c_int,
        to_at: *mut off_t,
        length: size_t,
        flags: c_uint,
    ) -> ssize_t {
        L::splice(from, from_at, to, to_at, length, flags)
            .unwrap_or_else(|| real::splice(from, from_at, to, to_at, length, flags))
    }
}
