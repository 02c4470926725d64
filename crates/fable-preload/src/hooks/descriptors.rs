//! Hooks for descriptors: closing, duplicating, status flags, and fdopen(3).

use core::ffi::{c_char, c_int, c_uint, c_void};

use preload::hooks::descriptors::Descriptors;
use preload::real;

use super::{Library, refused};
use crate::connection::Connection;
use crate::epoll::{self, Set};
use crate::rendezvous::{self, Listener};
use crate::statistics::Why;
use crate::{borrowed, sys, table};

impl Descriptors for Library {
    fn close(fd: c_int) -> Option<c_int> {
        // Refuses a close of the library's own descriptors: programs close ranges of numbers.
        let failure = refused(fd);
        if failure.is_none() {
            closing(fd);
        }
        failure
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> Option<c_int> {
        if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
            let (first, last) = (bounded(first), bounded(last));
            let row: Vec<c_int> =
                table::entries::<Connection>(first, last).map(|(fd, _)| fd).collect();
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
        duplicated(fd, new);
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
        // The C library's streams read and write without calling the hooks.
        if let Some(connection) = table::get::<Connection>(fd) {
            connection.leave(fd, Why::Call);
        }
        table::refuse(fd);
        None
    }

    fn exiting() {
        crate::finish();
    }
}

/// Called before a descriptor is closed, by whatever call: prepares its connection or set.
fn closing(fd: c_int) {
    if let Some(connection) = table::get::<Connection>(fd)
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

/// Called before a number is reused for another descriptor.
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

/// Gives a duplicate the state of its original.
fn duplicated(from: c_int, to: c_int) {
    if from == to || to < 0 {
        return;
    }
    match table::get::<Connection>(from) {
        // The executed program will have the duplicate.
        Some(connection) if borrowed::is_here() => connection.leave(from, Why::Execute),
        Some(connection) if table::covers(to) => table::put(to, connection),
        Some(connection) => connection.leave(from, Why::Descriptor),
        None if borrowed::is_here() => {}
        None => {
            if let Some(listener) = table::get::<Listener>(from) {
                table::put(to, listener);
            } else if let Some(set) = table::get::<Set>(from) {
                table::put(to, set);
            } else {
                table::duplicate_plain(from, to);
            }
        }
    }
}

/// Records that the file's status flags were set (F_SETFL).
fn note_status(fd: c_int, flags: c_int) {
    let asynchronous = flags & libc::O_ASYNC != 0;
    match table::get::<Connection>(fd) {
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
