//! Hooks for syscall(2) and the entry points of io_uring.

use core::ffi::{c_int, c_long};
use preload::hooks::system_calls::SystemCalls;

use super::Library;
use crate::connection::Connection;
use crate::statistics::Why;
use crate::{settings, table};

/// Returns all connections to TCP and stops upgrades, because io_uring reads and writes sockets
/// without calling this library.
fn using_io_uring() {
    settings::stop();
    for (fd, connection) in table::entries::<Connection>(0, c_int::MAX) {
        connection.leave(fd, Why::IoUring);
    }
}

/// Returns which arguments of another system call are descriptors, as bits.
fn descriptors(number: c_long) -> u32 {
    match number {
        libc::SYS_preadv2 | libc::SYS_pwritev2 => 0b001,
        libc::SYS_splice => 0b101,
        libc::SYS_tee => 0b011,
        _ => 0,
    }
}

/// Returns whether a system call concerns many descriptors, or all.
fn concerns_all(number: c_long) -> bool {
    matches!(number, libc::SYS_pselect6 | libc::SYS_execve | libc::SYS_execveat)
}

impl SystemCalls for Library {
    unsafe fn call(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
        if number == libc::SYS_io_uring_setup {
            using_io_uring();
        }
        let which = descriptors(number);
        for (place, argument) in arguments.into_iter().enumerate() {
            if which >> place & 1 != 0
                && let Some(connection) = table::get::<Connection>(argument as c_int)
            {
                connection.leave(argument as c_int, Why::Call);
            }
        }
        if concerns_all(number) {
            for (fd, connection) in table::entries::<Connection>(0, c_int::MAX) {
                connection.leave(fd, Why::Waiting);
            }
        }
        None
    }

    /// Called before the first function of liburing that a program calls, because liburing makes
    /// its system calls itself.
    fn before_liburing() -> Option<c_int> {
        using_io_uring();
        None
    }
}
