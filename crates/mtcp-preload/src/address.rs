//! Converts socket addresses between C and Rust, and decides which addresses are the stack's.

use crate::outcome::{Outcome, check};
use crate::{report, settings};
use core::ffi::c_int;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use mtcp::config::Ownership;
use preload::real;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use sys::socket_address;

/// Parses a C address; `None` if it is of another family or too short.
///
/// # Safety
/// `size` bytes can be read, or the pointer is null.
pub(crate) unsafe fn from_c(address: *const sockaddr, size: socklen_t) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    let size = (size as usize).min(socket_address::BYTES_MAX);
    // SAFETY: the caller guarantees this, and the address is not null.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), size) };
    socket_address::parse(bytes)
}

/// Returns whether an address is `AF_UNSPEC`, with which connect(2) ends a connection.
///
/// # Safety
/// As for [`from_c`].
pub(crate) unsafe fn is_none(address: *const sockaddr, size: socklen_t) -> bool {
    // SAFETY: the family is within the size; C's alignment may be less than Rust's.
    size as usize >= size_of::<libc::sa_family_t>()
        && !address.is_null()
        && unsafe { (&raw const (*address).sa_family).read_unaligned() } == 0
}

/// Writes an address, cut to the available length, as getsockname(2) does.
///
/// # Safety
/// `size` is null or holds the room at `to`, which can be written.
pub(crate) unsafe fn to_c(address: SocketAddr, to: *mut sockaddr, size: *mut socklen_t) {
    if to.is_null() || size.is_null() {
        return;
    }
    let (bytes, length) = socket_address::to_bytes(address);
    // SAFETY: the caller guarantees this.
    unsafe {
        let room = (*size as usize).min(length);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), room);
        *size = length as socklen_t;
    }
}

/// Returns the address that a kernel socket is bound to; `None` if it is of another family.
///
/// # Errors
/// As getsockname(2).
pub(crate) fn bound_to(fd: c_int) -> Outcome<Option<SocketAddr>> {
    let mut room = [0u64; 16];
    let mut size = size_of_val(&room) as socklen_t;
    let at = room.as_mut_ptr().cast::<sockaddr>();
    // SAFETY: `size` is the size of the room.
    check(unsafe { real::getsockname(fd, at, &raw mut size) })?;
    // SAFETY: the kernel has written `size` bytes.
    Ok(unsafe { from_c(at, size) })
}

/// Returns whether the kernel would accept an address for this socket: it has the socket's family
/// and, if it is IPv4-mapped, IPV6_V6ONLY is off. Other addresses are passed to the kernel, which
/// refuses them.
///
/// # Errors
/// As getsockopt(2): it is not known whether the address suits.
pub(crate) fn suits(fd: c_int, address: SocketAddr) -> Outcome<bool> {
    let mut family: c_int = 0;
    let mut size = size_of_val(&family) as socklen_t;
    let at = (&raw mut family).cast();
    // SAFETY: `size` is the size of the room.
    check(unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, at, &raw mut size) })?;
    let wanted = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mapped = socket_address::unmapped(address).is_some();
    Ok(family == wanted && !(mapped && crate::options::is_ipv6_only(fd)?))
}

/// Returns the addresses of the stack: those of the configuration, or those of the interface. There
/// are none if a sandbox does not permit to ask for them.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: the kernel could not be asked.
pub(crate) fn of_stack() -> Outcome<Vec<IpAddr>> {
    let Some(config) = settings::config() else { return Ok(Vec::new()) };
    if config.addresses.is_empty() && config.ownership == Ownership::Shared {
        return match of_interface(&config.device.interface) {
            Err(error) if !is_shortage(&error) => {
                report::note(format_args!("the stack's addresses: getifaddrs: {error}"));
                Ok(Vec::new())
            }
            found => found,
        };
    }
    Ok(config.addresses.iter().map(|(address, _)| *address).collect())
}

/// Returns whether a connection to `remote` goes through the stack: to an address of the stack
/// itself, or through its interface. With shared addresses the kernel's addresses and routes
/// decide, otherwise the networks and routes of the configuration.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: the kernel could not be asked.
pub(crate) fn leads_through_stack(remote: IpAddr) -> Outcome<bool> {
    let Some(config) = settings::config() else { return Ok(false) };
    if remote.is_loopback() || remote.is_unspecified() || remote.is_multicast() {
        return Ok(false);
    }
    let own = of_stack()?;
    if own.contains(&remote) {
        return Ok(config.ownership == Ownership::Own);
    }
    if config.ownership == Ownership::Shared {
        return Ok(kernel_source(remote)?.is_some_and(|source| own.contains(&source)));
    }
    Ok(config.addresses.iter().any(|(address, length)| in_network(remote, *address, *length))
        || config.routes.iter().any(|route| in_network(remote, route.prefix, route.length)))
}

fn in_network(address: IpAddr, network: IpAddr, length: u8) -> bool {
    let (different, bits) = match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), 128),
        _ => return false,
    };
    different.checked_shr(bits - u32::from(length).min(bits)).unwrap_or(0) == 0
}

/// Returns the address from which the kernel would send; `None` if it has no route.
fn kernel_source(remote: IpAddr) -> Outcome<Option<IpAddr>> {
    let any: IpAddr =
        if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let asked = UdpSocket::bind((any, 0)).and_then(|socket| {
        // This sends no packet; any port will do.
        socket.connect((remote, 9))?;
        socket.local_addr()
    });
    match asked {
        Ok(address) => Ok(Some(address.ip())),
        Err(error) if is_shortage(&error) => Err(error),
        // The kernel's connect(2) fails in the same way.
        Err(_) => Ok(None),
    }
}

/// Returns whether a call failed because the system lacks something, so that the kernel's answer is
/// not known.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|errno| shortages.contains(&errno))
}

/// Returns the kernel's addresses on an interface (getifaddrs(3)).
fn of_interface(name: &str) -> Outcome<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes the list to `first`.
    check(unsafe { libc::getifaddrs(&mut first) })?;
    let mut found = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: entries are valid until the list is freed, and names end with zero.
        let (entry, this) = unsafe { (&*next, CStr::from_ptr((*next).ifa_name)) };
        if this.to_bytes() == name.as_bytes() && !entry.ifa_addr.is_null() {
            // SAFETY: the C library gives a whole address of its family.
            let family = c_int::from(unsafe { (*entry.ifa_addr).sa_family });
            let size = match family {
                libc::AF_INET => size_of::<sockaddr_in>(),
                libc::AF_INET6 => size_of::<sockaddr_in6>(),
                _ => 0,
            };
            // SAFETY: the C library gives a whole address of its family, and `size` is its length.
            found.extend(unsafe { from_c(entry.ifa_addr, size as socklen_t) }.map(|at| at.ip()));
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}
