//! Implements the event loop of a core: its channel, its share of the listening sockets, its
//! connections.

mod handshakes;
mod session;
mod steps;

pub(crate) use self::session::Limits;

use self::handshakes::Handshakes;
use self::session::Session;
use crate::backends::{Backends, Health};
use crate::error::ProxyError;
use crate::placement::Placement;
use crate::proxy_protocol::Version;
use crate::relay::{Outcome, Pool, Relay};
use crate::tally::Tally;
use megapipe::{
    Accept, Channel, Completion, Config, DriverReport, Event, Handle, Repeat, Socket, WakeSource,
};
use rustls::{ServerConfig, ServerConnection};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use sys::output::STDERR;

/// Completions that are processed before the clock is read again.
const COMPLETIONS: usize = 256;
/// How long a core waits after a failed accept, for example without free descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How long refused accepts are not reported again.
const REFUSAL_INTERVAL: Duration = Duration::from_secs(60);

/// The settings and shared state of all cores.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) placement: Placement,
    /// The settings of TLS at the start.
    pub(crate) tls: Arc<ServerConfig>,
    pub(crate) backends: Vec<SocketAddr>,
    pub(crate) health: Health,
    pub(crate) limits: Limits,
    /// Most connections of each core.
    pub(crate) connections: u32,
    /// Most handshakes of a client address on each core.
    pub(crate) handshakes_per_address: Option<u32>,
    /// The version of the header that backends get.
    pub(crate) header: Option<Version>,
    /// Whether the user is changed, which takes the capabilities of all threads.
    pub(crate) changes_user: bool,
}

/// A command to a core.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// Use these settings of TLS for new connections.
    Reload(Arc<ServerConfig>),
    /// Accept no new connections, and end with the last one.
    Drain,
    /// End at once.
    Stop,
}

/// The object of a handle of the channel.
#[derive(Debug)]
enum Cookie {
    Client(Box<Session>),
    /// A backend, with the handle of the client.
    Backend(Handle),
    /// A listener, with its number.
    Listener(usize),
    Orders,
    /// A connection that has no session yet.
    Accepted,
}

/// A listener, and how many connections it may still accept.
#[derive(Debug)]
struct Gate {
    handle: Handle,
    /// Connections that the accept requests may still return.
    asked: u32,
    /// Whether the last accept failed, so that it has to be submitted again.
    has_failed: bool,
}

/// The state of one core.
#[derive(Debug)]
pub(crate) struct Core<'a> {
    plan: &'a Plan,
    tally: &'a Tally,
    channel: Channel<Cookie>,
    /// The settings of TLS for new connections.
    tls: Arc<ServerConfig>,
    handshakes: Handshakes,
    gates: Vec<Gate>,
    /// The addresses of the listeners.
    addresses: Vec<Option<SocketAddr>>,
    accept_again: Option<Instant>,
    /// When standard error was last told that connections cannot be accepted.
    refusal_told: Option<Instant>,
    /// Clients that waited to be accepted when listening ended, and their gates.
    waiting: VecDeque<(usize, Socket)>,
    backends: Backends,
    pool: Pool,
    /// The sessions, sorted by their deadlines, with the indices of their handles. A deadline that
    /// moves to a later time keeps its entry, which is replaced when its time has come.
    deadlines: BTreeMap<(Instant, u32), Handle>,
    /// Clients whose relays have requests for which the channel had no room.
    stalled: Vec<Handle>,
    sessions: usize,
    orders: Receiver<Order>,
    is_draining: bool,
    now: Instant,
}

