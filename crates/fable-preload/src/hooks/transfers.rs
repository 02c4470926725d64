//! Reading and writing.

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

/// Flags for recv(2) that concern what only the kernel knows.
const KERNEL_RECEIVES: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE;
/// As much as a pipe holds.
const SPLICE_BYTES: usize = 65536;

/// Flags for send(2) that a ring cannot honour.
const KERNEL_SENDS: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

impl Transfers for Library {
    unsafe fn receive(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> Option<ssize_t> {
        let Some(connection) = table::connection(fd) else { return refused(fd) };
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
        let Some(connection) = table::connection(fd) else { return refused(fd) };
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
            // Into no room readv(2) reads nothing, as read(2).
            return None;
        }
        // SAFETY: as above; a negative count is refused by the kernel.
        unsafe { receive_many(fd, list, count as usize, 0) }
    }

    unsafe fn write_list(fd: c_int, list: *const iovec, count: c_int) -> Option<ssize_t> {
        // SAFETY: the list is the application's.
        if !table::is_foreign(fd) && unsafe { has_no_room(list, count) } {
            // Of nothing writev(2) writes nothing, and tells no error.
            return None;
        }
        // SAFETY: as above.
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
            && let Some(connection) = table::connection(to)
            && let Some(failure) = answer(connection.withdraw(to, Why::Call).map(|()| None))
        {
            return Some(failure);
        }
        let connection = table::connection(from)?;
        if connection.may_hold_bytes(from) && from_at.is_null() && to_at.is_null() && length > 0 {
            splice_from(&connection, from, to, length, flags)
        } else {
            None
        }
    }
}

/// Reads into a list of buffers; `None` asks for the next definition.
///
/// # Safety
/// The list has `count` entries.
pub(super) unsafe fn receive_many(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<ssize_t> {
    let Some(connection) = table::connection(fd) else { return refused(fd) };
    if flags & KERNEL_RECEIVES != 0 || count > 1024 {
        return None;
    }
    // SAFETY: promised by the caller.
    let mut cursor = unsafe { Cursor::new(list, count) };
    read_from(&connection, fd, &mut cursor, flags)
}

/// Writes from a list of buffers; `None` asks for the next definition.
///
/// # Safety
/// The list has `count` entries.
pub(super) unsafe fn send_many(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<ssize_t> {
    let Some(connection) = table::connection(fd) else { return refused(fd) };
    if flags & KERNEL_SENDS != 0 || count > 1024 {
        return answer(connection.withdraw(fd, Why::Call).map(|()| None));
    }
    // SAFETY: promised by the caller.
    let mut cursor = unsafe { Cursor::new(list, count) };
    write_to(&connection, fd, &mut cursor, flags)
}

/// # Safety
/// The list has `count` entries.
unsafe fn has_no_room(list: *const iovec, count: c_int) -> bool {
    let entries = usize::try_from(count).unwrap_or(0).min(1024);
    // SAFETY: promised by the caller.
    (0..entries).all(|index| unsafe { (*list.add(index)).iov_len } == 0)
}

/// Copies straight from the file into the ring; what the ring has no room for waits as a write
/// does.
///
/// # Safety
/// `offset` is null or can be written.
unsafe fn send_file(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> Option<ssize_t> {
    if count == 0 {
        // Nothing is to be sent; the kernel says what it says of that.
        return None;
    }
    let connection = table::connection(to)?;
    if offset.is_null() || !connection.own().is_nonblocking() {
        return answer(connection.withdraw(to, Why::Call).map(|()| None));
    }
    let mut moved = 0;
    while moved < count {
        // SAFETY: not null, and promised by the caller.
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
                // SAFETY: as above.
                unsafe { *offset += step as off_t };
            }
            other => return answer(other),
        }
    }
    Some(moved as ssize_t)
}

/// Copies from a connection into a pipe: what is peeked at is taken as far as the pipe had room.
/// `None` asks for the next definition.
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
    // For the pipe only: the socket waits as its own flags say.
    if flags & libc::SPLICE_F_NONBLOCK != 0 {
        if sys::poll_one(to, libc::POLLOUT, 0) & libc::POLLOUT == 0 {
            sys::set_errno(libc::EAGAIN);
            return Some(-1);
        }
        // A pipe that is writable has room for so many bytes.
        room = room.min(libc::PIPE_BUF);
    }
    let at: *mut c_void = buffer.as_mut_ptr().cast();
    // Another thread may close the descriptor while this one sleeps.
    let sleeper = connection.sleeper();
    let peeked = {
        let entry = iovec { iov_base: at, iov_len: room };
        // SAFETY: one entry is given; the buffer is ours.
        let mut cursor = unsafe { Cursor::new(&entry, 1) };
        let keep = KeepErrno::new();
        let result = connection.read(from, &mut cursor, Reading::splicing(connection));
        drop(keep);
        answer(result)?
    };
    let from = sleeper.as_ref().map_or(from, |sleeper| sleeper.descriptor(from));
    let Ok(found @ 1..) = usize::try_from(peeked) else { return Some(peeked) };
    // SAFETY: so many bytes of the buffer are filled.
    let written = unsafe { real::write(to, at, found) };
    // The bytes may lie in the socket and in the ring, and the descriptor may become plain between.
    let mut left = usize::try_from(written).unwrap_or(0);
    while left > 0 {
        // SAFETY: so many bytes of the buffer are filled.
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
    if let Some(connection) = table::connection(fd) {
        connection.leave(fd, Why::Call);
    }
}
