//! Accepting: how many connections the application wants, and from which queues they come.

use super::{Command, Engine, Lane, Member, Payload, Request};
use crate::completion::{Accepted, Completion, Event};
use crate::cpuset::CpuSet;
use crate::driver::{Object, Operation, Outcome, Output};
use crate::error::Error;
use crate::partition::{Mail, Membership, Office, Queue};
use crate::slab::Key;
use crate::source::{Endpoint, Kind, Socket, wake_pair};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Accepts without an end.
const FOREVER: u32 = u32::MAX;
/// The queue of an accept that brings a connection which is there already.
const NO_QUEUE: u64 = u64::MAX;
/// The queue of a listener that shares nothing.
const OWN_QUEUE: u64 = 0;
/// Connections taken from a busy channel at a time, and how many must wait there.
const STEAL_LIMIT: usize = 8;
const STEAL_WATERMARK: u32 = 8;

/// What an accept asks for.
#[derive(Clone, Copy)]
pub(crate) struct AcceptWish {
    /// `None` for all.
    pub(crate) count: Option<u32>,
    pub(crate) lightweight: bool,
}

/// One queue of connections that a listener is served from.
struct Leg {
    queue: u64,
    object: Object,
    request: Option<Key>,
}

/// What is particular to a member that listens.
pub(super) struct Listener {
    wanted: u32,
    lightweight: bool,
    legs: Vec<Leg>,
    /// Connections that came when none was wanted any more.
    stash: VecDeque<Socket>,
    /// Connections among the outcomes that nobody has looked at.
    undelivered: u32,
    share: Option<Membership>,
}

impl Listener {
    /// A listener with a queue of its own.
    pub(super) fn alone(object: Object) -> Listener {
        Listener {
            wanted: 0,
            lightweight: false,
            legs: vec![Leg { queue: OWN_QUEUE, object, request: None }],
            stash: VecDeque::new(),
            undelivered: 0,
            share: None,
        }
    }
}

impl Engine {
    /// Joins the channels that share a listening socket.
    pub(crate) fn register_share(
        &mut self,
        listener: BorrowedFd<'_>,
        cpus: &CpuSet,
    ) -> Result<Key, Error> {
        self.check_process()?;
        let office = self.letter_box()?;
        let (membership, queue) = Membership::join(listener, cpus, &office)?;
        let leg = self.attach_queue(queue).map_err(Error::system("attach"))?;
        let object = leg.object;
        let mut state = Listener::alone(object);
        state.legs = vec![leg];
        state.share = Some(membership);
        self.enroll(Member {
            object,
            kind: Kind::Listener,
            queues: Default::default(),
            in_flight: 0,
            connecting: false,
            large: false,
            streak: 0,
            listener: Some(Box::new(state)),
        })
    }

    fn attach_queue(&mut self, queue: Queue) -> io::Result<Leg> {
        let endpoint = Endpoint::Descriptor(queue.descriptor.try_clone()?);
        let object = self.driver.attach(endpoint, Kind::Listener)?;
        Ok(Leg { queue: queue.id, object, request: None })
    }

    /// Where other channels leave their queues: a wake-up that the channel itself watches.
    fn letter_box(&mut self) -> Result<Arc<Office>, Error> {
        if let Some((office, _)) = &self.letter_box {
            return Ok(Arc::clone(office));
        }
        let (waker, source) = wake_pair().map_err(Error::system("eventfd"))?;
        let key = self.register(source.into())?;
        let words = Payload::Words(Box::default());
        let watch = Request::new(Command::Watch, Lane::Inbound, words).repeating(true);
        self.file(key, watch).map_err(|(error, _)| error)?;
        let office = Office::new(waker);
        self.letter_box = Some((Arc::clone(&office), key));
        Ok(office)
    }

    /// Takes over the queues that other channels have left, and lets go of those claimed back.
    pub(super) fn open_letters(&mut self) {
        let mail = self.letter_box.as_ref().map(|(office, _)| office.drain());
        for mail in mail.unwrap_or_default() {
            match mail {
                Mail::Adopt { member, queue } => self.adopt(member, queue),
                Mail::Return { member, queue } => self.let_go(member, queue),
            }
        }
    }

    /// The listener whose share of a listening socket has this number.
    fn sharer(&mut self, member: u64) -> Option<Key> {
        let is_member =
            |listener: &Listener| listener.share.as_ref().is_some_and(|share| share.id() == member);
        let keys = self.listeners.clone();
        keys.into_iter().find(|key| self.listener(*key).is_some_and(|listener| is_member(listener)))
    }

