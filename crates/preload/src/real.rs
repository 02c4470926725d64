//! Calls the real functions: the next definition of each interposed name. It is the C library's,
//! unless another library is loaded in between (`RTLD_NEXT`, dlsym(3)).
//!
//! A library that defines such a name must not call the function through the `libc` crate, because
//! there the name refers to the library itself.
//!
//! Each function has the contract of its manual page. A function that this process lacks fails with
//! `ENOSYS`.

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd, sigset_t, size_t,
    sockaddr, socklen_t, ssize_t, timespec, timeval,
};

/// A name whose next definition is looked up once, at its first use.
#[derive(Debug)]
pub struct Symbol {
    name: &'static CStr,
    address: AtomicUsize,
}

/// The replacement for a function that this process lacks.
extern "C" fn missing() -> c_long {
    // SAFETY: the C library returns a valid pointer for every thread.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

impl Symbol {
    /// Creates a symbol that is not looked up yet.
    pub const fn new(name: &'static CStr) -> Self {
        Symbol { name, address: AtomicUsize::new(0) }
    }

    /// Returns the address of the next definition.
    pub fn address(&self) -> usize {
        let known = self.address.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        // SAFETY: the name is a C string, and RTLD_NEXT is a valid pseudo handle.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        let address = if found == 0 { missing as *const () as usize } else { found };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

macro_rules! next {
    ($($function:ident = $name:literal ($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        #[doc = concat!("The next `", stringify!($function), "`.")]
        ///
        /// # Safety
        /// As the function of the C library.
        pub unsafe fn $function($($argument: $kind),*) -> $result {
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
    preadv = c"preadv" (fd: c_int, list: *const iovec, count: c_int, at: off_t) -> ssize_t;
    preadv2 = c"preadv2"
        (fd: c_int, list: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    pwritev2 = c"pwritev2"
        (fd: c_int, list: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
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
    tee = c"tee" (from: c_int, to: c_int, length: size_t, flags: c_uint) -> ssize_t;
    socket = c"socket" (family: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind = c"bind" (fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int;
    listen = c"listen" (fd: c_int, backlog: c_int) -> c_int;
    connect = c"connect" (fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int;
    accept4 = c"accept4"
        (fd: c_int, address: *mut sockaddr, size: *mut socklen_t, flags: c_int) -> c_int;
    accept = c"accept" (fd: c_int, address: *mut sockaddr, size: *mut socklen_t) -> c_int;
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
    closefrom = c"closefrom" (first: c_int) -> ();
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
    fork = c"fork" () -> pid_t;
    execve = c"execve" (path: *const c_char, arguments: *const *const c_char,
        environment: *const *const c_char) -> c_int;
    execv = c"execv" (path: *const c_char, arguments: *const *const c_char) -> c_int;
    execvp = c"execvp" (path: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe = c"execvpe" (path: *const c_char, arguments: *const *const c_char,
        environment: *const *const c_char) -> c_int;
    fexecve = c"fexecve" (fd: c_int, arguments: *const *const c_char,
        environment: *const *const c_char) -> c_int;
    posix_spawn = c"posix_spawn" (child: *mut pid_t, path: *const c_char, actions: Bytes,
        attributes: Bytes, arguments: *const *mut c_char,
        environment: *const *mut c_char) -> c_int;
    posix_spawnp = c"posix_spawnp" (child: *mut pid_t, path: *const c_char, actions: Bytes,
        attributes: Bytes, arguments: *const *mut c_char,
        environment: *const *mut c_char) -> c_int;
    posix_spawn_file_actions_adddup2 = c"posix_spawn_file_actions_adddup2"
        (actions: Pointer, fd: c_int, to: c_int) -> c_int;
    system = c"system" (command: *const c_char) -> c_int;
    popen = c"popen" (command: *const c_char, mode: *const c_char) -> Pointer;
    setns = c"setns" (fd: c_int, kind: c_int) -> c_int;
    unshare = c"unshare" (flags: c_int) -> c_int;
    syscall = c"syscall" (number: c_long, first: usize, second: usize, third: usize,
        fourth: usize, fifth: usize, sixth: usize) -> c_long;
    io_uring_queue_init = c"io_uring_queue_init"
        (entries: c_uint, ring: Pointer, flags: c_uint) -> c_int;
    io_uring_queue_init_params = c"io_uring_queue_init_params"
        (entries: c_uint, ring: Pointer, parameters: Pointer) -> c_int;
    io_uring_queue_init_mem = c"io_uring_queue_init_mem" (entries: c_uint, ring: Pointer,
        parameters: Pointer, memory: Pointer, size: size_t) -> c_int;
    io_uring_setup = c"io_uring_setup" (entries: c_uint, parameters: Pointer) -> c_int;
    exit_now = c"_exit" (status: c_int) -> ();
    chk_fail = c"__chk_fail" () -> ();
}
