//! epoll(7) over upgraded connections.
//!
//! A connection in a set is registered in the kernel once, edge-triggered and with a token of this
//! library. The kernel then reports each doorbell, the end of the stream and errors, and nothing
//! else. The application's events are stored here. Readiness is computed from the rings, and from
//! the kernel only while a direction is in TCP. Other descriptors are registered as the application
//! asked and cost nothing.
//!
//! Connections that have or may have an event are *hot*. Before sleeping, the peers of all hot
//! connections are asked for a doorbell, and the list of hot connections is emptied. So the cost of
//! a sleep depends on the number of active connections, not on that of all connections.

mod control;
mod gather;
mod wait;

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use preload::real;
use std::sync::OnceLock;

use libc::epoll_event;

pub(crate) use control::control;
pub(crate) use wait::wait;

use crate::connection::{Change, Connection};
use crate::counted::{Counted, CountedRef};
use crate::page::Mark;
use crate::spin::Spin;
use crate::statistics::Why;
use crate::table;
use preload::lock::Locked;

/// The events that the kernel watches for a connection, whatever the application asks for.
const KERNEL_EVENTS: c_int =
    libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLET;

/// One connection in one set.
struct Registration {
    fd: c_int,
    connection: CountedRef<Connection>,
    generation: u32,
    /// The application's events, with its flags.
    events: u32,
    data: u64,
    /// Whether EPOLLONESHOT has reported its one event.
    fired: bool,
    hot: bool,
    /// Whether the kernel has not reported what was ready when the member was added, which is an
    /// edge even if the connection is in memory by then.
    fresh: bool,
    /// Whether the kernel has to be asked, because the memory does not show everything.
    ask_kernel: bool,
    /// Whether something happened since the last report, for edge-triggered registrations.
    edge: bool,
    /// The events of the end that were reported: they remain, and make no second edge.
    told: u32,
    seen: Marks,
}

/// Counters that distinguish a new edge from one that was reported.
#[derive(Clone, Copy, Default)]
struct Marks {
    /// Bytes that the peer has written.
    written: Mark,
    /// How many calls reported that there is no room, and that there is nothing more to read.
    refusals: u32,
    dry_reads: u32,
}

/// The registrations of a set.
struct Members {
    slots: Vec<Option<Registration>>,
    free: Vec<usize>,
    hot: Vec<usize>,
    /// The slot of each descriptor, plus one.
    by_descriptor: Vec<u32>,
    generation: u32,
    asked_kernel_ns: u64,
    /// Whether the set must not have members: another set watches it, or the library cannot support
    /// it.
    barred: bool,
    /// Whether a parent made the set, and uses it in the kernel too.
    inherited: bool,
}

/// The library's state of an epoll descriptor.
pub(crate) struct Set {
    users: AtomicUsize,
    count: AtomicUsize,
    /// Threads of this process that sleep for the set, or are about to.
    asleep: AtomicUsize,
    /// Whether the next call asks the kernel before the members, which filled the last result.
    kernel_first: AtomicBool,
    members: Locked<Members>,
    spin: Spin,
}

static SETS: Locked<Vec<&'static Set>> = Locked::new(Vec::new());
static UNUSED: Locked<Vec<&'static Set>> = Locked::new(Vec::new());
const INDEX_BITS: u32 = 20;

impl Members {
    const fn new() -> Self {
        Members {
            slots: Vec::new(),
            free: Vec::new(),
            hot: Vec::new(),
            by_descriptor: Vec::new(),
            generation: 0,
            asked_kernel_ns: 0,
            barred: false,
            inherited: false,
        }
    }

    fn slot_of(&self, fd: c_int) -> Option<usize> {
        let word = *self.by_descriptor.get(usize::try_from(fd).ok()?)?;
        (word as usize).checked_sub(1)
    }

    fn insert(&mut self, mut registration: Registration) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let fd = registration.fd as usize;
        if self.by_descriptor.len() <= fd {
            self.by_descriptor.resize(fd + 1, 0);
        }
        self.by_descriptor[fd] = slot as u32 + 1;
        self.generation = (self.generation + 1) & ((1 << (32 - INDEX_BITS)) - 1);
        registration.generation = self.generation;
        registration.connection.watchers.fetch_add(1, Ordering::Relaxed);
        self.slots[slot] = Some(registration);
        self.warm(slot);
        slot
    }

    fn remove(&mut self, slot: usize) -> Option<Registration> {
        let registration = self.slots.get_mut(slot)?.take()?;
        self.by_descriptor[registration.fd as usize] = 0;
        self.free.push(slot);
        self.hot.retain(|&other| other != slot);
        registration.connection.watchers.fetch_sub(1, Ordering::Relaxed);
        Some(registration)
    }

    /// Marks a member as hot: it may have an event.
    fn warm(&mut self, slot: usize) {
        if let Some(Some(registration)) = self.slots.get_mut(slot)
            && !registration.hot
        {
            registration.hot = true;
            self.hot.push(slot);
        }
    }

    fn token(&self, slot: usize) -> u64 {
        let generation = self.slots[slot].as_ref().map_or(0, |it| it.generation);
        secret() << 32 | u64::from(generation) << INDEX_BITS | slot as u64
    }

    /// Returns how a member is registered in the kernel.
    fn kernel_event(&self, slot: usize) -> epoll_event {
        epoll_event { events: KERNEL_EVENTS as u32, u64: self.token(slot) }
    }

    /// Returns the slot of a token, if the token is still valid.
    fn slot_of_token(&self, token: u64) -> Option<usize> {
        let slot = (token & ((1 << INDEX_BITS) - 1)) as usize;
        let generation = (token >> INDEX_BITS) as u32 & ((1 << (32 - INDEX_BITS)) - 1);
        let registration = self.slots.get(slot)?.as_ref()?;
        (registration.generation == generation).then_some(slot)
    }
}

