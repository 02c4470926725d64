//! Implements waiting for many descriptors, with the rules of the kernel's epoll (fs/eventpoll.c),
//! but none of its code.
//!
//! A watch that becomes ready is queued on its epoll. A waiting call takes watches from the front
//! and checks whether each descriptor is ready *now*. A watch that is not ready leaves the queue
//! until its next event. A level-triggered watch that was ready returns to the end of the queue. It
//! is checked again the next time, so no event is lost, whatever other code reads in between. An
//! edge-triggered watch does not return, and a one-shot watch is disabled.

use super::errors::from;
use super::events::{EpollEvent, Events};
use super::{Context, Descriptor, Object};
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

/// Bits that are reported whether requested or not.
const ALWAYS: Events = Events((libc::EPOLLERR | libc::EPOLLHUP) as u32);
/// Bits that are not conditions.
const MODES: u32 =
    (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE) as u32;
/// How deep epolls may be nested, as in the kernel.
const MAX_DEPTH: usize = 5;
pub(super) const NONE: u32 = u32::MAX;

/// The operation of `epoll_ctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpollControl {
    /// Starts to watch.
    Add(EpollEvent),
    /// Changes the events of a watch; an event that is present is reported again.
    Modify(EpollEvent),
    /// Stops watching.
    Delete,
}

/// One descriptor in one epoll.
#[derive(Debug)]
struct Watch {
    epoll: Descriptor,
    target: Descriptor,
    events: Events,
    data: u64,
    queued: bool,
    /// Increases when the place is reused, so that old entries of a queue do not match.
    generation: u32,
    /// The next watch of the same target.
    next: u32,
}

/// All watches of a context.
#[derive(Debug, Default)]
pub(super) struct Watches {
    places: Vec<Watch>,
    free: Vec<u32>,
}

/// The queue of one epoll.
#[derive(Debug, Default)]
pub(super) struct Epoll {
    /// Indices of watches, with their generations.
    queue: VecDeque<(u32, u32)>,
    watched: usize,
}

impl Watches {
    fn find(&self, first: u32, epoll: Descriptor) -> Option<u32> {
        let mut place = first;
        while place != NONE {
            let watch = &self.places[place as usize];
            if watch.epoll == epoll {
                return Some(place);
            }
            place = watch.next;
        }
        None
    }

    fn insert(&mut self, mut watch: Watch) -> u32 {
        if let Some(place) = self.free.pop() {
            let old = &mut self.places[place as usize];
            watch.generation = old.generation;
            *old = watch;
            return place;
        }
        self.places.push(watch);
        (self.places.len() - 1) as u32
    }

    fn remove(&mut self, place: u32) {
        let watch = &mut self.places[place as usize];
        watch.generation = watch.generation.wrapping_add(1);
        watch.next = NONE;
        // No epoll has this number, so queue entries do not find the place.
        watch.epoll = Descriptor(NONE);
        self.free.push(place);
    }

    fn get(&mut self, (place, generation): (u32, u32)) -> Option<&mut Watch> {
        self.places.get_mut(place as usize).filter(|watch| watch.generation == generation)
    }
}

impl Context {
    /// Creates an epoll, which other epolls can watch. See epoll_create(2).
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn epoll_create(&mut self) -> io::Result<Descriptor> {
        self.install(Object::Epoll(Box::default()))
    }

