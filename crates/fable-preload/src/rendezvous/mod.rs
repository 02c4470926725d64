//! Rendezvous: two programs that both run this library find each other before the first byte is
//! sent.
//!
//! A listening process also listens on an abstract UNIX socket that is named after its port;
//! abstract names belong to a network namespace, as ports do. A connecting process sends the cookie
//! of its socket and the memory file to the UNIX socket before it connects. The process that
//! accepts the connection asks the kernel for the cookie of the socket at the other end (`peer`),
//! looks for an offer with exactly this one, and marks the page. Until an end has seen that mark it
//! uses only TCP. Where the kernel does not tell, connections stay in TCP.
//!
//! So an offer is for one socket, which addresses are not: a port may be taken by another client
//! while the offer of the one before is still kept. It is void when no process has the socket any
//! more, and when the client revokes it in the page.

mod address;
mod client;
mod message;
mod peer;
mod server;

use core::ffi::c_int;
use core::ops::Range;
use preload::real;

use address::Address;
pub(crate) use client::offer;
pub(crate) use server::{Listener, listening, move_aside};

use crate::sys;

/// The most listening sockets of a kind that share a port (SO_REUSEPORT) and can be found.
const PLACES: u32 = 8;
/// The first place of sockets that accept only version 6, which programs often have beside one for
/// version 4: its clients need not make offers to them.
const ONLY_6: u32 = 1 << 8;

/// Returns the places at a port where clients of this version find listening sockets, by kind.
fn places(is_version_4: bool) -> impl Iterator<Item = Range<u32>> {
    let kinds = if is_version_4 { &[0][..] } else { &[0, ONLY_6] };
    kinds.iter().map(|first| *first..first + PLACES)
}

/// Returns the abstract name of a port's rendezvous, and its size.
fn name(port: u16, place: u32) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: plain data, for which zeros are valid.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let digits = [port.to_be_bytes(), (place as u16).to_be_bytes()].concat();
    let text = b"\0fable-preload-3/".iter().copied().chain(hexadecimal(&digits));
    let mut length = 0;
    for (to, from) in address.sun_path.iter_mut().zip(text) {
        *to = from as libc::c_char;
        length += 1;
    }
    let size = core::mem::offset_of!(libc::sockaddr_un, sun_path) + length;
    (address, size as libc::socklen_t)
}

fn hexadecimal(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let digit = |value: u8| b"0123456789abcdef"[usize::from(value & 15)];
    bytes.iter().flat_map(move |byte| [digit(byte >> 4), digit(*byte)])
}

/// Makes a socket for the rendezvous.
fn unix_socket() -> c_int {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call has no pointers.
    unsafe { real::socket(libc::AF_UNIX, kind, 0) }
}

/// Returns whether a socket is plain TCP, and not a protocol above it.
fn is_tcp(fd: c_int) -> bool {
    sys::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
}
