//! syscall(2), and the ways into io_uring.

use core::ffi::{c_int, c_long};
use preload::real;

use super::Library;
use crate::statistics::Why;
use crate::{settings, table};

/// The kernel will read and write sockets behind our back: all go back to TCP, and none is
/// upgraded.
fn using_io_uring() {
    settings::stop();
    for fd in table::connections(0, c_int::MAX) {
        if let Some(connection) = table::connection(fd) {
            connection.leave(fd, Why::IoUring);
        }
    }
}

/// What the function of the C library gives that stands for a system call; `None` if that is none
/// of ours.
fn by_function(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    preload::calls_on_descriptors!(Library, number, arguments)
}

/// Which of the arguments of another system call are descriptors, as bits.
fn descriptors(number: c_long) -> u32 {
    match number {
        libc::SYS_preadv2 | libc::SYS_pwritev2 => 0b001,
        libc::SYS_splice => 0b101,
        libc::SYS_tee => 0b011,
        _ => 0,
    }
}

/// Calls about many descriptors, or about all.
fn concerns_all(number: c_long) -> bool {
    matches!(number, libc::SYS_pselect6 | libc::SYS_execve | libc::SYS_execveat)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    if let Some(result) = by_function(number, [first, second, third, fourth, fifth, sixth]) {
        return result;
    }
    if number == libc::SYS_io_uring_setup {
        using_io_uring();
    }
    let which = descriptors(number);
    for (place, argument) in [first, second, third].into_iter().enumerate() {
        if which >> place & 1 != 0
            && let Some(connection) = table::connection(argument as c_int)
        {
            connection.leave(argument as c_int, Why::Call);
        }
    }
    if concerns_all(number) {
        for fd in table::connections(0, c_int::MAX) {
            if let Some(connection) = table::connection(fd) {
                connection.leave(fd, Why::Waiting);
            }
        }
    }
    // SAFETY: the arguments are the application's.
    unsafe { real::syscall(number, first, second, third, fourth, fifth, sixth) }
}

/// liburing enters the kernel by itself, but its users call one of these first.
fn before_liburing() -> Option<c_int> {
    using_io_uring();
    None
}

preload::liburing_functions!(before_liburing);
