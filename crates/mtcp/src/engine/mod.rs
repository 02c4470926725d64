//! Implements one engine per core: a stack, the interface through which it sends, and the mailboxes
//! in which cores leave packets for each other.
//!
//! A turn is one iteration of mTCP's main loop: receive a batch of packets, run timers and serve
//! the application, send a batch. The engine shares only the rings of the mailboxes with other
//! cores, so a turn has neither locks nor contended cache lines.

mod alarm;
mod board;
mod complete;
mod failure;
mod mailbox;
mod paired;
mod port;
mod sleep;

pub use self::board::{ConnectionLine, CoreReport};
pub use self::failure::EngineFailure;

pub(crate) use self::alarm::Alarm;
pub(crate) use self::board::Board;
pub(crate) use self::mailbox::{Mailboxes, mailboxes};
pub(crate) use self::paired::{Application, PairedError, start as start_paired};
pub(crate) use self::port::{Names, Port};

use crate::network::{Arrival, Interface};
use crate::shared_connections::SharedConnections;
use crate::spsc::Sleep;
use mtcp_proto::{Checksum, Error, Instant, Options, SocketId, Stack};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// Turns after which an engine that never sleeps processes the kernel's network messages.
const TURNS_PER_LOOK: u64 = 1024;

/// Counters of an engine besides those of its stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EngineCounters {
    /// Turns of the main loop.
    pub turns: u64,
    /// Times that the engine slept.
    pub sleeps: u64,
    /// Packets that were handed over to their owner.
    pub handed_over: u64,
    /// Packets that could not be handed over, because the other core's ring was full.
    pub hand_over_drops: u64,
    /// Packets that other cores have handed over to this one.
    pub taken_over: u64,
}

/// The stack of one core with everything that it needs to run. The owner of the engine runs it.
///
/// [`Mtcp::engine`](crate::Mtcp::engine) returns it, for programs that use neither sockets nor
/// descriptors but the [`Stack`] itself.
pub struct Engine {
    stack: Stack,
    interface: Interface,
    mailboxes: Mailboxes,
    alarm: Arc<Alarm>,
    board: Arc<Board>,
    counters: EngineCounters,
    core: u16,
    batch: usize,
    /// The longest IP packet, according to the settings.
    mtu_max: u16,
    now: Instant,
    /// Whether the device was full while packets were still waiting.
    blocked: bool,
    /// Whether the alarm was set for a sleep that has not ended.
    lying: bool,
    /// Why it cannot run any more.
    failure: Option<EngineFailure>,
    /// The connections that another process resets if this one is killed.
    shared: Option<Arc<SharedConnections>>,
}

impl Engine {
    pub(crate) fn new(
        core: u16,
        stack: Stack,
        interface: Interface,
        mailboxes: Mailboxes,
        board: Arc<Board>,
        batch: usize,
        mtu_max: u16,
    ) -> Engine {
        Engine {
            stack,
            interface,
            alarm: Arc::clone(mailboxes.alarm()),
            mailboxes,
            board,
            counters: EngineCounters::default(),
            core,
            batch,
            mtu_max,
            now: clock(),
            blocked: false,
            lying: false,
            failure: None,
            shared: None,
        }
    }

