//! Descriptors: closing, duplicating, and turning them into something else.

use core::ffi::{c_char, c_int, c_uint, c_void};
use preload::real;

use super::refused;
use crate::connection::Connection;
use crate::statistics::Why;
use crate::{borrowed, epoll, rendezvous, sys, table};

/// What is due before a descriptor is closed, by whatever call.
pub(super) fn closing(fd: c_int) {
    if let Some(connection) = table::connection(fd)
        && !borrowed::is_here()
    {
        let _keep = sys::KeepErrno::new();
        Connection::keep_for_sleepers(&connection, fd);
        epoll::closing(&connection, fd);
        connection.before_close(fd);
    }
    table::forget(fd);
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close(fd: c_int) -> c_int {
    // Programs close rows of numbers.
    if let Some(failure) = refused(fd) {
        return failure;
    }
    closing(fd);
    // SAFETY: the arguments are the application's, as in all functions here.
    unsafe { real::close(fd) }
}

fn close_row(first: c_uint, last: c_uint) {
    let (first, last) = (bounded(first), bounded(last));
    let row: Vec<c_int> = table::connections(first, last).collect();
    row.into_iter().for_each(closing);
    table::forget_range(first, last);
}

fn bounded(fd: c_uint) -> c_int {
    c_int::try_from(fd).unwrap_or(c_int::MAX)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 4;
    if flags & CLOEXEC == 0 {
        close_row(first, last);
    }
    // SAFETY: as above.
    unsafe { real::close_range(first, last, flags) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn closefrom(first: c_int) {
    close_row(first.max(0) as c_uint, c_uint::MAX);
    // SAFETY: as above.
    unsafe { real::closefrom(first) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup(fd: c_int) -> c_int {
    if let Some(failure) = refused(fd) {
        return failure;
    }
    // SAFETY: as above.
    let to = unsafe { real::dup(fd) };
    table::duplicate(fd, to);
    to
}

/// Before a number is taken for another descriptor.
fn make_way(fd: c_int, to: c_int) {
    if fd == to || table::is_foreign(to) && !table::is_reserved(to) {
        return;
    }
    if table::is_reserved(to) && !borrowed::is_here() {
        rendezvous::move_aside(to);
    } else {
        closing(to);
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    if let Some(failure) = refused(fd) {
        return failure;
    }
    make_way(fd, to);
    // SAFETY: as above.
    let result = unsafe { real::dup2(fd, to) };
    table::duplicate(fd, result);
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if let Some(failure) = refused(fd) {
        return failure;
    }
    make_way(fd, to);
    // SAFETY: as above.
    let result = unsafe { real::dup3(fd, to, flags) };
    table::duplicate(fd, result);
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if let Some(failure) = refused(fd) {
        return failure;
    }
    // SAFETY: as above. An argument that the application did not give is not looked at.
    let result = unsafe { real::fcntl(fd, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => table::duplicate(fd, result),
        libc::F_SETFL if result == 0 => {
            if let Some(connection) = table::connection(fd) {
                let flags = argument as c_int;
                connection.own().set_nonblocking(flags & libc::O_NONBLOCK != 0);
                if flags & libc::O_ASYNC != 0 {
                    connection.leave(fd, Why::Waiting);
                }
            } else if argument as c_int & libc::O_ASYNC != 0 {
                table::refuse(fd);
            }
        }
        _ => (),
    }
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: as above.
    unsafe { fcntl(fd, command, argument) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
    // The streams of the C library read and write without asking us.
    if let Some(connection) = table::connection(fd) {
        connection.leave(fd, Why::Call);
    }
    table::refuse(fd);
    // SAFETY: as above.
    unsafe { real::fdopen(fd, mode) }
}