    fn adopt(&mut self, member: u64, queue: Queue) {
        let Some(key) = self.sharer(member) else { return };
        match self.attach_queue(queue) {
            Ok(leg) => {
                let Some(listener) = self.listener(key) else { return };
                listener.legs.push(leg);
                self.counters.adopted += 1;
                self.arm(key);
            }
            Err(error) => tracing::warn!(%error, "cannot take over the queue of an ended channel"),
        }
    }

    fn let_go(&mut self, member: u64, queue: u64) {
        let Some(key) = self.sharer(member) else { return };
        let Some(listener) = self.listener(key) else { return };
        // The first leg is the channel's own and never claimed by others.
        let Some(at) = listener.legs.iter().skip(1).position(|leg| leg.queue == queue) else {
            return;
        };
        let leg = listener.legs.remove(at + 1);
        drop(self.driver.detach(leg.object, leg.request.is_some()));
    }

    fn listener(&mut self, key: Key) -> Option<&mut Listener> {
        self.members.get_mut(key)?.listener.as_deref_mut()
    }

    /// Changes the CPUs whose connections come here.
    pub(crate) fn set_cpus(&mut self, key: Key, cpus: &CpuSet) -> Result<(), Error> {
        let kind = self.member(key)?.kind.name();
        let request = "a change of its CPUs";
        let wrong = || Error::WrongKind { request, kind };
        let listener = self.listener(key).ok_or_else(wrong)?;
        listener.share.as_ref().ok_or_else(wrong)?.set_cpus(cpus)?;
        Ok(())
    }

    /// The CPUs whose connections come here.
    pub(crate) fn cpus(&mut self, key: Key) -> Result<CpuSet, Error> {
        let kind = self.member(key)?.kind.name();
        let share = self.listener(key).and_then(|listener| listener.share.as_ref());
        let wrong = Error::WrongKind { request: "a set of CPUs", kind };
        share.map(Membership::cpus).ok_or(wrong)
    }

    /// Asks for connections.
    pub(crate) fn accept(&mut self, key: Key, wish: AcceptWish) -> Result<(), Error> {
        let Some(listener) = self.listener(key) else { return Err(Error::UnknownHandle) };
        if listener.wanted > 0 && listener.lightweight != wish.lightweight {
            return Err(Error::MixedAccept);
        }
        let unarmed = listener.legs.iter().all(|leg| leg.request.is_none());
        let limit = self.config.max_requests;
        if unarmed && self.requests.len() >= limit as usize {
            self.counters.refused += 1;
            return Err(Error::TooManyRequests { limit });
        }
        let Some(listener) = self.listener(key) else { return Err(Error::UnknownHandle) };
        listener.lightweight = wish.lightweight;
        listener.wanted = match wish.count {
            Some(count) => listener.wanted.saturating_add(count).min(FOREVER - 1),
            None => FOREVER,
        };
        let stashed = listener.stash.len().min(listener.wanted as usize);
        let gifts: Vec<Socket> = listener.stash.drain(..stashed).collect();
        for socket in gifts {
            self.give(key, socket);
        }
        self.arm(key);
        self.counters.requests += 1;
        Ok(())
    }

    /// Delivers a connection that is there already like one that the kernel brings.
    fn give(&mut self, key: Key, socket: Socket) {
        let mut request = Request::new(Command::Accept, Lane::None, Payload::None).at(NO_QUEUE);
        request.handle = key;
        match self.requests.insert(request) {
            Ok(id) => {
                let output = Output::Socket { socket, queue_nonempty: false };
                let tag = id.tag();
                self.ready.push_back(Outcome { tag, result: 0, more: false, output });
                if let Some(listener) = self.listener(key) {
                    listener.undelivered += 1;
                }
            }
            Err(_) => {
                if let Some(listener) = self.listener(key) {
                    listener.stash.push_back(socket);
                }
            }
        }
    }

