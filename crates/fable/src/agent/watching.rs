//! Everything that the agent waits for: an epoll set and the deadlines, in order.
//!
//! Every descriptor is registered for one event at a time. One that is closed here and still open
//! in a child of `fork` cannot be taken out of the set any more, and so reports one event at most.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use super::{Keep, Place, Watched};
use crate::event::EpollSet;

/// How many events are taken at a time.
const EVENTS_MAX: usize = 64;

/// How often a descriptor is looked at that the set does not take.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The bell's key; places count from 1.
const BELL: u64 = 0;

struct Entry {
    watched: Box<dyn Watched>,
    /// What is registered, negative if nothing is.
    descriptor: RawFd,
    /// Its own deadline, asked for once: one that is always "now" would never have passed when
    /// asked for again.
    own_deadline: Option<Instant>,
    /// When to look at it at the latest, as it stands in the order of all deadlines.
    deadline: Option<Instant>,
    /// The set does not take the descriptor.
    is_refused: bool,
}

pub(super) struct Watching {
    epoll: EpollSet,
    entries: HashMap<Place, Entry>,
    /// Which entry a descriptor is registered for. A number that its owner has closed may be
    /// another entry's by the time at which the first one is asked again.
    owners: HashMap<RawFd, Place>,
    deadlines: BTreeSet<(Instant, Place)>,
}

impl Watching {
    pub(super) fn new(epoll: EpollSet, bell: &OwnedFd) -> Watching {
        let (entries, owners, deadlines) = (HashMap::new(), HashMap::new(), BTreeSet::new());
        let watching = Watching { epoll, entries, owners, deadlines };
        let events = libc::EPOLLIN as u32;
        // Both are new: only memory can be lacking, and then commands wait for the next event.
        let _ = watching.epoll.control(libc::EPOLL_CTL_ADD, bell.as_raw_fd(), events, BELL);
        watching
    }

    pub(super) fn add(&mut self, place: Place, watched: Box<dyn Watched>) {
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

    /// Asks what to wait for.
    pub(super) fn ask(&mut self, place: Place) {
        let Some(entry) = self.entries.get_mut(&place) else { return };
        let (descriptor, events) = (entry.watched.descriptor(), entry.watched.events());
        let own_deadline = entry.watched.deadline();
        let old = std::mem::replace(&mut entry.descriptor, descriptor);
        if old != descriptor {
            self.forget(place, old);
        }
        // Memory is lacking in the kernel, or it is a file, which epoll does not take, and which a
        // peer may have sent in place of a socket.
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

    /// A number may have been used for another file meanwhile, and files vanish from the set when
    /// they are closed.
    fn register(&self, place: Place, descriptor: RawFd, events: i16) -> io::Result<()> {
        let events = u32::from(events.unsigned_abs()) | libc::EPOLLONESHOT as u32;
        match self.epoll.control(libc::EPOLL_CTL_MOD, descriptor, events, place.0) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.epoll.control(libc::EPOLL_CTL_ADD, descriptor, events, place.0)
            }
            other => other,
        }
    }

    /// Waits until something happens, and lets it be dealt with; true if the bell was rung.
    pub(super) fn wait(&mut self) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let count = self.wait_for_events(&mut events);
        let mut is_rung = false;
        for event in &events[..count] {
            let (key, events) = (event.u64, event.events);
            match key {
                BELL => is_rung = true,
                // What poll(2) calls the same lies in the lower half.
                place => self.tell(Place(place), (events & 0x7fff) as i16),
            }
        }
        let now = Instant::now();
        let due = self.deadlines.range(..=(now, Place(u64::MAX)));
        let due: Vec<Place> = due.map(|(_, place)| *place).collect();
        for place in due {
            // Unless an event, or what another did, has changed that.
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
            // Rounded up, so that a deadline has passed when epoll says so.
            let left = left + Duration::from_micros(999);
            i32::try_from(left.as_millis()).unwrap_or(i32::MAX)
        });
        let (epoll, room) = (self.epoll.as_raw_fd(), EVENTS_MAX as i32);
        // SAFETY: the events outlive the call, and there are as many as it is told.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), room, timeout_ms) };
        usize::try_from(count).unwrap_or_else(|_| {
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                // The application has closed the set's descriptor: do not keep the CPU busy.
                std::thread::sleep(LOOK_EVERY);
            }
            0
        })
    }

    fn tell(&mut self, place: Place, events: i16) {
        let Some(entry) = self.entries.get_mut(&place) else { return };
        if entry.watched.ready(events) == Keep::Watching {
            return self.ask(place);
        }
        let Some(entry) = self.entries.remove(&place) else { return };
        entry.deadline.map(|at| self.deadlines.remove(&(at, place)));
        // While it is still open, if it is to be closed with the entry.
        self.forget(place, entry.descriptor);
    }

    /// Takes a descriptor out of the set, unless the number is another entry's by now.
    fn forget(&mut self, place: Place, descriptor: RawFd) {
        if self.owners.get(&descriptor) == Some(&place) {
            self.owners.remove(&descriptor);
            // One that is closed already is what we want.
            let _ = self.epoll.control(libc::EPOLL_CTL_DEL, descriptor, 0, 0);
        }
    }
}
