//! A connection between two programs that both run this library.
//!
//! Each direction is a stream of bytes that begins in TCP, may continue in a ring of the shared
//! page, and may return to TCP, once each. The sender publishes the byte position of each switch,
//! so the receiver always knows where the next byte is. While a direction is in its ring, its TCP
//! stream carries only doorbells: single bytes that wake a sleeper, counted so that exactly these
//! can be removed.

mod bounds;
mod close;
mod doorbell;
mod leave;
mod nodelay;
mod own;
mod ready;
mod receive;
mod sleeper;
mod transmit;
mod wait;

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

pub(crate) use own::OwnState;
pub(crate) use ready::ASKED;
pub(crate) use receive::Reading;
pub(crate) use sleeper::forget_sleepers;

use crate::borrowed;
use crate::counted::{Counted, CountedRef};
use crate::page::{self, Mine, Page, Ring, Theirs};
use crate::spin::Spin;
use crate::statistics::{self, Why};
use crate::sys::{self, Result};
use crate::table;
use preload::lock::Locked;

/// One connection, with this process's state.
pub(crate) struct Connection {
    users: AtomicUsize,
    /// The mapping of the page that both ends share.
    page: AtomicPtr<u8>,
    ring_bytes: AtomicU64,
    /// The private state of this end, which only forked children share.
    own: AtomicPtr<OwnState>,
    /// [`page::CLIENT`] or [`page::SERVER`].
    side: AtomicU32,
    /// The number of this process's descriptors of the connection.
    pub(crate) descriptors: AtomicUsize,
    /// Whether this process counts among those that have the connection.
    holds: AtomicBool,
    /// The number of the last fork that gave it to a child; 0 if there was none.
    shared_at: AtomicU32,
    /// Calls that sleep, and the descriptor that they continue with.
    sleeping: Locked<sleeper::Sleeping>,
    /// The number of registrations in epoll sets of this process.
    pub(crate) watchers: AtomicUsize,
    /// How many calls reported to the application that there is no room: each makes an edge when
    /// there is room again.
    pub(crate) refusals: AtomicU32,
    /// How many calls reported that there is nothing more to read.
    pub(crate) dry_reads: AtomicU32,
    /// The tick of the clock in which a writer last asked the kernel whether the peer lives.
    looked_ns: AtomicU64,
    /// How long spinning has been worthwhile for this connection.
    pub(crate) spin: Spin,
}

static POOL: Locked<Vec<&'static Connection>> = Locked::new(Vec::new());
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// A change that the library has to report to epoll sets, because the kernel does not.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    /// The kernel, if asked, can report other events than before.
    Readiness,
    /// The descriptor is a plain TCP socket from now on.
    Plain(c_int),
}

static NOTIFY: OnceLock<fn(&Connection, Change)> = OnceLock::new();

/// Sets the function that reports changes to the sets. Call it before there are connections.
pub(crate) fn notify_with(notify: fn(&Connection, Change)) {
    let _ = NOTIFY.set(notify);
}

/// Called before a fork: takes the pool's lock, so that no other thread holds it in the child.
pub(crate) fn hold_pool() {
    POOL.hold();
}

/// Ends [`hold_pool`].
pub(crate) fn let_go_of_pool() {
    POOL.let_go();
}

/// Returns whether one more connection is allowed.
pub(crate) fn has_room() -> bool {
    LIVE.load(Ordering::Relaxed) < crate::settings::get().connections_max
}

impl Counted for Connection {
    const TAG: usize = table::CONNECTION;

    fn users(&self) -> &AtomicUsize {
        &self.users
    }

    fn retire(&'static self) {
        let _keep = sys::KeepErrno::new();
        let bytes = page::file_bytes(self.ring_bytes());
        self.free_rings();
        // SAFETY: there are no users left, so no thread accesses the mappings.
        unsafe {
            sys::unmap(self.page.load(Ordering::Relaxed), bytes);
            sys::unmap(self.own.load(Ordering::Relaxed).cast(), size_of::<OwnState>());
        }
        LIVE.fetch_sub(1, Ordering::Relaxed);
        if let Some(mut pool) = POOL.take() {
            pool.push(self);
        }
    }

    fn added(&self) {
        self.descriptors.fetch_add(1, Ordering::Relaxed);
    }

