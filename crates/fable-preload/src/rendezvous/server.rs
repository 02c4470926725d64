//! The listening side of the rendezvous.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use preload::real;

use super::message::{Message, Received};
use super::{Address, ONLY_6, PLACES, is_tcp, name, peer, unix_socket};
use crate::connection::{self, Connection};
use crate::counted::{Counted, CountedRef};
use crate::page;
use crate::statistics::{self, Why};
use crate::{settings, sys, table};
use preload::lock::{Lock, Locked};

/// The most offers that are checked for one accepted connection, and that wait for a listener which
/// accepts.
const OFFERS_MAX: u32 = 4096;
/// The most offers that wait for a listener which has neither accepted nor been inherited.
const FIRST_OFFERS_MAX: u32 = 64;
/// How many clients may be kept that have connected to the rendezvous and sent no offer yet. The
/// connections of others stay in TCP.
const VISITORS_MAX: u32 = 128;
/// The most offers that are tried for one accepted connection. A client revokes the earlier ones of
/// a socket that it connects again.
const OFFERS_OF_A_SOCKET_MAX: u32 = 8;
/// How long an accepting process waits, in milliseconds, until another one that shares the listener
/// has looked for its own offer. Then the connection stays in TCP.
const TURN_MS: u32 = 20;

/// How many connections a listening socket upgrades until those of its process at the same port are
/// tidied too.
const TIDY_EVERY: u32 = 64;

/// State that is shared by all processes which inherited the listening socket.
#[repr(C)]
struct Shared {
    lock: Lock,
    /// Messages in the store: offers for connections that are not accepted yet, and visitors.
    stored: AtomicU32,
    /// Visitors among them: clients that have connected and sent no offer yet.
    visitors: AtomicU32,
    /// Questions about the other end of a connection.
    questions: AtomicU32,
    /// The listener serves: [`offers_max`] offers may wait.
    serves: AtomicU32,
}

/// A listening socket with its rendezvous.
pub(crate) struct Listener {
    users: AtomicUsize,
    rendezvous: AtomicI32,
    store_out: AtomicI32,
    store_in: AtomicI32,
    /// For questions about the other end of a connection, with the lock held.
    diagnosis: AtomicI32,
    user: AtomicU32,
    port: AtomicU32,
    /// Connections that this process has upgraded.
    upgraded: AtomicU32,
    shared: AtomicPtr<Shared>,
}

static POOL: Locked<Vec<&'static Listener>> = Locked::new(Vec::new());

impl Counted for Listener {
    const TAG: usize = table::LISTENER;

    fn users(&self) -> &AtomicUsize {
        &self.users
    }

    fn retire(&'static self) {
        let _keep = sys::KeepErrno::new();
        for descriptor in self.descriptors() {
            let fd = descriptor.swap(-1, Ordering::Relaxed);
            if table::is_reserved(fd) {
                table::forget(fd);
                sys::close(fd);
            }
        }
        // SAFETY: this process has no users of the mapping left.
        unsafe { sys::unmap(self.shared.load(Ordering::Relaxed).cast(), size_of::<Shared>()) };
        if let Some(mut pool) = POOL.take() {
            pool.push(self);
        }
    }
}

/// Opens the rendezvous after listen(2), unless there is one or the socket is not supported.
pub(crate) fn listening(fd: c_int) {
    let _keep = sys::KeepErrno::new();
    if settings::is_stopped() || !table::is_plain(fd) || !is_tcp(fd) {
        return;
    }
    let Some(port) = Address::here(fd).map(|here| here.port) else { return };
    let Some(diagnosis) = peer::open(fd) else { return };
    let accepts_only_6 = sys::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_INET6)
        && sys::option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) != Ok(0);
    let first = if accepts_only_6 { ONLY_6 } else { 0 };
    let mut places = first..first + PLACES;
    let Some(rendezvous) = places.find_map(|place| open(port, place)) else {
        return sys::close(diagnosis);
    };
    let mut store = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: there is room for both descriptors.
    unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, store.as_mut_ptr()) };
    let Ok(shared) = sys::map_shared(size_of::<Shared>()) else {
        [diagnosis, rendezvous, store[0], store[1]].into_iter().for_each(sys::close);
        return;
    };
    let used = POOL.take().and_then(|mut pool| pool.pop());
    let listener = used.unwrap_or_else(|| Box::leak(Box::new(Listener::empty())));
    listener.rendezvous.store(aside(rendezvous), Ordering::Relaxed);
    listener.store_out.store(aside(store[0]), Ordering::Relaxed);
    listener.store_in.store(aside(store[1]), Ordering::Relaxed);
    listener.diagnosis.store(aside(diagnosis), Ordering::Relaxed);
    listener.shared.store(shared.cast(), Ordering::Relaxed);
    listener.port.store(port.into(), Ordering::Relaxed);
    // SAFETY: geteuid(2) has no arguments.
    listener.user.store(unsafe { libc::geteuid() }, Ordering::Relaxed);
    table::put(fd, CountedRef::first(listener));
}

