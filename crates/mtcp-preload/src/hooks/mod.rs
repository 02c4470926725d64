//! The C library's functions, by what they are about. Each looks at the descriptor first.
//!
//! Functions here have the names and contracts of the C library's: pointers are the application's,
//! valid as the man page of the function asks.

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

/// What this library does in the hooks that the preload libraries share.
pub(crate) struct Library;

preload::descriptors!(Library);
preload::messages!(Library);
preload::options!(Library);
preload::readiness!(Library);
preload::sockets!(Library);
preload::system_calls!(Library);
preload::transfers!(Library);

/// The stack's socket of a number, if it is one.
fn socket(fd: c_int) -> Option<Handle> {
    match table::kind(fd) {
        Kind::Socket(socket) => Some(socket),
        _ => None,
    }
}

/// Sends by the stack's socket of a number, if it is one. A child sends on a connection of its
/// parent in vain: the kernel's socket behind the number would answer with a signal.
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
