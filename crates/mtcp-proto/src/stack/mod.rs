//! Implements the stack of one core: demultiplexes packets, writes outgoing packets, and reports
//! events to applications.

mod cookies;
mod demultiplex;
mod events;
mod icmp;
mod initial;
mod lifecycle;
mod listeners;
mod lists;
mod opening;
mod path_mtu;
mod ports;
mod relief;
mod replies;
mod table;
#[cfg(test)]
mod tests;
mod time_wait;
mod timers;
mod transmit;

use self::events::Events;
use self::icmp::Echoes;
use self::initial::Keys;
use self::listeners::Listeners;
use self::path_mtu::PathMtus;
use self::ports::Ports;
use self::relief::Relief;
use self::replies::Replies;
use self::table::{Entry, Shared, Slot, Stage, Table};
use self::time_wait::TimeWait;
use self::transmit::{TURN_SEGMENTS, Transmit};
use crate::config::{Config, ListenOptions, MTU_MIN, Options, Secret};
use crate::counters::Counters;
use crate::error::Error;
use crate::memory::{BufferPool, FlowTable, TimerWheel};
use crate::packet::{Checksum, Sink};
use crate::socket::{ConnectionInfo, Readiness, SendFlags, Shutdown, SocketId, State, Urgent};
use crate::tcp::{Context, Failure};
use crate::time::Instant;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// TCP over IPv4 and IPv6 for one core.
///
/// All calls take the time; it must not go back between them. A call never blocks: if it cannot
/// proceed it returns [`Error::WouldBlock`], and [`Stack::next_event`] reports when it can.
#[derive(Debug)]
pub struct Stack {
    shared: Shared,
    keys: Keys,
    addresses: Vec<IpAddr>,
    table: Table,
    /// Connections and TIME_WAIT records by four-tuple.
    flows: FlowTable,
    listeners: Listeners,
    /// Connections in SYN-RECEIVED that belong to listeners.
    half_open: u32,
    time_wait: TimeWait,
    wheel: TimerWheel,
    /// The indices whose timers have just expired; the vector is kept to reuse its memory.
    due: Vec<u32>,
    events: Events,
    transmit: Transmit,
    replies: Replies,
    echoes: Echoes,
    ports: Ports,
    path_mtus: PathMtus,
    relief: Relief,
    cookies_until: Instant,
    /// The second to which the budget of challenge acknowledgements applies.
    budget_second: u64,
}

impl Stack {
    /// Creates a stack without addresses, which does not answer any packet yet.
    /// # Errors
    /// [`Error::Config`] names the setting that is out of range.
    pub fn new(config: Config, secret: Secret, now: Instant) -> Result<Stack, Error> {
        config.check()?;
        let keys = Keys::new(&secret);
        let budget_second = now.as_nanos() / 1_000_000_000;
        let limit = config.challenge_acks_per_second;
        Ok(Stack {
            addresses: Vec::new(),
            table: Table::new(config.max_sockets),
            flows: FlowTable::new(),
            listeners: Listeners::default(),
            half_open: 0,
            time_wait: TimeWait::new(config.max_time_wait, config.maximum_segment_lifetime),
            wheel: TimerWheel::new(now),
            due: Vec::new(),
            events: Events::default(),
            transmit: Transmit::default(),
            replies: Replies::default(),
            echoes: Echoes::default(),
            ports: Ports::new(keys.port, config.ephemeral_ports.clone()),
            path_mtus: PathMtus::default(),
            relief: Relief::new(now),
            cookies_until: Instant::ZERO,
            budget_second,
            shared: Shared {
                pool: BufferPool::new(config.max_buffer_bytes),
                counters: Counters::default(),
                challenge_budget: keys.challenge_budget(limit, budget_second),
                now,
                config,
            },
            keys,
        })
    }

    /// Sets the stack's own addresses. Packets to other addresses are dropped and counted.
    /// Connections from an address that is removed are aborted.
    pub fn set_addresses(&mut self, now: Instant, addresses: &[IpAddr]) {
        self.advance(now);
        self.addresses = addresses.to_vec();
        let stays = |address: SocketAddr| addresses.contains(&address.ip());
        let gone: Vec<u32> = self
            .table
            .iter()
            .filter(|(_, slot)| {
                matches!(slot, Slot::Connection(entry)
                    if entry.attached && !stays(entry.connection.flow().local()))
            })
            .map(|(socket, _)| socket.index)
            .collect();
        for index in gone {
            self.abort_at(index);
        }
        for record in self.time_wait.of_others(stays) {
            self.forget_time_wait(record);
        }
    }