fn open(port: u16, place: u32) -> Option<c_int> {
    let fd = unix_socket();
    let (address, size) = name(port, place);
    // SAFETY: `address` has the announced size.
    let opened = unsafe {
        real::bind(fd, (&raw const address).cast(), size) == 0
            && real::listen(fd, FIRST_OFFERS_MAX as c_int) == 0
    };
    if opened {
        return Some(fd);
    }
    sys::close(fd);
    None
}

/// Returns how many offers may wait for a listener that accepts. The kernel limits the descriptors
/// that all processes of a user have sent and that were not received to RLIMIT_NOFILE: a listener
/// that accepts no more must leave most of them to others.
fn offers_max() -> u32 {
    let of_limit = sys::descriptors_max().rlim_cur / 4;
    of_limit.clamp(FIRST_OFFERS_MAX.into(), OFFERS_MAX.into()) as u32
}

/// Moves a descriptor of the library to a high number.
fn aside(fd: c_int) -> c_int {
    // SAFETY: the command takes a number and no pointer.
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

/// Moves a descriptor of the library, because the application takes its number.
pub(crate) fn move_aside(fd: c_int) {
    let _keep = sys::KeepErrno::new();
    // SAFETY: the command takes a number and no pointer.
    let other = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1) };
    for (_, listener) in table::entries::<Listener>(0, c_int::MAX) {
        for descriptor in listener.descriptors() {
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
            diagnosis: AtomicI32::new(-1),
            user: AtomicU32::new(0),
            port: AtomicU32::new(0),
            upgraded: AtomicU32::new(0),
            shared: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    fn descriptors(&self) -> [&AtomicI32; 4] {
        [&self.rendezvous, &self.store_out, &self.store_in, &self.diagnosis]
    }

    /// Upgrades a connection that was just accepted, if there is an offer for it.
    pub(crate) fn adopt(&self, fd: c_int) {
        let _keep = sys::KeepErrno::new();
        if settings::is_stopped() || !table::covers(fd) || !connection::has_room() {
            return;
        }
        self.admit_offers();
        for _ in 0..OFFERS_OF_A_SOCKET_MAX {
            let Some(memory) = self.find(fd) else { return };
            let opened = page::open(memory);
            sys::close(memory);
            let Ok((mapping, ring_bytes)) = opened else { continue };
            let nonblocking = sys::is_nonblocking(fd);
            let made = Connection::new(mapping, ring_bytes, page::SERVER, nonblocking);
            let Ok(connection) = made else { return };
            if connection.page().standing.accept() {
                if connection.switch(fd).is_ok() {
                    statistics::count(Why::Accepted);
                    table::put(fd, connection);
                }
                return self.tidy_others();
            }
        }
    }

    /// Lets more offers wait, at the first accepted connection and before a fork: the children may
    /// accept as another user. For clients the user is the one who has called listen(2) last
    /// (SO_PEERCRED), so a process of another user leaves the queue as it is.
    pub(crate) fn admit_offers(&self) {
        let rendezvous = self.rendezvous.load(Ordering::Relaxed);
        // SAFETY: geteuid(2) has no arguments.
        let is_owner = || unsafe { libc::geteuid() } == self.user.load(Ordering::Relaxed);
        if table::is_reserved(rendezvous)
            && self.shared().serves.load(Ordering::Relaxed) == 0
            && is_owner()
            && self.shared().serves.swap(1, Ordering::Relaxed) == 0
        {
            // SAFETY: plain numbers.
            unsafe { real::listen(rendezvous, offers_max() as c_int) };
        }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the memory is mapped as long as the listener is held; its words are atomics.
        unsafe { &*self.shared.load(Ordering::Relaxed) }
    }

    /// Closes what clients have offered to other listening sockets at this port and is used by now.
    /// A socket that accepts nothing itself would keep the memory of thousands of connections.
    fn tidy_others(&self) {
        if !self.upgraded.fetch_add(1, Ordering::Relaxed).is_multiple_of(TIDY_EVERY) {
            return;
        }
        let port = self.port.load(Ordering::Relaxed);
        for (_, other) in table::entries::<Listener>(0, c_int::MAX) {
            if !core::ptr::eq(other.object(), self) && other.port.load(Ordering::Relaxed) == port {
                other.seek(None, 0);
            }
        }
    }

    /// Returns the memory file that was offered for a connection. The caller owns it.
    ///
    /// Never waits for a client: its offer for this connection was sent before it connected.
    fn find(&self, fd: c_int) -> Option<c_int> {
        self.seek(Some(fd), TURN_MS)
    }

    /// Looks through the offers, for that of a connection if one is given, when it gets the lock
    /// within some milliseconds.
    fn seek(&self, fd: Option<c_int>, turn_ms: u32) -> Option<c_int> {
        let rendezvous = self.rendezvous.load(Ordering::Relaxed);
        if !table::is_reserved(rendezvous) {
            return None;
        }
        let shared = self.shared();
        let _guard = shared.lock.take_within(turn_ms).ok()?;
        let peer = if fd.is_none() { Some(None) } else { None };
        let mut seeker = Seeker { listener: self, shared, peer, fd: fd.unwrap_or(-1) };
        seeker.look_into_store().or_else(|| seeker.hear_new_visitors(rendezvous))
    }

    /// Returns whether offers from the client's user are accepted.
    fn is_trusted(&self, visitor: c_int) -> bool {
        // SAFETY: geteuid(2) has no arguments.
        let me = unsafe { libc::geteuid() };
        sys::peer_user(visitor)
            .is_some_and(|user| user == me || user == self.user.load(Ordering::Relaxed))
    }
}

/// Looks for the offer of one connection, with the lock of the listener held.
struct Seeker<'a> {
    listener: &'a Listener,
    shared: &'a Shared,
    /// The cookie of the client's socket, if it has one, determined when the first offer is found.
    peer: Option<Option<u64>>,
    fd: c_int,
}

