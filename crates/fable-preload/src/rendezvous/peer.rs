//! Identifies the socket at the other end of a connection (sock_diag(7)).
//!
//! The kernel gives each socket a cookie (SO_COOKIE) that no other socket has until the host is
//! started again, so a cookie identifies a connection where addresses, which recur, do not.

use core::ffi::c_int;
use preload::real;

use super::Address;
use crate::sys;

/// `SOCK_DIAG_BY_FAMILY`, of the type of requests and answers.
const BY_FAMILY: u16 = 20;
/// States (tcp(7)) in which the other end may be: its socket has been connected.
const CONNECTED: [u8; 4] = [1, 4, 5, 8];

/// `struct inet_diag_sockid`; addresses and ports as on the wire.
#[derive(Clone, Copy)]
#[repr(C)]
struct SocketId {
    source_port: [u8; 2],
    destination_port: [u8; 2],
    source: [u8; 16],
    destination: [u8; 16],
    interface: u32,
    cookie: [u32; 2],
}

/// `struct nlmsghdr`.
#[repr(C)]
struct Header {
    bytes: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
}

/// A header with a `struct inet_diag_req_v2`.
#[repr(C)]
struct Request {
    header: Header,
    family: u8,
    protocol: u8,
    extensions: u8,
    padding: u8,
    states: u32,
    id: SocketId,
}

/// A header with a `struct inet_diag_msg`.
#[repr(C)]
struct Answer {
    header: Header,
    family: u8,
    state: u8,
    timer: u8,
    retransmissions: u8,
    id: SocketId,
    expires: u32,
    receive_queue: u32,
    send_queue: u32,
    user: u32,
    inode: u32,
}

const _: () = assert!(size_of::<Request>() == 72 && size_of::<Answer>() == 88);

/// Opens the socket with which [`cookie`] asks. `None`: the kernel does not answer, or not to this
/// program, about `listener`.
pub(super) fn open(listener: c_int) -> Option<c_int> {
    let here = Address::here(listener)?;
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // Of the name NETLINK_SOCK_DIAG today.
    // SAFETY: the call has no pointers.
    let diagnosis = unsafe { real::socket(libc::AF_NETLINK, kind, libc::NETLINK_INET_DIAG) };
    let nowhere = Address { host: [0; 16], port: 0 };
    if diagnosis >= 0 && ask(diagnosis, &here, &nowhere, 0).is_some() {
        return Some(diagnosis);
    }
    sys::close(diagnosis);
    None
}

/// Returns the cookie of the socket at the other end of an accepted connection. `None`: it is not
/// on this host and in this network namespace, no process has it any more, or the kernel does not
/// tell.
///
/// The caller must be the only one that uses the socket `diagnosis`.
pub(super) fn cookie(diagnosis: c_int, fd: c_int, sequence: u32) -> Option<u64> {
    let answer = ask(diagnosis, &Address::there(fd)?, &Address::here(fd)?, sequence)?;
    let [low, high] = answer.id.cookie.map(u64::from);
    let is_held = answer.inode != 0 && CONNECTED.contains(&answer.state);
    is_held.then_some(low | high << 32)
}

/// Asks about the socket with these addresses, of which the first is its own.
fn ask(diagnosis: c_int, here: &Address, there: &Address, sequence: u32) -> Option<Answer> {
    let (family, source, destination) = here.pair_for_kernel(there);
    let request = Request {
        header: Header {
            bytes: size_of::<Request>() as u32,
            kind: BY_FAMILY,
            flags: libc::NLM_F_REQUEST as u16,
            sequence,
            port: 0,
        },
        family: family as u8,
        protocol: libc::IPPROTO_TCP as u8,
        extensions: 0,
        padding: 0,
        states: !0,
        id: SocketId {
            source_port: here.port.to_be_bytes(),
            destination_port: there.port.to_be_bytes(),
            source,
            destination,
            interface: 0,
            cookie: [!0; 2],
        },
    };
    sys::send_quietly(diagnosis, (&raw const request).cast(), size_of::<Request>()).ok()?;
    // The kernel has answered when the request is sent. Another process may have been killed before
    // it took its answer.
    loop {
        let mut answer = core::mem::MaybeUninit::<Answer>::zeroed();
        let size = size_of::<Answer>();
        let received = sys::receive(diagnosis, answer.as_mut_ptr().cast(), size, 0).ok()?;
        // SAFETY: every pattern of bytes is an answer, and it was zeroed.
        let answer = unsafe { answer.assume_init() };
        if answer.header.sequence == sequence {
            return (received == size && answer.header.kind == BY_FAMILY).then_some(answer);
        }
    }
}