    /// Sets the longest packet, in bytes, at least 576. It applies to new connections, and to
    /// existing ones if it is smaller than before.
    pub fn set_mtu(&mut self, now: Instant, mtu: u16) {
        self.advance(now);
        let mtu = mtu.max(MTU_MIN);
        let narrower = mtu < self.shared.config.mtu;
        self.shared.config.mtu = mtu;
        if !narrower {
            return;
        }
        let all: Vec<u32> = self.table.iter().map(|(socket, _)| socket.index).collect();
        for index in all {
            if let Some(entry) = self.table.connection_mut(index) {
                entry.connection.link_mtu(mtu);
            }
            self.update_schedule(index);
        }
    }

    /// Processes one IP packet. The next [`Stack::output`] sends the answers, so that one
    /// acknowledgement answers a whole batch.
    pub fn input(&mut self, now: Instant, packet: &[u8], checksum: Checksum) {
        self.advance(now);
        self.take_packet(packet, checksum);
    }

    /// Runs the expired timers and writes the waiting packets into the sink: control first, then
    /// acknowledgements, then data. True if the sink became full before all packets were written;
    /// call again when it has room.
    pub fn output(&mut self, now: Instant, sink: &mut dyn Sink) -> bool {
        self.advance(now);
        self.run_timers();
        self.relieve();
        let counters = &mut self.shared.counters;
        if !self.echoes.output(sink, counters) || !self.replies.output(sink, counters) {
            return true;
        }
        while let Some(index) = self.transmit.first() {
            if !self.take_turn(index, sink) {
                return true;
            }
        }
        false
    }