impl Seeker<'_> {
    fn look_into_store(&mut self) -> Option<c_int> {
        let store = self.listener.store_out.load(Ordering::Relaxed);
        for _ in 0..self.shared.stored.load(Ordering::Relaxed).min(OFFERS_MAX) {
            let Received::Message(message, descriptor) = Message::receive(store) else {
                // A process was killed before it had counted.
                self.shared.stored.store(0, Ordering::Relaxed);
                self.shared.visitors.store(0, Ordering::Relaxed);
                break;
            };
            lower(&self.shared.stored);
            let found = if message.is_offer() {
                self.sift(message, descriptor)
            } else {
                lower(&self.shared.visitors);
                self.hear(message, descriptor)
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn hear_new_visitors(&mut self, rendezvous: c_int) -> Option<c_int> {
        for _ in 0..OFFERS_MAX {
            let (null, flags) = (core::ptr::null_mut(), libc::SOCK_CLOEXEC);
            // SAFETY: the pointers are null, so no address is written.
            let visitor = unsafe { real::accept4(rendezvous, null, null.cast(), flags) };
            if visitor < 0 {
                break;
            }
            if !self.listener.is_trusted(visitor) {
                sys::close(visitor);
                continue;
            }
            let found = self.hear(Message::visitor(), visitor);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Takes the offer of a visitor. If it has sent none, it is kept, with its entry of the store.
    fn hear(&mut self, entry: Message, visitor: c_int) -> Option<c_int> {
        match Message::receive(visitor) {
            Received::Message(offer, memory) if offer.is_offer() => {
                sys::close(visitor);
                return self.sift(offer.made_by_now(), memory);
            }
            Received::Message(_, descriptor) => sys::close(descriptor),
            Received::Nothing if self.shared.visitors.load(Ordering::Relaxed) < VISITORS_MAX => {
                if self.keep(entry, visitor) {
                    self.shared.visitors.fetch_add(1, Ordering::Relaxed);
                }
            }
            Received::Nothing | Received::Invalid => (),
        }
        sys::close(visitor);
        None
    }

    /// Returns the memory file if the offer is for this connection. Otherwise keeps the offer for
    /// other connections or, if it is stale, closes it.
    fn sift(&mut self, offer: Message, memory: c_int) -> Option<c_int> {
        let peer = *self.peer.get_or_insert_with(|| {
            let sequence = self.shared.questions.fetch_add(1, Ordering::Relaxed);
            let diagnosis = self.listener.diagnosis.load(Ordering::Relaxed);
            // The application may have closed it.
            if !table::is_reserved(diagnosis) {
                return None;
            }
            peer::cookie(diagnosis, self.fd, sequence)
        });
        if peer == Some(offer.cookie) {
            return Some(memory);
        }
        self.keep(offer, memory);
        sys::close(memory);
        None
    }

    /// Puts a message into the store, unless it is stale, another connection uses the memory, or
    /// there is no room.
    fn keep(&self, message: Message, descriptor: c_int) -> bool {
        let store = self.listener.store_in.load(Ordering::Relaxed);
        let stands = !message.is_offer() || page::is_offered(descriptor);
        let is_kept = stands && !message.is_stale() && message.send(store, descriptor);
        if is_kept {
            self.shared.stored.fetch_add(1, Ordering::Relaxed);
        }
        is_kept
    }
}

/// Counts down to zero.
fn lower(count: &AtomicU32) {
    let value = count.load(Ordering::Relaxed);
    count.store(value.saturating_sub(1), Ordering::Relaxed);
}
