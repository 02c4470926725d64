//! Runs the agent's side of a flow: its control link, and the paths that are being opened.

mod watched;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::link::{Descriptors, Link, Received};
use super::mailbox::{FlowMessage, Mailbox, Permit};
use super::message::Message;
use super::moves::{Action, Basis, Moves, PEER_GONE, Rules};
use super::remote::{self, Reached};
use super::report::Reporter;
use crate::agent::{Agent, WatchId};
use crate::error::Error;
use crate::identity::{FlowId, Peer, Role, Trust};
use crate::kind::Kind;
use crate::name::Name;
use crate::orders::Orders;
use crate::transport::tls::Handshake;
use crate::transport::{self, Offer, PathOptions, Transport};
use watched::Introduction;
pub(crate) use watched::{watch, watch_process};

/// The longest message of a flow, in bytes. Every transport that the flow may move to accepts it.
pub(crate) const FLOW_MESSAGE_BYTES_MAX: usize = 128 * 1024;

/// The largest ring or shared heap of a peer that an end accepts, in bytes, unless its own are set
/// to be larger: an end comes to use as much memory as its peer has chosen.
pub(crate) const PEER_RING_BYTES_MAX: usize = 16 << 20;

/// The most paths of one flow at a time. More are needed only if the application does not notice
/// its moves.
const PATHS_MAX: u32 = 16;

/// After this many messages in a row the agent serves other links.
const MESSAGES_PER_TURN: usize = 32;

/// The state that the threads of a flow share.
pub(crate) struct Shared {
    pub(crate) id: FlowId,
    pub(crate) name: Name,
    pub(crate) role: Role,
    pub(crate) peer: Peer,
    pub(crate) local: bool,
    pub(crate) own_trust: Trust,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) reporter: Arc<dyn Reporter>,
    pub(crate) page: OwnedFd,
    pub(crate) path: PathOptions,
    pub(crate) offer_timeout: Duration,
    pub(crate) silence_timeout: Duration,
    pub(crate) protected: AtomicBool,
    /// The path that the flow writes to: its epoch, and its transport's index in [`Kind::ALL`].
    pub(crate) epoch: AtomicU32,
    pub(crate) transport: AtomicU32,
}

impl Shared {
    /// Publishes the epoch and transport that the flow now writes on.
    pub(crate) fn tell_epoch(&self, epoch: u32, kind: Kind) {
        let index = Kind::ALL.iter().position(|other| *other == kind).unwrap_or(0);
        self.transport.store(u32::try_from(index).unwrap_or(0), Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// Marks the flow as closed, so that it is no longer announced to a daemon.
    pub(crate) fn tell_closed(&self) {
        self.epoch.store(0, Ordering::Relaxed);
    }
}

/// A path that is being opened.
struct Prepared {
    epoch: u32,
    kind: Kind,
    transport: Option<Box<dyn Transport>>,
    permit: Permit,
    /// The descriptors that the offer carries.
    descriptors: Vec<OwnedFd>,
    port: Option<u16>,
    token: Option<String>,
    /// The listener for this path; dropping it ends it.
    listening: Option<remote::Listening>,
}

/// How many times messages are read after the peer's process has ended. A child of that process
/// that has the link open could write without end.
const TURNS_AFTER_DEATH: usize = 8;

/// The control link and the opening paths of a flow. It is used on the agent's thread; other
/// threads lock it only to create it, to close it, or to read its orders.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    link: Option<Link>,
    moves: Moves,
    prepared: Option<Prepared>,
    /// What came with the offer that is being handled.
    offered: (Descriptors, Option<u16>, Option<String>),
    deadline: Option<Instant>,
    /// The agent's entries for this driver and the peer's process.
    places: Vec<WatchId>,
    me: Weak<Mutex<Driver>>,
}

/// Locks the driver, even if a thread has panicked while it held the lock: the state is checked at
/// every use.
pub(crate) fn lock(driver: &Mutex<Driver>) -> MutexGuard<'_, Driver> {
    driver.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    /// Creates a driver for this control link.
    pub(crate) fn new(shared: Arc<Shared>, link: OwnedFd, rules: Rules) -> Arc<Mutex<Driver>> {
        Arc::new_cyclic(|me| {
            Mutex::new(Driver {
                link: Some(Link::new(link, shared.local, shared.silence_timeout)),
                moves: Moves::new(shared.role, rules),
                shared,
                prepared: None,
                offered: (Descriptors::NONE, None, None),
                deadline: None,
                places: Vec::new(),
                me: me.clone(),
            })
        })
    }

    /// Handles a move that the daemon requests, unless this end has newer information than the
    /// daemon had.
    pub(crate) fn want(&mut self, kind: Kind, reason: &str, basis: Basis) {
        self.ask(kind, |moves| moves.want(kind, reason, basis));
    }