    /// The stack, for all calls except `input` and `output`; [`Engine::now`] is the time to pass.
    pub fn stack(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// The time of the last turn (CLOCK_MONOTONIC).
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The core, from 0.
    pub fn core(&self) -> usize {
        usize::from(self.core)
    }

    /// The counters of the engine, without those of the stack.
    pub fn counters(&self) -> EngineCounters {
        self.counters
    }

    /// Runs one turn: receives a batch of packets and sends waiting ones; true if packets arrived.
    ///
    /// # Errors
    /// `ENXIO` if the interface is gone, otherwise `ENETDOWN`: the engine has failed for good, and
    /// [`Engine::failure`] returns the cause.
    pub fn turn(&mut self) -> io::Result<bool> {
        let came = self.step()?;
        // Every caller that woke the engine to get its counters has been served.
        self.alarm.answer();
        Ok(came)
    }

    /// The reason why the engine has failed for good, if it has.
    pub fn failure(&self) -> Option<EngineFailure> {
        self.failure
    }

    /// Records the first failure; returns the error for the sockets.
    fn fail(&mut self, failure: fn(i32) -> EngineFailure, error: &io::Error) -> io::Error {
        let number = error.raw_os_error().unwrap_or(libc::EIO);
        (*self.failure.get_or_insert(failure(number))).into()
    }

    /// Runs a turn for callers that answer the alarm themselves.
    pub(crate) fn step(&mut self) -> io::Result<bool> {
        let came = self.receive()?;
        self.transmit()?;
        Ok(came)
    }

    /// Runs the first half of a turn; the application is served between the halves.
    pub(crate) fn receive(&mut self) -> io::Result<bool> {
        let slept = self.lying;
        if slept {
            self.get_up(true);
        }
        self.now = clock();
        if slept || self.counters.turns.is_multiple_of(TURNS_PER_LOOK) {
            self.follow()?;
        }
        self.counters.turns += 1;
        let Engine { stack, interface, mailboxes, now, core, .. } = self;
        let (now, core) = (*now, *core);
        let steers = mailboxes.cores() > 1;
        let outcome = interface.receive(now, self.batch, &mut |arrival| match arrival {
            Arrival::Packet(packet, checksum) => {
                match steers.then(|| stack.owner(packet)).flatten() {
                    Some(owner) if owner != core => mailboxes.hand_over(owner, packet, checksum),
                    _ => stack.input(now, packet, checksum),
                }
            }
            Arrival::Neighbour(frame) => mailboxes.spread(frame),
        });
        let received = match outcome {
            Ok(received) => received,
            Err(error) => return Err(self.fail(EngineFailure::Receive, &error)),
        };
        let mut came = received > 0;
        came |=
            interface.take_looped(|packet| match steers.then(|| stack.owner(packet)).flatten() {
                Some(owner) if owner != core => {
                    mailboxes.hand_over(owner, packet, Checksum::Looped)
                }
                _ => stack.input(now, packet, Checksum::Looped),
            });
        if steers {
            mailboxes.publish();
            came |= mailboxes.take(self.batch, |arrival| match arrival {
                Arrival::Packet(packet, checksum) => stack.input(now, packet, checksum),
                Arrival::Neighbour(frame) => interface.overhear(now, frame),
            }) > 0;
            mailboxes.count(&mut self.counters);
        }
        if self.board.is_wanted() {
            self.board.publish(self.core, &self.stack, &self.interface, self.counters);
        }
        Ok(came)
    }

    /// Connects as [`Stack::connect`]. If the local address is missing or unspecified, the route to
    /// the remote address determines it.
    pub(crate) fn connect(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        let local = match local {
            Some(local) if !local.ip().is_unspecified() => Some(local),
            unspecified => {
                let port = unspecified.map_or(0, |local| local.port());
                let source = self.interface.source(remote.ip());
                source.map(|address| SocketAddr::new(address, port)).or(unspecified)
            }
        };
        self.stack.connect(self.now, local, remote, options)
    }

    /// Records connections from now on, each until it has ended.
    pub(crate) fn record_connections(&mut self, shared: Arc<SharedConnections>) {
        self.shared = Some(shared);
        self.stack.report_changes();
    }

    fn record_changes(&mut self) {
        let Some(shared) = &self.shared else { return };
        while let Some((index, names)) = self.stack.next_change() {
            match names {
                Some((local, remote)) => shared.insert(index, local, remote),
                None => shared.remove(index),
            }
        }
    }

    /// Processes the kernel's messages about neighbours and addresses, which may have woken the
    /// engine.
    fn follow(&mut self) -> io::Result<()> {
        let changes = match self.interface.follow(self.now) {
            Ok(changes) => changes.unwrap_or_default(),
            Err(error) => return Err(self.fail(EngineFailure::Watch, &error)),
        };
        if let Some(addresses) = changes.addresses {
            self.stack.set_addresses(self.now, &addresses);
        }
        if let Some(mtu) = changes.mtu {
            self.stack.set_mtu(self.now, mtu.min(self.mtu_max));
        }
        Ok(())
    }

    /// Runs the second half of a turn.
    pub(crate) fn transmit(&mut self) -> io::Result<()> {
        // New connections are recorded before their peers learn of them, and ended ones are removed
        // after their last packet has left.
        self.record_changes();
        let full = self.stack.output(self.now, &mut self.interface);
        match self.interface.flush() {
            Ok(held) => self.blocked = held || full,
            Err(error) => return Err(self.fail(EngineFailure::Send, &error)),
        }
        self.record_changes();
        Ok(())
    }

    /// Ends a connection with a reset. Data that was written before is sent before it, as far as
    /// the peer's window permits.
    pub(crate) fn abort(&mut self, socket: SocketId) {
        self.send_before_reset(socket);
        self.stack.abort(self.now, socket);
    }

    /// Closes a connection; with a reset if the options say so or received data was not read.
    pub(crate) fn close(&mut self, socket: SocketId) {
        let unread = self.stack.info(socket).is_ok_and(|info| info.receive_queue > 0);
        if unread || self.stack.options(socket).is_ok_and(|options| options.linger_reset) {
            self.send_before_reset(socket);
        }
        self.stack.close(self.now, socket);
    }

    fn send_before_reset(&mut self, socket: SocketId) {
        if self.stack.info(socket).is_ok_and(|info| info.send_queue > 0) {
            // A failing device returns its error again in the next turn.
            let _ = self.transmit();
        }
    }

    /// Sleeps until there is work for a turn, at most `timeout`.
    ///
    /// # Errors
    /// As [`Engine::turn`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let limit = self.prepare_to_sleep(timeout);
        self.sleep(limit)
    }

