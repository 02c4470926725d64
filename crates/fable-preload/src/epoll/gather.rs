//! Computes the events of a set's members from memory and from the kernel's answers.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use libc::epoll_event;

use super::control::in_kernel;
use super::{Marks, Members, Registration, Set, is_token};
use crate::connection::{ASKED, Connection};
use crate::counted::CountedRef;
use crate::sys;

/// The most connections that the kernel is asked about between two checks of the set.
const QUESTIONS: usize = 16;
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// The events that report the end of a connection.
const END: u32 = (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP) as u32;

/// A connection about which the kernel is asked, outside the set's lock.
struct Question {
    slot: usize,
    generation: u32,
    fd: c_int,
    connection: CountedRef<Connection>,
    seen: Marks,
}

impl Registration {
    /// Returns whether checking the memory may give a report.
    #[inline]
    pub(super) fn beckons(&self) -> bool {
        if self.fired {
            return false;
        }
        if self.ask_kernel || !self.connection.is_inside() {
            return self.ask_kernel;
        }
        let ready = self.connection.glance() as u32 & self.events;
        ready != 0 && (self.is_level() || self.has_edge(ready))
    }

    /// Returns whether the peer has changed the page of a connection that is not entirely in
    /// memory.
    fn has_change(&self) -> bool {
        let connection = &self.connection;
        let readable = self.events & libc::EPOLLIN as u32;
        let has_news = readable != 0 && connection.has_news();
        connection.has_orders() || (has_news && (self.is_level() || self.has_edge(readable)))
    }

    fn is_level(&self) -> bool {
        self.events & libc::EPOLLET as u32 == 0
    }

    /// Returns whether readiness has an edge: bytes arrived, or a call of the application found no
    /// bytes or no room, and there are some again.
    fn has_edge(&self, ready: u32) -> bool {
        let now = self.marks();
        let readable = ready & libc::EPOLLIN as u32 != 0;
        let writable = ready & libc::EPOLLOUT as u32 != 0;
        self.edge
            || now.written != self.seen.written
            || (readable && now.dry_reads != self.seen.dry_reads)
            || (writable && now.refusals != self.seen.refusals)
    }

    /// Returns the counters that make an edge when they grow. Take them before readiness is
    /// checked: a change between the two then makes another edge, and none is lost.
    fn marks(&self) -> Marks {
        let connection = &self.connection;
        Marks {
            written: connection.theirs().written_mark(),
            refusals: connection.refusals.load(Ordering::Relaxed),
            dry_reads: connection.dry_reads.load(Ordering::Relaxed),
        }
    }

    /// Returns the events to report; a report ends the edge, and with EPOLLONESHOT the
    /// registration.
    fn report(&mut self, ready: i16, seen: Marks) -> u32 {
        let mut ready = u32::from(ready as u16);
        if ready & libc::EPOLLIN as u32 != 0 {
            ready |= libc::EPOLLRDNORM as u32;
        }
        if ready & libc::EPOLLOUT as u32 != 0 {
            ready |= libc::EPOLLWRNORM as u32;
        }
        let wanted = ready & (self.events | ALWAYS);
        if self.fired || wanted == 0 || !(self.is_level() || self.has_edge(ready)) {
            return 0;
        }
        self.edge = false;
        self.told |= wanted & END;
        self.seen.written = seen.written;
        // A refused write waits for its edge until there is room again, and a read that found no
        // bytes likewise.
        if ready & libc::EPOLLOUT as u32 != 0 {
            self.seen.refusals = seen.refusals;
        }
        if ready & libc::EPOLLIN as u32 != 0 {
            self.seen.dry_reads = seen.dry_reads;
        }
        self.fired = self.events & libc::EPOLLONESHOT as u32 != 0;
        wanted
    }
}

/// The application's array of events.
pub(super) struct Reports {
    at: *mut epoll_event,
    room: usize,
    pub(super) count: usize,
}

impl Reports {
    /// # Safety
    /// There must be `room` entries at `at`.
    pub(super) unsafe fn new(at: *mut epoll_event, room: usize) -> Self {
        Reports { at, room, count: 0 }
    }

