//! Converts socket addresses between Rust's types and the kernel's `sockaddr` structures.

use crate::sys::check;
use std::ffi::OsStr;
use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The address of a socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An internet address and port.
    Inet(SocketAddr),
    /// A path of a UNIX socket, see unix(7).
    Path(PathBuf),
    /// A name in the abstract name space of UNIX sockets, without the leading zero byte.
    Abstract(Vec<u8>),
    /// A UNIX socket without a name.
    Unnamed,
}

impl Address {
    /// Returns the internet address, or `None` for a UNIX address.
    pub fn inet(&self) -> Option<SocketAddr> {
        if let Address::Inet(address) = self { Some(*address) } else { None }
    }

    /// Decodes an address in the kernel's format, a `sockaddr` structure. The path of a UNIX socket
    /// ends at its first zero byte.
    ///
    /// # Errors
    /// `EINVAL` if the structure is too short for its family, `EAFNOSUPPORT` for other families.
    pub fn from_sockaddr(bytes: &[u8]) -> io::Result<Address> {
        RawAddress::parse(bytes)
    }

    /// Encodes the address in the kernel's format; returns it with its length. A name that is too
    /// long is cut off.
    pub fn to_sockaddr(&self) -> (libc::sockaddr_storage, libc::socklen_t) {
        let raw = RawAddress::encode(self);
        (raw.storage, raw.bytes)
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Inet(address)
    }
}

impl From<&Path> for Address {
    fn from(path: &Path) -> Address {
        Address::Path(path.to_path_buf())
    }
}

/// An address in the kernel's format.
#[derive(Clone)]
pub(crate) struct RawAddress {
    pub(crate) storage: libc::sockaddr_storage,
    pub(crate) bytes: libc::socklen_t,
}

const PATH_OFFSET: usize = mem::offset_of!(libc::sockaddr_un, sun_path);

/// Bytes of the longest name of a UNIX socket, which a zero byte precedes or follows.
const NAME_MAX: usize = mem::size_of::<libc::sockaddr_un>() - PATH_OFFSET - 1;

impl RawAddress {
    /// Returns an empty buffer into which the kernel can write an address of any family.
    pub(crate) fn room() -> RawAddress {
        // SAFETY: all-zero bytes are a valid `sockaddr_storage` (AF_UNSPEC).
        let storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        RawAddress { storage, bytes: mem::size_of_val(&storage) as libc::socklen_t }
    }

    fn fill<T: Copy>(value: T) -> RawAddress {
        let mut raw = RawAddress::room();
        debug_assert!(mem::size_of::<T>() <= mem::size_of_val(&raw.storage));
        // SAFETY: `T` is one of the sockaddr types, all no larger and no more aligned than the
        // storage.
        unsafe { (&raw mut raw.storage).cast::<T>().write(value) };
        raw.bytes = mem::size_of::<T>() as libc::socklen_t;
        raw
    }

    /// Copies an address that is already in the kernel's format. Ignores bytes beyond the longest
    /// possible address.
    pub(crate) fn copy(bytes: &[u8]) -> RawAddress {
        let mut raw = RawAddress::room();
        let count = bytes.len().min(mem::size_of_val(&raw.storage));
        // SAFETY: the storage has `count` bytes or more, and any bytes are valid in it.
        unsafe { (&raw mut raw.storage).cast::<u8>().copy_from(bytes.as_ptr(), count) };
        raw.bytes = count as libc::socklen_t;
        raw
    }

    /// Encodes an address. Fails with `EINVAL` if a UNIX name does not fit into 107 bytes or
    /// contains a zero byte.
    pub(crate) fn new(address: &Address) -> io::Result<RawAddress> {
        let fits = match address {
            Address::Inet(_) => true,
            Address::Path(path) => {
                path.as_os_str().len() <= NAME_MAX && !path.as_os_str().as_bytes().contains(&0)
            }
            Address::Abstract(name) => name.len() <= NAME_MAX,
            Address::Unnamed => false,
        };
        let encoded = fits.then(|| RawAddress::encode(address));
        encoded.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }

