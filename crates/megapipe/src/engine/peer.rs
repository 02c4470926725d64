//! Reads the address of a connection's peer, synchronously.

use super::Engine;
use crate::address::{Address, RawAddress};
use crate::driver::Object;
use crate::source::{Endpoint, Socket};
use crate::sys::get_option;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

impl Engine {
    /// Returns the address of a connection's peer.
    pub(crate) fn peer_address(&mut self, object: Object) -> io::Result<Address> {
        let driver = &mut self.driver;
        find_address(|room| driver.get_option(object, libc::SOL_SOCKET, libc::SO_PEERNAME, room))
    }

    /// Returns the address of the peer of a connection that was accepted and is not registered.
    pub(super) fn peer_of(&mut self, socket: &Socket) -> io::Result<Address> {
        match &socket.endpoint {
            Endpoint::Descriptor(descriptor) | Endpoint::Lightweight(descriptor) => {
                self.counters.system_calls += 1;
                RawAddress::of_peer(descriptor.as_fd()).or_else(|_| {
                    // A reset connection has no peer for getpeername(2), but its socket option
                    // still has the address.
                    find_address(|room| {
                        self.counters.system_calls += 1;
                        let fd = descriptor.as_raw_fd();
                        get_option(fd, libc::SOL_SOCKET, libc::SO_PEERNAME, room)
                    })
                })
            }
            endpoint => {
                let driver = &mut self.driver;
                find_address(|room| driver.peer_of(endpoint, room))
            }
        }
    }
}

/// Determines an address of unknown length. The kernel refuses (`EINVAL`) to fill more bytes than
/// the address has, and does not report its length. The longest length that succeeds is the length
/// of the address.
fn find_address(mut ask: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<Address> {
    let mut room = [0; size_of::<libc::sockaddr_storage>()];
    // Tries the most common size first, so that one call is usually enough.
    let usual = size_of::<libc::sockaddr_in>();
    let is_usual = ask(&mut room[..usual]).is_ok();
    if !is_usual {
        ask(&mut room[..2])?;
    }
    let (mut fits, mut too_long) = match i32::from(u16::from_ne_bytes([room[0], room[1]])) {
        libc::AF_INET if is_usual => return RawAddress::parse(&room[..usual]),
        libc::AF_INET6 => (size_of::<libc::sockaddr_in6>(), 0),
        _ => (2, room.len()),
    };
    while fits + 1 < too_long {
        let middle = (fits + too_long) / 2;
        match ask(&mut room[..middle]) {
            Ok(_) => fits = middle,
            Err(_) => too_long = middle,
        }
    }
    ask(&mut room[..fits])?;
    RawAddress::parse(&room[..fits])
}
