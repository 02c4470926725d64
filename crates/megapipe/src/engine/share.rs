//! Manages a partitioned listener's share: joins, takes over queues, steals connections and leaves.

use super::deadlines::Purpose;
use super::member::{Leg, Listener};
use super::{Command, Engine, Lane, Member, Request};
use crate::cpuset::CpuSet;
use crate::driver::Output;
use crate::error::Error;
use crate::partition::{Mailbox, Membership, Queue, QueueChange};
use crate::slab::Key;
use crate::source::{Endpoint, Kind, Socket, Source, wake_pair};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of connections stolen from a busy channel at a time, and how many must be queued
/// there.
const STEAL_LIMIT: usize = 8;
const STEAL_WATERMARK: u32 = 8;

/// Time between two attempts to attach the queue of a dropped channel.
const ADOPT_PAUSE: Duration = Duration::from_millis(20);

impl Engine {
    /// Joins the channels that share a listening socket.
    pub(crate) fn register_share(
        &mut self,
        listener: BorrowedFd<'_>,
        cpus: &CpuSet,
    ) -> Result<Key, Error> {
        self.check_process()?;
        let mailbox = self.mailbox()?;
        let (membership, queue) =
            Membership::join(listener, cpus, &mailbox, self.config.rebalance)?;
        let leg = self.attach_queue(&queue).map_err(Error::system("attach"))?;
        let object = leg.object;
        let mut state = Listener::alone(object, false);
        state.legs = vec![leg];
        state.share = Some(membership);
        self.enroll(Member::new(object, Kind::Listener).listening(state))
    }

    fn attach_queue(&mut self, queue: &Queue) -> io::Result<Leg> {
        let endpoint = Endpoint::Descriptor(queue.descriptor.try_clone()?);
        let object = self.driver.attach(endpoint, Kind::Listener)?;
        Ok(Leg { queue: queue.id, object, request: None })
    }

    /// Returns the channel's mailbox, to which other channels hand queues. The channel watches its
    /// wake-up source.
    fn mailbox(&mut self) -> Result<Arc<Mailbox>, Error> {
        if let Some((mailbox, _)) = &self.mailbox {
            return Ok(Arc::clone(mailbox));
        }
        let (waker, source) = wake_pair().map_err(Error::system("eventfd"))?;
        let attached = self.driver.attach(Source::from(source).endpoint, Kind::Wake);
        let object = attached.map_err(|unattached| Error::system("attach")(unattached.error))?;
        let key = self.enroll(Member::new(object, Kind::Wake))?;
        let watch = Request::new(Command::Watch(Box::default()), Lane::Inbound).repeating(true);
        self.file(key, watch).map_err(|(error, _)| error)?;
        let mailbox = Mailbox::new(waker);
        self.mailbox = Some((Arc::clone(&mailbox), key));
        Ok(mailbox)
    }

    /// Processes the mailbox: adopts queues of other channels and the original's, and returns those
    /// that belong to others again.
    pub(super) fn process_mailbox(&mut self) {
        let mail = self.mailbox.as_ref().map(|(mailbox, _)| mailbox.drain());
        for mail in mail.unwrap_or_default() {
            match mail {
                QueueChange::Adopt { member, queue } => self.adopt(member, queue),
                QueueChange::Return { member, queue } => self.let_go(member, queue),
            }
        }
    }

    /// Returns the listener of the membership with this id.
    fn sharer(&mut self, member: u64) -> Option<Key> {
        let is_member =
            |listener: &Listener| listener.share.as_ref().is_some_and(|share| share.id() == member);
        let keys = self.listeners.clone();
        keys.into_iter().find(|key| self.listener(*key).is_some_and(|listener| is_member(listener)))
    }

    fn adopt(&mut self, member: u64, queue: Queue) {
        let Some(key) = self.sharer(member) else { return };
        if let Err(error) = self.adopt_queue(key, queue) {
            tracing::warn!(
                %error,
                "cannot take over an accept queue; trying again until it succeeds"
            );
        }
    }

    /// Accepts from one more queue. If it cannot be attached now (no descriptor is free), it is
    /// attached later, because no other channel accepts the connections of its CPUs.
    fn adopt_queue(&mut self, key: Key, queue: Queue) -> io::Result<()> {
        let attached = self.attach_queue(&queue);
        let Some(listener) = self.listener(key) else { return Ok(()) };
        match attached {
            Ok(leg) => {
                let share = listener.share.as_ref();
                let is_original = share.is_some_and(|share| share.is_original(leg.queue));
                listener.legs.push(leg);
                self.counters.adopted += u64::from(!is_original);
                self.arm(key);
                Ok(())
            }
            Err(error) => {
                let is_planned = !listener.unattached.is_empty();
                listener.unattached.push(queue);
                if !is_planned {
                    self.plan(Instant::now() + ADOPT_PAUSE, key, Purpose::AdoptAgain);
                }
                Err(error)
            }
        }
    }

