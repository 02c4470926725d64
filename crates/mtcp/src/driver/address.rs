//! Asks the kernel for the addresses of its sockets.

use crate::system::{check, get_option};
use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use sys::socket_address::{BYTES_MAX, parse};

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
    let mut bytes = [0; BYTES_MAX];
    for (to, word) in bytes.chunks_mut(8).zip(room) {
        to.copy_from_slice(&word.to_ne_bytes()[..to.len()]);
    }
    let length = (length as usize).min(BYTES_MAX);
    Ok(parse(&bytes[..length]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

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
