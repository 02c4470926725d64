//! Descriptors: closing, duplicating, and turning them into something else.

use core::ffi::{c_char, c_int, c_uint, c_void};

use preload::hooks::descriptors::Descriptors;
use preload::real;

use super::{Library, refused};
use crate::connection::Connection;
use crate::statistics::Why;
use crate::{borrowed, epoll, rendezvous, sys, table};

impl Descriptors for Library {
    fn close(fd: c_int) -> Option<c_int> {
        // Programs close rows of numbers.
        let failure = refused(fd);
        if failure.is_none() {
            closing(fd);
        }
        failure
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> Option<c_int> {
        if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
            let (first, last) = (bounded(first), bounded(last));
            let row: Vec<c_int> = table::connections(first, last).map(|(fd, _)| fd).collect();
            row.into_iter().for_each(closing);
            table::forget_range(first, last);
        }
        None
    }

    fn duplicate(fd: c_int) -> Option<c_int> {
        refused(fd)
    }

    fn replace(fd: c_int, to: c_int) -> Option<c_int> {
        let failure = refused(fd);
        if failure.is_none() {
            make_way(fd, to);
        }
        failure
    }

    fn duplicated(fd: c_int, new: c_int) -> c_int {
        table::duplicate(fd, new);
        new
    }

    unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> Option<c_int> {
        if let Some(failure) = refused(fd) {
            return Some(failure);
        }
        if command != libc::F_SETFL {
            return None;
        }
        // SAFETY: the command takes a number.
        let result = unsafe { real::fcntl(fd, command, argument) };
        if result == 0 {
            note_status(fd, argument as c_int);
        }
        Some(result)
    }

    unsafe fn fdopen(fd: c_int, _: *const c_char) -> Option<*mut c_void> {
        // The streams of the C library read and write without asking us.
        if let Some(connection) = table::connection(fd) {
            connection.leave(fd, Why::Call);
        }
        table::refuse(fd);
        None
    }

    fn exiting() {
        crate::finish();
    }
}

/// What is due before a descriptor is closed, by whatever call.
fn closing(fd: c_int) {
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

fn bounded(fd: c_uint) -> c_int {
    c_int::try_from(fd).unwrap_or(c_int::MAX)
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

/// The file's status flags were set (F_SETFL).
fn note_status(fd: c_int, flags: c_int) {
    let asynchronous = flags & libc::O_ASYNC != 0;
    match table::connection(fd) {
        Some(connection) => {
            connection.own().set_nonblocking(flags & libc::O_NONBLOCK != 0);
            if asynchronous {
                connection.leave(fd, Why::Waiting);
            }
        }
        None if asynchronous => table::refuse(fd),
        None => {}
    }
}