    /// Changes the watches of an epoll. See epoll_ctl(2).
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` (no epoll, or it would watch itself), `EEXIST`, `ENOENT`, `ELOOP`.
    pub fn epoll_ctl(
        &mut self,
        epoll: Descriptor,
        target: Descriptor,
        control: EpollControl,
    ) -> io::Result<()> {
        let first = self.table.get(target)?.first_watch;
        self.epoll(epoll)?;
        if epoll == target {
            return Err(from(libc::EINVAL));
        }
        let found = self.watches.find(first, epoll);
        match (control, found) {
            (EpollControl::Add(event), None) => self.watch(epoll, target, event),
            (EpollControl::Add(_), Some(_)) => Err(from(libc::EEXIST)),
            (_, None) => Err(from(libc::ENOENT)),
            (EpollControl::Modify(event), Some(place)) => {
                let watch = &mut self.watches.places[place as usize];
                watch.events = event.events | ALWAYS;
                watch.data = event.data;
                self.queue_if_ready(place)
            }
            (EpollControl::Delete, Some(place)) => self.unwatch(place),
        }
    }

    /// Disables a watch until it is modified, as a reported one-shot watch.
    ///
    /// # Errors
    /// As [`Context::epoll_ctl`].
    pub fn epoll_silence(&mut self, epoll: Descriptor, target: Descriptor) -> io::Result<()> {
        let first = self.table.get(target)?.first_watch;
        let place = self.watches.find(first, epoll).ok_or_else(|| from(libc::ENOENT))?;
        let watch = &mut self.watches.places[place as usize];
        watch.events = watch.events.and(Events(MODES));
        Ok(())
    }

    /// Waits until a descriptor is ready, at most `timeout` (`None`: forever), and writes the
    /// events into `events`. The result is 0 only when the time is over. See epoll_wait(2).
    ///
    /// In mode `complete` the stack runs in this call.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` (not an epoll, or no room for events); the errors of the device if it is
    /// gone.
    pub fn epoll_wait(
        &mut self,
        epoll: Descriptor,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        if events.is_empty() {
            return Err(from(libc::EINVAL));
        }
        self.epoll(epoll)?;
        let mut end = None;
        loop {
            self.turn()?;
            let count = self.collect(epoll, events)?;
            if count > 0 || timeout == Some(Duration::ZERO) {
                return Ok(count);
            }
            if let (None, Some(timeout)) = (end, timeout) {
                end = Instant::now().checked_add(timeout);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(0);
            }
            self.port.wait(left)?;
        }
    }

    fn epoll(&mut self, descriptor: Descriptor) -> io::Result<&mut Epoll> {
        match &mut self.table.get_mut(descriptor)?.object {
            Object::Epoll(epoll) => Ok(epoll),
            _ => Err(from(libc::EINVAL)),
        }
    }

    fn watch(
        &mut self,
        epoll: Descriptor,
        target: Descriptor,
        event: EpollEvent,
    ) -> io::Result<()> {
        if matches!(self.table.get(target)?.object, Object::Epoll(_))
            && self.depth(target, epoll)? + self.height(epoll) > MAX_DEPTH
        {
            return Err(from(libc::ELOOP));
        }
        let entry = self.table.get_mut(target)?;
        let place = self.watches.insert(Watch {
            epoll,
            target,
            events: event.events | ALWAYS,
            data: event.data,
            queued: false,
            generation: 0,
            next: entry.first_watch,
        });
        entry.first_watch = place;
        self.epoll(epoll)?.watched += 1;
        self.queue_if_ready(place)
    }

    /// The number of epolls below `epoll`, including itself; `ELOOP` if `origin` is among them.
    fn depth(&self, epoll: Descriptor, origin: Descriptor) -> io::Result<usize> {
        if epoll == origin {
            return Err(from(libc::ELOOP));
        }
        let mut below = 0;
        for watch in self.watched_by(epoll) {
            if matches!(self.table.get(watch)?.object, Object::Epoll(_)) {
                below = below.max(self.depth(watch, origin)?);
            }
        }
        Ok(below + 1)
    }

    /// The number of epolls above, including itself.
    fn height(&self, epoll: Descriptor) -> usize {
        let mut above = 0;
        let mut place = self.table.get(epoll).map_or(NONE, |entry| entry.first_watch);
        while place != NONE {
            let watch = &self.watches.places[place as usize];
            above = above.max(self.height(watch.epoll));
            place = watch.next;
        }
        above + 1
    }

    fn watched_by(&self, epoll: Descriptor) -> Vec<Descriptor> {
        let watches = self.watches.places.iter().filter(|watch| watch.epoll == epoll);
        watches.map(|watch| watch.target).collect()
    }

