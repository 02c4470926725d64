//! One engine per core: a stack, the interface it sends through, and the mailboxes in which cores
//! leave each other packets.
//!
//! A turn is mTCP's main loop (section 4): take a batch of packets, serve timers and the
//! application, send a batch. Nothing of it is shared with another core but the rings of the
//! mailboxes, so there is no lock and no contended cache line in it.

mod alarm;
mod board;
mod complete;
mod link;
mod looped;
mod mailbox;
mod paired;
mod port;
mod sleep;

pub use self::board::{ConnectionLine, CoreReport};

pub(crate) use self::alarm::Alarm;
pub(crate) use self::board::Board;
pub(crate) use self::link::Link;
pub(crate) use self::mailbox::{Mailboxes, mailboxes};
pub(crate) use self::paired::{Application, start as start_paired};
pub(crate) use self::port::{Names, Port};

use crate::network::Arrival;
use crate::spsc::Sleep;
use mtcp_proto::{Checksum, Error, Instant, Options, SocketId, Stack};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// An engine that never sleeps looks so often at what the kernel says of the network.
const TURNS_PER_LOOK: u64 = 1024;

/// What an engine counts besides its stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EngineCounters {
    /// Turns that were taken.
    pub turns: u64,
    /// Times that the engine slept.
    pub sleeps: u64,
    /// Packets that were handed to the core that owns them.
    pub handed_over: u64,
    /// Packets that could not be handed over, because the other core did not keep up.
    pub hand_over_drops: u64,
    /// Packets that came from other cores.
    pub taken_over: u64,
}

/// The stack of one core with all it needs to run; whoever holds it drives it.
///
/// [`Mtcp::engine`](crate::Mtcp::engine) gives it to programs that want neither sockets nor
/// descriptors but the [`Stack`] itself.
pub struct Engine {
    stack: Stack,
    link: Link,
    mailboxes: Mailboxes,
    alarm: Arc<Alarm>,
    board: Arc<Board>,
    counters: EngineCounters,
    core: u16,
    batch: usize,
    /// The longest IP packet, by the settings.
    mtu_max: u16,
    now: Instant,
    /// The device was full when packets were still due.
    blocked: bool,
    /// The alarm was set, and nobody has got up yet.
    lying: bool,
}

impl Engine {
    pub(crate) fn new(
        core: u16,
        stack: Stack,
        link: Link,
        mailboxes: Mailboxes,
        board: Arc<Board>,
        batch: usize,
        mtu_max: u16,
    ) -> Engine {
        Engine {
            stack,
            link,
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
        }
    }

    /// The stack, for all calls but `input` and `output`; [`Engine::now`] is the time to give it.
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

    /// What has been counted besides the stack's own counters.
    pub fn counters(&self) -> EngineCounters {
        self.counters
    }

    /// Takes a batch of packets and sends what is due; true if packets came.
    ///
    /// # Errors
    /// Those of the device, if it has gone (`ENXIO`, `ENETDOWN`): they do not pass.
    pub fn turn(&mut self) -> io::Result<bool> {
        let came = self.step()?;
        // Who called, for figures, has had his look.
        self.alarm.answer();
        Ok(came)
    }

    /// A turn for those who answer the alarm themselves.
    pub(crate) fn step(&mut self) -> io::Result<bool> {
        let came = self.receive()?;
        self.transmit()?;
        Ok(came)
    }

