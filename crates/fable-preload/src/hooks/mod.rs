//! The names of the C library that this library defines. Each looks the descriptor up and, unless
//! it is ours, calls the next definition with what it was given.

mod descriptors;
mod messages;
mod options;
mod processes;
mod readiness;
mod sockets;
mod system_call;
mod transfers;

use core::ffi::c_int;

use crate::connection::{Connection, Reading};
use crate::cursor::Cursor;
use crate::sys::{self, Errno, KeepErrno, Result};
use crate::table;

/// What this library does in the hooks that the preload libraries share.
pub(crate) struct Library;

preload::descriptors!(Library);
preload::messages!(Library);
preload::options!(Library);
preload::readiness!(Library);
preload::sockets!(Library);
preload::system_calls!(Library);
preload::transfers!(Library);

/// Turns a result into what a C function gives; `None` asks for the next definition.
fn answer(result: Result<Option<usize>>) -> Option<isize> {
    match result {
        Ok(moved) => moved.map(|moved| moved as isize),
        Err(Errno(errno)) => {
            sys::set_errno(errno);
            Some(-1)
        }
    }
}

/// For a descriptor of this library, which the application has not opened: what a call about it
/// gives.
fn refused<T: From<i8>>(fd: c_int) -> Option<T> {
    table::is_reserved(fd).then(|| {
        sys::set_errno(libc::EBADF);
        T::from(-1)
    })
}

fn read_from(
    connection: &Connection,
    fd: c_int,
    cursor: &mut Cursor,
    flags: c_int,
) -> Option<isize> {
    let keep = KeepErrno::new();
    let result = connection.read(fd, cursor, Reading::new(connection, flags));
    drop(keep);
    answer(result)
}

fn write_to(
    connection: &Connection,
    fd: c_int,
    cursor: &mut Cursor,
    flags: c_int,
) -> Option<isize> {
    let keep = KeepErrno::new();
    let result = connection.write(fd, cursor, flags);
    drop(keep);
    answer(result)
}
