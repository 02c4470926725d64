//! System calls by number (syscall(2)) that a preload library answers as its function of that name.

/// Looks a number up in a list of `SYS_name = function [types of its arguments];` and calls the
/// function with the arguments of syscall(2); `None` if the number is not in the list.
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

/// What the function of the C library gives that stands for a system call on descriptors; `None`
/// if the number is none of these.
#[macro_export]
macro_rules! calls_on_descriptors {
    ($library:ty, $number:ident, $arguments:ident) => {{
        use $crate::hooks::{descriptors, messages, options, readiness, sockets, transfers};
        use ::core::ffi::{c_int, c_uint, c_void};
        use ::libc::{epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd};
        use ::libc::{sigset_t, sockaddr, socklen_t, timespec, timeval};
        #[cfg(target_arch = "x86_64")]
        let old = $crate::calls! { $number, $arguments:
            SYS_dup2 = descriptors::dup2::<$library> [c_int, c_int];
            SYS_poll = readiness::poll::<$library> [*mut pollfd, nfds_t, c_int];
            SYS_select = readiness::select::<$library> [c_int, *mut fd_set, *mut fd_set, *mut fd_set,
                *mut timeval];
            SYS_epoll_wait = readiness::epoll_wait::<$library> [c_int, *mut epoll_event, c_int, c_int];
            SYS_epoll_create = readiness::epoll_create::<$library> [c_int];
        };
        #[cfg(not(target_arch = "x86_64"))]
        let old = None;
        old.or_else(|| {
            $crate::calls! { $number, $arguments:
                SYS_close = descriptors::close::<$library> [c_int];
                SYS_close_range = descriptors::close_range::<$library> [c_uint, c_uint, c_int];
                SYS_dup = descriptors::dup::<$library> [c_int];
                SYS_dup3 = descriptors::dup3::<$library> [c_int, c_int, c_int];
                SYS_fcntl = descriptors::fcntl::<$library> [c_int, c_int, usize];
                SYS_socket = sockets::socket::<$library> [c_int, c_int, c_int];
                SYS_listen = sockets::listen::<$library> [c_int, c_int];
                SYS_connect = sockets::connect::<$library> [c_int, *mut sockaddr, socklen_t];
                SYS_accept = sockets::accept::<$library> [c_int, *mut sockaddr, *mut socklen_t];
                SYS_accept4 = sockets::accept4::<$library> [c_int, *mut sockaddr, *mut socklen_t, c_int];
                SYS_shutdown = sockets::shutdown::<$library> [c_int, c_int];
                SYS_read = transfers::read::<$library> [c_int, *mut c_void, usize];
                SYS_write = transfers::write::<$library> [c_int, *mut c_void, usize];
                SYS_readv = transfers::readv::<$library> [c_int, *const iovec, c_int];
                SYS_writev = transfers::writev::<$library> [c_int, *const iovec, c_int];
                SYS_recvfrom = transfers::recvfrom::<$library> [c_int, *mut c_void, usize, c_int,
                    *mut sockaddr, *mut socklen_t];
                SYS_sendto = transfers::sendto::<$library> [c_int, *mut c_void, usize, c_int, *mut sockaddr,
                    socklen_t];
                SYS_sendfile = transfers::sendfile::<$library> [c_int, c_int, *mut off_t, usize];
                SYS_recvmsg = messages::recvmsg::<$library> [c_int, *mut msghdr, c_int];
                SYS_sendmsg = messages::sendmsg::<$library> [c_int, *mut msghdr, c_int];
                SYS_recvmmsg = messages::recvmmsg::<$library> [c_int, *mut mmsghdr, c_uint, c_int,
                    *mut timespec];
                SYS_sendmmsg = messages::sendmmsg::<$library> [c_int, *mut mmsghdr, c_uint, c_int];
                SYS_ioctl = options::ioctl::<$library> [c_int, usize, usize];
                SYS_setsockopt = options::setsockopt::<$library> [c_int, c_int, c_int, *mut c_void, socklen_t];
                SYS_getsockopt = options::getsockopt::<$library> [c_int, c_int, c_int, *mut c_void,
                    *mut socklen_t];
                SYS_ppoll = readiness::ppoll::<$library> [*mut pollfd, nfds_t, *const timespec,
                    *const sigset_t];
                SYS_epoll_create1 = readiness::epoll_create1::<$library> [c_int];
                SYS_epoll_ctl = readiness::epoll_ctl::<$library> [c_int, c_int, c_int, *mut epoll_event];
                SYS_epoll_pwait = readiness::epoll_pwait::<$library> [c_int, *mut epoll_event, c_int, c_int,
                    *const sigset_t];
                SYS_epoll_pwait2 = readiness::epoll_pwait2::<$library> [c_int, *mut epoll_event, c_int,
                    *const timespec, *const sigset_t];
            }
        })
    }};
}

/// Defines the functions of liburing that make a ring. What `$before` gives is their result; if
/// that is `None`, they call the next definition.
#[macro_export]
macro_rules! liburing_functions {
    ($before:ident) => {
        $crate::liburing_functions! { $before:
            io_uring_queue_init = c"io_uring_queue_init"
                (entries: core::ffi::c_uint, ring: *mut core::ffi::c_void,
                 flags: core::ffi::c_uint);
            io_uring_queue_init_params = c"io_uring_queue_init_params"
                (entries: core::ffi::c_uint, ring: *mut core::ffi::c_void,
                 parameters: *mut core::ffi::c_void);
            io_uring_queue_init_mem = c"io_uring_queue_init_mem"
                (entries: core::ffi::c_uint, ring: *mut core::ffi::c_void,
                 parameters: *mut core::ffi::c_void, memory: *mut core::ffi::c_void, size: usize);
            io_uring_setup = c"io_uring_setup"
                (entries: core::ffi::c_uint, parameters: *mut core::ffi::c_void);
        }
    };
    ($before:ident: $($name:ident = $symbol:literal ($($argument:ident: $kind:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> core::ffi::c_int {
            static NEXT: $crate::real::Symbol = $crate::real::Symbol::new($symbol);
            if let Some(result) = $before() {
                return result;
            }
            // SAFETY: liburing defines this name with this signature, or a function that fails
            // stands for it; the arguments are the application's.
            unsafe {
                let next: unsafe extern "C" fn($($kind),*) -> core::ffi::c_int =
                    core::mem::transmute(NEXT.address());
                next($($argument),*)
            }
        }
    )*};
}