    /// The first half of a turn; between the halves the application is served.
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
        let Engine { stack, link, mailboxes, now, core, .. } = self;
        let (now, core) = (*now, *core);
        let steers = mailboxes.cores() > 1;
        let received = link.receive(now, self.batch, &mut |arrival| match arrival {
            Arrival::Packet(packet, checksum) => {
                match steers.then(|| stack.owner(packet)).flatten() {
                    Some(owner) if owner != core => mailboxes.hand_over(owner, packet, checksum),
                    _ => stack.input(now, packet, checksum),
                }
            }
            Arrival::Neighbour(frame) => mailboxes.spread(frame),
        })?;
        let mut came = received > 0;
        came |= link.take_looped(|packet| match steers.then(|| stack.owner(packet)).flatten() {
            Some(owner) if owner != core => mailboxes.hand_over(owner, packet, Checksum::Looped),
            _ => stack.input(now, packet, Checksum::Looped),
        });
        if steers {
            mailboxes.publish();
            came |= mailboxes.take(self.batch, |arrival| match arrival {
                Arrival::Packet(packet, checksum) => stack.input(now, packet, checksum),
                Arrival::Neighbour(frame) => link.overhear(now, frame),
            }) > 0;
            mailboxes.count(&mut self.counters);
        }
        if self.board.is_wanted() {
            self.board.publish(self.core, &self.stack, &self.link, self.counters);
        }
        Ok(came)
    }

    /// As [`Stack::connect`]; a local address that is missing or unspecified is chosen by the route
    /// to the remote one.
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
                let source = self.link.source(remote.ip());
                source.map(|address| SocketAddr::new(address, port)).or(unspecified)
            }
        };
        self.stack.connect(self.now, local, remote, options)
    }

    /// Takes what the kernel says of neighbours and addresses; what wakes an engine may be that.
    fn follow(&mut self) -> io::Result<()> {
        let changes = self.link.follow(self.now)?;
        if let Some(addresses) = changes.addresses {
            self.stack.set_addresses(self.now, &addresses);
        }
        if let Some(mtu) = changes.mtu {
            self.stack.set_mtu(self.now, mtu.min(self.mtu_max));
        }
        Ok(())
    }

    /// The second half of a turn.
    pub(crate) fn transmit(&mut self) -> io::Result<()> {
        let full = self.stack.output(self.now, &mut self.link);
        self.blocked = self.link.flush()? || full;
        Ok(())
    }

    /// Gives a connection up with a reset. What was written before it leaves before it, as far as
    /// the peer has room.
    pub(crate) fn abort(&mut self, socket: SocketId) {
        self.send_before_reset(socket);
        self.stack.abort(self.now, socket);
    }

    /// Gives a connection up, with a reset if the options say so or data that came was not taken.
    pub(crate) fn close(&mut self, socket: SocketId) {
        let unread = self.stack.info(socket).is_ok_and(|info| info.receive_queue > 0);
        if unread || self.stack.options(socket).is_ok_and(|options| options.linger_reset) {
            self.send_before_reset(socket);
        }
        self.stack.close(self.now, socket);
    }

    fn send_before_reset(&mut self, socket: SocketId) {
        if self.stack.info(socket).is_ok_and(|info| info.send_queue > 0) {
            // A device that fails does so in the next turn, too, which tells.
            let _ = self.transmit();
        }
    }

    /// Sleeps until there is something for a turn, at most `timeout`.
    ///
    /// # Errors
    /// Of poll(2); an interruption by a signal is none.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let limit = self.prepare_to_sleep(timeout);
        self.sleep(limit)
    }

    /// Sleeps as long as [`Engine::prepare_to_sleep`] has said.
    pub(crate) fn sleep(&mut self, limit: Option<Duration>) -> io::Result<()> {
        if limit == Some(Duration::ZERO) {
            self.get_up(false);
            return Ok(());
        }
        self.counters.sleeps += 1;
        let mut wanted = sleep::Wanted::default();
        wanted.add(self.alarm.descriptor(), libc::POLLIN);
        let events = if self.blocked { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        for descriptor in self.link.descriptors() {
            wanted.add(descriptor, events);
        }
        wanted.poll(limit)?;
        self.get_up(wanted.is_ready(0));
        // Another look at the network is due, if that is what woke us.
        if self.link.follows() && wanted.is_ready(2) {
            self.now = clock();
            self.follow()?;
        }
        Ok(())
    }

    /// For who waits by himself: descriptors that become readable when there is something for a
    /// turn. They stay the same.
    pub fn descriptors(&self) -> Vec<RawFd> {
        std::iter::once(self.alarm.descriptor()).chain(self.link.descriptors()).collect()
    }

    /// Sets the alarm, directly before waiting for [`Engine::descriptors`]; says how long one may
    /// wait, at most `timeout`. Zero: there is something to do. The next turn ends it.
    pub fn prepare_to_sleep(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        self.prepare_for(Sleep::Long, timeout)
    }

    /// The same, for a sleep of a given kind.
    pub(crate) fn prepare_for(
        &mut self,
        sleep: Sleep,
        timeout: Option<Duration>,
    ) -> Option<Duration> {
        self.alarm.lie_down(sleep);
        self.lying = true;
        // A call is answered when the board has been looked at, and the wish may come in between.
        let called = self.alarm.is_called() || self.board.is_wanted();
        if called || !self.mailboxes.is_empty() || !self.link.prepare_to_sleep() {
            return Some(Duration::ZERO);
        }
        let deadline = match (self.stack.deadline(), self.link.deadline()) {
            (Some(stack), Some(link)) => Some(stack.min(link)),
            (stack, link) => stack.or(link),
        };
        let until = deadline.map(|deadline| deadline.since(clock()));
        // A full device says itself when it has room; the time is for those that cannot.
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

/// CLOCK_MONOTONIC, which all cores agree on. See clock_gettime(2).
pub(crate) fn clock() -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid, and the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Instant::from_nanos(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}
