//! The functions of the C library that this library defines. Each looks its descriptor up. If the
//! descriptor has no object of this library, the hook calls the real function with the same
//! arguments.

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

/// Implements the hooks' traits of the shared crate for this library.
pub(crate) struct Library;

preload::descriptors!(Library);
preload::messages!(Library);
preload::options!(Library);
preload::readiness!(Library);
preload::sockets!(Library);
preload::system_calls!(Library);
preload::transfers!(Library);

/// Converts a result to the return value of a C function; `None` calls the real function.
fn answer(result: Result<Option<usize>>) -> Option<isize> {
    match result {
        Ok(moved) => moved.map(|moved| moved as isize),
        Err(Errno(errno)) => {
            sys::set_errno(errno);
            Some(-1)
        }
    }
}

/// Returns the failure of a call on one of the library's own descriptors, which the application has
/// not opened.
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
