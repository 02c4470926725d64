//! Accepts connections: tracks how many the application wants, and from which accept queues they
//! come.

use super::deadlines::Purpose;
use super::member::{FIRST_PAUSE, Listener};
use super::{Command, Engine, Lane, Member, Request};
use crate::completion::{Accepted, Completion, Event};
use crate::driver::{Object, Operation, Outcome, Output, TABLE_FULL};
use crate::error::{Error, TooManyLightweight};
use crate::slab::Key;
use crate::source::{Endpoint, Kind, Socket};
use crate::sys::{is_readable, resource_limit};
use std::io;
use std::time::{Duration, Instant};

/// The count of an accept without a limit.
const FOREVER: u32 = u32::MAX;
/// The queue number of an accept that delivers an already accepted connection.
const NO_QUEUE: u64 = u64::MAX;

/// Longest pause after repeated errors of accept.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The parameters of an accept.
#[derive(Clone, Copy)]
pub(crate) struct AcceptWish {
    /// The number of connections; `None` for all.
    pub(crate) count: Option<u32>,
    pub(crate) lightweight: bool,
    /// Whether each connection comes with its peer's address.
    pub(crate) peer: bool,
}

impl Engine {
    pub(super) fn listener(&mut self, key: Key) -> Option<&mut Listener> {
        self.members.get_mut(key)?.listener_mut()
    }