    fn encode(address: &Address) -> RawAddress {
        let unix = |leading: usize, name: &[u8], trailing: usize| {
            let mut bytes = [0; mem::size_of::<libc::sockaddr_storage>()];
            bytes[..PATH_OFFSET].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
            let (start, end) = (PATH_OFFSET + leading, PATH_OFFSET + leading + name.len());
            let end = end.min(bytes.len() - trailing);
            bytes[start..end].copy_from_slice(&name[..end - start]);
            RawAddress::copy(&bytes[..end + trailing])
        };
        match address {
            Address::Inet(SocketAddr::V4(v4)) => RawAddress::fill(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            }),
            Address::Inet(SocketAddr::V6(v6)) => RawAddress::fill(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
            Address::Path(path) => unix(0, path.as_os_str().as_bytes(), 1),
            Address::Abstract(name) => unix(1, name, 0),
            Address::Unnamed => unix(0, &[], 0),
        }
    }

    /// Returns the address of the other side of a connection, see getpeername(2).
    pub(crate) fn of_peer(socket: BorrowedFd<'_>) -> io::Result<Address> {
        let mut raw = RawAddress::room();
        let storage = (&raw mut raw.storage).cast();
        // SAFETY: the kernel writes at most `bytes` bytes, which is the size of the storage.
        check(unsafe { libc::getpeername(socket.as_raw_fd(), storage, &mut raw.bytes) })?;
        RawAddress::parse(raw.as_bytes(raw.bytes))
    }

    /// Decodes the address in `bytes`, as the kernel wrote it.
    pub(crate) fn parse(bytes: &[u8]) -> io::Result<Address> {
        let Some(family) = bytes.get(..2) else { return Ok(Address::Unnamed) };
        let port = |bytes: &[u8]| u16::from_be_bytes([bytes[2], bytes[3]]);
        match i32::from(u16::from_ne_bytes([family[0], family[1]])) {
            libc::AF_INET if bytes.len() >= mem::size_of::<libc::sockaddr_in>() => {
                let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
                Ok(Address::Inet(SocketAddrV4::new(ip, port(bytes)).into()))
            }
            libc::AF_INET6 if bytes.len() >= mem::size_of::<libc::sockaddr_in6>() => {
                let word = |at: usize| {
                    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
                };
                let mut ip = [0; 16];
                ip.copy_from_slice(&bytes[8..24]);
                let ip = Ipv6Addr::from(ip);
                Ok(Address::Inet(SocketAddrV6::new(ip, port(bytes), word(4), word(24)).into()))
            }
            libc::AF_UNIX => Ok(match &bytes[PATH_OFFSET..] {
                [] => Address::Unnamed,
                [0, name @ ..] => Address::Abstract(name.to_vec()),
                path => {
                    let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
                    Address::Path(PathBuf::from(OsStr::from_bytes(&path[..end])))
                }
            }),
            libc::AF_UNSPEC => Ok(Address::Unnamed),
            libc::AF_INET | libc::AF_INET6 => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            _ => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
        }
    }

    /// Returns the first `bytes` bytes of the address at most.
    pub(crate) fn as_bytes(&self, bytes: u32) -> &[u8] {
        let bytes = (bytes as usize).min(mem::size_of_val(&self.storage));
        // SAFETY: the storage is plain initialised memory of at least `bytes` bytes.
        unsafe { std::slice::from_raw_parts((&raw const self.storage).cast::<u8>(), bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(address: Address) {
        let raw = RawAddress::new(&address).unwrap();
        assert_eq!(RawAddress::parse(raw.as_bytes(raw.bytes)).unwrap(), address);
    }

    #[test]
    fn every_family_round_trips() {
        round_trip(Address::Inet("127.0.0.1:65535".parse().unwrap()));
        round_trip(Address::Inet("[fe80::1]:80".parse().unwrap()));
        let scoped = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 7, 0x1234, 9);
        round_trip(Address::Inet(scoped.into()));
        round_trip(Address::Path("/tmp/socket".into()));
        round_trip(Address::Abstract(b"name\0with zero".to_vec()));
    }

    #[test]
    fn names_that_do_not_fit_are_refused() {
        let long = Address::Path("x".repeat(108).into());
        assert!(RawAddress::new(&long).is_err());
        let longest = Address::Path("x".repeat(107).into());
        round_trip(longest);
        assert!(RawAddress::new(&Address::Path("a\0b".into())).is_err());
    }

    #[test]
    fn what_the_kernel_writes_is_checked() {
        assert_eq!(RawAddress::parse(&[]).unwrap(), Address::Unnamed);
        let short = (libc::AF_INET as u16).to_ne_bytes();
        let errno = |bytes: &[u8]| RawAddress::parse(bytes).unwrap_err().raw_os_error();
        assert_eq!(errno(&short), Some(libc::EINVAL));
        assert_eq!(errno(&[99u8; 32]), Some(libc::EAFNOSUPPORT));
    }
}
