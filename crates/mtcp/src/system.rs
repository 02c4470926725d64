//! What all modules that call the system share.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The outcome of a system call that gives -1 for an error.
pub(crate) fn check(outcome: libc::c_int) -> io::Result<libc::c_int> {
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
}

/// The same for calls that give a length.
pub(crate) fn check_length(outcome: isize) -> io::Result<usize> {
    usize::try_from(outcome).map_err(|_| io::Error::last_os_error())
}

/// An error by its number.
pub(crate) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// Plain data, for which every pattern of bytes is valid and which has no padding.
///
/// # Safety
/// The type is what the sentence above says.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: numbers are plain.
unsafe impl Plain for libc::c_int {}
// SAFETY: as above.
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

/// Gets a socket option (getsockopt(2)); `value` is what it is asked with.
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

/// A new socket that is closed on exec and does not block.
pub(crate) fn new_socket(
    family: libc::c_int,
    kind: libc::c_int,
    protocol: libc::c_int,
) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes plain numbers.
    let fd = check(unsafe { libc::socket(family, kind, protocol) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A request about a network interface (netdevice(7)), all else zero.
pub(crate) fn interface(name: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// Fills a few bytes with the kernel's randomness (getrandom(2)).
pub(crate) fn fill_random(to: &mut [u8]) -> io::Result<()> {
    // Up to 256 bytes come whole.
    let room = to.len().min(256);
    // SAFETY: the kernel writes at most `room` bytes.
    check_length(unsafe { libc::getrandom(to.as_mut_ptr().cast(), room, 0) }).map(|_| ())
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

/// Keeps the calling thread on one CPU (`mtcp_core_affinitize`).
///
/// # Errors
/// `EINVAL`: there is no such CPU for this process. See sched_setaffinity(2).
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: an empty set is all zeros.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the set is valid, and the CPU lies in it.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set and its size are valid; 0 is the calling thread.
    let outcome = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
