//! A connection between two programs that both run this library.
//!
//! Each direction is a stream of bytes that begins in TCP, may go on in a ring of the shared page,
//! and may come back to TCP, once each. Where it goes over is a number of bytes that the sender
//! publishes, so the receiver always knows whose turn it is. While a direction is in its ring, its
//! TCP stream carries nothing but doorbells: single bytes that wake a sleeper, counted so that they
//! can be taken out exactly.

mod bounds;
mod close;
mod doorbell;
mod leave;
mod own;
mod prompt;
mod ready;
mod receive;
mod sleeper;
mod transmit;
mod wait;

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

pub(crate) use own::Own;
pub(crate) use ready::ASKED;
pub(crate) use receive::Reading;
pub(crate) use sleeper::forget_sleepers;

use crate::borrowed;
use crate::counted::{Counted, Held};
use crate::lock::Locked;
use crate::page::{self, Page, Ring, Side};
use crate::spin::Spin;
use crate::statistics::{self, Why};
use crate::sys::{self, Result};

/// One connection, as this process sees it.
pub(crate) struct Connection {
    users: AtomicUsize,
    /// The mapping that the peer shares.
    page: AtomicPtr<u8>,
    ring_bytes: AtomicU64,
    /// What this end knows, shared with forked children only.
    own: AtomicPtr<Own>,
    /// [`page::CLIENT`] or [`page::SERVER`].
    side: AtomicU32,
    /// Descriptors of this process.
    pub(crate) descriptors: AtomicUsize,
    /// Whether this process counts among those that have the connection.
    holds: AtomicBool,
    /// The last fork that gave it to a child.
    shared_at: AtomicU32,
    /// Calls that sleep, and what they go on with.
    sleeping: Locked<sleeper::Sleeping>,
    /// Registrations in epoll sets of this process.
    pub(crate) watchers: AtomicUsize,
    /// How often the application heard that there is no room: each is an edge when there is again.
    pub(crate) refusals: AtomicU32,
    /// How often it heard that there is nothing more to read.
    pub(crate) dry_reads: AtomicU32,
    /// In which tick of the clock a writer last asked the kernel whether the peer lives.
    looked_ns: AtomicU64,
    /// How long waiting by looking has paid here.
    pub(crate) spin: Spin,
}

static POOL: Locked<Vec<&'static Connection>> = Locked::new(Vec::new());
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Over a fork: nobody may hold the pool's lock in the child.
pub(crate) fn hold_pool() {
    POOL.hold();
}

/// Ends [`hold_pool`].
pub(crate) fn let_go_of_pool() {
    POOL.let_go();
}

/// Whether one more connection is allowed.
pub(crate) fn has_room() -> bool {
    LIVE.load(Ordering::Relaxed) < crate::settings::get().connections_max
}

impl Counted for Connection {
    fn users(&self) -> &AtomicUsize {
        &self.users
    }

    fn retire(&'static self) {
        let _keep = sys::KeepErrno::new();
        let bytes = page::file_bytes(self.ring_bytes());
        // SAFETY: no user is left, so nobody looks at the mappings.
        unsafe {
            sys::unmap(self.page.load(Ordering::Relaxed), bytes);
            sys::unmap(self.own.load(Ordering::Relaxed).cast(), size_of::<Own>());
        }
        LIVE.fetch_sub(1, Ordering::Relaxed);
        if let Some(mut pool) = POOL.take() {
            pool.push(self);
        }
    }
}

