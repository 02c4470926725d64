//! Comparable Internet addresses of both families.

use core::ffi::c_int;
use preload::real;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// An address and a port; version 4 is written as version 6 (RFC 4291, section 2.5.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) host: [u8; 16],
    pub(crate) port: u16,
}

type Question = unsafe fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

impl Address {
    /// Parses an address of the application or the kernel; `None` if it is not an Internet address.
    ///
    /// # Safety
    /// `size` bytes at `address` must be readable.
    pub(crate) unsafe fn read(address: *const sockaddr, size: socklen_t) -> Option<Address> {
        if address.is_null() || (size as usize) < size_of::<sockaddr_in>() {
            return None;
        }
        // SAFETY: the size was checked; the structure may be unaligned.
        let first = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
        if c_int::from(first.sin_family) == libc::AF_INET {
            let mut host = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
            host[12..].copy_from_slice(&first.sin_addr.s_addr.to_ne_bytes());
            return Some(Address { host, port: u16::from_be(first.sin_port) });
        }
        if c_int::from(first.sin_family) != libc::AF_INET6
            || (size as usize) < size_of::<sockaddr_in6>()
        {
            return None;
        }
        // SAFETY: the size was checked, and the caller guarantees that so many bytes are readable.
        let long = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
        Some(Address { host: long.sin6_addr.s6_addr, port: u16::from_be(long.sin6_port) })
    }

    fn ask(question: Question, fd: c_int) -> Option<Address> {
        // SAFETY: plain data, for which zeros are valid.
        let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
        let mut size = size_of::<sockaddr_storage>() as socklen_t;
        let at = (&raw mut storage).cast();
        // SAFETY: the storage has the announced size, and contains what the kernel wrote.
        unsafe { if question(fd, at, &mut size) == 0 { Self::read(at, size) } else { None } }
    }

    /// Returns the local address of the socket.
    pub(crate) fn here(fd: c_int) -> Option<Address> {
        Self::ask(real::getsockname, fd)
    }

    /// Returns the address of the socket's peer.
    pub(crate) fn there(fd: c_int) -> Option<Address> {
        Self::ask(real::getpeername, fd)
    }

    /// Returns whether the address is one of version 4.
    pub(crate) fn is_version_4(&self) -> bool {
        self.host[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
    }

    /// Returns whether the address is all zeros (any address, or none).
    pub(crate) fn is_unspecified(&self) -> bool {
        self.host == [0; 16] || (self.is_version_4() && self.host[12..] == [0; 4])
    }

    /// Returns whether the address is one of this host.
    pub(crate) fn is_near(&self) -> bool {
        (self.is_version_4() && self.host[12] == 127)
            || (self.host[..15] == [0; 15] && self.host[15] == 1)
            || self.probe().is_some_and(|near| near.host == self.host)
    }

    /// Returns this address and the other one of a socket as the kernel's structures have them,
    /// with their family.
    pub(crate) fn pair_for_kernel(&self, other: &Address) -> (c_int, [u8; 16], [u8; 16]) {
        if !self.is_version_4() {
            return (libc::AF_INET6, self.host, other.host);
        }
        let [from, to] = [self, other].map(|address| {
            let mut host = [0; 16];
            host[..4].copy_from_slice(&address.host[12..]);
            host
        });
        (libc::AF_INET, from, to)
    }

    /// Asks the routing table by connecting a datagram socket, which sends nothing.
    fn probe(&self) -> Option<Address> {
        // SAFETY: plain data, for which zeros are valid.
        let mut to: sockaddr_in6 = unsafe { core::mem::zeroed() };
        to.sin6_family = libc::AF_INET6 as libc::sa_family_t;
        to.sin6_port = self.port.to_be();
        to.sin6_addr.s6_addr = self.host;
        let size = size_of::<sockaddr_in6>() as socklen_t;
        // SAFETY: the call has no pointers.
        let fd = unsafe { real::socket(libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        // SAFETY: `to` has the announced size.
        let connected = fd >= 0 && unsafe { real::connect(fd, (&raw const to).cast(), size) } == 0;
        let near = if connected { Self::here(fd) } else { None };
        crate::sys::close(fd);
        near
    }
}
