//! syscall(2), and the ways into io_uring.

use core::ffi::{c_int, c_long, c_uint, c_void};

use crate::statistics::Why;
use crate::{settings, table};
use real::Symbol;

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

/// Calls by number that are answered as the function of that name is; the types of its arguments.
macro_rules! calls {
    ($number:ident, $arguments:ident: $($system:ident = $function:path [$($kind:ty),*];)*) => {
        match $number {
            $(libc::$system => {
                let mut next = $arguments.iter().copied();
                // SAFETY: the arguments are the application's, in the order of the kernel's call,
                // which is that of the function.
                Some(unsafe { $function($(next.next().unwrap_or(0) as $kind),*) } as c_long)
            })*
            _ => None,
        }
    };
}

/// What the function of the C library gives that stands for a system call; `None` if that is none
/// of ours.
fn by_function(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    use super::{descriptors as fd, messages, options, readiness, sockets, transfers};
    type Data = *mut c_void;
    type Parts = *const libc::iovec;
    type Name = *mut libc::sockaddr;
    type Size = *mut libc::socklen_t;
    #[cfg(target_arch = "x86_64")]
    let old = calls! { number, arguments:
        SYS_dup2 = fd::dup2 [c_int, c_int];
        SYS_poll = readiness::poll [*mut libc::pollfd, libc::nfds_t, c_int];
        SYS_select = readiness::select [c_int, *mut libc::fd_set, *mut libc::fd_set,
            *mut libc::fd_set, *mut libc::timeval];
        SYS_epoll_wait = readiness::epoll_wait [c_int, *mut libc::epoll_event, c_int, c_int];
        SYS_epoll_create = readiness::epoll_create [c_int];
    };
    #[cfg(not(target_arch = "x86_64"))]
    let old = None;
    old.or_else(|| {
        calls! { number, arguments:
            SYS_close = fd::close [c_int];
            SYS_close_range = fd::close_range [c_uint, c_uint, c_int];
            SYS_dup = fd::dup [c_int];
            SYS_dup3 = fd::dup3 [c_int, c_int, c_int];
            SYS_fcntl = fd::fcntl [c_int, c_int, usize];
            SYS_socket = sockets::socket [c_int, c_int, c_int];
            SYS_listen = sockets::listen [c_int, c_int];
            SYS_connect = sockets::connect [c_int, Name, libc::socklen_t];
            SYS_accept = sockets::accept [c_int, Name, Size];
            SYS_accept4 = sockets::accept4 [c_int, Name, Size, c_int];
            SYS_shutdown = sockets::shutdown [c_int, c_int];
            SYS_read = transfers::read [c_int, Data, usize];
            SYS_write = transfers::write [c_int, Data, usize];
            SYS_readv = transfers::readv [c_int, Parts, c_int];
            SYS_writev = transfers::writev [c_int, Parts, c_int];
            SYS_recvfrom = transfers::recvfrom [c_int, Data, usize, c_int, Name, Size];
            SYS_sendto = transfers::sendto [c_int, Data, usize, c_int, Name, libc::socklen_t];
            SYS_sendfile = transfers::sendfile [c_int, c_int, *mut libc::off_t, usize];
            SYS_recvmsg = messages::recvmsg [c_int, *mut libc::msghdr, c_int];
            SYS_sendmsg = messages::sendmsg [c_int, *mut libc::msghdr, c_int];
            SYS_recvmmsg = messages::recvmmsg [c_int, *mut libc::mmsghdr, c_uint, c_int,
                *mut libc::timespec];
            SYS_sendmmsg = messages::sendmmsg [c_int, *mut libc::mmsghdr, c_uint, c_int];
            SYS_ioctl = options::ioctl [c_int, usize, usize];
            SYS_setsockopt = options::setsockopt [c_int, c_int, c_int, Data, libc::socklen_t];
            SYS_getsockopt = options::getsockopt [c_int, c_int, c_int, Data, Size];
            SYS_ppoll = readiness::ppoll [*mut libc::pollfd, libc::nfds_t, *const libc::timespec,
                *const libc::sigset_t];
            SYS_epoll_create1 = readiness::epoll_create1 [c_int];
            SYS_epoll_ctl = readiness::epoll_ctl [c_int, c_int, c_int, *mut libc::epoll_event];
            SYS_epoll_pwait = readiness::epoll_pwait [c_int, *mut libc::epoll_event, c_int, c_int,
                *const libc::sigset_t];
            SYS_epoll_pwait2 = readiness::epoll_pwait2 [c_int, *mut libc::epoll_event, c_int,
                *const libc::timespec, *const libc::sigset_t];
        }
    })
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

macro_rules! liburing {
    ($($name:ident = $symbol:literal ($($argument:ident: $kind:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            static NEXT: Symbol = Symbol::new($symbol);
            using_io_uring();
            // SAFETY: liburing defines this name with this signature, or a function that fails
            // stands for it; the arguments are the application's.
            unsafe {
                let next: unsafe extern "C" fn($($kind),*) -> c_int =
                    core::mem::transmute(NEXT.address());
                next($($argument),*)
            }
        }
    )*};
}

// liburing enters the kernel by itself; but whoever uses the library calls one of these first.
liburing! {
    io_uring_queue_init = c"io_uring_queue_init"
        (entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params = c"io_uring_queue_init_params"
        (entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
    io_uring_queue_init_mem = c"io_uring_queue_init_mem"
        (entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void,
         size: usize);
    io_uring_setup = c"io_uring_setup" (entries: c_uint, parameters: *mut c_void);
}
