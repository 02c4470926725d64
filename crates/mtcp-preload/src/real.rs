//! The functions that this library stands in front of: the next definition of each name.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

/// A name whose next definition is looked up once.
struct Symbol {
    name: &'static CStr,
    address: AtomicUsize,
}

/// Stands for a function that this C library lacks.
extern "C" fn missing() -> ssize_t {
    crate::outcome::set_errno(libc::ENOSYS);
    -1
}

impl Symbol {
    const fn new(name: &'static CStr) -> Self {
        Symbol { name, address: AtomicUsize::new(0) }
    }

    fn address(&self) -> usize {
        let known = self.address.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        // SAFETY: the name ends with zero, and RTLD_NEXT is a valid pseudo handle.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        let address = if found == 0 { missing as *const () as usize } else { found };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

macro_rules! next {
    ($($function:ident = $name:literal ($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        pub(crate) unsafe fn $function($($argument: $kind),*) -> $result {
            static NEXT: Symbol = Symbol::new($name);
            type Function = unsafe extern "C" fn($($kind),*) -> $result;
            // SAFETY: the C library defines this name with this signature, or `missing` stands
            // for it; and the caller keeps to the contract of the C function.
            unsafe { core::mem::transmute::<usize, Function>(NEXT.address())($($argument),*) }
        }
    )*};
}

type Pointer = *mut c_void;
type Bytes = *const c_void;

next! {
    read = c"read" (fd: c_int, to: Pointer, length: size_t) -> ssize_t;
    write = c"write" (fd: c_int, from: Bytes, length: size_t) -> ssize_t;
    readv = c"readv" (fd: c_int, list: *const iovec, count: c_int) -> ssize_t;
    writev = c"writev" (fd: c_int, list: *const iovec, count: c_int) -> ssize_t;
    recv = c"recv" (fd: c_int, to: Pointer, length: size_t, flags: c_int) -> ssize_t;
    send = c"send" (fd: c_int, from: Bytes, length: size_t, flags: c_int) -> ssize_t;
    recvfrom = c"recvfrom" (fd: c_int, to: Pointer, length: size_t, flags: c_int,
        address: *mut sockaddr, size: *mut socklen_t) -> ssize_t;
    sendto = c"sendto" (fd: c_int, from: Bytes, length: size_t, flags: c_int,
        address: *const sockaddr, size: socklen_t) -> ssize_t;
    recvmsg = c"recvmsg" (fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    sendmsg = c"sendmsg" (fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    recvmmsg = c"recvmmsg" (fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int,
        timeout: *mut timespec) -> c_int;
    sendmmsg = c"sendmmsg"
        (fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile = c"sendfile64"
        (to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice = c"splice" (from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t,
        length: size_t, flags: c_uint) -> ssize_t;
    socket = c"socket" (family: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind = c"bind" (fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int;
    listen = c"listen" (fd: c_int, backlog: c_int) -> c_int;
    connect = c"connect" (fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int;
    accept4 = c"accept4"
        (fd: c_int, address: *mut sockaddr, size: *mut socklen_t, flags: c_int) -> c_int;
    shutdown = c"shutdown" (fd: c_int, how: c_int) -> c_int;
    getsockname = c"getsockname"
        (fd: c_int, address: *mut sockaddr, size: *mut socklen_t) -> c_int;
    getpeername = c"getpeername"
        (fd: c_int, address: *mut sockaddr, size: *mut socklen_t) -> c_int;
    getsockopt = c"getsockopt" (fd: c_int, level: c_int, name: c_int, value: Pointer,
        size: *mut socklen_t) -> c_int;
    setsockopt = c"setsockopt"
        (fd: c_int, level: c_int, name: c_int, value: Bytes, size: socklen_t) -> c_int;
    close = c"close" (fd: c_int) -> c_int;
    close_range = c"close_range" (first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup = c"dup" (fd: c_int) -> c_int;
    dup2 = c"dup2" (fd: c_int, to: c_int) -> c_int;
    dup3 = c"dup3" (fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl = c"fcntl64" (fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl = c"ioctl" (fd: c_int, request: usize, argument: usize) -> c_int;
    fdopen = c"fdopen" (fd: c_int, mode: *const c_char) -> Pointer;
    poll = c"poll" (list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    ppoll = c"ppoll" (list: *mut pollfd, count: nfds_t, timeout: *const timespec,
        mask: *const sigset_t) -> c_int;
    select = c"select" (count: c_int, readable: *mut fd_set, writable: *mut fd_set,
        exceptional: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect = c"pselect" (count: c_int, readable: *mut fd_set, writable: *mut fd_set,
        exceptional: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create1 = c"epoll_create1" (flags: c_int) -> c_int;
    epoll_ctl = c"epoll_ctl"
        (set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_pwait = c"epoll_pwait" (set: c_int, events: *mut epoll_event, count: c_int,
        timeout_ms: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2 = c"epoll_pwait2" (set: c_int, events: *mut epoll_event, count: c_int,
        timeout: *const timespec, mask: *const sigset_t) -> c_int;
    exit_now = c"_exit" (status: c_int) -> ();
}
