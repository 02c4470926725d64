//! Converts socket addresses from and to the kernel's structures.

use crate::system::{check, get_option};
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of the longest IP socket address.
pub(super) const LONGEST: usize = size_of::<libc::sockaddr_in6>();

/// Parses the address in `bytes`; `None` if it is cut off or of another family than IPv4 and IPv6.
pub(super) fn parse(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    let ip: IpAddr = match family {
        libc::AF_INET if bytes.len() >= size_of::<libc::sockaddr_in>() => {
            Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[4..8]).ok()?).into()
        }
        libc::AF_INET6 if bytes.len() >= LONGEST => {
            Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).ok()?).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Returns an address in the kernel's format, and its length.
pub(super) fn bytes_of(address: SocketAddr) -> ([u8; LONGEST], usize) {
    let mut bytes = [0; LONGEST];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let family = match address.ip() {
        IpAddr::V4(ip) => {
            bytes[4..8].copy_from_slice(&ip.octets());
            libc::AF_INET
        }
        IpAddr::V6(ip) => {
            bytes[8..24].copy_from_slice(&ip.octets());
            libc::AF_INET6
        }
    };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    let length = if address.is_ipv4() { size_of::<libc::sockaddr_in>() } else { LONGEST };
    (bytes, length)
}

/// The local address of a TCP socket of the kernel; `None` if it is no TCP socket of IPv4 or IPv6.
pub(super) fn tcp_name(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    let name = name(socket, libc::getsockname).ok()??;
    let protocol =
        get_option::<libc::c_int>(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL, 0).ok()?;
    (protocol == libc::IPPROTO_TCP).then_some(name)
}

/// Whether the socket has a peer.
pub(super) fn is_connected(socket: BorrowedFd<'_>) -> bool {
    name(socket, libc::getpeername).is_ok()
}

/// Whether a listener on `::` takes only IPv6 connections.
pub(super) fn is_ipv6_only(socket: BorrowedFd<'_>) -> bool {
    get_option::<libc::c_int>(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)
        .is_ok_and(|only| only != 0)
}

type NameCall =
    unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn name(socket: BorrowedFd<'_>, call: NameCall) -> io::Result<Option<SocketAddr>> {
    let mut room = [0u64; size_of::<libc::sockaddr_storage>() / 8];
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the room, which is aligned for any
    // address.
    check(unsafe { call(socket.as_raw_fd(), room.as_mut_ptr().cast(), &raw mut length) })?;
    let mut bytes = [0; LONGEST];
    for (to, word) in bytes.chunks_mut(8).zip(room) {
        to.copy_from_slice(&word.to_ne_bytes()[..to.len()]);
    }
    let length = (length as usize).min(LONGEST);
    Ok(parse(&bytes[..length]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn addresses_go_there_and_back() {
        for text in ["10.1.2.3:80", "[fd00::12]:65535", "0.0.0.0:0", "[::]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let (bytes, length) = bytes_of(address);
            assert_eq!(parse(&bytes[..length]), Some(address));
            assert_eq!(parse(&bytes[..length - 1]), None, "cut off");
        }
        assert_eq!(parse(&[1, 0, b'/', b'x']), None, "a UNIX socket's");
        assert_eq!(parse(&[]), None);
    }

    #[test]
    fn the_kernel_tells_what_a_socket_is() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(tcp_name(listener.as_fd()), Some(address));
        assert!(!is_connected(listener.as_fd()));
        let client = std::net::TcpStream::connect(address).unwrap();
        assert!(is_connected(client.as_fd()));
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(tcp_name(datagrams.as_fd()), None);
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(tcp_name(unix.as_fd()), None);
    }
}
