//! Implements the functions of the C library that this library interposes, by subject. Each first
//! looks its descriptor up in the table.
//!
//! The functions have the names and contracts of the C library's: pointers are the application's,
//! valid as the function's manual page requires.

mod descriptors;
mod messages;
mod numbers;
mod options;
mod readiness;
mod sockets;
mod streams;
mod system_call;
mod transfers;

use crate::outcome::{failure, long};
use crate::report;
use crate::table::{self, Handle, Kind};
use core::ffi::c_int;

/// The implementation of the hooks that the preload libraries share.
pub(crate) struct Library;

preload::descriptors!(Library);
preload::messages!(Library);
preload::options!(Library);
preload::readiness!(Library);
preload::sockets!(Library);
preload::system_calls!(Library);
preload::transfers!(Library);

/// Returns the stack's socket of a number, if it is one.
fn socket(fd: c_int) -> Option<Handle> {
    match table::kind(fd) {
        Kind::Socket(socket) => Some(socket),
        _ => None,
    }
}

/// Sends with the stack's socket of a number, if it is one. In a child, sending on a connection of
/// its parent fails here, because the kernel socket behind the number would raise a signal.
fn send_with(fd: c_int, send: impl FnOnce(Handle) -> isize) -> Option<isize> {
    match table::kind(fd) {
        Kind::Socket(socket) => Some(send(socket)),
        Kind::Inherited => {
            report::note(format_args!("descriptor {fd} is a connection of the parent's: ENOTCONN"));
            Some(long(failure(libc::ENOTCONN)))
        }
        _ => None,
    }
}