    /// Handles a move that the application requests.
    pub(crate) fn want_as_application(&mut self, kind: Kind, reason: &str) {
        self.ask(kind, |moves| moves.want_as_application(kind, reason));
    }

    fn ask(&mut self, kind: Kind, how: impl FnOnce(&mut Moves)) {
        if self.link.is_none() {
            return self.fail(kind, PEER_GONE.to_owned());
        }
        self.moves.rules.protected = self.shared.protected.load(Ordering::Relaxed);
        how(&mut self.moves);
        self.act();
    }

    /// Merges the orders that the daemon has sent.
    pub(crate) fn adopt(&mut self, orders: &Orders) {
        self.moves.adopt(orders);
        self.act();
    }

    /// Returns the orders that this end knows.
    pub(crate) fn orders(&self) -> &Orders {
        self.moves.orders()
    }

    /// Closes the control link and discards the paths that are being opened. The link is shut down,
    /// because a child of `fork` may have it open too.
    fn close(&mut self) {
        if let Some(link) = self.link.take() {
            link.shut_down();
        }
        self.prepared = None;
        self.deadline = None;
        self.has_changed();
    }

    /// Makes the agent ask again what to wait for.
    fn has_changed(&self) {
        if let Ok(agent) = Agent::get() {
            self.places.iter().for_each(|place| agent.look(*place));
        }
    }

    /// Closes as `close` does, and drops what is in the mailbox, because the flow no longer reads
    /// it.
    pub(crate) fn abandon(&mut self) {
        self.close();
        // A path in the mailbox holds the mailbox by its permit: neither would ever be freed.
        drop(self.shared.mailbox.take());
    }