    fn unwatch(&mut self, place: u32) -> io::Result<()> {
        let Watch { epoll, target, next, .. } = self.watches.places[place as usize];
        let entry = self.table.get_mut(target)?;
        if entry.first_watch == place {
            entry.first_watch = next;
        } else {
            let mut before = entry.first_watch;
            while self.watches.places[before as usize].next != place {
                before = self.watches.places[before as usize].next;
            }
            self.watches.places[before as usize].next = next;
        }
        self.watches.remove(place);
        let watches = &mut self.watches;
        if let Object::Epoll(epoll) = &mut self.table.get_mut(epoll)?.object {
            epoll.watched -= 1;
            // Invalid entries stay in the queue until a call waits, which may never happen.
            if epoll.queue.len() > 2 * epoll.watched + 64 {
                epoll.queue.retain(|entry| watches.get(*entry).is_some());
            }
        }
        Ok(())
    }

    /// Removes all watches of a descriptor that is about to be closed and, if it is an epoll, those
    /// in it.
    pub(super) fn forget(&mut self, descriptor: Descriptor) -> io::Result<()> {
        while self.table.get(descriptor)?.first_watch != NONE {
            self.unwatch(self.table.get(descriptor)?.first_watch)?;
        }
        if matches!(self.table.get(descriptor)?.object, Object::Epoll(_)) {
            for target in self.watched_by(descriptor) {
                let first = self.table.get(target)?.first_watch;
                if let Some(place) = self.watches.find(first, descriptor) {
                    self.unwatch(place)?;
                }
            }
        }
        Ok(())
    }

    fn queue_if_ready(&mut self, place: u32) -> io::Result<()> {
        let Watch { target, events, .. } = self.watches.places[place as usize];
        let ready = self.ready(target)?;
        if events.0 & !MODES & ready.0 != 0 {
            self.queue(place);
        }
        Ok(())
    }

    /// Reports new conditions of `target` to the epolls that watch it.
    pub(super) fn notify(&mut self, target: Descriptor, news: Events) {
        let mut place = self.table.get(target).map_or(NONE, |entry| entry.first_watch);
        while place != NONE {
            let watch = &self.watches.places[place as usize];
            let next = watch.next;
            if watch.events.and(Events(!MODES)).intersects(news) {
                self.queue(place);
            }
            place = next;
        }
    }

    fn queue(&mut self, place: u32) {
        let watch = &mut self.watches.places[place as usize];
        if watch.queued {
            return;
        }
        watch.queued = true;
        let (epoll, generation) = (watch.epoll, watch.generation);
        if let Ok(entry) = self.table.get_mut(epoll)
            && let Object::Epoll(queue) = &mut entry.object
        {
            queue.queue.push_back((place, generation));
            if entry.first_watch != NONE {
                self.notify(epoll, Events::IN);
            }
        }
    }

    /// Whether any watch in the queue of an epoll is ready, so that the epoll is readable.
    pub(super) fn epoll_is_ready(&mut self, epoll: Descriptor) -> bool {
        let Ok(found) = self.epoll(epoll) else { return false };
        let queued: Vec<(u32, u32)> = found.queue.iter().copied().collect();
        queued.into_iter().any(|entry| {
            let Some(&mut Watch { target, events, .. }) = self.watches.get(entry) else {
                return false;
            };
            let ready = self.ready(target).unwrap_or_default();
            events.0 & !MODES & ready.0 != 0
        })
    }

    fn collect(&mut self, epoll: Descriptor, events: &mut [EpollEvent]) -> io::Result<usize> {
        let mut count = 0;
        for _ in 0..self.epoll(epoll)?.queue.len() {
            if count == events.len() {
                break;
            }
            let Some(entry) = self.epoll(epoll)?.queue.pop_front() else { break };
            let Some(watch) = self.watches.get(entry) else { continue };
            watch.queued = false;
            let (target, wanted, data) = (watch.target, watch.events, watch.data);
            let ready = self.ready(target)?.and(Events(wanted.0 & !MODES));
            if ready == Events::default() {
                continue;
            }
            events[count] = EpollEvent { events: ready, data };
            count += 1;
            let Some(watch) = self.watches.get(entry) else { continue };
            if wanted.intersects(Events::ONE_SHOT) {
                watch.events = Events(wanted.0 & MODES);
            } else if !wanted.intersects(Events::EDGE) {
                watch.queued = true;
                self.epoll(epoll)?.queue.push_back(entry);
            }
        }
        Ok(count)
    }
}
