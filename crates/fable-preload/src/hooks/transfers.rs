//! Hooks for reading and writing: recv(2), send(2), readv(2), writev(2), sendfile(2), splice(2) and
//! others.

use core::ffi::{c_int, c_uint, c_void};
use preload::real;

use libc::{iovec, off_t, size_t, ssize_t};
use preload::hooks::transfers::{self, Transfers};

use super::{Library, answer, read_from, refused, write_to};
use crate::connection::{Connection, Reading};
use crate::cursor::Cursor;
use crate::statistics::Why;
use crate::sys::{self, KeepErrno};
use crate::table;

/// Flags for recv(2) about data that only the kernel has.
const KERNEL_RECEIVES: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE;
/// The capacity of a pipe, in bytes.
const SPLICE_BYTES: usize = 65536;

/// Flags for send(2) that a ring cannot support.
const KERNEL_SENDS: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

impl Transfers for Library {
    unsafe fn receive(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> Option<ssize_t> {
        let Some(connection) = table::get::<Connection>(fd) else { return refused(fd) };
        if flags & KERNEL_RECEIVES != 0 {
            return None;
        }
        let entry = iovec { iov_base: to, iov_len: length };
        // SAFETY: one entry is given; the buffer is the application's.
        let mut cursor = unsafe { Cursor::new(&entry, 1) };
        read_from(&connection, fd, &mut cursor, flags)
    }

    unsafe fn send(
        fd: c_int,
        from: *const c_void,
        length: size_t,
        flags: c_int,
    ) -> Option<ssize_t> {
        let Some(connection) = table::get::<Connection>(fd) else { return refused(fd) };
        if flags & KERNEL_SENDS != 0 {
            return answer(connection.withdraw(fd, Why::Call).map(|()| None));
        }
        let entry = iovec { iov_base: from.cast_mut(), iov_len: length };
        // SAFETY: one entry is given; the buffer is the application's and is only read.
        let mut cursor = unsafe { Cursor::new(&entry, 1) };
        write_to(&connection, fd, &mut cursor, flags)
    }

    unsafe fn read_list(fd: c_int, list: *const iovec, count: c_int) -> Option<ssize_t> {
        // SAFETY: the list is the application's.
        if !table::is_foreign(fd) && unsafe { has_no_room(list, count) } {
            // With no room readv(2) reads nothing, as read(2) does.
            return None;
        }
        // SAFETY: the list is the application's; a negative count is refused by the kernel.
        unsafe { receive_many(fd, list, count as usize, 0) }
    }

    unsafe fn write_list(fd: c_int, list: *const iovec, count: c_int) -> Option<ssize_t> {
        // SAFETY: the list is the application's.
        if !table::is_foreign(fd) && unsafe { has_no_room(list, count) } {
            // With nothing to write writev(2) writes nothing, and reports no error.
            return None;
        }
        // SAFETY: the list is the application's; a negative count is refused by the kernel.
        unsafe { send_many(fd, list, count as usize, 0) }
    }

    unsafe fn read_list_at(
        fd: c_int,
        _: *const iovec,
        _: c_int,
        _: off_t,
        _: c_int,
    ) -> Option<ssize_t> {
        leave(fd);
        None
    }

    unsafe fn write_list_at(
        fd: c_int,
        _: *const iovec,
        _: c_int,
        _: off_t,
        _: c_int,
    ) -> Option<ssize_t> {
        leave(fd);
        None
    }

    unsafe fn send_file(
        to: c_int,
        from: c_int,
        offset: *mut off_t,
        count: size_t,
    ) -> Option<ssize_t> {
        // SAFETY: the offset is the application's.
        unsafe { send_file(to, from, offset, count) }
    }

    unsafe fn splice(
        from: c_int,
        from_at: *mut off_t,
        to: c_int,
        to_at: *mut off_t,
        length: size_t,
        flags: c_uint,
    ) -> Option<ssize_t> {
        if length > 0
            && let Some(connection) = table::get::<Connection>(to)
            && let Some(failure) = answer(connection.withdraw(to, Why::Call).map(|()| None))
        {
            return Some(failure);
        }
        let connection = table::get::<Connection>(from)?;
        if connection.may_hold_bytes(from) && from_at.is_null() && to_at.is_null() && length > 0 {
            splice_from(&connection, from, to, length, flags)
        } else {
            None
        }
    }
}

/// Reads into a list of buffers; `None` calls the real function.
///
/// # Safety
/// The list must have `count` entries.
pub(super) unsafe fn receive_many(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<ssize_t> {
    let Some(connection) = table::get::<Connection>(fd) else { return refused(fd) };
    if flags & KERNEL_RECEIVES != 0 || count > 1024 {
        return None;
    }
    // SAFETY: the caller guarantees that the list has `count` entries.
    let mut cursor = unsafe { Cursor::new(list, count) };
    read_from(&connection, fd, &mut cursor, flags)
}

/// Writes from a list of buffers; `None` calls the real function.
///
/// # Safety
/// The list must have `count` entries.
pub(super) unsafe fn send_many(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<ssize_t> {
    let Some(connection) = table::get::<Connection>(fd) else { return refused(fd) };
    if flags & KERNEL_SENDS != 0 || count > 1024 {
        return answer(connection.withdraw(fd, Why::Call).map(|()| None));
    }
    // SAFETY: the caller guarantees that the list has `count` entries.
    let mut cursor = unsafe { Cursor::new(list, count) };
    write_to(&connection, fd, &mut cursor, flags)
}

/// # Safety
/// The list must have `count` entries.
unsafe fn has_no_room(list: *const iovec, count: c_int) -> bool {
    let entries = usize::try_from(count).unwrap_or(0).min(1024);
    // SAFETY: the caller guarantees that the list has `count` entries.
    (0..entries).all(|index| unsafe { (*list.add(index)).iov_len } == 0)
}

/// Copies directly from the file into the ring. If the ring is full, the rest waits as a write
/// does.
///
/// # Safety
/// `offset` must be null or writable.
unsafe fn send_file(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> Option<ssize_t> {
    if count == 0 {
        // Nothing to send; the kernel returns its own result for that.
        return None;
    }
    let connection = table::get::<Connection>(to)?;
    if offset.is_null() || !connection.own().is_nonblocking() {
        return answer(connection.withdraw(to, Why::Call).map(|()| None));
    }
    let mut moved = 0;
    while moved < count {
        // SAFETY: not null, and the caller guarantees that it is writable.
        let at = unsafe { *offset };
        let keep = KeepErrno::new();
        let result = connection.write_file(to, from, at, count - moved);
        drop(keep);
        match result {
            Ok(None) if moved == 0 => {
                return answer(connection.withdraw(to, Why::Call).map(|()| None));
            }
            Err(_) | Ok(None) if moved > 0 => break,
            Ok(Some(0)) => break,
            Ok(Some(step)) => {
                moved += step;
                // SAFETY: not null, and the caller guarantees that it is writable.
                unsafe { *offset += step as off_t };
            }
            other => return answer(other),
        }
    }
    Some(moved as ssize_t)
}

/// Copies from a connection into a pipe: peeks at bytes first, and takes as many as the pipe had
/// room for. `None` calls the real function.
fn splice_from(
    connection: &Connection,
    from: c_int,
    to: c_int,
    length: size_t,
    flags: c_uint,
) -> Option<ssize_t> {
    // SAFETY: the command has no argument.
    if unsafe { real::fcntl(to, libc::F_GETPIPE_SZ, 0) } < 0 {
        leave(from);
        return None;
    }
    let mut buffer = [0_u8; SPLICE_BYTES];
    let mut room = length.min(SPLICE_BYTES);
    // The flag applies to the pipe only: the socket waits as its own flags say.
    if flags & libc::SPLICE_F_NONBLOCK != 0 {
        if sys::poll_one(to, libc::POLLOUT, 0) & libc::POLLOUT == 0 {
            sys::set_errno(libc::EAGAIN);
            return Some(-1);
        }
        // A writable pipe has room for at least this many bytes.
        room = room.min(libc::PIPE_BUF);
    }
    let at: *mut c_void = buffer.as_mut_ptr().cast();
    // Another thread may close the descriptor while this one sleeps.
    let sleeper = connection.sleeper();
    let peeked = {
        let entry = iovec { iov_base: at, iov_len: room };
        // SAFETY: one entry is given; the buffer is a local variable.
        let mut cursor = unsafe { Cursor::new(&entry, 1) };
        let keep = KeepErrno::new();
        let result = connection.read(from, &mut cursor, Reading::splicing(connection));
        drop(keep);
        answer(result)?
    };
    let from = sleeper.as_ref().map_or(from, |sleeper| sleeper.descriptor(from));
    let Ok(found @ 1..) = usize::try_from(peeked) else { return Some(peeked) };
    // SAFETY: `found` bytes of the buffer are filled.
    let written = unsafe { real::write(to, at, found) };
    // The bytes may be in the socket and in the ring, and the descriptor may become plain
    // meanwhile.
    let mut left = usize::try_from(written).unwrap_or(0);
    while left > 0 {
        // SAFETY: the buffer has more than `left` bytes after `at`.
        let taken = unsafe { transfers::recv::<Library>(from, at, left, libc::MSG_DONTWAIT) };
        let Ok(taken @ 1..) = usize::try_from(taken) else { break };
        left -= taken;
    }
    Some(written)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn tee(from: c_int, to: c_int, length: size_t, flags: c_uint) -> ssize_t {
    leave(from);
    leave(to);
    // SAFETY: the arguments are the application's.
    unsafe { real::tee(from, to, length, flags) }
}

fn leave(fd: c_int) {
    if let Some(connection) = table::get::<Connection>(fd) {
        connection.leave(fd, Why::Call);
    }
}