    /// Returns whether there is no room for another event.
    pub(super) fn is_full(&self) -> bool {
        self.count == self.room
    }

    /// Returns where the kernel may put more events, and how many.
    pub(super) fn rest(&self) -> (*mut epoll_event, usize) {
        // SAFETY: the count never exceeds the room.
        (unsafe { self.at.add(self.count) }, self.room - self.count)
    }

    fn push(&mut self, events: u32, data: u64) {
        let event = epoll_event { events, u64: data };
        // SAFETY: callers check `is_full` first.
        unsafe { self.at.add(self.count).write_unaligned(event) };
        self.count += 1;
    }

    fn get(&self, index: usize) -> epoll_event {
        // SAFETY: the kernel has written this entry.
        unsafe { self.at.add(index).read_unaligned() }
    }
}

impl Set {
    /// Reports what is ready, as far as there is room.
    pub(super) fn gather(&self, reports: &mut Reports) {
        let mut first = 0;
        loop {
            let mut questions: Vec<Question> = Vec::new();
            let Some(mut members) = self.members.take() else { return };
            first = members.glance_all(first, reports, &mut questions);
            drop(members);
            if questions.is_empty() {
                break;
            }
            for question in questions {
                self.ask(&question, reports);
            }
        }
    }

    fn ask(&self, question: &Question, reports: &mut Reports) {
        let Question { slot, generation, fd, connection, seen } = question;
        let kernel = sys::poll_one(*fd, ASKED | libc::POLLOUT, 0);
        // The descriptor is plain now: the kernel has the registration, and reports it itself.
        let Some(ready) = connection.translate(*fd, kernel) else { return };
        let Some(mut members) = self.members.take() else { return };
        let Some(Some(registration)) = members.slots.get_mut(*slot) else { return };
        if registration.generation != *generation {
            return;
        }
        if reports.is_full() {
            registration.ask_kernel = true;
            return;
        }
        let events = registration.report(ready, *seen);
        // If memory does not show everything, the kernel is asked again before each sleep.
        registration.ask_kernel = events != 0 && !registration.fired && registration.is_level();
        if events != 0 {
            let data = registration.data;
            reports.push(events, data);
            members.warm(*slot);
        }
    }

    /// Sorts the kernel's events: events of the application stay, events with a token of this
    /// library mark their members as hot.
    pub(super) fn sort(&self, reports: &mut Reports, kernel: usize) {
        let first = reports.count;
        // Fails only in a signal handler that interrupted this thread while it had the lock.
        let mut members = self.members.take();
        for index in first..first + kernel {
            let event = reports.get(index);
            if !is_token(event.u64) {
                let (events, data) = (event.events, event.u64);
                reports.push(events, data);
            } else if let Some(members) = &mut members
                && let Some(slot) = members.slot_of_token(event.u64)
            {
                members.note(slot, event.events);
            }
        }
    }

    /// Makes a thread that sleeps for the set check a member: the member is registered again, and
    /// the kernel reports it, because there is room in its socket. Costs nothing if no thread
    /// sleeps.
    pub(super) fn wake(&self, members: &Members, epfd: c_int, slot: usize) {
        if self.asleep.load(Ordering::SeqCst) > 0
            && let Some(Some(registration)) = members.slots.get(slot)
        {
            let _keep = sys::KeepErrno::new();
            let mut event = members.kernel_event(slot);
            in_kernel(epfd, libc::EPOLL_CTL_MOD, registration.fd, &mut event);
        }
    }

    /// Called before this thread returns with its events: wakes another sleeping thread for what
    /// arrives meanwhile, and for what there was no room for.
    pub(super) fn hand_over(&self, epfd: c_int) {
        if self.asleep.load(Ordering::SeqCst) > 0
            && let Some(mut members) = self.members.take()
            && members.cool()
            && let Some(&slot) = members.hot.first()
        {
            self.wake(&members, epfd, slot);
        }
    }
}