impl<'a> Core<'a> {
    /// Creates a core with its share of the listeners. Must be called on the core's thread.
    ///
    /// # Errors
    /// The errors of the channel, with cause and remedy.
    pub(crate) fn new(
        plan: &'a Plan,
        tally: &'a Tally,
        number: usize,
        listeners: &[TcpListener],
        orders: Receiver<Order>,
        wake: WakeSource,
    ) -> Result<Core<'a>, ProxyError> {
        let config = Config {
            driver: plan.placement.driver,
            max_handles: 2 * plan.connections + 1024,
            max_requests: 8 * plan.connections + 4096,
            max_lightweight: plan.connections + 1024,
            ..Config::default()
        };
        let mut core = Core {
            plan,
            tally,
            channel: Channel::with_config(config)?,
            tls: Arc::clone(&plan.tls),
            handshakes: Handshakes::new(plan.handshakes_per_address),
            gates: Vec::new(),
            addresses: listeners.iter().map(|listener| listener.local_addr().ok()).collect(),
            accept_again: None,
            refusal_told: None,
            waiting: VecDeque::new(),
            backends: Backends::new(plan.backends.clone(), plan.health.clone(), number),
            pool: Pool::default(),
            deadlines: BTreeMap::new(),
            stalled: Vec::new(),
            sessions: 0,
            orders,
            is_draining: false,
            now: Instant::now(),
        };
        let wake = core.channel.register(wake, Cookie::Orders)?;
        core.channel.watch(wake, Repeat::UntilCancelled)?;
        let share = plan.placement.share(number);
        let each = plan.connections.div_ceil(listeners.len().max(1) as u32);
        for (gate, listener) in listeners.iter().enumerate() {
            let handle = core.channel.register_listener(listener, share, Cookie::Listener(gate))?;
            core.channel.accept(handle, Accept::lightweight().count(each))?;
            core.gates.push(Gate { handle, asked: each, has_failed: false });
        }
        core.channel.flush()?;
        Ok(core)
    }

    /// Returns the report of the channel's driver.
    pub(crate) fn driver(&self) -> &DriverReport {
        self.channel.driver()
    }

    /// Serves until an order ends it and its connections are finished.
    ///
    /// # Errors
    /// The errors of the channel, if it cannot continue.
    pub(crate) fn run(&mut self) -> Result<(), ProxyError> {
        let mut batch = Vec::with_capacity(COMPLETIONS);
        loop {
            let timeout = self.timeout();
            self.channel.dispatch_batch(&mut batch, COMPLETIONS, timeout)?;
            self.now = Instant::now();
            for done in batch.drain(..) {
                self.complete(done);
            }
            for client in std::mem::take(&mut self.stalled) {
                self.advance(client);
            }
            self.look_at_deadlines();
            let must_stop = self.process_orders();
            self.admit_waiting();
            if must_stop || self.is_draining && self.sessions == 0 {
                // The data of the connections that were closed last is sent.
                return Ok(self.channel.flush()?);
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.stalled.is_empty() {
            return Some(Duration::ZERO);
        }
        let deadline = self.deadlines.first_key_value().map(|((at, _), _)| *at);
        let next = [deadline, self.accept_again].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn complete(&mut self, done: Completion) {
        let Completion { handle, more, .. } = done;
        // Completions in flight when their handle was closed have no cookie.
        match (self.channel.cookie(handle), done.event) {
            (Some(Cookie::Client(_)), event) => self.client_event(handle, event),
            (Some(Cookie::Backend(client)), event) => self.backend_event(*client, handle, event),
            (Some(Cookie::Listener(gate)), Event::Accept(accepted)) => {
                let gate = *gate;
                match accepted {
                    Ok(accepted) => self.admit(gate, accepted.socket),
                    // The channel continues by itself, after a pause or when a descriptor is free.
                    Err(error) if more => self.tell_refusal(&error),
                    Err(error) => {
                        self.tell_refusal(&error);
                        self.gate_failed(gate);
                    }
                }
            }
            _ => {}
        }
    }

    /// Starts a session for an accepted connection.
    fn admit(&mut self, gate: usize, socket: Socket) {
        if let Some(gate) = self.gates.get_mut(gate) {
            gate.asked = gate.asked.saturating_sub(1);
        }
        self.tally.connections.add(1);
        let Ok(client) = self.channel.register(socket, Cookie::Accepted) else {
            self.tally.ended(Outcome::NoHandshake);
            return self.reopen(gate);
        };
        let needs_peer = self.handshakes.is_limited() || self.plan.header.is_some();
        // It fails if the client has already reset the connection.
        let peer = if needs_peer { self.channel.peer_address(client).ok() } else { None };
        let peer = peer.and_then(|address| address.inet());
        let permit = match peer.map(|peer| self.handshakes.begin(peer.ip())) {
            Some(None) => {
                self.tally.refused.add(1);
                return self.turn_away(client, gate);
            }
            permit => permit.flatten(),
        };
        let tls = ServerConnection::new(Arc::clone(&self.tls));
        match (tls, self.channel.cookie_mut(client)) {
            (Ok(tls), Some(cookie)) => {
                let session = Session::new(Relay::new(tls), gate, self.now);
                *cookie = Cookie::Client(Box::new(Session { peer, permit, ..session }));
                self.sessions += 1;
                self.advance(client);
            }
            // There are no random numbers or no memory; the next connection may succeed.
            _ => {
                permit.into_iter().for_each(|permit| self.handshakes.end(permit));
                self.tally.ended(Outcome::NoHandshake);
                self.turn_away(client, gate);
            }
        }
    }

    /// Resets a connection that gets no session.
    fn turn_away(&mut self, client: Handle, gate: usize) {
        // This fails only for a handle that is gone already.
        let _ = self.channel.abort(client);
        self.reopen(gate);
    }

    /// Allows one more connection.
    fn reopen(&mut self, gate: usize) {
        let Some(gate) = self.gates.get_mut(gate) else { return };
        gate.asked += 1;
        if !gate.has_failed && self.channel.accept(gate.handle, one_more(1)).is_err() {
            gate.has_failed = true;
            self.accept_again = Some(self.now + ACCEPT_AGAIN);
        }
    }

    /// Reports that connections cannot be accepted, once per minute, however often that changes.
    fn tell_refusal(&mut self, error: &io::Error) {
        let is_old = |told| self.now.saturating_duration_since(told) >= REFUSAL_INTERVAL;
        if !self.is_draining && self.refusal_told.is_none_or(is_old) {
            self.refusal_told = Some(self.now);
            STDERR.line(format_args!(
                "tls-proxy: cannot accept connections for now: {error}; raise `ulimit -n` if no \
                 descriptors are left, and permit accept4(2) in the sandbox around tls-proxy"
            ));
        }
    }

    fn gate_failed(&mut self, gate: usize) {
        if let Some(gate) = self.gates.get_mut(gate) {
            gate.has_failed = true;
            self.accept_again = Some(self.now + ACCEPT_AGAIN);
        }
    }

    fn accept_again(&mut self) {
        self.accept_again = None;
        for gate in self.gates.iter_mut().filter(|gate| gate.has_failed && gate.asked > 0) {
            gate.has_failed = self.channel.accept(gate.handle, one_more(gate.asked)).is_err();
            if gate.has_failed {
                self.accept_again = Some(self.now + ACCEPT_AGAIN);
            }
        }
    }

    fn look_at_deadlines(&mut self) {
        if self.accept_again.is_some_and(|at| at <= self.now) {
            self.accept_again();
        }
        while let Some(entry) = self.deadlines.first_entry()
            && entry.key().0 <= self.now
        {
            let client = entry.remove();
            let Some(Cookie::Client(session)) = self.channel.cookie_mut(client) else { continue };
            session.armed = None;
            if session.deadline(&self.plan.limits) <= self.now {
                self.expire(client);
            }
            self.advance(client);
        }
    }

    /// Executes the orders that were given since the last call. Returns whether the core must end
    /// at once.
    fn process_orders(&mut self) -> bool {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Reload(tls) => self.tls = tls,
                Order::Drain => self.stop_listening(),
                Order::Stop => {
                    self.stop_listening();
                    self.waiting.clear();
                    for handle in self.channel.handles().collect::<Vec<_>>() {
                        self.cut(handle);
                    }
                    return true;
                }
            }
        }
        false
    }

    /// Stops listening. Connections that the kernel or the stack has already accepted are still
    /// served when there is room.
    fn stop_listening(&mut self) {
        (self.is_draining, self.accept_again) = (true, None);
        for (number, gate) in std::mem::take(&mut self.gates).into_iter().enumerate() {
            let Ok(left) = self.channel.unregister(gate.handle) else { continue };
            self.waiting.extend(left.connections.into_iter().map(|socket| (number, socket)));
        }
    }

    fn admit_waiting(&mut self) {
        while self.is_draining
            && self.sessions < self.plan.connections as usize
            && let Some((gate, socket)) = self.waiting.pop_front()
        {
            self.admit(gate, socket);
        }
    }
}

fn one_more(count: u32) -> Accept {
    Accept::lightweight().count(count)
}