    /// Adds to the number of wanted connections.
    pub(crate) fn accept(&mut self, key: Key, wish: AcceptWish) -> Result<(), Error> {
        let Some(listener) = self.listener(key) else { return Err(Error::UnknownHandle) };
        let differs = listener.lightweight != wish.lightweight || listener.peer != wish.peer;
        if listener.wanted > 0 && differs {
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
        listener.peer = wish.peer;
        listener.wanted = match wish.count {
            Some(count) => listener.wanted.saturating_add(count).min(FOREVER - 1),
            None => FOREVER,
        };
        self.resume_accepts(key);
        self.counters.requests += 1;
        Ok(())
    }

    /// Queues the completion of an already accepted connection, as if the kernel had accepted it.
    pub(super) fn queue_accepted(&mut self, key: Key, mut socket: Socket) {
        if let Some(listener) = self.listener(key)
            && listener.lightweight
            && let Endpoint::Descriptor(descriptor) = socket.endpoint
        {
            // The connection comes from another channel's queue, but belongs to this channel now.
            socket.endpoint = Endpoint::Lightweight(descriptor);
        }
        let mut request = Request::new(Command::Accept, Lane::None).at(NO_QUEUE);
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

    /// Delivers connections that were accepted when no more were wanted or the channel had as many
    /// as it may have, and accepts further ones.
    pub(super) fn resume_accepts(&mut self, key: Key) {
        let free = self.free_connections() as usize;
        let Some(listener) = self.listener(key) else { return };
        let stashed = listener.stash.len().min(listener.wanted as usize).min(free);
        let gifts: Vec<Socket> = listener.stash.drain(..stashed).collect();
        for socket in gifts {
            self.queue_accepted(key, socket);
        }
        self.arm(key);
    }

    /// Ensures that there is an accept on every queue while connections are wanted and there is
    /// room for them.
    pub(super) fn arm(&mut self, key: Key) {
        let room = self.room_for_connections();
        let batch = self.config.completions;
        let Some(listener) = self.listener(key) else { return };
        let lightweight = listener.lightweight;
        // Accepts that are requested after a cancellation begin when the cancellation has ended.
        if listener.wanted == 0 || listener.ends > 0 || listener.paused || room == 0 {
            return;
        }
        listener.notify_sharers(true);
        // A single accept serves a request for one connection, so that no connection has to be
        // kept. A repeating one may return a batch before it can be ended.
        let repeat = listener.wanted > 1 && room >= batch;
        let idle: Vec<(u64, Object)> = listener
            .legs
            .iter()
            .filter(|leg| leg.request.is_none())
            .map(|leg| (leg.queue, leg.object))
            .collect();
        for (queue, object) in idle {
            let mut request = Request::new(Command::Accept, Lane::None).at(queue).repeating(repeat);
            request.handle = key;
            request.in_flight = true;
            // If there is no room, the channel tries again before it sleeps.
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

    /// Counts the connections among the new outcomes, for the number of pending connections.
    pub(super) fn count_accepted(&mut self, from: usize) {
        for outcome in self.ready.iter().skip(from) {
            if let Output::Socket { .. } = outcome.output
                && let Some(id) = Key::from_tag(outcome.tag)
                && let Some(request) = self.requests.get(id)
                && let Some(member) = self.members.get_mut(request.handle)
                && let Some(listener) = member.listener_mut()
            {
                listener.undelivered += 1;
                let share = listener.share.as_mut();
                let is_unequal = share.is_some_and(|share| share.accepted(request.offset));
                self.counters.rebalanced += u64::from(is_unequal);
            }
        }
    }

    pub(super) fn complete_accept(&mut self, id: Key, outcome: Outcome) -> Option<Completion> {
        let request = self.requests.get(id)?;
        let (key, queue) = (request.handle, request.offset);
        if !outcome.more {
            let request = self.requests.remove(id)?;
            let member = self.members.get_mut(key)?;
            member.in_flight -= u32::from(request.in_flight);
            let listener = member.listener_mut()?;
            if let Some(leg) = listener.legs.iter_mut().find(|leg| leg.request == Some(id)) {
                leg.request = None;
            }
        }
        let completion = match outcome.output {
            Output::Socket { socket, queue_nonempty } => {
                self.deliver(key, socket, queue_nonempty.then_some(queue))
            }
            _ if queue == NO_QUEUE => {
                let error = io::Error::from_raw_os_error(-outcome.result);
                Some(self.completed(key, false, Event::Accept(Err(error))))
            }
            _ => {
                self.report_cancelled(key);
                self.complete_accept_error(key, -outcome.result)
            }
        };
        self.report_cancelled(key);
        completion
    }

    fn deliver(&mut self, key: Key, socket: Socket, nonempty: Option<u64>) -> Option<Completion> {
        let is_full = self.free_connections() == 0;
        let counted = Some(self.connections.count());
        let listener = self.listener(key)?;
        listener.undelivered = listener.undelivered.saturating_sub(1);
        listener.pause = FIRST_PAUSE;
        let kind = if listener.packets { Kind::Packet } else { Kind::Stream };
        let socket = Socket { kind, counted, ..socket };
        if listener.ending > 0 {
            listener.ending -= u32::from(listener.ending != FOREVER);
            let more = listener.ending > 0;
            listener.ends -= u32::from(!more);
            let pending = listener.undelivered + listener.stash.len() as u32;
            return self.present(key, more, socket, pending);
        }
        if listener.wanted == 0 || is_full {
            listener.stash.push_back(Socket { counted: None, ..socket });
            return None;
        }
        if listener.wanted != FOREVER {
            listener.wanted -= 1;
        }
        let more = listener.wanted > 0;
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
        self.keep_within_limit();
        self.present(key, more, socket, pending)
    }

    /// Builds the completion of an accept in the requested form.
    fn present(
        &mut self,
        key: Key,
        more: bool,
        socket: Socket,
        pending: u32,
    ) -> Option<Completion> {
        let listener = self.listener(key)?;
        let (lightweight, peer) = (listener.lightweight, listener.peer);
        // A connection that was already reset has no address any more, but may have left data.
        let peer = if peer { self.peer_of(&socket).ok() } else { None };
        let socket = if lightweight { Ok(socket) } else { self.regular(socket) };
        let event = Event::Accept(socket.map(|socket| Accepted { socket, pending, peer }));
        Some(self.completed(key, more, event))
    }

    /// Converts the connection into a descriptor. It may be a lightweight socket if an accept of
    /// the other kind kept it, and always is with an installed driver.
    fn regular(&mut self, socket: Socket) -> io::Result<Socket> {
        let Socket { endpoint, kind, counted } = socket;
        let descriptor = match endpoint {
            Endpoint::Lightweight(descriptor) => descriptor,
            endpoint @ Endpoint::Direct(_) => {
                let object = self.driver.attach(endpoint, kind)?;
                let descriptor = self.driver.descriptor(object);
                drop(self.driver.detach(object, &[]));
                descriptor?
            }
            endpoint => return Ok(Socket { endpoint, kind, counted }),
        };
        Ok(Socket { endpoint: Endpoint::Descriptor(descriptor), kind, counted })
    }

    /// Returns the number of connections in a queue; 1 if the kernel reports only that there are
    /// some. May be called for an empty queue.
    fn queue_length(&mut self, object: Object) -> u32 {
        // `tcpi_unacked` of a listening socket, at offset 24 of `struct tcp_info`.
        let mut info = [0; 28];
        let level = libc::IPPROTO_TCP;
        match self.driver.get_option(object, level, libc::TCP_INFO, &mut info) {
            Ok(28) => u32::from_ne_bytes([info[24], info[25], info[26], info[27]]),
            _ => u32::from(self.driver.raw_descriptor(object).is_none_or(is_readable)),
        }
    }

    fn complete_accept_error(&mut self, key: Key, errno: i32) -> Option<Completion> {
        let listener = self.listener(key)?;
        match errno {
            // The peer reset the connection before it was accepted; or an accept was cancelled,
            // whose last completion is delivered elsewhere, and further connections may be wanted.
            libc::ECONNABORTED | libc::EINTR | libc::EAGAIN | libc::ECANCELED => {
                self.arm(key);
                return None;
            }
            _ if listener.wanted == 0 || listener.paused => return None,
            _ => {}
        }
        let passes = passes(errno);
        if !passes {
            listener.wanted = 0;
        }
        // Another accept would fail again at once, also one that the application requests now.
        listener.paused = true;
        let pause = listener.pause;
        listener.pause = (2 * pause).min(LONGEST_PAUSE);
        self.plan(Instant::now() + pause, key, Purpose::AcceptAgain);
        self.disarm(key);
        let error = match errno {
            TABLE_FULL => self.table_full(),
            errno => io::Error::from_raw_os_error(errno),
        };
        Some(self.completed(key, passes, Event::Accept(Err(error))))
    }

    /// Returns the error of an accept that finds the file table full.
    pub(super) fn table_full(&self) -> io::Error {
        let descriptors = resource_limit(libc::RLIMIT_NOFILE).map_or(u64::MAX, |of| of.rlim_cur);
        let descriptors = u32::try_from(descriptors).unwrap_or(u32::MAX);
        let limit = self.config.max_lightweight.min(descriptors);
        io::Error::new(io::ErrorKind::QuotaExceeded, TooManyLightweight { limit })
    }

    /// Accepts again after a pause.
    pub(super) fn accept_again(&mut self, key: Key) {
        if let Some(listener) = self.listener(key) {
            listener.paused = false;
            self.arm(key);
        }
    }

    /// Accepts again at once, because a descriptor was closed.
    pub(super) fn accept_soon(&mut self) {
        for at in 0..self.listeners.len() {
            let key = self.listeners[at];
            if self.listener(key).is_some_and(|listener| listener.paused) {
                self.plan(Instant::now(), key, Purpose::AcceptAgain);
            }
        }
    }

    /// Stops accepting.
    pub(super) fn disarm(&mut self, key: Key) {
        let Some(listener) = self.members.get_mut(key).and_then(Member::listener_mut) else {
            return;
        };
        listener.notify_sharers(false);
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
        // Connections that are accepted before the cancellation takes effect are delivered: a
        // server that stops serving a listener, which others continue to serve, must not lose a
        // connection.
        let wanted = std::mem::take(&mut listener.wanted);
        listener.ending = listener.ending.saturating_add(wanted);
        listener.ends += 1;
        self.disarm(key);
        self.report_cancelled(key);
    }

    /// Delivers the last completions of cancelled accepts, after the accepts of all queues have
    /// ended.
    fn report_cancelled(&mut self, key: Key) {
        let Some(listener) = self.listener(key) else { return };
        if listener.ends == 0 || listener.legs.iter().any(|leg| leg.request.is_some()) {
            return;
        }
        listener.ending = 0;
        for _ in 0..std::mem::take(&mut listener.ends) {
            let mut request = Request::new(Command::Accept, Lane::None).at(NO_QUEUE);
            request.handle = key;
            // There is one for each call of `cancel` that found an accept.
            let id = self.requests.insert_beyond(request);
            self.ready.push_back(Outcome::plain(id.tag(), -libc::ECANCELED));
        }
    }
}

/// Returns whether an error of accept(2) is transient, or ends when a descriptor is closed.
fn passes(errno: i32) -> bool {
    const OF_THE_SYSTEM: [i32; 7] = [
        TABLE_FULL,
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOBUFS,
        libc::ENOMEM,
        libc::EPERM,
        libc::EPROTO,
    ];
    // Errors of the new connection, which accept(2) passes on.
    const OF_THE_NETWORK: [i32; 7] = [
        libc::ENETDOWN,
        libc::ENOPROTOOPT,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::ENOSR,
    ];
    OF_THE_SYSTEM.contains(&errno) || OF_THE_NETWORK.contains(&errno)
}