impl Connection {
    /// A connection over a mapped page, which it owns from now on (also on failure).
    pub(crate) fn new(
        mapping: *mut u8,
        ring_bytes: u64,
        side: usize,
        nonblocking: bool,
    ) -> Result<Held<Connection>> {
        let own = match sys::map_shared(size_of::<Own>()) {
            Ok(own) => own.cast::<Own>(),
            Err(errno) => {
                // SAFETY: nobody else knows the mapping.
                unsafe { sys::unmap(mapping, page::file_bytes(ring_bytes)) };
                return Err(errno);
            }
        };
        let used = POOL.take().and_then(|mut pool| pool.pop());
        let connection = used.unwrap_or_else(|| Box::leak(Box::new(Connection::empty())));
        connection.page.store(mapping, Ordering::Relaxed);
        connection.ring_bytes.store(ring_bytes, Ordering::Relaxed);
        connection.own.store(own, Ordering::Relaxed);
        connection.side.store(side as u32, Ordering::Relaxed);
        connection.holds.store(true, Ordering::Relaxed);
        connection.spin.reset();
        LIVE.fetch_add(1, Ordering::Relaxed);
        let held = Held::first(connection);
        held.own().holders.store(1, Ordering::Relaxed);
        held.own().set_nonblocking(nonblocking);
        Ok(held)
    }

    const fn empty() -> Self {
        Connection {
            users: AtomicUsize::new(0),
            page: AtomicPtr::new(core::ptr::null_mut()),
            ring_bytes: AtomicU64::new(0),
            own: AtomicPtr::new(core::ptr::null_mut()),
            side: AtomicU32::new(0),
            descriptors: AtomicUsize::new(0),
            holds: AtomicBool::new(false),
            shared_at: AtomicU32::new(0),
            sleeping: Locked::new(sleeper::Sleeping::NONE),
            watchers: AtomicUsize::new(0),
            refusals: AtomicU32::new(0),
            dry_reads: AtomicU32::new(0),
            looked_ns: AtomicU64::new(0),
            spin: Spin::new(),
        }
    }

    pub(crate) fn ring_bytes(&self) -> u64 {
        self.ring_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn own(&self) -> &Own {
        // SAFETY: whoever has the connection holds a use of it, and the mapping lasts as long.
        unsafe { &*self.own.load(Ordering::Relaxed) }
    }

    pub(crate) fn page(&self) -> &Page {
        // SAFETY: as in `own`; the mapping begins with the header, which consists of atomics.
        unsafe { &*self.page.load(Ordering::Relaxed).cast::<Page>() }
    }

    pub(crate) fn side(&self) -> usize {
        self.side.load(Ordering::Relaxed) as usize
    }

    /// What this end writes for the other.
    pub(crate) fn mine(&self) -> &Side {
        &self.page().sides[self.side()]
    }

    /// What the other end writes: hostile until checked.
    pub(crate) fn theirs(&self) -> &Side {
        &self.page().sides[1 - self.side()]
    }

    fn outgoing_ring(&self) -> Ring {
        // SAFETY: the mapping has this size and lasts as long as the connection is held.
        unsafe { Ring::of(self.page.load(Ordering::Relaxed), self.ring_bytes(), self.side()) }
    }

    fn incoming_ring(&self) -> Ring {
        // SAFETY: as above.
        unsafe { Ring::of(self.page.load(Ordering::Relaxed), self.ring_bytes(), 1 - self.side()) }
    }

    /// Whether both ends were last seen on one processor: looking then only delays the other.
    pub(crate) fn shares_processor(&self) -> bool {
        let here = sys::processor();
        self.mine().incoming.processor.store(here, Ordering::Relaxed);
        self.theirs().incoming.processor.load(Ordering::Relaxed) == here
    }

    /// The descriptor is a plain TCP socket from now on.
    pub(crate) fn become_plain(&self, fd: c_int) {
        if borrowed::is_here() {
            return borrowed::note_left();
        }
        crate::epoll::release(self, fd);
        // Who closes it is to see that calls sleep for it.
        if !self.has_sleepers() {
            crate::table::forget(fd);
        }
    }

    /// The peer said something that cannot be: the application gets a reset connection.
    fn fail(&self, fd: c_int) -> sys::Errno {
        self.own().fail();
        statistics::count(Why::Nonsense);
        sys::reset(fd);
        sys::Errno(libc::ECONNRESET)
    }
}