    /// Sees to it that every queue is being accepted from, as long as connections are wanted.
    pub(super) fn arm(&mut self, key: Key) {
        let Some(listener) = self.listener(key) else { return };
        let lightweight = listener.lightweight;
        if listener.wanted == 0 {
            return;
        }
        // A single wish is served by a single accept, so that nothing has to be put aside.
        let repeat = listener.wanted > 1;
        let idle: Vec<(u64, Object)> = listener
            .legs
            .iter()
            .filter(|leg| leg.request.is_none())
            .map(|leg| (leg.queue, leg.object))
            .collect();
        for (queue, object) in idle {
            let mut request = Request::new(Command::Accept, Lane::None, Payload::None).at(queue);
            request.handle = key;
            request.in_flight = true;
            // If there is no room, it is tried again before the channel sleeps.
            let Ok(id) = self.requests.insert(request) else { return };
            let operation = Operation::Accept { lightweight, repeat };
            if self.driver.submit(id.tag(), object, operation).is_err() {
                self.requests.remove(id);
                return;
            }
            self.counters.operations += 1;
            let Some(listener) = self.listener(key) else { return };
            if let Some(leg) = listener.legs.iter_mut().find(|leg| leg.queue == queue) {
                leg.request = Some(id);
            }
            if let Some(member) = self.members.get_mut(key) {
                member.in_flight += 1;
            }
        }
    }

    /// Notes the connections among the new outcomes, to tell the application how many are pending.
    pub(super) fn count_accepted(&mut self, from: usize) {
        for outcome in self.ready.iter().skip(from) {
            if let Output::Socket { .. } = outcome.output
                && let Some(request) = self.requests.get(Key::from_tag(outcome.tag))
                && let Some(member) = self.members.get_mut(request.handle)
                && let Some(listener) = &mut member.listener
            {
                listener.undelivered += 1;
            }
        }
    }

    pub(super) fn settle_accept(&mut self, id: Key, outcome: Outcome) -> Option<Completion> {
        let request = self.requests.get(id)?;
        let (key, queue) = (request.handle, request.offset);
        if !outcome.more {
            let request = self.requests.remove(id)?;
            let member = self.members.get_mut(key)?;
            member.in_flight -= u32::from(request.in_flight);
            let listener = member.listener.as_deref_mut()?;
            if let Some(leg) = listener.legs.iter_mut().find(|leg| leg.request == Some(id)) {
                leg.request = None;
            }
        }
        match outcome.output {
            Output::Socket { socket, queue_nonempty } => {
                self.deliver(key, socket, queue_nonempty.then_some(queue))
            }
            _ if queue == NO_QUEUE => {
                let error = io::Error::from_raw_os_error(-outcome.result);
                Some(self.completed(key, false, Event::Accept(Err(error))))
            }
            _ => self.settle_accept_error(key, -outcome.result),
        }
    }

    fn deliver(&mut self, key: Key, socket: Socket, nonempty: Option<u64>) -> Option<Completion> {
        let listener = self.listener(key)?;
        listener.undelivered = listener.undelivered.saturating_sub(1);
        if listener.wanted == 0 {
            listener.stash.push_back(socket);
            return None;
        }
        if listener.wanted != FOREVER {
            listener.wanted -= 1;
        }
        let (more, lightweight) = (listener.wanted > 0, listener.lightweight);
        let mut pending = listener.undelivered + listener.stash.len() as u32;
        let asks = nonempty.filter(|_| listener.undelivered == 0);
        let queue = asks.and_then(|queue| listener.legs.iter().find(|leg| leg.queue == queue));
        if let Some(object) = queue.map(|leg| leg.object) {
            pending += self.queue_length(object);
        }
        if more {
            self.arm(key);
        } else {
            self.disarm(key);
        }
        let socket = if lightweight { Ok(socket) } else { self.regular(socket) };
        let event = Event::Accept(socket.map(|socket| Accepted { socket, pending }));
        Some(self.completed(key, more, event))
    }

    /// The connection as a descriptor, which it may not be yet if it was put aside by an accept of
    /// the other kind.
    fn regular(&mut self, socket: Socket) -> io::Result<Socket> {
        if !socket.is_lightweight() {
            return Ok(socket);
        }
        let object = self.driver.attach(socket.0, Kind::Stream)?;
        let descriptor = self.driver.descriptor(object);
        drop(self.driver.detach(object, false));
        descriptor.map(socket_of)
    }

    /// How many connections wait in a queue; 1 if the kernel cannot say more than "some".
    fn queue_length(&mut self, object: Object) -> u32 {
        // `tcpi_unacked` of a listening socket, at offset 24 of `struct tcp_info`.
        let mut info = [0; 28];
        let level = libc::IPPROTO_TCP;
        match self.driver.get_option(object, level, libc::TCP_INFO, &mut info) {
            Ok(28) => u32::from_ne_bytes([info[24], info[25], info[26], info[27]]),
            _ => 1,
        }
    }