    fn receive(&mut self) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(link) = &mut self.link else { return };
            let received = link.send_waiting().and_then(|()| link.receive());
            match received {
                Ok(Received::Nothing) => return,
                Ok(Received::End) => self.peer_gone(),
                Ok(Received::Silence) => {
                    self.close();
                    self.shared.mailbox.put(FlowMessage::Silent);
                }
                Ok(Received::Message(message, descriptors)) => self.hear(message, descriptors),
                Err(error) => self.break_off(&error.to_string()),
            }
        }
    }

    fn peer_gone(&mut self) {
        self.moves.peer_gone();
        self.act();
        self.close();
        self.shared.mailbox.put(FlowMessage::Gone);
    }

    /// Handles the death of the peer's process: messages that it sent before still count.
    fn peer_died(&mut self) {
        for _ in 0..TURNS_AFTER_DEATH {
            if self.link.as_ref().is_some_and(Link::has_something) {
                self.receive();
            }
        }
        if self.link.is_some() {
            self.peer_gone();
        }
    }

    fn hear(&mut self, mut message: Message, descriptors: Descriptors) {
        match (&mut message, descriptors) {
            (Message::Offer { port, token, .. }, descriptors) => {
                self.offered = (descriptors, port.take(), token.take());
            }
            (_, Descriptors::All(none)) if none.is_empty() => {}
            _ => {
                self.break_off("descriptors with a message that has none");
                return;
            }
        }
        self.moves.rules.protected = self.shared.protected.load(Ordering::Relaxed);
        match self.moves.receive(message) {
            Ok(()) => self.act(),
            Err(violation) => self.break_off(violation.0),
        }
        // Closes the descriptors that the state machine did not take.
        self.offered = (Descriptors::NONE, None, None);
    }

    fn break_off(&mut self, what: &str) {
        self.close();
        self.shared.mailbox.put(FlowMessage::Broken { what: format!("control link: {what}") });
    }

    /// Executes the actions of the state machine until it has no more.
    fn act(&mut self) {
        loop {
            let actions = self.moves.take_actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                self.act_once(action);
            }
        }
        let is_busy = self.moves.is_busy() && self.link.is_some();
        self.deadline = match self.deadline {
            _ if !is_busy => None,
            None => Some(Instant::now() + self.shared.offer_timeout),
            running => running,
        };
        self.has_changed();
    }

    fn act_once(&mut self, action: Action) {
        match action {
            Action::Make { epoch, kind } => {
                self.deadline = None;
                let outcome = self.make(epoch, kind);
                self.fail_unless(epoch, outcome);
            }
            Action::Open { epoch, kind } => {
                self.deadline = None;
                let outcome = self.open(epoch, kind);
                self.fail_unless(epoch, outcome);
            }
            Action::Offer { epoch, kind, reason } => {
                let Some(prepared) = &mut self.prepared else { return };
                let descriptors = std::mem::take(&mut prepared.descriptors);
                let (port, token) = (prepared.port, prepared.token.take());
                let transport = kind.to_string();
                self.say(&Message::Offer { epoch, transport, reason, port, token }, descriptors);
            }
            Action::Send(message) => self.say(&message, Vec::new()),
            Action::Install { epoch, kind, reason } => {
                let prepared = self.prepared.take().filter(|prepared| prepared.epoch == epoch);
                match prepared.and_then(|p| Some((p.transport?, p.permit))) {
                    Some((transport, permit)) => {
                        let mail = FlowMessage::Path { epoch, kind, reason, transport, permit };
                        self.shared.mailbox.put(mail);
                    }
                    // The link broke while this end was about to confirm the path to the peer.
                    None if self.link.is_none() => {}
                    None => self.break_off("a path stands that was not made"),
                }
            }
            Action::Discard { .. } => self.prepared = None,
            Action::Failed { kind, reason } => self.fail(kind, reason),
            Action::Ordered => self.shared.reporter.ordered(self.shared.id, self.moves.orders()),
        }
    }

    fn fail(&self, kind: Kind, reason: String) {
        self.shared.reporter.move_failed(self.shared.id, kind, &reason);
        self.shared.mailbox.put(FlowMessage::Failed { kind, reason });
    }

    fn say(&mut self, message: &Message, descriptors: Vec<OwnedFd>) {
        let Some(link) = &mut self.link else { return };
        if let Err(error) = link.send(message, descriptors) {
            self.break_off(&error.to_string());
        }
    }

    fn prepare(&mut self, epoch: u32, kind: Kind) -> Result<(), String> {
        if self.shared.mailbox.paths() >= PATHS_MAX {
            return Err("the application has not used the paths of earlier moves yet".to_owned());
        }
        self.prepared = Some(Prepared {
            epoch,
            kind,
            transport: None,
            permit: Permit::new(Arc::clone(&self.shared.mailbox)),
            descriptors: Vec::new(),
            port: None,
            token: None,
            listening: None,
        });
        Ok(())
    }

    fn offer_with(&mut self, change: impl FnOnce(&mut Prepared)) {
        if let Some(prepared) = &mut self.prepared {
            change(prepared);
        }
    }

    fn make(&mut self, epoch: u32, kind: Kind) -> Result<(), String> {
        if self.link.as_ref().is_some_and(Link::wants_to_send) {
            // Each further offer has descriptors, which would accumulate.
            return Err("the peer reads nothing of what it was told before".to_owned());
        }
        let (options, local) = (self.shared.path, self.shared.local);
        self.prepare(epoch, kind)?;
        if !local {
            return self.make_remote(epoch, kind);
        }
        if kind == Kind::Tls {
            let (own, peer) = transport::stream::tcp_pair().map_err(|error| error.to_string())?;
            self.offer_with(|prepared| prepared.descriptors = vec![peer]);
            self.protect(epoch, own);
            return Ok(());
        }
        let (transport, offer) =
            transport::create(kind, options).map_err(|error| error.to_string())?;
        self.offer_with(|prepared| prepared.descriptors = offer.descriptors);
        self.finish(epoch, transport)
    }

    fn make_remote(&mut self, epoch: u32, kind: Kind) -> Result<(), String> {
        let Some(link) = &self.link else { return Err(PEER_GONE.to_owned()) };
        let (me, timeout) = (self.me.clone(), self.shared.offer_timeout);
        let listening = remote::listen(link.socket(), kind, timeout, move |outcome| {
            if let Some(driver) = me.upgrade() {
                lock(&driver).reached(epoch, outcome);
            }
        })?;
        self.offer_with(|prepared| {
            prepared.port = Some(listening.port);
            prepared.token = Some(listening.token.clone());
            prepared.listening = Some(listening);
        });
        self.moves.made(epoch, false);
        Ok(())
    }

    fn open(&mut self, epoch: u32, kind: Kind) -> Result<(), String> {
        let nothing = (Descriptors::NONE, None, None);
        let (descriptors, port, token) = std::mem::replace(&mut self.offered, nothing);
        let Descriptors::All(descriptors) = descriptors else {
            return Err(Error::lost_descriptors().to_string());
        };
        let local = self.shared.local;
        self.prepare(epoch, kind)?;
        if !local {
            let (Some(port), Some(token), Some(link)) = (port, token, &self.link) else {
                return Err("an offer between hosts has a port and a token".to_owned());
            };
            let (me, timeout) = (self.me.clone(), self.shared.offer_timeout);
            return remote::connect(link.socket(), kind, port, token, timeout, move |outcome| {
                if let Some(driver) = me.upgrade() {
                    lock(&driver).reached(epoch, outcome);
                }
            });
        }
        if kind == Kind::Tls {
            let [socket] = <[_; 1]>::try_from(descriptors)
                .map_err(|_| "a protected stream comes as one descriptor".to_owned())?;
            self.protect(epoch, socket);
            return Ok(());
        }
        let ring_bytes = self.shared.path.ring_bytes.max(PEER_RING_BYTES_MAX);
        let limits = PathOptions { ring_bytes, ..self.shared.path };
        let opened = transport::open_within(Offer { kind, descriptors }, limits);
        self.finish(epoch, opened.map_err(|error| error.to_string())?)
    }

    /// Handles the result of connecting a path between hosts.
    fn reached(&mut self, epoch: u32, outcome: Result<Reached, String>) {
        let Some(kind) = self.prepared_kind(epoch) else { return };
        let outcome = match outcome {
            Ok(Reached { socket, .. }) if kind == Kind::Tls => {
                self.protect(epoch, socket);
                Ok(())
            }
            Ok(Reached { socket, joins }) => transport::stream::from_reached(socket, kind, joins)
                .map_err(|error| error.to_string())
                .and_then(|transport| self.finish(epoch, transport)),
            Err(why) => Err(why),
        };
        self.fail_unless(epoch, outcome);
        self.act();
    }

    /// Requests keys from the daemon, and continues in `protected`.
    fn protect(&mut self, epoch: u32, socket: OwnedFd) {
        let me = self.me.clone();
        let answer = Box::new(move |keys| {
            // Not in the callback, which runs on any thread, with any lock held.
            if let Ok(agent) = Agent::get() {
                agent.run(move || {
                    if let Some(driver) = me.upgrade() {
                        lock(&driver).protected(epoch, socket, keys);
                    }
                });
            }
        });
        self.shared.reporter.keys(self.shared.id, self.shared.role, answer);
    }

    fn protected(&mut self, epoch: u32, socket: OwnedFd, keys: Result<transport::TlsKeys, String>) {
        if self.prepared_kind(epoch).is_none() {
            return;
        }
        let outcome = keys.and_then(|keys| {
            // The follower starts the handshake, whichever end has connected.
            let begun = match self.shared.role {
                Role::Leader => Handshake::accept(socket, &keys),
                Role::Follower => Handshake::connect(socket, &keys),
            };
            begun.map_err(|error| error.to_string())
        });
        let outcome = outcome.and_then(|handshake| self.shake_hands(epoch, handshake));
        self.fail_unless(epoch, outcome);
        self.act();
    }

    /// Continues the handshake in the background: only an authenticated peer gets a path.
    fn shake_hands(&mut self, epoch: u32, handshake: Handshake) -> Result<(), String> {
        if self.shared.role == Role::Leader {
            // The follower's end of a local connection is part of the offer.
            self.moves.made(epoch, false);
        }
        let deadline = Instant::now() + self.shared.offer_timeout;
        let (handshake, driver) = (Some(handshake), self.me.clone());
        let agent = Agent::get().map_err(|error| error.to_string())?;
        agent.watch(Box::new(Introduction { handshake, driver, epoch, deadline }));
        Ok(())
    }

    fn introduced(&mut self, epoch: u32, outcome: Result<Box<dyn Transport>, String>) {
        if self.prepared_kind(epoch).is_some() {
            let outcome = outcome.and_then(|transport| self.finish(epoch, transport));
            self.fail_unless(epoch, outcome);
            self.act();
        }
    }

    /// Completes the opening of a path: this end's transport is ready.
    fn finish(&mut self, epoch: u32, mut transport: Box<dyn Transport>) -> Result<(), String> {
        if transport.message_bytes_max() < FLOW_MESSAGE_BYTES_MAX {
            let bytes_max = transport.message_bytes_max();
            return Err(format!("a path for messages of {bytes_max} bytes is too narrow"));
        }
        transport.limit_reads(FLOW_MESSAGE_BYTES_MAX);
        let Some(prepared) = &mut self.prepared else { return Ok(()) };
        prepared.transport = Some(transport);
        match self.shared.role {
            Role::Leader => {
                // If either is missing, the path cannot be used.
                self.moves.made(epoch, true);
                self.moves.connected(epoch);
            }
            Role::Follower => self.moves.opened(epoch),
        }
        Ok(())
    }

    fn fail_unless(&mut self, epoch: u32, outcome: Result<(), String>) {
        if let Err(why) = outcome {
            self.prepared = None;
            match self.shared.role {
                Role::Leader => self.moves.make_failed(epoch, &why),
                Role::Follower => self.moves.open_failed(epoch, &why),
            }
        }
    }

    fn prepared_kind(&self, epoch: u32) -> Option<Kind> {
        self.prepared.as_ref().filter(|prepared| prepared.epoch == epoch).map(|p| p.kind)
    }
}