    /// The time at which [`Stack::output`] must be called even if nothing else happens. It is in
    /// the past if there is work to do now. `None`: not before the next call of the stack.
    pub fn deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    /// Listens on an address, or on all addresses if it is unspecified. `::` takes only IPv6,
    /// unless [`ListenOptions::both_families`] is set.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::AddressNotAvailable`] if the address is not the stack's or
    /// the port is zero, [`Error::TooMany`], [`Error::Config`].
    pub fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenOptions,
    ) -> Result<SocketId, Error> {
        self.start_listening(local, options)
    }

    /// Takes an established connection from a listener's queue.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is none, [`Error::UnknownSocket`], [`Error::NotListening`].
    pub fn accept(&mut self, listener: SocketId) -> Result<SocketId, Error> {
        self.take_waiting(listener)
    }

    /// Starts to connect. [`Readiness::WRITABLE`] reports success, [`Readiness::ERROR`] failure;
    /// [`Stack::take_error`] returns the cause. Without a local address, or with port 0, the stack
    /// chooses: its first address of the family, and a port for which this core owns the
    /// connection.
    ///
    /// # Errors
    /// [`Error::AddressInUse`]; [`Error::AddressNotAvailable`] also if another core would own the
    /// connection with this port; [`Error::NoPorts`], [`Error::TooMany`], [`Error::Config`];
    /// [`Error::Unreachable`] for an address that does not name a single host.
    pub fn connect(
        &mut self,
        now: Instant,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        self.advance(now);
        self.start_connecting(local, remote, options)
    }

    /// Copies data into the send buffer and returns the number of bytes taken, at least 1 unless
    /// `data` is empty.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room, [`Error::NotConnected`], [`Error::Shutdown`]
    /// after a shutdown of this direction, [`Error::Reset`] and [`Error::TimedOut`] once the
    /// connection has failed.
    pub fn send(&mut self, now: Instant, socket: SocketId, data: &[u8]) -> Result<usize, Error> {
        self.send_as(now, socket, data, SendFlags::default())
    }

    /// Like [`Stack::send`], with flags.
    ///
    /// # Errors
    /// As [`Stack::send`].
    pub fn send_as(
        &mut self,
        now: Instant,
        socket: SocketId,
        data: &[u8],
        send_flags: SendFlags,
    ) -> Result<usize, Error> {
        self.with_held(now, socket, |entry, context| {
            entry.connection.send_as(data, send_flags, context)
        })
    }

    /// The last urgent byte that the peer has announced, and how many bytes of the stream the
    /// application has taken. A change of it causes an event with [`Readiness::READABLE`].
    pub fn urgent(&self, socket: SocketId) -> Option<(Urgent, u64)> {
        let connection = &self.table.held(socket).ok()?.connection;
        Some((connection.urgent()?, connection.taken_bytes()))
    }

    /// Takes received data; 0 means the end of the stream (or that `room` is empty). Data that
    /// arrived before a failure can still be received.
    ///
    /// # Errors
    /// As [`Stack::send`].
    pub fn receive(
        &mut self,
        now: Instant,
        socket: SocketId,
        room: &mut [u8],
    ) -> Result<usize, Error> {
        self.with_held(now, socket, |entry, context| entry.connection.receive(room, context))
    }

    /// Like [`Stack::receive`], but starts at `offset` bytes and leaves the data in the buffer.
    ///
    /// # Errors
    /// As [`Stack::receive`].
    pub fn peek(&self, socket: SocketId, offset: usize, room: &mut [u8]) -> Result<usize, Error> {
        self.table.held(socket)?.connection.peek(offset, room)
    }

    /// Ends one or both directions; the peer receives the end of the stream after all data. After a
    /// shutdown of receiving, data that arrives can still be received, and the end of the stream
    /// follows it at once. After a shutdown of both directions, arriving data resets the
    /// connection, as on Linux.
    ///
    /// # Errors
    /// [`Error::UnknownSocket`], [`Error::NotConnected`].
    pub fn shutdown(&mut self, now: Instant, socket: SocketId, how: Shutdown) -> Result<(), Error> {
        self.with_held(now, socket, |entry, context| entry.connection.shut_down(how, context))
    }

    /// Closes the socket. Data that was sent is still delivered, then the FIN. If received data was
    /// not read, or arrives later, or [`Options::linger_reset`] is set, the peer gets a reset (RFC
    /// 2525, section 2.17). A listener's waiting connections are reset. Unknown sockets are
    /// ignored.
    pub fn close(&mut self, now: Instant, socket: SocketId) {
        self.advance(now);
        self.abandon(socket, false);
    }

    /// Closes the socket with a reset.
    pub fn abort(&mut self, now: Instant, socket: SocketId) {
        self.advance(now);
        self.abandon(socket, true);
    }

    /// The present readiness of the socket.
    ///
    /// # Errors
    /// [`Error::UnknownSocket`].
    pub fn readiness(&self, socket: SocketId) -> Result<Readiness, Error> {
        Ok(match self.table.socket(socket)? {
            Slot::Connection(entry) => entry.connection.readiness(),
            Slot::Listener(listening) => listening.readiness(),
        })
    }

    /// The reason why the connection failed; returned once.
    pub fn take_error(&mut self, socket: SocketId) -> Option<Error> {
        let entry = self.table.held_mut(socket).ok()?;
        let error = entry.connection.take_error();
        self.update_schedule(socket.index);
        error
    }

    /// Whether the connection was ever established.
    pub fn was_established(&self, socket: SocketId) -> bool {
        self.table.held(socket).is_ok_and(|entry| entry.connection.was_established())
    }

    /// Whether the peer's FIN has arrived, after all its data. After it, only [`Stack::send`] and
    /// [`Stack::take_error`] report a failure.
    pub fn has_peer_ended(&self, socket: SocketId) -> bool {
        self.table.held(socket).is_ok_and(|entry| entry.connection.has_peer_ended())
    }

    /// The next socket whose readiness has increased, with its present readiness. An event is
    /// reported when a bit is set and when further data or connections arrive, and not again before
    /// that.
    pub fn next_event(&mut self) -> Option<(SocketId, Readiness)> {
        self.next_news().map(|(socket, readiness, _)| (socket, readiness))
    }

    /// Like [`Stack::next_event`], and also returns the new bits: those that were set, and
    /// [`Readiness::READABLE`] for further data.
    pub fn next_news(&mut self) -> Option<(SocketId, Readiness, Readiness)> {
        let (index, readiness, news) = self.events.next(&mut self.table)?;
        Some((self.table.id(index)?, readiness, news))
    }

    /// The options of a connection, or those that a listener's connections will have.
    ///
    /// # Errors
    /// [`Error::UnknownSocket`].
    pub fn options(&self, socket: SocketId) -> Result<Options, Error> {
        Ok(match self.table.socket(socket)? {
            Slot::Connection(entry) => entry.connection.options(),
            Slot::Listener(listening) => listening.listener.options.connection,
        })
    }

    /// Changes the options. Buffers do not shrink below their content.
    ///
    /// # Errors
    /// [`Error::UnknownSocket`], [`Error::Config`].
    pub fn set_options(
        &mut self,
        now: Instant,
        socket: SocketId,
        options: &Options,
    ) -> Result<(), Error> {
        options.check()?;
        if let Slot::Listener(_) = self.table.socket(socket)?
            && let Some(listening) = self.table.listening_mut(socket.index)
        {
            listening.listener.options.connection = *options;
            return Ok(());
        }
        self.with_held(now, socket, |entry, context| {
            entry.connection.set_options(options, context);
            Ok(())
        })
    }

    /// State, addresses and measurements of a connection or listener.
    ///
    /// # Errors
    /// [`Error::UnknownSocket`].
    pub fn info(&self, socket: SocketId) -> Result<ConnectionInfo, Error> {
        Ok(describe(socket, self.table.socket(socket)?))
    }

    /// All sockets, including those that the application has closed and that still send, but
    /// without those in TIME_WAIT.
    pub fn sockets(&self) -> impl Iterator<Item = ConnectionInfo> + '_ {
        self.table.iter().map(|(socket, slot)| describe(socket, slot))
    }

    /// Makes [`Stack::next_change`] report connections, beginning with the present ones.
    pub fn report_changes(&mut self) {
        self.table.report_changes();
    }

    /// The next change of the set of connections: the index of one that has appeared, in whatever
    /// state, with its local address and its peer's, or an index at which there is none any more. A
    /// change is reported at least once, with the present state.
    pub fn next_change(&mut self) -> Option<(u32, Option<(SocketAddr, SocketAddr)>)> {
        let index = self.table.next_change()?;
        // An aborted connection may still have its reset to send.
        let is_left = |entry: &&Entry| entry.attached || entry.connection.wants_output().is_some();
        let entry = self.table.connection(index).filter(is_left);
        let flow = entry.map(|entry| entry.connection.flow());
        Some((index, flow.map(|flow| (flow.local(), flow.remote()))))
    }

    /// Bytes of memory that all buffers hold now; zero when no connection has data waiting.
    pub fn buffer_bytes(&self) -> usize {
        self.shared.pool.used_bytes()
    }

    /// The counters since the creation of the stack.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The core that must process this packet, by a hash that is the same on all cores. `None` if
    /// any core may, as for echo requests and malformed packets.
    ///
    /// It reads and hashes the addresses; [`Stack::input`] does so again.
    pub fn owner(&self, packet: &[u8]) -> Option<u16> {
        self.core_of(packet)
    }

    /// Lets a connection send; false if the sink is full.
    fn take_turn(&mut self, index: u32, sink: &mut dyn Sink) -> bool {
        let Some(entry) = self.table.connection_mut(index) else { return true };
        let sent = self.shared.counters.packets_sent;
        let more = entry.connection.output(TURN_SEGMENTS, sink, &mut self.shared.context());
        let stuck = self.shared.counters.packets_sent == sent;
        let full = more && (stuck || sink.room(usize::from(self.shared.config.mtu)).is_none());
        if !more {
            self.update_schedule_after_turn(index);
            return true;
        }
        self.update_schedule(index);
        // The connection moves to the end also if the sink is full: otherwise a sink with room for
        // less than a turn would always serve the same connection.
        if !stuck && let Some(entry) = self.table.connection_mut(index) {
            self.transmit.rotate(index, entry.listed);
        }
        !full
    }

    /// Calls `call` on a connection that an application holds.
    fn with_held<T>(
        &mut self,
        now: Instant,
        socket: SocketId,
        call: impl FnOnce(&mut Entry, &mut Context<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.advance(now);
        let entry = self.table.held_mut(socket)?;
        let result = call(entry, &mut self.shared.context());
        self.update_schedule(socket.index);
        result
    }

    fn abandon(&mut self, socket: SocketId, reset: bool) {
        match self.table.socket(socket) {
            Ok(Slot::Listener(_)) => return self.remove_listener(socket.index),
            Ok(Slot::Connection(_)) => {}
            Err(_) => return,
        }
        self.set_stage(socket.index, Stage::Orphan);
        self.events.forget(socket.index);
        let Some(entry) = self.table.connection_mut(socket.index) else { return };
        if entry.attached {
            let context = &mut self.shared.context();
            if reset {
                entry.connection.abort(Failure::Aborted, context);
            } else {
                entry.connection.close(context);
            }
        }
        self.update_schedule(socket.index);
    }
}

fn describe(socket: SocketId, slot: &Slot) -> ConnectionInfo {
    let listening = match slot {
        Slot::Connection(entry) => return entry.connection.info(socket),
        Slot::Listener(listening) => listening,
    };
    ConnectionInfo {
        socket,
        local: listening.listener.local,
        remote: None,
        state: State::Closed,
        receive_queue: listening.listener.waiting.len(),
        send_queue: 0,
        round_trip: None,
        retransmission_timeout: Duration::ZERO,
        congestion_window: 0,
        slow_start_threshold: 0,
        send_window: 0,
        receive_window: 0,
        maximum_segment: 0,
        bytes_acknowledged: 0,
        bytes_received: 0,
        retransmissions: 0,
    }
}
