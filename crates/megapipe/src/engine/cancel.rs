//! Ending requests and memberships before their time.

use super::{Command, Engine, Lane, Member, Payload, Queue, Request};
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

/// How many lanes a member has, each with at most one request in the driver.
const LANES: usize = 3;

/// The tags of what the driver does for a member.
struct ActiveTags {
    tags: [u64; LANES],
    count: usize,
}

impl ActiveTags {
    fn get(&self) -> &[u64] {
        &self.tags[..self.count]
    }
}

impl Engine {
    /// Cancels all requests of a member; each completes with `ECANCELED` or its result.
    pub(crate) fn cancel(&mut self, key: Key) -> Result<(), Error> {
        self.member(key)?;
        let Some(member) = self.members.get(key) else { return Ok(()) };
        let (object, busy) = (member.object, member.in_flight > 0);
        for lane in [Lane::Inbound, Lane::Outbound, Lane::Readiness] {
            self.empty_lane(key, lane);
        }
        self.cancel_accepts(key);
        self.recall_write(key);
        let tags = self.members.get(key).and_then(|member| self.tags_in_flight(member));
        match tags {
            Some(tags) => tags.get().iter().for_each(|tag| self.driver.cancel(*tag, object)),
            None if busy => self.driver.cancel_all(object),
            None => {}
        }
        Ok(())
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
        let queue = &mut member.queues[lane as usize];
        let mut waiting = Vec::new();
        let mut active = None;
        let mut next = queue.first.take();
        queue.last = None;
        while let Some(id) = next {
            let Some(request) = self.requests.get_mut(id) else { break };
            next = request.next.take();
            // It has left the lane: its end must not start the lane's next request.
            request.lane = Lane::None;
            waiting.push(id);
        }
        if let Queue { active: Some(id), .. } = *queue
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
        active
    }

    /// Ends a membership. Nothing that is pending for the handle is delivered any more.
    pub(crate) fn unregister(&mut self, key: Key) -> Result<Remains, Error> {
        let shares = self.member(key)?.shares_a_listener();
        self.recall_write(key);
        let connections = self.leave(key);
        self.listeners.retain(|listener| *listener != key);
        let Some(mut member) = self.members.remove(key) else { return Err(Error::UnknownHandle) };
        self.drop_waiting(&mut member.queues);
        let descriptor = match self.tags_in_flight(&member) {
            Some(tags) => self.driver.detach_busy(member.object, tags.get()),
            None => self.driver.detach(member.object, member.in_flight > 0),
        };
        // The queue of a shared listener is another channel's by now, or closed.
        let descriptor = descriptor.filter(|_| !shares);
        Ok(Remains { descriptor, connections })
    }

    /// Ends a membership as `unregister` does and closes its descriptor, which completes.
    pub(crate) fn close(&mut self, key: Key) -> Result<Vec<Socket>, Error> {
        self.member(key)?;
        let mut request = Request::new(Command::Close, Lane::None, Payload::None);
        request.handle = key;
        let limit = self.config.max_requests;
        let id = self.requests.insert(request).map_err(|_| Error::TooManyRequests { limit })?;
        self.recall_write(key);
        let connections = self.leave(key);
        self.listeners.retain(|listener| *listener != key);
        let Some(mut member) = self.members.remove(key) else { return Err(Error::UnknownHandle) };
        self.drop_waiting(&mut member.queues);
        let busy = member.in_flight > 0;
        let closed = match self.tags_in_flight(&member) {
            Some(tags) => self.driver.close_busy(id.tag(), member.object, tags.get()),
            None => self.driver.close(id.tag(), member.object, busy),
        };
        if closed.is_err() {
            // No room for the request: the descriptor is closed here, and that has succeeded.
            drop(self.driver.detach(member.object, busy));
            self.ready.push_back(Outcome::plain(id.tag(), 0));
        }
        self.counters.requests += 1;
        Ok(connections)
    }

    /// Cancels what is being written to a member, or its connect, until that has ended. A driver
    /// may be about to try it again, when no cancellation finds it, or have left it to a thread of
    /// the kernel's, which a cancellation only interrupts; it would go on after others then.
    fn recall_write(&mut self, key: Key) {
        let Some(member) = self.members.get(key) else { return };
        let (object, kind) = (member.object, member.kind);
        let Some(id) = member.queues[Lane::Outbound as usize].active else { return };
        // A disk that is at work cannot be interrupted.
        if kind == Kind::File || !self.requests.get(id).is_some_and(|request| request.in_flight) {
            return;
        }
        let until = Instant::now() + RECALL;
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

    /// The tags of a member's requests that the driver has, if there are any and all of them are in
    /// lanes. Those elsewhere, such as accepts, are not listed by member.
    fn tags_in_flight(&self, member: &Member) -> Option<ActiveTags> {
        let mut tags = ActiveTags { tags: [0; LANES], count: 0 };
        for id in member.queues.iter().filter_map(|queue| queue.active) {
            if self.requests.get(id).is_some_and(|request| request.in_flight) {
                tags.tags[tags.count] = id.tag();
                tags.count += 1;
            }
        }
        (tags.count > 0 && tags.count == member.in_flight as usize).then_some(tags)
    }

    /// Frees the requests of a former member that the driver does not have.
    fn drop_waiting(&mut self, queues: &mut [Queue]) {
        for queue in queues {
            let mut next = queue.first.take();
            while let Some(id) = next {
                next = self.requests.remove(id).and_then(|request| request.next);
                self.counters.cancelled += 1;
            }
            if let Some(id) = queue.active
                && self.requests.get(id).is_some_and(|request| !request.in_flight)
            {
                self.requests.remove(id);
                self.counters.cancelled += 1;
            }
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
