//! The event loop of a core: its channel, its share of the listening sockets, its connections.

mod deadlines;
mod session;
mod steps;

pub(crate) use self::session::Limits;

use self::deadlines::Deadlines;
use self::session::Session;
use crate::backends::{Backends, Health};
use crate::error::ProxyError;
use crate::orders::{Order, Orders};
use crate::placement::Placement;
use crate::relay::{Pool, Relay};
use crate::tally::Tally;
use megapipe::{
    Accept, Channel, Completion, Config, DriverReport, Event, Handle, Repeat, Socket, WakeSource,
};
use rustls::{ServerConfig, ServerConnection};
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Completions that are handled before the clock is read again.
const COMPLETIONS: usize = 256;
/// How long a core that could not accept (there are no descriptors left, say) waits.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What all cores have in common.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) placement: Placement,
    pub(crate) tls: Arc<ServerConfig>,
    pub(crate) backends: Vec<SocketAddr>,
    pub(crate) health: Health,
    pub(crate) limits: Limits,
    /// Connections of each core.
    pub(crate) connections: u32,
    pub(crate) orders: Orders,
}

/// What a handle of the channel is.
#[derive(Debug)]
enum Cookie {
    Client(Box<Session>),
    /// With the handle of the client.
    Backend(Handle),
    /// With its number.
    Listener(usize),
    Orders,
}

/// A listener, and how many connections it may still bring.
#[derive(Debug)]
struct Gate {
    handle: Handle,
    /// Connections that are asked for.
    asked: u32,
    /// The last accept failed, and what was asked for is to be asked for again.
    has_failed: bool,
}

/// A core.
#[derive(Debug)]
pub(crate) struct Core<'a> {
    plan: &'a Plan,
    tally: &'a Tally,
    channel: Channel<Cookie>,
    gates: Vec<Gate>,
    accept_again: Option<Instant>,
    /// Clients that waited to be accepted when the listeners were left, and their gates.
    waiting: VecDeque<(usize, Socket)>,
    backends: Backends,
    pool: Pool,
    deadlines: Deadlines,
    /// Clients for whose relays the channel had no room.
    stalled: Vec<Handle>,
    sessions: usize,
    order: Order,
    now: Instant,
}

impl<'a> Core<'a> {
    /// Takes a core's share of the listeners, in the core's thread.
    ///
    /// # Errors
    /// Of the channel, which name cause and remedy.
    pub(crate) fn new(
        plan: &'a Plan,
        tally: &'a Tally,
        number: usize,
        listeners: &[TcpListener],
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
            gates: Vec::new(),
            accept_again: None,
            waiting: VecDeque::new(),
            backends: Backends::new(plan.backends.clone(), plan.health.clone(), number),
            pool: Pool::default(),
            deadlines: Deadlines::default(),
            stalled: Vec::new(),
            sessions: 0,
            order: Order::Serve,
            now: Instant::now(),
        };
        let orders = core.channel.register(wake, Cookie::Orders)?;
        core.channel.watch(orders, Repeat::UntilCancelled)?;
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

    /// The channel's driver.
    pub(crate) fn driver(&self) -> &DriverReport {
        self.channel.driver()
    }

    /// Serves until it is told to end, and is done.
    ///
    /// # Errors
    /// Of the channel: it cannot go on.
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
            self.obey();
            self.admit_waiting();
            if self.order == Order::Stop || self.order == Order::Drain && self.sessions == 0 {
                self.waiting.clear();
                // What was closed last is to leave.
                return Ok(self.channel.flush()?);
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.stalled.is_empty() {
            return Some(Duration::ZERO);
        }
        let next = [self.deadlines.next(), self.accept_again].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn complete(&mut self, done: Completion) {
        let Completion { handle, more, .. } = done;
        // Completions that were on their way when their handle was closed have no cookie.
        match (self.channel.cookie(handle), done.event) {
            (Some(Cookie::Client(_)), event) => self.client_event(handle, event),
            (Some(Cookie::Backend(client)), event) => self.backend_event(*client, handle, event),
            (Some(Cookie::Listener(gate)), Event::Accept(accepted)) => {
                let gate = *gate;
                match accepted {
                    Ok(accepted) => self.admit(gate, accepted.socket),
                    // Out of descriptors: the channel goes on by itself.
                    Err(_) if more => {}
                    Err(_) => self.gate_failed(gate),
                }
            }
            _ => {}
        }
    }

    /// Begins with a connection that was accepted.
    fn admit(&mut self, gate: usize, socket: Socket) {
        if let Some(gate) = self.gates.get_mut(gate) {
            gate.asked = gate.asked.saturating_sub(1);
        }
        self.tally.connections.add(1);
        let admitted = match ServerConnection::new(Arc::clone(&self.plan.tls)) {
            Ok(tls) => {
                let session = Session::new(Relay::new(tls), gate, self.now);
                self.channel.register(socket, Cookie::Client(Box::new(session)))
            }
            // No random numbers, no memory: the next one may have more luck.
            Err(_) => Err(megapipe::Error::Invalid("no TLS")),
        };
        match admitted {
            Ok(client) => {
                self.sessions += 1;
                self.advance(client);
            }
            Err(_) => {
                self.tally.ended(crate::relay::Outcome::NoHandshake);
                self.reopen(gate);
            }
        }
    }

    /// Lets one connection more in.
    fn reopen(&mut self, gate: usize) {
        let Some(gate) = self.gates.get_mut(gate) else { return };
        gate.asked += 1;
        if !gate.has_failed && self.channel.accept(gate.handle, one_more(1)).is_err() {
            gate.has_failed = true;
            self.accept_again = Some(self.now + ACCEPT_AGAIN);
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
        while let Some((at, client)) = self.deadlines.pop_due(self.now) {
            let Some(Cookie::Client(session)) = self.channel.cookie_mut(client) else { continue };
            if session.armed != Some(at) {
                continue;
            }
            session.armed = None;
            if session.deadline(&self.plan.limits) <= self.now {
                self.expire(client);
            }
            self.advance(client);
        }
        let channel = &self.channel;
        self.deadlines.tidy(self.sessions, |at, client| {
            let cookie = channel.cookie(client);
            matches!(cookie, Some(Cookie::Client(session)) if session.armed == Some(at))
        });
    }

    /// Does what has been ordered since it was last looked.
    fn obey(&mut self) {
        let order = self.plan.orders.present();
        if order > self.order && self.order == Order::Serve {
            self.stop_listening();
        }
        if order == Order::Stop {
            for client in self.deadlines.drain() {
                self.cut(client);
            }
        }
        self.order = order;
    }

    /// Leaves the listeners. Clients whose connections wait there have been let in by the kernel or
    /// the stack, so they are served when it is their turn.
    fn stop_listening(&mut self) {
        self.accept_again = None;
        for (number, gate) in std::mem::take(&mut self.gates).into_iter().enumerate() {
            let Ok(left) = self.channel.unregister(gate.handle) else { continue };
            self.waiting.extend(left.connections.into_iter().map(|socket| (number, socket)));
        }
    }

    fn admit_waiting(&mut self) {
        while self.order == Order::Drain
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
