//! Implements the hooks for syscall(2) and the entry points of io_uring.

use super::{Library, numbers, sockets};
use crate::outcome::{failure, long};
use crate::{report, settings};
use core::ffi::{c_char, c_int, c_long, c_uint};
use libc::{fd_set, iovec, off_t, sigset_t, size_t, sockaddr, socklen_t, timespec};
use preload::hooks::system_calls::SystemCalls;
use preload::hooks::{descriptors, readiness, transfers};

/// Calls the function of this library that corresponds to a system call; `None` if there is none.
fn by_function(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    let done = preload::calls! { number, arguments:
        SYS_bind = sockets::bind [c_int, *const sockaddr, socklen_t];
        SYS_getsockname = sockets::getsockname [c_int, *mut sockaddr, *mut socklen_t];
        SYS_getpeername = sockets::getpeername [c_int, *mut sockaddr, *mut socklen_t];
        SYS_splice = transfers::splice::<Library> [c_int, *mut off_t, c_int, *mut off_t, size_t,
            c_uint];
        SYS_preadv2 = preadv2 [c_int, *const iovec, c_int, off_t, usize, c_int];
        SYS_pwritev2 = pwritev2 [c_int, *const iovec, c_int, off_t, usize, c_int];
        SYS_pselect6 = pselect6 [c_int, *mut fd_set, *mut fd_set, *mut fd_set,
            *const timespec, *const Mask];
        SYS_openat = numbers::openat [c_int, *const c_char, c_int, c_uint];
        SYS_pipe2 = numbers::pipe2 [*mut c_int, c_int];
        SYS_socketpair = numbers::socketpair [c_int, c_int, c_int, *mut c_int];
        SYS_eventfd2 = numbers::eventfd [c_uint, c_int];
        SYS_timerfd_create = numbers::timerfd_create [c_int, c_int];
        SYS_inotify_init1 = numbers::inotify_init1 [c_int];
        SYS_memfd_create = numbers::memfd_create [*const c_char, c_uint];
    };
    done.or_else(|| old_by_function(number, arguments))
}

#[cfg(target_arch = "x86_64")]
fn old_by_function(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    preload::calls! { number, arguments:
        SYS_open = numbers::open [*const c_char, c_int, c_uint];
        SYS_creat = numbers::creat [*const c_char, c_uint];
        SYS_pipe = numbers::pipe [*mut c_int];
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn old_by_function(_: c_long, _: [usize; 6]) -> Option<c_long> {
    None
}

/// Calls preadv2(2). The system call has the offset in two registers, of which the first is enough.
unsafe fn preadv2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    at: off_t,
    _high: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the application's arguments, valid as the manual page requires.
    unsafe { transfers::preadv2::<Library>(fd, list, count, at, flags) }
}

unsafe fn pwritev2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    at: off_t,
    _high: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the application's arguments, as pwritev2(2) asks.
    unsafe { transfers::pwritev2::<Library>(fd, list, count, at, flags) }
}

/// The last argument of pselect6(2).
#[repr(C)]
struct Mask {
    mask: *const sigset_t,
    size: size_t,
}

unsafe fn pselect6(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *const timespec,
    mask: *const Mask,
) -> c_int {
    // SAFETY: the pointer is null or valid, as pselect6(2) requires.
    let mask = unsafe { mask.as_ref() }.map_or(core::ptr::null(), |mask| mask.mask);
    // SAFETY: the application's arguments, as pselect6(2) asks.
    unsafe { readiness::pselect::<Library>(count, readable, writable, exceptional, timeout, mask) }
}

impl SystemCalls for Library {
    unsafe fn call(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
        match number {
            libc::SYS_io_uring_setup if settings::config().is_some() => {
                Some(refuse_io_uring() as c_long)
            }
            // SAFETY: the call takes only a number, and does not return.
            libc::SYS_exit_group => unsafe { descriptors::_exit::<Library>(arguments[0] as c_int) },
            _ => by_function(number, arguments),
        }
    }

    /// Called before the first function of liburing that a program calls, because liburing makes
    /// its system calls itself.
    fn before_liburing() -> Option<c_int> {
        settings::config()?;
        refuse_io_uring();
        Some(-libc::ENOSYS)
    }
}

/// Refuses io_uring, because the kernel would read, write and close the stack's numbers without
/// calling this library. A program that finds no io_uring works without it.
fn refuse_io_uring() -> isize {
    report::note(format_args!("io_uring beside the stack: ENOSYS"));
    long(failure(libc::ENOSYS))
}
