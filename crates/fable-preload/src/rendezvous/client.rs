//! The connecting side of the rendezvous.

use core::ffi::c_int;
use preload::real;

use libc::{sockaddr, socklen_t};

use super::message::Message;
use super::{Address, PLACES, is_tcp, name, unix_socket};
use crate::connection::{self, Connection};
use crate::counted::CountedRef;
use crate::statistics::Why;
use crate::{page, settings, sys, table};

/// Offers shared memory to the process that listens at an address, before the application's socket
/// is connected to it. Also returns the local address that the socket will have. `None`: no
/// listener can take the offer, or the socket cannot be upgraded.
///
/// # Safety
/// `size` bytes at `address` must be readable.
pub(crate) unsafe fn offer(
    fd: c_int,
    address: *const sockaddr,
    size: socklen_t,
) -> Option<(CountedRef<Connection>, Address)> {
    if settings::is_stopped() || !connection::has_room() || !table::is_plain(fd) {
        return None;
    }
    // SAFETY: the caller guarantees that `size` bytes are readable.
    let server = unsafe { Address::read(address, size) }?;
    if server.port == 0 || server.is_unspecified() || !is_tcp(fd) {
        return None;
    }
    let places = Places::find(server.port);
    if places.count == 0 {
        return None;
    }
    let client = near_end(fd, &server)?;
    let ring_bytes = settings::get().ring_bytes;
    let (memory, mapping) = page::create(ring_bytes).ok()?;
    let nonblocking = sys::is_nonblocking(fd);
    // Before the offer is sent: a listener that takes it writes into memory from then on.
    let connection = Connection::new(mapping, ring_bytes, page::CLIENT, nonblocking);
    let offer = Message::offer(client, server);
    let is_sent = |place| connection.is_ok() && offer.send(place, memory);
    let taken = places.sockets().filter(|&place| is_sent(place)).count();
    sys::close(memory);
    (taken > 0).then_some((connection.ok()?, client))
}

/// Checks, after connecting, whether the connection is the one that was offered. If not, the offer
/// is revoked.
pub(crate) fn confirm(fd: c_int, connection: &Connection, offered: &Address) {
    if Address::here(fd) != Some(*offered) {
        connection.leave(fd, Why::NotTaken);
    }
}

/// Returns the local address of the socket; binds the socket if it was not bound.
fn near_end(fd: c_int, server: &Address) -> Option<Address> {
    let source = server.source()?;
    let mut here = Address::here(fd)?;
    if here.port == 0 {
        bind_anywhere(fd)?;
        here = Address::here(fd)?;
    }
    if here.is_unspecified() {
        here.host = source;
    }
    Some(here)
}

/// Binds to a port that the kernel chooses; connect(2) chooses the address, as usual.
fn bind_anywhere(fd: c_int) -> Option<()> {
    let family = sys::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).ok()?;
    // SAFETY: plain data, for which zeros are valid; zeros mean any address and any port.
    let mut any: libc::sockaddr_in6 = unsafe { core::mem::zeroed() };
    any.sin6_family = family as libc::sa_family_t;
    let size = if family == libc::AF_INET {
        size_of::<libc::sockaddr_in>()
    } else {
        size_of::<libc::sockaddr_in6>()
    };
    // SAFETY: the structure is at least `size` bytes long.
    let result = unsafe { real::bind(fd, (&raw const any).cast(), size as socklen_t) };
    (result == 0).then_some(())
}

/// The listening processes at a port to which an offer can be sent, each as a connected socket.
struct Places {
    sockets: [c_int; PLACES as usize],
    count: usize,
}

impl Places {
    fn find(port: u16) -> Self {
        let mut places = Places { sockets: [-1; PLACES as usize], count: 0 };
        // SAFETY: geteuid(2) has no arguments.
        let me = unsafe { libc::geteuid() };
        for place in 0..PLACES {
            let socket = unix_socket();
            let (to, size) = name(port, place);
            // SAFETY: `to` has the announced size.
            let result = unsafe { real::connect(socket, (&raw const to).cast(), size) };
            // Another user could take this name, and so get the bytes that are meant for a server.
            let trusted =
                result == 0 && sys::peer_user(socket).is_some_and(|user| user == me || user == 0);
            if trusted {
                places.sockets[places.count] = socket;
                places.count += 1;
                continue;
            }
            let nobody = result != 0 && sys::errno() == libc::ECONNREFUSED;
            sys::close(socket);
            if nobody {
                break;
            }
        }
        places
    }

    fn sockets(&self) -> impl Iterator<Item = c_int> {
        self.sockets[..self.count].iter().copied()
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for socket in self.sockets() {
            sys::close(socket);
        }
    }
}
