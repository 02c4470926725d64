//! The agent's set of watched objects: an epoll set, and the deadlines in order.
//!
//! Every descriptor is registered with `EPOLLONESHOT`, for one event at a time. If this process
//! closes a descriptor that a child of `fork` still has open, the descriptor cannot be removed from
//! the set any more; it then reports one event at most.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use super::{WatchId, WatchOutcome, Watched};
use crate::error::{Error, Result};
use crate::event::EpollSet;

/// The number of events that one `epoll_wait` takes.
const EVENTS_MAX: usize = 64;

/// How often to poll a descriptor that the epoll set refuses.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The key of the agent's eventfd; places count from 1.
const BELL: u64 = 0;

struct Entry {
    watched: Box<dyn Watched>,
    /// The registered descriptor, negative if there is none.
    descriptor: RawFd,
    /// The object's own deadline. It is read once after each change: an object whose deadline is
    /// always "now" would otherwise never be late.
    own_deadline: Option<Instant>,
    /// When to look at the object at the latest; the key of this entry in `deadlines`.
    deadline: Option<Instant>,
    /// Whether the epoll set refuses the descriptor.
    is_refused: bool,
}

/// The watched objects with their deadlines and the epoll set.
pub(super) struct Watching {
    epoll: EpollSet,
    entries: BTreeMap<WatchId, Entry>,
    /// Which entry a descriptor is registered for. After its owner has closed it, the same number
    /// can belong to another entry before the agent asks the first one again.
    owners: BTreeMap<RawFd, WatchId>,
    deadlines: BTreeSet<(Instant, WatchId)>,
}

impl Watching {
    /// Creates an empty set, in which only the agent's eventfd is registered. Without it, commands
    /// would never be noticed.
    pub(super) fn new(bell: &OwnedFd) -> Result<Watching> {
        let epoll = EpollSet::new().map_err(Error::system("epoll_create1 for the agent thread"))?;
        let events = libc::EPOLLIN as u32;
        let added = epoll.control(libc::EPOLL_CTL_ADD, bell.as_raw_fd(), events, BELL);
        added.map_err(Error::system("epoll_ctl for the agent thread"))?;
        let (entries, owners, deadlines) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Ok(Watching { epoll, entries, owners, deadlines })
    }

    /// Adds an object under this place and registers what it waits for.
    pub(super) fn add(&mut self, place: WatchId, watched: Box<dyn Watched>) {
        self.entries.insert(
            place,
            Entry {
                watched,
                descriptor: -1,
                own_deadline: None,
                deadline: None,
                is_refused: false,
            },
        );
        self.ask(place);
    }

    /// Asks an object what to wait for, and registers the answer.
    pub(super) fn ask(&mut self, place: WatchId) {
        let Some(entry) = self.entries.get_mut(&place) else { return };
        let (descriptor, events) = (entry.watched.descriptor(), entry.watched.events());
        let own_deadline = entry.watched.deadline();
        let old = std::mem::replace(&mut entry.descriptor, descriptor);
        if old != descriptor {
            self.forget(place, old);
        }
        // The kernel lacks memory, or the descriptor is a file, which epoll refuses. A peer can
        // send a file in place of a socket.
        let is_refused = descriptor >= 0 && self.register(place, descriptor, events).is_err();
        if descriptor >= 0 && !is_refused {
            self.owners.insert(descriptor, place);
        }
        let Some(entry) = self.entries.get_mut(&place) else { return };
        let next_look = is_refused.then(|| Instant::now() + LOOK_EVERY);
        entry.own_deadline = own_deadline;
        let deadline = [own_deadline, next_look].into_iter().flatten().min();
        entry.is_refused = is_refused;
        let old = std::mem::replace(&mut entry.deadline, deadline);
        if deadline != old {
            old.map(|at| self.deadlines.remove(&(at, place)));
            deadline.map(|at| self.deadlines.insert((at, place)));
        }
    }

    /// Registers a descriptor anew, because its number can belong to another file meanwhile, and
    /// the kernel removes closed files from the set.
    fn register(&self, place: WatchId, descriptor: RawFd, events: i16) -> io::Result<()> {
        let events = u32::from(events.unsigned_abs()) | libc::EPOLLONESHOT as u32;
        match self.epoll.control(libc::EPOLL_CTL_MOD, descriptor, events, place.0) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.epoll.control(libc::EPOLL_CTL_ADD, descriptor, events, place.0)
            }
            other => other,
        }
    }

    /// Waits for events and deadlines, and handles them. Returns true if the agent's eventfd was
    /// signalled.
    pub(super) fn wait(&mut self) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let count = self.wait_for_events(&mut events);
        let mut is_rung = false;
        for event in &events[..count] {
            let (key, events) = (event.u64, event.events);
            match key {
                BELL => is_rung = true,
                // The lower half has the bits of poll(2).
                place => self.tell(WatchId(place), (events & 0x7fff) as i16),
            }
        }
        let now = Instant::now();
        let due = self.deadlines.range(..=(now, WatchId(u64::MAX)));
        let due: Vec<WatchId> = due.map(|(_, place)| *place).collect();
        for place in due {
            // Unless an event or another object's `ready` has changed the deadline.
            let Some(entry) = self.entries.get(&place) else { continue };
            if entry.deadline.is_none_or(|at| at > now) {
                continue;
            }
            let events = if entry.is_refused {
                crate::poll::look(entry.descriptor, entry.watched.events())
            } else {
                0
            };
            let is_due = entry.own_deadline.is_some_and(|at| at <= now);
            match events != 0 || is_due {
                true => self.tell(place, events),
                false => self.ask(place),
            }
        }
        is_rung
    }

    fn wait_for_events(&self, events: &mut [libc::epoll_event; EVENTS_MAX]) -> usize {
        let timeout_ms = self.deadlines.first().map_or(-1, |(at, _)| {
            let left = at.saturating_duration_since(Instant::now());
            // Rounds up, so that the deadline has passed when epoll_wait returns.
            let left = left + Duration::from_micros(999);
            i32::try_from(left.as_millis()).unwrap_or(i32::MAX)
        });
        let (epoll, room) = (self.epoll.as_raw_fd(), EVENTS_MAX as i32);
        // SAFETY: the events outlive the call, and there are `room` of them.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), room, timeout_ms) };
        usize::try_from(count).unwrap_or_else(|_| {
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                // The application has closed the set's descriptor: do not keep the CPU busy.
                std::thread::sleep(LOOK_EVERY);
            }
            0
        })
    }

    fn tell(&mut self, place: WatchId, events: i16) {
        let Some(entry) = self.entries.get_mut(&place) else { return };
        if entry.watched.ready(events) == WatchOutcome::Watching {
            return self.ask(place);
        }
        let Some(entry) = self.entries.remove(&place) else { return };
        entry.deadline.map(|at| self.deadlines.remove(&(at, place)));
        // Before the entry is dropped, which may close the descriptor.
        self.forget(place, entry.descriptor);
    }

    /// Removes a descriptor from the set, unless its number belongs to another entry by now.
    fn forget(&mut self, place: WatchId, descriptor: RawFd) {
        if self.owners.get(&descriptor) == Some(&place) {
            self.owners.remove(&descriptor);
            // An error means that the descriptor is closed, and so no longer in the set.
            let _ = self.epoll.control(libc::EPOLL_CTL_DEL, descriptor, 0, 0);
        }
    }
}
