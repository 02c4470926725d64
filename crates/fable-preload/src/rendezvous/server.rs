//! The listening side.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use preload::real;

use super::message::Offer;
use super::{Address, PLACES, is_tcp, name, unix_socket};
use crate::connection::{self, Connection};
use crate::counted::{Counted, Held};
use crate::lock::{Lock, Locked};
use crate::page::{self, ACCEPTED, OFFERED};
use crate::statistics::{self, Why};
use crate::{settings, sys, table};

/// How long to wait for an offer whose sender has connected to the rendezvous already.
const SENDER_MS: c_int = 10;
/// How many offers are looked at for one accepted connection.
const OFFERS_MAX: u32 = 4096;

/// What all processes share that inherited the listening socket.
#[repr(C)]
struct Shared {
    lock: Lock,
    /// Offers in the store, which belong to connections that are not accepted yet.
    stored: AtomicU32,
}

/// A listening socket with its rendezvous.
pub(crate) struct Listener {
    users: AtomicUsize,
    rendezvous: AtomicI32,
    store_out: AtomicI32,
    store_in: AtomicI32,
    user: AtomicU32,
    shared: AtomicPtr<Shared>,
}

static POOL: Locked<Vec<&'static Listener>> = Locked::new(Vec::new());

impl Counted for Listener {
    fn users(&self) -> &AtomicUsize {
        &self.users
    }

    fn retire(&'static self) {
        let _keep = sys::KeepErrno::new();
        for descriptor in [&self.rendezvous, &self.store_out, &self.store_in] {
            let fd = descriptor.swap(-1, Ordering::Relaxed);
            if table::is_reserved(fd) {
                table::forget(fd);
                sys::close(fd);
            }
        }
        // SAFETY: no user of this process is left.
        unsafe { sys::unmap(self.shared.load(Ordering::Relaxed).cast(), size_of::<Shared>()) };
        if let Some(mut pool) = POOL.take() {
            pool.push(self);
        }
    }
}

/// After listen(2): opens the rendezvous, unless there is one or the socket is none of ours.
pub(crate) fn listening(fd: c_int) {
    let _keep = sys::KeepErrno::new();
    if settings::is_stopped() || !table::is_plain(fd) || !is_tcp(fd) {
        return;
    }
    let Some(port) = Address::here(fd).map(|here| here.port) else { return };
    let Some(rendezvous) = (0..PLACES).find_map(|place| open(port, place)) else { return };
    let mut store = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: there is room for both descriptors.
    unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, store.as_mut_ptr()) };
    let Ok(shared) = sys::map_shared(size_of::<Shared>()) else {
        [rendezvous, store[0], store[1]].into_iter().for_each(sys::close);
        return;
    };
    let used = POOL.take().and_then(|mut pool| pool.pop());
    let listener = used.unwrap_or_else(|| Box::leak(Box::new(Listener::empty())));
    listener.rendezvous.store(aside(rendezvous), Ordering::Relaxed);
    listener.store_out.store(aside(store[0]), Ordering::Relaxed);
    listener.store_in.store(aside(store[1]), Ordering::Relaxed);
    listener.shared.store(shared.cast(), Ordering::Relaxed);
    // SAFETY: no arguments.
    listener.user.store(unsafe { libc::geteuid() }, Ordering::Relaxed);
    table::put_listener(fd, Held::first(listener));
}

fn open(port: u16, place: u32) -> Option<c_int> {
    let fd = unix_socket();
    let (address, size) = name(port, place);
    // SAFETY: `address` has the size that is announced.
    let opened = unsafe {
        real::bind(fd, (&raw const address).cast(), size) == 0
            && real::listen(fd, OFFERS_MAX as c_int) == 0
    };
    if opened {
        return Some(fd);
    }
    sys::close(fd);
    None
}

/// Moves a descriptor of ours out of the way.
fn aside(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    let high = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, sys::lowest_descriptor()) };
    let fd = if high >= 0 {
        sys::close(fd);
        high
    } else {
        fd
    };
    table::reserve(fd);
    fd
}

/// The application takes the number of a descriptor of ours: ours gets another one.
pub(crate) fn move_aside(fd: c_int) {
    let _keep = sys::KeepErrno::new();
    // SAFETY: no pointers.
    let other = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1) };
    for listener in table::listeners() {
        for descriptor in [&listener.rendezvous, &listener.store_out, &listener.store_in] {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            if descriptor.compare_exchange(fd, other, order.0, order.1).is_ok() && other >= 0 {
                table::reserve(other);
            }
        }
    }
    table::forget(fd);
}

