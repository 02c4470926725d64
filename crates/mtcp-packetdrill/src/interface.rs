//! Defines packetdrill's interface to a stack in a shared object, as its documentation and the
//! loader define it: one pointer for the stack, and functions that receive it.

use libc::{
    c_int, c_long, c_longlong, c_uint, c_ulong, c_void, epoll_event, iovec, loff_t, msghdr, nfds_t,
    pollfd, sockaddr, socklen_t, timeval, useconds_t,
};

/// The functions; each returns -1 and sets errno on failure, as the system call of the same name.
///
/// `fcntl` and `ioctl` are variadic for the caller. In the calling conventions of x86-64 and
/// AArch64 Linux a variadic integer or pointer is passed like a named one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    pub userdata: *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub socket: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int) -> c_int,
    pub bind: unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    pub listen: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    pub accept: unsafe extern "C" fn(*mut c_void, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub connect: unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    pub read: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, usize) -> isize,
    pub readv: unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> isize,
    pub recv: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, usize, c_int) -> isize,
    pub recvfrom: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut c_void,
        usize,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> isize,
    pub recvmsg: unsafe extern "C" fn(*mut c_void, c_int, *mut msghdr, c_int) -> isize,
    pub write: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize) -> isize,
    pub writev: unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> isize,
    pub send: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize, c_int) -> isize,
    pub sendto: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *const c_void,
        usize,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> isize,
    pub sendmsg: unsafe extern "C" fn(*mut c_void, c_int, *const msghdr, c_int) -> isize,
    pub fcntl: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_long) -> c_int,
    pub ioctl: unsafe extern "C" fn(*mut c_void, c_int, c_ulong, *mut c_int) -> c_int,
    pub close: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    pub shutdown: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    pub getsockopt: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        c_int,
        c_int,
        *mut c_void,
        *mut socklen_t,
    ) -> c_int,
    pub setsockopt:
        unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub poll: unsafe extern "C" fn(*mut c_void, *mut pollfd, nfds_t, c_int) -> c_int,
    /// Passes a packet to the stack, from its IP header on.
    pub netdev_send: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int,
    /// Returns the next packet of the stack, its length in place of the room's, and the time at
    /// which it was sent, in microseconds. The length is zero if there is none.
    pub netdev_receive:
        unsafe extern "C" fn(*mut c_void, *mut c_void, *mut usize, *mut c_longlong) -> c_int,
    pub usleep: unsafe extern "C" fn(*mut c_void, useconds_t) -> c_int,
    pub gettimeofday: unsafe extern "C" fn(*mut c_void, *mut timeval, *mut c_void) -> c_int,
    pub epoll_create: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    pub epoll_ctl:
        unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    pub epoll_wait:
        unsafe extern "C" fn(*mut c_void, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub pipe: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int,
    pub splice: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut loff_t,
        c_int,
        *mut loff_t,
        usize,
        c_uint,
    ) -> isize,
}
