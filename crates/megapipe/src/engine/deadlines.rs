//! Schedules actions that a channel takes at a set time: ending requests that take too long,
//! aborting handles whose close takes too long, accepting again after an error, attaching an accept
//! queue that could not be attached, and trying a refused message or connect again.
//!
//! A member has at most one entry per purpose. When an entry expires whose deadline was postponed,
//! the entry is postponed, too. So extending a deadline costs only a reading of the clock.

use super::{Engine, Lane, Member};
use crate::driver::Outcome;
use crate::error::Error;
use crate::slab::{Key, Slab};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Time between two cancellations of a request that should have ended. The driver may be about to
/// try the operation again, when no cancellation finds it.
const REPEAT: Duration = Duration::from_millis(2);

/// Number of entries of removed members that triggers their removal.
const WEEDS: usize = 1024;

/// The action of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// Ends the request in flight of a lane.
    End(Lane),
    Leave,
    AcceptAgain,
    AdoptAgain,
    /// Restarts this request.
    TryAgain(Key),
}

/// The entries, earliest first.
#[derive(Default)]
pub(super) struct Deadlines {
    heap: BinaryHeap<Reverse<(Instant, Key, Purpose)>>,
}

impl Deadlines {
    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Takes the first expired entry; otherwise returns the time until the next one. Ignores
    /// entries of removed members.
    fn take_due(
        &mut self,
        now: Instant,
        members: &Slab<Member>,
    ) -> Result<(Key, Purpose), Option<Duration>> {
        while let Some(Reverse((due, key, purpose))) = self.heap.peek().copied() {
            let is_here = members.get(key).is_some();
            if is_here && due > now {
                return Err(Some(due - now));
            }
            self.heap.pop();
            if is_here {
                return Ok((key, purpose));
            }
        }
        Err(None)
    }
}

impl Engine {
    /// Adds an entry for a member.
    pub(super) fn plan(&mut self, at: Instant, key: Key, purpose: Purpose) {
        let heap = &mut self.deadlines.heap;
        if heap.len() >= WEEDS + 4 * self.members.len() {
            heap.retain(|Reverse((_, key, _))| self.members.get(*key).is_some());
        }
        heap.push(Reverse((at, key, purpose)));
    }

    /// Sets the time limit of each request of a lane from now on.
    pub(crate) fn set_time_limit(
        &mut self,
        key: Key,
        lane: Lane,
        time: Option<Duration>,
    ) -> Result<(), Error> {
        self.member(key)?;
        let Some(member) = self.members.get_mut(key) else { return Err(Error::UnknownHandle) };
        let limits = member.extras().limits.get_or_insert_default();
        if let Some(limit) = limits.of(lane) {
            limit.time = time;
            limit.end = None;
        }
        if member.active[lane as usize].is_some() {
            self.extend_deadline(key, lane);
        }
        Ok(())
    }

    /// Restarts the time of a lane's request, because it starts or has made progress.
    pub(super) fn extend_deadline(&mut self, key: Key, lane: Lane) {
        let limits = self.members.get_mut(key).and_then(Member::limits_mut);
        let Some(limit) = limits.and_then(|limits| limits.of(lane)) else { return };
        let Some(end) = limit.time.and_then(|time| Instant::now().checked_add(time)) else {
            return;
        };
        limit.end = Some(end);
        if !std::mem::replace(&mut limit.planned, true) {
            self.plan(end, key, Purpose::End(lane));
        }
    }

    /// Executes all expired entries; returns the time until the next.
    pub(super) fn expire(&mut self) -> Option<Duration> {
        if self.deadlines.is_empty() {
            return None;
        }
        let now = Instant::now();
        loop {
            match self.deadlines.take_due(now, &self.members) {
                Err(next) => return next,
                Ok((key, Purpose::End(lane))) => self.end_overdue(key, lane, now),
                Ok((key, Purpose::Leave)) => self.look_after_leaving(key, now),
                Ok((key, Purpose::AcceptAgain)) => self.accept_again(key),
                Ok((key, Purpose::AdoptAgain)) => self.adopt_again(key),
                Ok((_, Purpose::TryAgain(id))) => self.try_again(id),
            }
        }
    }

    /// Ends the request in flight of a lane if its time has passed.
    fn end_overdue(&mut self, key: Key, lane: Lane, now: Instant) {
        let Some(member) = self.members.get_mut(key) else { return };
        let (object, active) = (member.object, member.active[lane as usize]);
        let limits = member.limits_mut().and_then(|limits| limits.of(lane));
        let Some(limit) = limits else { return };
        limit.planned = false;
        let (Some(end), Some(id)) = (limit.end, active) else { return };
        if end > now {
            limit.planned = true;
            return self.plan(end, key, Purpose::End(lane));
        }
        let Some(request) = self.requests.get_mut(id) else { return };
        request.overdue = true;
        request.cancelled = true;
        if !request.in_flight {
            // The request waits for a buffer, for room in the driver, or for output to be written.
            self.starved.retain(|waiting| *waiting != id);
            self.stalled.retain(|waiting| *waiting != id);
            return self.ready.push_back(Outcome::plain(id.tag(), -libc::ECANCELED));
        }
        limit.planned = true;
        self.driver.cancel(id.tag(), object);
        self.plan(now + REPEAT, key, Purpose::End(lane));
    }
}

impl Engine {
    /// Returns the time of the next attempt to end a request.
    pub(super) fn repeat_after(now: Instant) -> Instant {
        now + REPEAT
    }
}