impl Listener {
    const fn empty() -> Self {
        Listener {
            users: AtomicUsize::new(0),
            rendezvous: AtomicI32::new(-1),
            store_out: AtomicI32::new(-1),
            store_in: AtomicI32::new(-1),
            user: AtomicU32::new(0),
            shared: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Upgrades a connection that was just accepted, if it was offered.
    pub(crate) fn adopt(&self, fd: c_int) {
        let _keep = sys::KeepErrno::new();
        if settings::is_stopped() || !table::covers(fd) || !connection::has_room() {
            return;
        }
        let Some(memory) = self.find(fd) else { return };
        let opened = page::open(memory);
        sys::close(memory);
        let Ok((mapping, ring_bytes)) = opened else { return };
        let nonblocking = sys::is_nonblocking(fd);
        let made = Connection::new(mapping, ring_bytes, page::SERVER, nonblocking);
        let Ok(connection) = made else { return };
        let standing = &connection.page().standing;
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        if standing.compare_exchange(OFFERED, ACCEPTED, order.0, order.1).is_ok()
            && connection.switch(fd).is_ok()
        {
            statistics::count(Why::Accepted);
            table::put_connection(fd, connection);
        }
    }

    /// The memory file that was offered for a connection. The caller owns it.
    fn find(&self, fd: c_int) -> Option<c_int> {
        let rendezvous = self.rendezvous.load(Ordering::Relaxed);
        if !table::is_reserved(rendezvous) {
            return None;
        }
        // SAFETY: mapped as long as the listener is held; its words are atomics.
        let shared = unsafe { &*self.shared.load(Ordering::Relaxed) };
        let _guard = shared.lock.take()?;
        let mut seeker = Seeker { listener: self, shared, connection: None, fd };
        for _ in 0..shared.stored.load(Ordering::Relaxed).min(OFFERS_MAX) {
            let Some((offer, memory)) = Offer::receive(self.store_out.load(Ordering::Relaxed))
            else {
                shared.stored.store(0, Ordering::Relaxed);
                break;
            };
            shared.stored.fetch_sub(1, Ordering::Relaxed);
            if let Some(memory) = seeker.sift(offer, memory) {
                return Some(memory);
            }
        }
        for _ in 0..OFFERS_MAX {
            let (null, flags) = (core::ptr::null_mut(), libc::SOCK_CLOEXEC);
            // SAFETY: no address is asked for.
            let sender = unsafe { real::accept4(rendezvous, null, null.cast(), flags) };
            if sender < 0 {
                break;
            }
            let received = self.hear(sender);
            sys::close(sender);
            if let Some((offer, memory)) = received
                && let Some(memory) = seeker.sift(offer, memory)
            {
                return Some(memory);
            }
        }
        None
    }

    /// Reads the offer of one sender, if it is of our user.
    fn hear(&self, sender: c_int) -> Option<(Offer, c_int)> {
        let user = sys::peer_user(sender)?;
        // SAFETY: no arguments.
        let me = unsafe { libc::geteuid() };
        if user != me && user != self.user.load(Ordering::Relaxed) {
            return None;
        }
        Offer::receive(sender).or_else(|| {
            sys::poll_one(sender, libc::POLLIN, SENDER_MS);
            Offer::receive(sender)
        })
    }
}

/// Looks for the offer of one connection.
struct Seeker<'a> {
    listener: &'a Listener,
    shared: &'a Shared,
    /// Both ends, asked for when the first offer is there.
    connection: Option<(Address, Address)>,
    fd: c_int,
}

impl Seeker<'_> {
    /// The memory file, if it is the right one; else it is kept for others or, if stale, closed.
    fn sift(&mut self, offer: Offer, memory: c_int) -> Option<c_int> {
        if self.connection.is_none() {
            self.connection = Address::there(self.fd).zip(Address::here(self.fd));
        }
        if self.connection == Some((offer.client, offer.server)) {
            return Some(memory);
        }
        let store = self.listener.store_in.load(Ordering::Relaxed);
        if !offer.is_stale() && offer.send(store, memory) {
            self.shared.stored.fetch_add(1, Ordering::Relaxed);
        }
        sys::close(memory);
        None
    }
}
