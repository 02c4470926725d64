//! Defines the hooks for system calls by number (syscall(2)) and for the entry points of io_uring.

use super::descriptors::{self, Descriptors};
use super::messages::{self, Messages};
use super::options::{self, Options};
use super::readiness::{self, Readiness};
use super::sockets::{self, Sockets};
use super::transfers::{self, Transfers};
use super::types::*;
use crate::real;

/// The library's implementation of system calls that no other family handles, and of io_uring.
pub trait SystemCalls: Descriptors + Messages + Options + Readiness + Sockets + Transfers {
    /// syscall(2); `None`: the hook calls the real function.
    ///
    /// # Safety
    /// As syscall(2).
    unsafe fn call(number: c_long, arguments: [usize; 6]) -> Option<c_long>;

    /// Called before the functions of liburing that create a ring. Returns their result, or `None`:
    /// the hook calls the real function.
    fn before_liburing() -> Option<c_int>;
}

/// Looks a number up in a list of `SYS_name = function [types of its arguments];` and calls the
/// function with the arguments of syscall(2). Returns `None` if the number is not in the list.
#[macro_export]
macro_rules! calls {
    ($number:ident, $arguments:ident: $($system:ident = $function:path [$($kind:ty),*];)*) => {
        match $number {
            $(::libc::$system => {
                let mut next = $arguments.iter().copied();
                // SAFETY: the arguments are the application's, in the order of the kernel's call,
                // which is that of the function.
                Some(unsafe {
                    $function($(next.next().unwrap_or(0) as $kind),*)
                } as ::core::ffi::c_long)
            })*
            _ => None,
        }
    };
}

/// Calls the hook that corresponds to a system call on descriptors, and returns its result; `None`
/// if the number is not one of these.
fn on_descriptors<L: SystemCalls>(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    let done = crate::calls! { number, arguments:
        SYS_close = descriptors::close::<L> [c_int];
        SYS_close_range = descriptors::close_range::<L> [c_uint, c_uint, c_int];
        SYS_dup = descriptors::dup::<L> [c_int];
        SYS_dup3 = descriptors::dup3::<L> [c_int, c_int, c_int];
        SYS_fcntl = descriptors::fcntl::<L> [c_int, c_int, usize];
        SYS_socket = sockets::socket::<L> [c_int, c_int, c_int];
        SYS_listen = sockets::listen::<L> [c_int, c_int];
        SYS_connect = sockets::connect::<L> [c_int, *mut sockaddr, socklen_t];
        SYS_accept = sockets::accept::<L> [c_int, *mut sockaddr, *mut socklen_t];
        SYS_accept4 = sockets::accept4::<L> [c_int, *mut sockaddr, *mut socklen_t, c_int];
        SYS_shutdown = sockets::shutdown::<L> [c_int, c_int];
        SYS_read = transfers::read::<L> [c_int, *mut c_void, usize];
        SYS_write = transfers::write::<L> [c_int, *mut c_void, usize];
        SYS_readv = transfers::readv::<L> [c_int, *const iovec, c_int];
        SYS_writev = transfers::writev::<L> [c_int, *const iovec, c_int];
        SYS_recvfrom = transfers::recvfrom::<L> [c_int, *mut c_void, usize, c_int,
            *mut sockaddr, *mut socklen_t];
        SYS_sendto = transfers::sendto::<L> [c_int, *mut c_void, usize, c_int, *mut sockaddr,
            socklen_t];
        SYS_sendfile = transfers::sendfile::<L> [c_int, c_int, *mut off_t, usize];
        SYS_recvmsg = messages::recvmsg::<L> [c_int, *mut msghdr, c_int];
        SYS_sendmsg = messages::sendmsg::<L> [c_int, *mut msghdr, c_int];
        SYS_recvmmsg = messages::recvmmsg::<L> [c_int, *mut mmsghdr, c_uint, c_int,
            *mut timespec];
        SYS_sendmmsg = messages::sendmmsg::<L> [c_int, *mut mmsghdr, c_uint, c_int];
        SYS_ioctl = options::ioctl::<L> [c_int, usize, usize];
        SYS_setsockopt = options::setsockopt::<L> [c_int, c_int, c_int, *mut c_void, socklen_t];
        SYS_getsockopt = options::getsockopt::<L> [c_int, c_int, c_int, *mut c_void,
            *mut socklen_t];
        SYS_ppoll = readiness::ppoll::<L> [*mut pollfd, nfds_t, *const timespec,
            *const sigset_t];
        SYS_epoll_create1 = readiness::epoll_create1::<L> [c_int];
        SYS_epoll_ctl = readiness::epoll_ctl::<L> [c_int, c_int, c_int, *mut epoll_event];
        SYS_epoll_pwait = readiness::epoll_pwait::<L> [c_int, *mut epoll_event, c_int, c_int,
            *const sigset_t];
        SYS_epoll_pwait2 = readiness::epoll_pwait2::<L> [c_int, *mut epoll_event, c_int,
            *const timespec, *const sigset_t];
    };
    done.or_else(|| old_on_descriptors::<L>(number, arguments))
}

/// Like `on_descriptors`, for system calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
fn old_on_descriptors<L: SystemCalls>(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    crate::calls! { number, arguments:
        SYS_dup2 = descriptors::dup2::<L> [c_int, c_int];
        SYS_poll = readiness::poll::<L> [*mut pollfd, nfds_t, c_int];
        SYS_select = readiness::select::<L> [c_int, *mut fd_set, *mut fd_set, *mut fd_set,
            *mut timeval];
        SYS_epoll_wait = readiness::epoll_wait::<L> [c_int, *mut epoll_event, c_int, c_int];
        SYS_epoll_create = readiness::epoll_create::<L> [c_int];
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn old_on_descriptors<L: SystemCalls>(_: c_long, _: [usize; 6]) -> Option<c_long> {
    None
}

family! { $ system_calls L: SystemCalls;
    fn syscall(
        number: c_long,
        first: usize,
        second: usize,
        third: usize,
        fourth: usize,
        fifth: usize,
        sixth: usize,
    ) -> c_long {
        let arguments = [first, second, third, fourth, fifth, sixth];
        on_descriptors::<L>(number, arguments)
            .or_else(|| L::call(number, arguments))
            .unwrap_or_else(|| real::syscall(number, first, second, third, fourth, fifth, sixth))
    }

    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        L::before_liburing().unwrap_or_else(|| real::io_uring_queue_init(entries, ring, flags))
    }

    fn io_uring_queue_init_params(
        entries: c_uint,
        ring: *mut c_void,
        parameters: *mut c_void,
    ) -> c_int {
        L::before_liburing()
            .unwrap_or_else(|| real::io_uring_queue_init_params(entries, ring, parameters))
    }

    fn io_uring_queue_init_mem(
        entries: c_uint,
        ring: *mut c_void,
        parameters: *mut c_void,
        memory: *mut c_void,
        size: size_t,
    ) -> c_int {
        L::before_liburing().unwrap_or_else(|| {
            real::io_uring_queue_init_mem(entries, ring, parameters, memory, size)
        })
    }

    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int {
        L::before_liburing().unwrap_or_else(|| real::io_uring_setup(entries, parameters))
    }
}
