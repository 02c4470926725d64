//! Cancels requests, and unregisters members.

use super::{Command, Engine, Lane};
use crate::completion::Completion;
use crate::driver::Outcome;
use crate::error::Error;
use crate::slab::Key;
use crate::source::{Kind, Socket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long, and how often at least, the cancellation of a write is repeated before the engine
/// gives up, and the time limit of a single cancellation. A thread without a CPU meanwhile must not
/// give up after the first one: the write would go on behind what is written next.
const RECALL: Duration = Duration::from_millis(200);
const RECALLS_MIN: u32 = 200;
const RECALL_PAUSE: Duration = Duration::from_millis(1);

/// What remains of an unregistered member for the application.
pub(crate) struct Remains {
    pub(crate) descriptor: Option<OwnedFd>,
    pub(crate) connections: Vec<Socket>,
}

impl Engine {
    /// Cancels all requests of a member; each completes with `ECANCELED` or its result.
    pub(crate) fn cancel(&mut self, key: Key) -> Result<(), Error> {
        self.member(key)?;
        for lane in [Lane::Inbound, Lane::Outbound, Lane::Readiness] {
            self.empty_lane(key, lane);
        }
        self.cancel_accepts(key);
        self.recall_write(key);
        self.mark_loose_cancelled(key);
        self.cancel_pending(key);
        Ok(())
    }

    /// Returns the tags of all operations of a member that the driver has.
    pub(super) fn pending_tags(&self, key: Key) -> Vec<u64> {
        let Some(member) = self.members.get(key).filter(|member| member.in_flight > 0) else {
            return Vec::new();
        };
        let in_flight = |id: &Key| self.requests.get(*id).is_some_and(|request| request.in_flight);
        let active = member.active.into_iter().flatten();
        let legs = member.listener().into_iter().flat_map(|listener| &listener.legs);
        let named = active.chain(legs.filter_map(|leg| leg.request)).filter(in_flight);
        let mut tags: Vec<u64> = named.map(Key::tag).collect();
        if member.loose > 0 {
            tags.extend(self.loose_requests(key).map(Key::tag));
        }
        tags
    }

    /// Iterates over the requests of a member that the driver has and that belong to no lane. Only
    /// files have many of those.
    fn loose_requests(&self, key: Key) -> impl Iterator<Item = Key> {
        self.requests.keys().filter(move |id| {
            self.requests.get(*id).is_some_and(|request| {
                let accepts = matches!(request.command, Command::Accept);
                let loose = request.lane == Lane::None && !accepts;
                request.handle == key && loose && request.in_flight
            })
        })
    }

    fn mark_loose_cancelled(&mut self, key: Key) {
        if self.members.get(key).is_none_or(|member| member.loose == 0) {
            return;
        }
        for id in self.loose_requests(key).collect::<Vec<_>>() {
            if let Some(request) = self.requests.get_mut(id) {
                request.cancelled = true;
            }
        }
    }

    /// Makes the driver cancel all operations of a member.
    pub(super) fn cancel_pending(&mut self, key: Key) {
        let Some(object) = self.members.get(key).map(|member| member.object) else { return };
        for tag in self.pending_tags(key) {
            self.driver.cancel(tag, object);
        }
    }

    /// Makes the driver cancel the operation of a lane.
    pub(super) fn cancel_active(&mut self, key: Key, lane: Lane) {
        let Some(member) = self.members.get(key) else { return };
        let Some(id) = member.active[lane as usize] else { return };
        if self.requests.get(id).is_some_and(|request| request.in_flight) {
            self.driver.cancel(id.tag(), member.object);
        }
    }

    /// Cancels the requests of one lane of a member.
    pub(crate) fn cancel_lane(&mut self, key: Key, lane: Lane) -> Result<(), Error> {
        let object = self.member(key)?.object;
        let active = self.empty_lane(key, lane);
        if lane == Lane::Outbound {
            self.recall_write(key);
        } else if let Some(id) = active {
            self.driver.cancel(id.tag(), object);
        }
        Ok(())
    }

    /// Ends the waiting requests of a lane; marks the one that the driver has as cancelled, and
    /// returns it.
    pub(super) fn empty_lane(&mut self, key: Key, lane: Lane) -> Option<Key> {
        let member = self.members.get_mut(key)?;
        let mut waiting = Vec::new();
        let mut active = None;
        let mut next = member.take_waiting(lane);
        while let Some(id) = next {
            let Some(request) = self.requests.get_mut(id) else { break };
            next = request.next.take();
            // The request has left the lane: its end must not start the lane's next request.
            request.lane = Lane::None;
            // Nor may it run in the calling thread, as a request does for which the kernel has no
            // thread.
            request.cancelled = true;
            waiting.push(id);
        }
        if let Some(id) = member.active[lane as usize]
            && let Some(request) = self.requests.get_mut(id)
        {
            request.cancelled = true;
            if request.in_flight {
                active = Some(id);
            } else {
                waiting.push(id);
            }
        }
        self.starved.retain(|id| !waiting.contains(id));
        self.stalled.retain(|id| !waiting.contains(id));
        for id in waiting {
            self.ready.push_back(Outcome::plain(id.tag(), -libc::ECANCELED));
        }
        if lane == Lane::Outbound {
            self.note_emptied(key);
        }
        active
    }

    /// Ends a membership. Pending completions of the handle are not delivered. A member without a
    /// descriptor to return is closed after its queued output is written.
    pub(crate) fn unregister(&mut self, key: Key) -> Result<Remains, Error> {
        let member = self.member(key)?;
        let shares = member.shares_a_listener();
        if member.lightweight {
            self.close_silently(key);
            return Ok(Remains { descriptor: None, connections: Vec::new() });
        }
        self.recall_write(key);
        self.unpair(key);
        let connections = self.leave(key);
        self.listeners.retain(|listener| *listener != key);
        for lane in [Lane::Inbound, Lane::Outbound, Lane::Readiness] {
            self.drop_lane(key, lane);
        }
        let pending = self.pending_tags(key);
        let Some(member) = self.remove_member(key) else { return Err(Error::UnknownHandle) };
        let descriptor = self.driver.detach(member.object, &pending);
        // The queue of a partitioned listener belongs to another channel by now, or is closed.
        let descriptor = descriptor.filter(|_| !shares);
        Ok(Remains { descriptor, connections })
    }

    /// Cancels the current write or connect of a member, and waits for its end. A driver may be
    /// about to try the operation again, when no cancellation finds it, or have left it to a kernel
    /// thread, which a cancellation only interrupts. It would then continue after other requests.
    fn recall_write(&mut self, key: Key) {
        let Some(member) = self.members.get(key) else { return };
        let (object, kind) = (member.object, member.kind);
        let Some(id) = member.active[Lane::Outbound as usize] else { return };
        // A disk operation in progress cannot be interrupted.
        if kind == Kind::File || !self.requests.get(id).is_some_and(|request| request.in_flight) {
            return;
        }
        let until = Instant::now() + RECALL;
        if let Some(request) = self.requests.get_mut(id) {
            request.cancelled = true;
        }
        let ended = |outcome: &Outcome| outcome.tag == id.tag() && !outcome.more;
        let mut recalls = 0;
        while !self.ready.iter().any(ended) && (recalls < RECALLS_MIN || Instant::now() < until) {
            recalls += 1;
            self.driver.cancel(id.tag(), object);
            let before = self.ready.len();
            if self.driver.collect(&mut self.ready, Some(RECALL_PAUSE)).is_err() {
                return;
            }
            self.count_accepted(before);
        }
    }

    /// Frees the requests of a lane that the driver does not have.
    pub(super) fn drop_lane(&mut self, key: Key, lane: Lane) {
        let Some(member) = self.members.get_mut(key) else { return };
        let mut next = member.take_waiting(lane);
        while let Some(id) = next {
            next = self.requests.remove(id).and_then(|request| request.next);
            self.counters.cancelled += 1;
        }
        if let Some(id) = member.active[lane as usize]
            && self.requests.get(id).is_none_or(|request| !request.in_flight)
        {
            member.active[lane as usize] = None;
            self.requests.remove(id);
            self.starved.retain(|starved| *starved != id);
            self.stalled.retain(|stalled| *stalled != id);
            self.counters.cancelled += 1;
        }
        if lane == Lane::Outbound {
            self.note_emptied(key);
        }
    }

    /// Moves the available completions into `into`, at most `limit` of them.
    pub(crate) fn drain_ready(&mut self, into: &mut Vec<Completion>, limit: usize) {
        while into.len() < limit {
            let Some(completion) = self.next_ready() else { break };
            into.push(completion);
        }
    }
}