    /// Sleeps as long as [`Engine::prepare_to_sleep`] has returned.
    pub(crate) fn sleep(&mut self, limit: Option<Duration>) -> io::Result<()> {
        if limit == Some(Duration::ZERO) {
            self.get_up(false);
            return Ok(());
        }
        self.counters.sleeps += 1;
        let mut wanted = sleep::Wanted::default();
        wanted.add(self.alarm.descriptor(), libc::POLLIN);
        let events = if self.blocked { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        for descriptor in self.interface.descriptors() {
            wanted.add(descriptor, events);
        }
        wanted.poll(limit).map_err(|error| self.fail(EngineFailure::Wait, &error))?;
        self.get_up(wanted.is_ready(0));
        // The network messages are processed next if their descriptor has woken the engine.
        if wanted.is_ready(2) {
            self.now = clock();
            self.follow()?;
        }
        Ok(())
    }

    /// The descriptors that become readable when there is work for a turn, for callers that wait by
    /// themselves. They stay the same.
    pub fn descriptors(&self) -> Vec<RawFd> {
        std::iter::once(self.alarm.descriptor()).chain(self.interface.descriptors()).collect()
    }

    /// Sets the alarm; to be called directly before waiting for [`Engine::descriptors`]. Returns
    /// how long the caller may wait, at most `timeout`. Zero: there is work to do. The next turn
    /// ends the sleep.
    pub fn prepare_to_sleep(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        self.prepare_for(Sleep::Long, timeout)
    }

    /// Like [`Engine::prepare_to_sleep`], for a sleep of a given kind.
    pub(crate) fn prepare_for(
        &mut self,
        sleep: Sleep,
        timeout: Option<Duration>,
    ) -> Option<Duration> {
        self.alarm.lie_down(sleep);
        self.lying = true;
        // A call is answered before the board is checked, and a request may arrive in between.
        let called = self.alarm.is_called() || self.board.is_wanted();
        if called || !self.mailboxes.is_empty() || !self.interface.prepare_to_sleep() {
            return Some(Duration::ZERO);
        }
        let deadline = match (self.stack.deadline(), self.interface.deadline()) {
            (Some(stack), Some(link)) => Some(stack.min(link)),
            (stack, link) => stack.or(link),
        };
        let until = deadline.map(|deadline| deadline.since(clock()));
        // A full device reports when it has room; the time limit is for devices that cannot.
        let until = if self.blocked {
            until.map(|until| until.max(Duration::from_millis(1)))
        } else {
            until
        };
        match (timeout, until) {
            (Some(timeout), Some(until)) => Some(timeout.min(until)),
            (timeout, until) => timeout.or(until),
        }
    }

    fn get_up(&mut self, woken: bool) {
        self.lying = false;
        self.alarm.get_up(woken);
    }

    pub(crate) fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.board.close();
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Engine").field("core", &self.core).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

/// CLOCK_MONOTONIC, which is the same on all cores.
pub(crate) fn clock() -> Instant {
    Instant::from_nanos(sys::clock::monotonic_ns())
}