    fn removed(&self) {
        self.descriptors.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Makes a connection over a mapped page, which it owns from now on (even on failure).
    pub(crate) fn new(
        mapping: *mut u8,
        ring_bytes: u64,
        side: usize,
        nonblocking: bool,
    ) -> Result<CountedRef<Connection>> {
        let own = match sys::map_shared(size_of::<OwnState>()) {
            Ok(own) => own.cast::<OwnState>(),
            Err(errno) => {
                // SAFETY: no other thread knows the mapping.
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
        connection.shared_at.store(0, Ordering::Relaxed);
        connection.spin.reset();
        LIVE.fetch_add(1, Ordering::Relaxed);
        let held = CountedRef::first(connection);
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

    /// Frees the rings if the peer has done with them too and sockets that did not get the
    /// connection may keep the memory file. Called when this process uses the memory no more. If
    /// children have the connection, or an end is killed or exits with it, the memory stays.
    fn free_rings(&self) {
        if self.shared_at.load(Ordering::Relaxed) != 0 || !self.page().copies.are_several() {
            return;
        }
        self.mine().set_unmapped();
        if self.theirs().is_unmapped() {
            // SAFETY: neither process uses the rings any more, and no other one has them.
            unsafe { page::free_rings(self.page.load(Ordering::Relaxed), self.ring_bytes()) };
        }
    }

    /// Returns the size of one ring in bytes.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.ring_bytes.load(Ordering::Relaxed)
    }

    /// Returns the private state of this end.
    pub(crate) fn own(&self) -> &OwnState {
        // SAFETY: the caller's reference counts as a use of the connection, and the mapping exists
        // as long as there are uses.
        unsafe { &*self.own.load(Ordering::Relaxed) }
    }

    /// Returns the header of the shared page.
    pub(crate) fn page(&self) -> &Page {
        // SAFETY: the caller's reference counts as a use, and the mapping exists as long as there
        // are uses; it begins with the header, which consists of atomics.
        unsafe { &*self.page.load(Ordering::Relaxed).cast::<Page>() }
    }

    /// Returns the index of this end: [`page::CLIENT`] or [`page::SERVER`].
    pub(crate) fn side(&self) -> usize {
        self.side.load(Ordering::Relaxed) as usize
    }

    /// Returns the half of the page that this end writes.
    pub(crate) fn mine(&self) -> Mine<'_> {
        self.page().mine(self.side())
    }

    /// Returns the half that the peer writes.
    pub(crate) fn theirs(&self) -> Theirs<'_> {
        self.page().theirs(self.side())
    }

    fn outgoing_ring(&self) -> Ring {
        // SAFETY: the mapping has this size and lasts as long as the connection is held.
        unsafe { Ring::of(self.page.load(Ordering::Relaxed), self.ring_bytes(), self.side()) }
    }

    fn incoming_ring(&self) -> Ring {
        // SAFETY: the mapping has this size and lasts as long as the connection is held.
        unsafe { Ring::of(self.page.load(Ordering::Relaxed), self.ring_bytes(), 1 - self.side()) }
    }

    /// Returns whether both ends last ran on one CPU: spinning would then only delay the peer.
    pub(crate) fn shares_processor(&self) -> bool {
        let here = sys::processor();
        self.mine().set_processor(here);
        self.theirs().was_on(here)
    }

    /// Makes the descriptor a plain TCP socket.
    pub(crate) fn become_plain(&self, fd: c_int) {
        if borrowed::is_here() {
            return borrowed::note_left();
        }
        self.notify_watchers(Change::Plain(fd));
        // The call that closes the descriptor must see that calls sleep for it.
        if !self.has_sleepers() {
            table::forget(fd);
        }
    }

    /// Reports a change to the sets that watch the connection.
    fn notify_watchers(&self, change: Change) {
        if self.watchers.load(Ordering::Relaxed) > 0
            && let Some(notify) = NOTIFY.get()
        {
            notify(self, change);
        }
    }

    /// Handles an impossible value of the peer: the application gets a connection reset.
    fn fail(&self, fd: c_int) -> sys::Errno {
        self.own().fail();
        statistics::count(Why::Nonsense);
        sys::reset(fd);
        sys::Errno(libc::ECONNRESET)
    }
}
