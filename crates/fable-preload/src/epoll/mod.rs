//! epoll(7) over upgraded connections.
//!
//! A connection in a set is registered in the kernel once and for all, edge-triggered and under a
//! token of ours: the kernel then reports each doorbell, the end of the stream and errors, and
//! nothing else. What the application asked for lies here; whether a connection is ready is worked
//! out from the rings, and from the kernel only while a direction is still, or again, in TCP.
//! Descriptors that are not ours are registered as the application said and cost nothing.
//!
//! Connections about which there is or may be news are *hot*. Before sleeping, the peers of all hot
//! connections are asked for a doorbell, and the connections cool; so a sleep costs as many steps
//! as there were active connections, not as there are connections.

mod control;
mod gather;
mod wait;

use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering};
use preload::real;
use std::sync::OnceLock;

use libc::epoll_event;

pub(crate) use control::control;
pub(crate) use wait::wait;

use crate::connection::Connection;
use crate::counted::{Counted, Held};
use crate::lock::Locked;
use crate::spin::Spin;
use crate::statistics::Why;
use crate::table;

/// What the kernel is asked about a connection, whatever the application asked for.
const KERNEL_EVENTS: c_int =
    libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLET;

/// One connection in one set.
struct Registration {
    fd: c_int,
    connection: Held<Connection>,
    generation: u32,
    /// What the application asked for, with its flags.
    events: u32,
    data: u64,
    /// EPOLLONESHOT has done its one shot.
    fired: bool,
    hot: bool,
    /// Memory does not tell all: the kernel is to be asked.
    ask_kernel: bool,
    /// Something happened since the last report, for edge-triggered registrations.
    edge: bool,
    /// What was reported of the end: it stays, and is no edge a second time.
    told: u32,
    seen: Marks,
}

/// Counts that tell a new edge from a report that has been made.
#[derive(Clone, Copy, Default)]
struct Marks {
    /// Bytes that the peer has written.
    written: u64,
    /// How often the application heard that there is no room, and nothing more to read.
    refusals: u32,
    dry_reads: u32,
}

/// The registrations of a set.
struct Members {
    slots: Vec<Option<Registration>>,
    free: Vec<usize>,
    hot: Vec<usize>,
    /// For each descriptor its slot plus one.
    by_descriptor: Vec<u32>,
    generation: u32,
    asked_kernel_ns: u64,
    /// Watched by another set, or otherwise not to have members of ours.
    barred: bool,
    /// Made by a parent, which uses the same set in the kernel.
    inherited: bool,
}

/// What we know of an epoll descriptor.
pub(crate) struct Set {
    users: AtomicUsize,
    count: AtomicUsize,
    /// Threads of this process that sleep for the set, or are about to.
    asleep: AtomicUsize,
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

    /// There may be news of this one.
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

    /// How a member is registered in the kernel.
    fn kernel_event(&self, slot: usize) -> epoll_event {
        epoll_event { events: KERNEL_EVENTS as u32, u64: self.token(slot) }
    }

    /// The slot that a token of ours names, if it still does.
    fn slot_of_token(&self, token: u64) -> Option<usize> {
        let slot = (token & ((1 << INDEX_BITS) - 1)) as usize;
        let generation = (token >> INDEX_BITS) as u32 & ((1 << (32 - INDEX_BITS)) - 1);
        let registration = self.slots.get(slot)?.as_ref()?;
        (registration.generation == generation).then_some(slot)
    }
}

/// The upper half of our tokens. An application's datum that has it too is noticed when it is
/// registered.
fn secret() -> u64 {
    static SECRET: OnceLock<u32> = OnceLock::new();
    u64::from(*SECRET.get_or_init(|| {
        let mut value = 0_u32;
        // SAFETY: `value` has the size that is announced. Should it fail, the upper bits still tell
        // the token from an address.
        unsafe { libc::getrandom((&raw mut value).cast(), size_of::<u32>(), 0) };
        value | 0x8000_8000
    }))
}

fn is_token(data: u64) -> bool {
    data >> 32 == secret()
}

impl Counted for Set {
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

/// After epoll_create(2).
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
        // A fork may have marked it while it was unused.
        *members = Members::new();
    }
    table::put_set(fd, Held::first(set));
}

/// The sets that have members of ours.
fn active() -> Vec<Held<Set>> {
    let Some(sets) = SETS.take() else { return Vec::new() };
    let busy = sets.iter().copied().filter(|set| set.count.load(Ordering::Relaxed) > 0);
    busy.filter_map(Held::try_new).collect()
}

/// The connection is plain from now on: the kernel is told what the application had asked for.
pub(crate) fn release(connection: &Connection, fd: c_int) {
    if connection.watchers.load(Ordering::Relaxed) == 0 {
        return;
    }
    for set in active() {
        let Some(mut members) = set.members.take() else { continue };
        for slot in 0..members.slots.len() {
            let ours = members.slots[slot]
                .as_ref()
                .is_some_and(|it| core::ptr::eq(it.connection.object(), connection));
            if ours && let Some(registration) = members.remove(slot) {
                set.count.fetch_sub(1, Ordering::Relaxed);
                hand_back(&set, &registration);
                table::refuse(fd);
            }
        }
    }
}

/// Something happened to the connection of which the kernel will not tell.
pub(crate) fn nudge(connection: &Connection) {
    if connection.watchers.load(Ordering::Relaxed) == 0 {
        return;
    }
    for set in active() {
        let Some(mut members) = set.members.take() else { continue };
        for slot in 0..members.slots.len() {
            if let Some(registration) = &mut members.slots[slot]
                && core::ptr::eq(registration.connection.object(), connection)
            {
                registration.ask_kernel = true;
                members.warm(slot);
            }
        }
    }
}

/// Registers in the kernel what the application had asked for.
fn hand_back(set: &Held<Set>, registration: &Registration) {
    let shot = libc::EPOLLONESHOT as u32;
    let events = if registration.fired { shot } else { registration.events };
    let mut event = epoll_event { events, u64: registration.data };
    for descriptor in table::descriptors_of(set) {
        // SAFETY: the event is ours; a descriptor that was closed meanwhile is an error without
        // effect.
        let result = unsafe {
            real::epoll_ctl(descriptor, libc::EPOLL_CTL_MOD, registration.fd, &mut event)
        };
        if result == 0 {
            return;
        }
    }
}

/// Before close(2) of a connection's descriptor: the kernel forgets its registrations by itself,
/// unless there is a duplicate.
pub(crate) fn closing(connection: &Held<Connection>, fd: c_int) {
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

/// No connection of ours may be in this set: all of them go back to TCP.
pub(crate) fn bar(set: &Held<Set>) {
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

/// Over a fork: nobody may hold a lock in the child.
pub(crate) fn hold() {
    SETS.hold();
    UNUSED.hold();
    each_set(|set| set.members.hold());
}

/// Ends [`hold`]; a child shares its sets with its parent, and must not change them.
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
