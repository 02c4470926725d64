//! Wraps the system calls that several modules need.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub(crate) use sys::device::request as interface;

/// Converts the result of a system call that returns -1 for an error.
pub(crate) fn check(outcome: libc::c_int) -> io::Result<libc::c_int> {
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
}

/// Converts the result of a system call that returns a length, or -1 for an error.
pub(crate) fn check_length(outcome: isize) -> io::Result<usize> {
    usize::try_from(outcome).map_err(|_| io::Error::last_os_error())
}

/// The error with this number.
pub(crate) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// Plain data, for which every pattern of bytes is valid and which has no padding.
///
/// # Safety
/// The type must be plain data: every pattern of bytes is valid, and it has no padding.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: an integer has no padding, and every pattern of bytes is valid.
unsafe impl Plain for libc::c_int {}
// SAFETY: an integer has no padding, and every pattern of bytes is valid.
unsafe impl Plain for libc::c_uint {}

/// Sets a socket option (setsockopt(2)).
pub(crate) fn set_option<T: Plain>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads the bytes of `value`.
    let outcome = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), bytes)
    };
    check(outcome).map(|_| ())
}

/// Gets a socket option (getsockopt(2)); `value` is the initial content of the buffer.
pub(crate) fn get_option<T: Plain>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    mut value: T,
) -> io::Result<T> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    let to = std::ptr::from_mut(&mut value).cast();
    // SAFETY: the kernel writes at most `bytes` bytes into `value`, which may have any pattern.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut bytes) })?;
    Ok(value)
}

/// Creates a socket that is non-blocking and close-on-exec.
pub(crate) fn new_socket(
    family: libc::c_int,
    kind: libc::c_int,
    protocol: libc::c_int,
) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes only numbers.
    let fd = check(unsafe { libc::socket(family, kind, protocol) })?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds a packet socket to an interface, for frames of this protocol (packet(7)).
pub(crate) fn bind_packet_socket(
    socket: BorrowedFd<'_>,
    interface: u32,
    protocol: u16,
) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain data for which all zeros is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface as libc::c_int;
    let bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is an initialised sockaddr_ll of this length.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) }).map(|_| ())
}

/// Pins the calling thread to one CPU (`mtcp_core_affinitize`).
///
/// # Errors
/// `EINVAL` if this process has no such CPU; see sched_setaffinity(2).
pub fn pin(cpu: usize) -> io::Result<()> {
    sys::cpus::pin_to(cpu)
}