    fn settle_accept_error(&mut self, key: Key, errno: i32) -> Option<Completion> {
        let listener = self.listener(key)?;
        match errno {
            // The peer gave up before it was accepted; or an accept was cancelled, which has been
            // told, and may be wanted again.
            libc::ECONNABORTED | libc::EINTR | libc::EAGAIN | libc::ECANCELED => {
                self.arm(key);
                return None;
            }
            _ if listener.wanted == 0 => return None,
            _ => {}
        }
        // The application decides when to try again: at once, it would fail again.
        listener.wanted = 0;
        self.disarm(key);
        let event = Event::Accept(Err(io::Error::from_raw_os_error(errno)));
        Some(self.completed(key, false, event))
    }

    /// Stops accepting.
    fn disarm(&mut self, key: Key) {
        let Some(listener) = self.members.get(key).and_then(|member| member.listener.as_deref())
        else {
            return;
        };
        for leg in &listener.legs {
            if let Some(id) = leg.request {
                self.driver.cancel(id.tag(), leg.object);
            }
        }
    }

    /// Stops accepting at the application's request, which gets a last completion.
    pub(super) fn cancel_accepts(&mut self, key: Key) {
        let Some(listener) = self.listener(key) else { return };
        if listener.wanted == 0 {
            return;
        }
        listener.wanted = 0;
        self.disarm(key);
        // Told at once: whether a queue's accept ends with an error or with a connection, which is
        // put aside then, is left to chance.
        let mut request = Request::new(Command::Accept, Lane::None, Payload::None).at(NO_QUEUE);
        request.handle = key;
        if let Ok(id) = self.requests.insert(request) {
            self.ready.push_back(Outcome::plain(id.tag(), -libc::ECANCELED));
        }
    }

    /// Gives up a listener's share of a listening socket and its extra queues; gives the
    /// connections that nobody else takes, among them those accepted and not delivered.
    pub(super) fn leave(&mut self, key: Key) -> Vec<Socket> {
        let Some(listener) = self.listener(key) else { return Vec::new() };
        listener.wanted = 0;
        let mut connections: Vec<Socket> = listener.stash.drain(..).collect();
        let share = listener.share.take();
        // What is accepted after the queues have new owners would be lost, so that ends first.
        self.disarm(key);
        self.gather();
        connections.extend(self.undelivered_connections(key));
        let Some(listener) = self.listener(key) else { return connections };
        let extra: Vec<Leg> = listener.legs.drain(1..).collect();
        for leg in extra {
            drop(self.driver.detach(leg.object, leg.request.is_some()));
        }
        if let Some(membership) = share {
            let orphans = membership.leave();
            self.counters.orphaned += u64::from(orphans.lost);
            connections.extend(orphans.connections.into_iter().map(socket_of));
        }
        connections
    }

    /// Takes from the driver all that has completed, without waiting.
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

    /// Takes out the connections that were accepted for a listener and not delivered.
    fn undelivered_connections(&mut self, key: Key) -> Vec<Socket> {
        let requests = &self.requests;
        let mut connections = Vec::new();
        for outcome in &mut self.ready {
            let request = requests.get(Key::from_tag(outcome.tag));
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

    pub(super) fn report_orphans(&mut self, count: usize) {
        if count > 0 {
            self.counters.orphaned += count as u64;
            tracing::warn!(count, "connections closed with the last channel of their listener");
        }
    }

    /// How long the channel may sleep before it looks for connections to steal.
    pub(super) fn patience(&self, timeout: Option<Duration>) -> Option<Duration> {
        match self.config.steal_interval {
            Some(interval) if !self.listeners.is_empty() => {
                Some(timeout.map_or(interval, |timeout| timeout.min(interval)))
            }
            _ => timeout,
        }
    }

    /// Takes connections that wait in the queues of busy channels.
    pub(super) fn steal(&mut self) {
        for key in self.listeners.clone() {
            let Some(listener) = self.listener(key) else { continue };
            let limit = STEAL_LIMIT.min(listener.wanted as usize);
            let Some(membership) = &listener.share else { continue };
            let mut stolen: Vec<OwnedFd> = Vec::new();
            if let Err(error) = membership.steal(limit, STEAL_WATERMARK, &mut stolen) {
                tracing::debug!(%error, "cannot take connections from a busy channel");
            }
            self.counters.stolen += stolen.len() as u64;
            for descriptor in stolen {
                self.give(key, socket_of(descriptor));
            }
        }
    }
}

fn socket_of(descriptor: OwnedFd) -> Socket {
    Socket(Endpoint::Descriptor(descriptor))
}