/// Returns the upper half of the library's tokens. An application's datum with the same upper half
/// is detected when it is registered.
fn secret() -> u64 {
    static SECRET: OnceLock<u32> = OnceLock::new();
    u64::from(*SECRET.get_or_init(|| {
        let mut value = 0_u32;
        // SAFETY: `value` has the announced size. If the call fails, the upper bits still
        // distinguish a token from an address.
        unsafe { libc::getrandom((&raw mut value).cast(), size_of::<u32>(), 0) };
        value | 0x8000_8000
    }))
}

fn is_token(data: u64) -> bool {
    data >> 32 == secret()
}

impl Counted for Set {
    const TAG: usize = table::SET;

    fn users(&self) -> &AtomicUsize {
        &self.users
    }

    fn retire(&'static self) {
        if let Some(mut members) = self.members.take() {
            for slot in 0..members.slots.len() {
                members.remove(slot);
            }
            *members = Members::new();
        }
        self.count.store(0, Ordering::Relaxed);
        if let Some(mut unused) = UNUSED.take() {
            unused.push(self);
        }
    }
}

/// Called after epoll_create(2).
pub(crate) fn created(fd: c_int) {
    if fd < 0 || !table::covers(fd) {
        return;
    }
    let unused = UNUSED.take().and_then(|mut unused| unused.pop());
    let set = unused.unwrap_or_else(|| {
        let set: &'static Set = Box::leak(Box::new(Set {
            users: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            kernel_first: AtomicBool::new(false),
            members: Locked::new(Members::new()),
            spin: Spin::new(),
        }));
        if let Some(mut sets) = SETS.take() {
            sets.push(set);
        }
        set
    });
    set.spin.reset();
    if let Some(mut members) = set.members.take() {
        // A fork may have marked it as inherited while it was unused.
        *members = Members::new();
    }
    table::put(fd, CountedRef::first(set));
}

/// Returns the sets that have members.
fn active() -> Vec<CountedRef<Set>> {
    let Some(sets) = SETS.take() else { return Vec::new() };
    let busy = sets.iter().copied().filter(|set| set.count.load(Ordering::Relaxed) > 0);
    busy.filter_map(CountedRef::try_new).collect()
}

/// Reports a change to the sets that watch a connection.
pub(crate) fn notify(connection: &Connection, change: Change) {
    for set in active() {
        let Some(mut members) = set.members.take() else { continue };
        for slot in 0..members.slots.len() {
            let Some(registration) = &mut members.slots[slot] else { continue };
            if !core::ptr::eq(registration.connection.object(), connection) {
                continue;
            }
            match change {
                Change::Readiness => {
                    registration.ask_kernel = true;
                    members.warm(slot);
                }
                Change::Plain(fd) => {
                    let Some(registration) = members.remove(slot) else { continue };
                    set.count.fetch_sub(1, Ordering::Relaxed);
                    hand_back(&set, &registration);
                    table::refuse(fd);
                }
            }
        }
    }
}

/// Registers with the kernel the events that the application asked for.
fn hand_back(set: &CountedRef<Set>, registration: &Registration) {
    let shot = libc::EPOLLONESHOT as u32;
    let events = if registration.fired { shot } else { registration.events };
    let mut event = epoll_event { events, u64: registration.data };
    for descriptor in table::descriptors_of(set) {
        // SAFETY: the event is a local variable; for a descriptor that was closed meanwhile the
        // call fails without effect.
        let result = unsafe {
            real::epoll_ctl(descriptor, libc::EPOLL_CTL_MOD, registration.fd, &mut event)
        };
        if result == 0 {
            return;
        }
    }
}

/// Called before close(2) of a connection's descriptor: the kernel removes its registrations
/// itself, unless there is a duplicate.
pub(crate) fn closing(connection: &CountedRef<Connection>, fd: c_int) {
    if connection.watchers.load(Ordering::Relaxed) == 0 {
        return;
    }
    if connection.descriptors.load(Ordering::Relaxed) > 1 {
        connection.leave(fd, Why::Waiting);
        return;
    }
    for set in active() {
        let Some(mut members) = set.members.take() else { continue };
        if let Some(slot) = members.slot_of(fd)
            && members.remove(slot).is_some()
        {
            set.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns all connections in this set to TCP, and allows no others.
pub(crate) fn bar(set: &CountedRef<Set>) {
    let mut found = Vec::new();
    if let Some(mut members) = set.members.take() {
        members.barred = true;
        let all = members.slots.iter().flatten();
        found = all.map(|it| (it.fd, it.connection.clone())).collect();
    }
    for (fd, connection) in found {
        connection.leave(fd, Why::Waiting);
    }
}

/// Called before a fork: takes all locks, so that no other thread holds them in the child.
pub(crate) fn hold() {
    SETS.hold();
    UNUSED.hold();
    each_set(|set| set.members.hold());
}

/// Ends [`hold`]. A child shares its sets with its parent, and must not change them.
pub(crate) fn let_go(child: bool) {
    each_set(|set| {
        set.members.let_go();
        if child && let Some(mut members) = set.members.take() {
            members.inherited = true;
            set.asleep.store(0, Ordering::Relaxed);
        }
    });
    UNUSED.let_go();
    SETS.let_go();
}

fn each_set(action: impl Fn(&'static Set)) {
    // SAFETY: the lock is held by this thread, around the fork.
    for set in unsafe { SETS.peek() } {
        action(set);
    }
}