impl Members {
    /// Records an event that the kernel reported for a member.
    fn note(&mut self, slot: usize, events: u32) {
        if let Some(registration) = &mut self.slots[slot] {
            // These are the events of a doorbell if all bytes are in memory, which then shows its
            // reason.
            let doorbell = (libc::EPOLLIN | libc::EPOLLOUT) as u32 | libc::EPOLLRDNORM as u32;
            let known = doorbell | registration.told;
            let is_first = core::mem::take(&mut registration.fresh);
            let Registration { connection, fd, .. } = &*registration;
            let events = u32::from(connection.end_by_memory(*fd, events as i16) as u16);
            if is_first || events & !known != 0 || !registration.connection.is_inside() {
                registration.ask_kernel = true;
                registration.edge = true;
            }
        }
        self.warm(slot);
    }

    /// Reports what the memory alone shows, starting at a position in the hot list, and collects
    /// the members about which the kernel has to be asked.
    fn glance_all(
        &mut self,
        first: usize,
        reports: &mut Reports,
        questions: &mut Vec<Question>,
    ) -> usize {
        for place in first..self.hot.len() {
            // Each question may need room for its answer, which later members must not take.
            if reports.rest().1 == questions.len() || questions.len() == QUESTIONS {
                // The next call begins with the members that found no room.
                if reports.is_full() {
                    self.hot.rotate_left(place);
                }
                return place;
            }
            let slot = self.hot[place];
            let Some(registration) = &mut self.slots[slot] else { continue };
            if registration.ask_kernel || !registration.connection.is_inside() {
                if !registration.fired && registration.ask_kernel {
                    registration.ask_kernel = false;
                    questions.push(Question {
                        slot,
                        generation: registration.generation,
                        fd: registration.fd,
                        connection: registration.connection.clone(),
                        seen: registration.marks(),
                    });
                }
                continue;
            }
            let seen = registration.marks();
            let ready = registration.connection.glance();
            let events = registration.report(ready, seen);
            if events != 0 {
                reports.push(events, registration.data);
            }
        }
        self.hot.len()
    }

    /// Asks the peers of all hot connections for doorbells and takes the connections from the hot
    /// list. Returns whether one of them has an event already; that one stays hot.
    pub(super) fn cool(&mut self) -> bool {
        let mut news = false;
        let mut hot = core::mem::take(&mut self.hot);
        hot.retain(|&slot| {
            let Some(registration) = &mut self.slots[slot] else { return false };
            if registration.fired {
                registration.hot = false;
                return false;
            }
            registration.connection.tidy(registration.fd);
            let level = registration.is_level();
            let armed = registration.connection.arm(registration.events as i16);
            let orders = registration.connection.has_orders();
            let ready = registration.connection.glance() as u32;
            let stays = registration.ask_kernel
                || orders
                || (armed && (level || registration.has_edge(ready)));
            if stays && !registration.connection.is_inside() {
                registration.ask_kernel = true;
            }
            news |= stays;
            registration.hot = stays;
            stays
        });
        self.hot = hot;
        news
    }

    /// Marks the hot members that the kernel has to be asked about because their peers have changed
    /// the page, for which a peer rings only if this end sleeps. Ask for the set's events before
    /// these questions: a connection that is in memory then makes no edge of an earlier event.
    pub(super) fn mark_changed(&mut self) {
        for &slot in &self.hot {
            if let Some(registration) = &mut self.slots[slot]
                && !registration.connection.is_inside()
            {
                registration.ask_kernel |= registration.has_change();
            }
        }
    }

    /// Makes all members hot; the kernel is asked about those that are not entirely in memory.
    pub(super) fn sweep(&mut self) {
        for slot in 0..self.slots.len() {
            let Some(registration) = &mut self.slots[slot] else { continue };
            let inside = registration.connection.is_inside();
            registration.ask_kernel |= !inside || registration.connection.has_ended();
            self.warm(slot);
        }
    }

    /// Returns whether checking the hot list may give a report.
    #[inline]
    pub(super) fn beckons(&self) -> bool {
        self.hot.iter().any(|&slot| self.slots[slot].as_ref().is_some_and(Registration::beckons))
    }

    /// Returns whether spinning is useful: some peer runs on another CPU.
    pub(super) fn may_look(&self) -> bool {
        let mut hot = self.hot.iter().filter_map(|&slot| self.slots[slot].as_ref());
        hot.any(|it| it.connection.is_inside() && !it.connection.shares_processor())
    }
}
