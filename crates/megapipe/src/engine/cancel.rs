//! Ending requests and memberships before their time.

use super::{Command, Engine, Lane};
use crate::completion::Completion;
use crate::driver::Outcome;
use crate::error::Error;
use crate::slab::Key;
use crate::source::{Kind, Socket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long a write is being cancelled before its end is left to itself, and the time that a
/// single cancellation has.
const RECALL: Duration = Duration::from_millis(200);
const RECALL_PAUSE: Duration = Duration::from_millis(1);

/// What a member leaves behind.
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

    /// The tags of all that the driver has of a member.
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

    /// What the driver has of a member that belongs to no lane. Only files have many of those.
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

    /// Has the driver cancel all that it has of a member.
    pub(super) fn cancel_pending(&mut self, key: Key) {
        let Some(object) = self.members.get(key).map(|member| member.object) else { return };
        for tag in self.pending_tags(key) {
            self.driver.cancel(tag, object);
        }
    }

    /// Has the driver cancel what it has of a lane.
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

    /// Ends what waits in a lane, and marks what the driver works on, which it gives, as cancelled.
    fn empty_lane(&mut self, key: Key, lane: Lane) -> Option<Key> {
        let member = self.members.get_mut(key)?;
        let mut waiting = Vec::new();
        let mut active = None;
        let mut next = member.take_waiting(lane);
        while let Some(id) = next {
            let Some(request) = self.requests.get_mut(id) else { break };
            next = request.next.take();
            // It has left the lane: its end must not start the lane's next request.
            request.lane = Lane::None;
            // Nor is it to be done in the calling thread, as what the kernel has no thread for.
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

    /// Ends a membership. Nothing that is pending for the handle is delivered any more. What has no
    /// descriptor to give back is closed, when all that is queued is written.
    pub(crate) fn unregister(&mut self, key: Key) -> Result<Remains, Error> {
        let member = self.member(key)?;
        let shares = member.shares_a_listener();
        if member.lightweight {
            self.close_silently(key);
            return Ok(Remains { descriptor: None, connections: Vec::new() });
        }
        self.recall_write(key);
        let connections = self.leave(key);
        self.listeners.retain(|listener| *listener != key);
        for lane in [Lane::Inbound, Lane::Outbound, Lane::Readiness] {
            self.drop_lane(key, lane);
        }
        let pending = self.pending_tags(key);
        let Some(member) = self.members.remove(key) else { return Err(Error::UnknownHandle) };
        let descriptor = self.driver.detach(member.object, &pending);
        // The queue of a shared listener is another channel's by now, or closed.
        let descriptor = descriptor.filter(|_| !shares);
        Ok(Remains { descriptor, connections })
    }

    /// Cancels what is being written to a member, or its connect, until that has ended. A driver
    /// may be about to try it again, when no cancellation finds it, or have left it to a thread of
    /// the kernel's, which a cancellation only interrupts; it would go on after others then.
    fn recall_write(&mut self, key: Key) {
        let Some(member) = self.members.get(key) else { return };
        let (object, kind) = (member.object, member.kind);
        let Some(id) = member.active[Lane::Outbound as usize] else { return };
        // A disk that is at work cannot be interrupted.
        if kind == Kind::File || !self.requests.get(id).is_some_and(|request| request.in_flight) {
            return;
        }
        let until = Instant::now() + RECALL;
        if let Some(request) = self.requests.get_mut(id) {
            request.cancelled = true;
        }
        let ended = |outcome: &Outcome| outcome.tag == id.tag() && !outcome.more;
        while !self.ready.iter().any(ended) && Instant::now() < until {
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

    /// Moves the completions that need no waiting into `into`, at most `limit` of them.
    pub(crate) fn drain_ready(&mut self, into: &mut Vec<Completion>, limit: usize) {
        while into.len() < limit {
            let Some(completion) = self.next_ready() else { break };
            into.push(completion);
        }
    }
}