    /// Attaches the queues that could not be attached before.
    pub(super) fn adopt_again(&mut self, key: Key) {
        let Some(listener) = self.listener(key) else { return };
        for queue in std::mem::take(&mut listener.unattached) {
            if let Err(error) = self.adopt_queue(key, queue) {
                tracing::debug!(%error, "still cannot take over an accept queue");
            }
        }
    }

    fn let_go(&mut self, member: u64, queue: u64) {
        let Some(key) = self.sharer(member) else { return };
        let Some(listener) = self.listener(key) else { return };
        listener.unattached.retain(|unattached| unattached.id != queue);
        // The first queue is the channel's own, which others never claim.
        let Some(at) = listener.legs.iter().skip(1).position(|leg| leg.queue == queue) else {
            return;
        };
        let leg = listener.legs.remove(at + 1);
        self.let_leg_go(leg);
    }

    fn let_leg_go(&mut self, leg: Leg) {
        let pending: Vec<u64> = leg.request.iter().map(|id| id.tag()).collect();
        drop(self.driver.detach(leg.object, &pending));
    }

    /// Ends a listener's membership of a partition. Returns the connections that no other channel
    /// can take over, including those accepted and not delivered.
    pub(super) fn leave(&mut self, key: Key) -> Vec<Socket> {
        let Some(listener) = self.listener(key) else { return Vec::new() };
        listener.wanted = 0;
        listener.unattached.clear();
        let mut connections: Vec<Socket> = listener.stash.drain(..).collect();
        let share = listener.share.take();
        // Connections accepted after the queues have new owners would be lost, so accepting ends
        // first.
        self.disarm(key);
        self.gather();
        connections.extend(self.undelivered_connections(key));
        let Some(listener) = self.listener(key) else { return connections };
        let objects: Vec<_> = listener.legs.iter().map(|leg| leg.object).collect();
        let extra: Vec<Leg> = listener.legs.drain(1..).collect();
        for object in objects {
            connections.extend(self.driver.take_waiting(object));
        }
        for leg in extra {
            self.let_leg_go(leg);
        }
        if let Some(membership) = share {
            let orphans = membership.leave();
            self.counters.orphaned += u64::from(orphans.lost);
            connections.extend(orphans.connections.into_iter().map(socket_of));
        }
        connections
    }

    /// Collects all completed outcomes from the driver, without waiting.
    fn gather(&mut self) {
        let before = self.ready.len();
        if self.driver.flush().is_err() {
            return;
        }
        let mut known = usize::MAX;
        while known != self.ready.len() {
            known = self.ready.len();
            let _ = self.driver.collect(&mut self.ready, Some(Duration::ZERO));
        }
        self.count_accepted(before);
    }

    /// Removes the connections that were accepted for a listener and not delivered.
    fn undelivered_connections(&mut self, key: Key) -> Vec<Socket> {
        let requests = &self.requests;
        let mut connections = Vec::new();
        for outcome in &mut self.ready {
            let request = Key::from_tag(outcome.tag).and_then(|id| requests.get(id));
            if !matches!(outcome.output, Output::Socket { .. })
                || request.is_none_or(|request| request.handle != key)
            {
                continue;
            }
            if let Output::Socket { socket, .. } =
                std::mem::replace(&mut outcome.output, Output::None)
            {
                connections.push(socket);
            }
        }
        connections
    }

    /// Counts and reports connections that no other channel can take over.
    pub(super) fn report_orphans(&mut self, count: usize) {
        if count > 0 {
            self.counters.orphaned += count as u64;
            tracing::warn!(count, "connections closed with the last channel of their listener");
        }
    }

    /// Returns how long the channel may sleep before it tries to steal connections.
    pub(super) fn steal_limit(&self, timeout: Option<Duration>) -> Option<Duration> {
        match self.config.steal_interval {
            Some(interval) if !self.listeners.is_empty() => {
                Some(timeout.map_or(interval, |timeout| timeout.min(interval)))
            }
            _ => timeout,
        }
    }

    /// Takes connections from the queues of busy channels.
    pub(super) fn steal(&mut self) {
        if self.config.steal_interval.is_none() {
            return;
        }
        for key in self.listeners.clone() {
            let room = self.room_for_connections() as usize;
            let Some(listener) = self.listener(key) else { continue };
            let limit = room.min(STEAL_LIMIT).min(listener.wanted as usize);
            let Some(membership) = &listener.share else { continue };
            let mut stolen: Vec<OwnedFd> = Vec::new();
            if let Err(error) = membership.steal(limit, STEAL_WATERMARK, &mut stolen) {
                tracing::debug!(%error, "cannot take connections from a busy channel");
            }
            self.counters.stolen += stolen.len() as u64;
            for descriptor in stolen {
                self.queue_accepted(key, socket_of(descriptor));
            }
        }
    }
}

fn socket_of(descriptor: OwnedFd) -> Socket {
    Endpoint::Descriptor(descriptor).into()
}
