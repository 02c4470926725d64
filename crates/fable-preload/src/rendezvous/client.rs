//! The connecting side of the rendezvous.

use core::ffi::c_int;
use preload::real;

use libc::{sockaddr, socklen_t};

use super::message::Message;
use super::{Address, PLACES, is_tcp, name, places, unix_socket};
use crate::connection::{self, Connection};
use crate::counted::CountedRef;
use crate::{page, settings, sys, table};

/// Offers shared memory to the process that listens at an address, before the application's socket
/// is connected to it. `None`: no listener can take the offer, or the socket cannot be upgraded.
///
/// # Safety
/// `size` bytes at `address` must be readable.
pub(crate) unsafe fn offer(
    fd: c_int,
    address: *const sockaddr,
    size: socklen_t,
) -> Option<CountedRef<Connection>> {
    if settings::is_stopped() || !connection::has_room() || !table::is_plain(fd) {
        return None;
    }
    // SAFETY: the caller guarantees that `size` bytes are readable.
    let server = unsafe { Address::read(address, size) }?;
    if server.port == 0 || server.is_unspecified() || !is_tcp(fd) {
        return None;
    }
    let places = Places::find(&server);
    if places.count == 0 || !server.is_near() {
        return None;
    }
    let offer = Message::offer(sys::cookie(fd).ok()?);
    let ring_bytes = settings::get().ring_bytes;
    let (memory, mapping) = page::create(ring_bytes).ok()?;
    let nonblocking = sys::is_nonblocking(fd);
    // Before the offer is sent: a listener that takes it writes into memory from then on.
    let connection = Connection::new(mapping, ring_bytes, page::CLIENT, nonblocking);
    let is_sent = |place| connection.is_ok() && offer.send(place, memory);
    let taken = places.sockets().filter(|&place| is_sent(place)).count();
    sys::close(memory);
    if let Ok(connection) = &connection {
        connection.page().copies.set(taken);
    }
    if taken > 0 { connection.ok() } else { None }
}

/// The listening processes at a port to which an offer can be sent, each as a connected socket.
struct Places {
    sockets: [c_int; 2 * PLACES as usize],
    count: usize,
}

impl Places {
    fn find(server: &Address) -> Self {
        let mut found = Places { sockets: [-1; 2 * PLACES as usize], count: 0 };
        for mut kind in places(server.is_version_4()) {
            while kind.next().is_some_and(|place| found.visit(server.port, place)) {}
        }
        found
    }

    /// Connects to a place. Returns whether there may be a next one.
    fn visit(&mut self, port: u16, place: u32) -> bool {
        // SAFETY: geteuid(2) has no arguments.
        let me = unsafe { libc::geteuid() };
        let socket = unix_socket();
        let (to, size) = name(port, place);
        // SAFETY: `to` has the announced size.
        let result = unsafe { real::connect(socket, (&raw const to).cast(), size) };
        // Another user could take this name, and so get the bytes that are meant for a server.
        let trusted =
            result == 0 && sys::peer_user(socket).is_some_and(|user| user == me || user == 0);
        if trusted {
            self.sockets[self.count] = socket;
            self.count += 1;
            return true;
        }
        let is_free = result != 0 && sys::errno() == libc::ECONNREFUSED;
        sys::close(socket);
        !is_free
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
