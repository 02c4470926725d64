//! The stack of one core: who a packet is for, what is due, and what applications are told.

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
use self::replies::Replies;
use self::table::{Entry, Shared, Slot, Stage, Table};
use self::time_wait::TimeWait;
use self::transmit::{TURN_SEGMENTS, Transmit};
use crate::config::{Config, ListenOptions, MTU_MIN, Options, Secret};
use crate::counters::Counters;
use crate::error::Error;
use crate::memory::{BufferPool, FlowTable, TimerWheel};
use crate::packet::{Checksum, Sink};
use crate::socket::{ConnectionInfo, Manner, Readiness, Shutdown, SocketId, State, Urgent};
use crate::tcp::{Context, Failure};
use crate::time::Instant;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// TCP over IPv4 and IPv6 for one core.
///
/// All calls take the time; it must not go back between them. A call never blocks: what is not
/// possible now is [`Error::WouldBlock`], and [`Stack::next_event`] tells when it is.
#[derive(Debug)]
pub struct Stack {
    shared: Shared,
    keys: Keys,
    addresses: Vec<IpAddr>,
    table: Table,
    /// Connections and records of TIME_WAIT by their flows.
    flows: FlowTable,
    listeners: Listeners,
    /// Connections in SYN-RECEIVED that listeners have.
    half_open: u32,
    time_wait: TimeWait,
    wheel: TimerWheel,
    /// The indices whose timers have just expired; kept for its memory.
    due: Vec<u32>,
    events: Events,
    transmit: Transmit,
    replies: Replies,
    echoes: Echoes,
    ports: Ports,
    path_mtus: PathMtus,
    cookies_until: Instant,
    /// The second that the budget of challenge acknowledgements is for.
    budget_second: u64,
}

impl Stack {
    /// A stack without addresses, so that it answers nothing yet.
    ///
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

    /// Sets the addresses that are the stack's own; packets for others are dropped and counted.
    /// Connections from an address that goes away are aborted.
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

    /// Sets the longest packet, in bytes, at least 576: of connections that are to come, and as far
    /// as it is less than before also of those that are there.
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
            self.settle(index);
        }
    }

    /// Takes one IP packet. What it changes goes out at the next [`Stack::output`], so that one
    /// acknowledgement answers a whole batch.
    pub fn input(&mut self, now: Instant, packet: &[u8], checksum: Checksum) {
        self.advance(now);
        self.take_packet(packet, checksum);
    }

    /// Runs the timers that are due and writes the packets that are due into the sink: control
    /// first, then acknowledgements, then data. True if the sink was full before everything was
    /// out; call again when it has room.
    pub fn output(&mut self, now: Instant, sink: &mut dyn Sink) -> bool {
        self.advance(now);
        self.run_timers();
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

    /// When [`Stack::output`] must be called even if nothing else happens; in the past if something
    /// is due. `None`: not before the next call.
    pub fn deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    /// Listens on an address, or on all of them if it is unspecified; `::` takes IPv6 only, unless
    /// [`ListenOptions::both_families`] is set.
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

    /// Begins to connect. [`Readiness::WRITABLE`] tells success, [`Readiness::ERROR`] failure,
    /// whose cause [`Stack::take_error`] has. Without a local address, or with port 0, the stack
    /// chooses: its first address of the family, and a port that steers the answers to this core.
    ///
    /// # Errors
    /// [`Error::AddressInUse`]; [`Error::AddressNotAvailable`] also if a named port leads the
    /// answers to another core; [`Error::NoPorts`], [`Error::TooMany`], [`Error::Config`];
    /// [`Error::Unreachable`] for what is no address of a single host.
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

    /// Copies data into the send buffer and gives the number of bytes taken, at least 1 unless
    /// `data` is empty.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room, [`Error::NotConnected`], [`Error::Shutdown`]
    /// after a shutdown of this direction, [`Error::Reset`] and [`Error::TimedOut`] once the
    /// connection has failed.
    pub fn send(&mut self, now: Instant, socket: SocketId, data: &[u8]) -> Result<usize, Error> {
        self.send_as(now, socket, data, Manner::default())
    }

    /// Like [`Stack::send`], in a manner of its own.
    ///
    /// # Errors
    /// As [`Stack::send`].
    pub fn send_as(
        &mut self,
        now: Instant,
        socket: SocketId,
        data: &[u8],
        manner: Manner,
    ) -> Result<usize, Error> {
        self.with_held(now, socket, |entry, context| {
            entry.connection.send_as(data, manner, context)
        })
    }

    /// The last urgent byte that the peer has announced, with how many bytes of the stream were
    /// taken by now. What changes it is an event of [`Readiness::READABLE`].
    pub fn urgent(&self, socket: SocketId) -> Option<(Urgent, u64)> {
        let connection = &self.table.held(socket).ok()?.connection;
        Some((connection.urgent()?, connection.taken_bytes()))
    }

    /// Takes received data; 0 is the end of the stream (or `room` is empty). Data that came before
    /// a failure can still be received.
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

    /// Like [`Stack::receive`], from `offset` bytes on, and leaves the data where it is.
    ///
    /// # Errors
    /// As [`Stack::receive`].
    pub fn peek(&self, socket: SocketId, offset: usize, room: &mut [u8]) -> Result<usize, Error> {
        self.table.held(socket)?.connection.peek(offset, room)
    }

    /// Ends one or both directions: the peer sees our end after all data. After a shutdown of
    /// receiving, what comes can still be received, and the end of the stream follows it at once;
    /// after a shutdown of both, data that come reset the connection, as on Linux.
    ///
    /// # Errors
    /// [`Error::UnknownSocket`], [`Error::NotConnected`].
    pub fn shutdown(&mut self, now: Instant, socket: SocketId, how: Shutdown) -> Result<(), Error> {
        self.with_held(now, socket, |entry, context| entry.connection.shut_down(how, context))
    }

    /// Gives the socket up. Data that was sent still goes out, then the end. If received data was
    /// not taken, or comes later, or [`Options::linger_reset`] is set, the peer sees a reset (RFC
    /// 2525, section 2.17). A listener's waiting connections are reset. Unknown sockets are
    /// ignored.
    pub fn close(&mut self, now: Instant, socket: SocketId) {
        self.advance(now);
        self.give_up(socket, false);
    }

    /// Gives the socket up with a reset.
    pub fn abort(&mut self, now: Instant, socket: SocketId) {
        self.advance(now);
        self.give_up(socket, true);
    }

    /// What can be done with the socket now.
    ///
    /// # Errors
    /// [`Error::UnknownSocket`].
    pub fn readiness(&self, socket: SocketId) -> Result<Readiness, Error> {
        Ok(match self.table.socket(socket)? {
            Slot::Connection(entry) => entry.connection.readiness(),
            Slot::Listener(listening) => listening.readiness(),
        })
    }

    /// Why the connection failed; told once.
    pub fn take_error(&mut self, socket: SocketId) -> Option<Error> {
        let entry = self.table.held_mut(socket).ok()?;
        let error = entry.connection.take_error();
        self.settle(socket.index);
        error
    }

    /// Whether the connection was established once, whatever has become of it.
    pub fn was_established(&self, socket: SocketId) -> bool {
        self.table.held(socket).is_ok_and(|entry| entry.connection.was_established())
    }

    /// Whether the peer's end has come, after all its data. Behind it, a failure is told by
    /// [`Stack::send`] and [`Stack::take_error`] only.
    pub fn has_peer_ended(&self, socket: SocketId) -> bool {
        self.table.held(socket).is_ok_and(|entry| entry.connection.has_peer_ended())
    }

    /// The next socket whose readiness has grown, with all that it is ready for now: told when a
    /// bit comes, when further data or connections come, and not again before.
    pub fn next_event(&mut self) -> Option<(SocketId, Readiness)> {
        self.next_news().map(|(socket, readiness, _)| (socket, readiness))
    }

    /// Like [`Stack::next_event`], with the bits that are news: those that have come, and
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

    /// Changes the options; buffers do not shrink below what they hold.
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

    /// All sockets, also those that the application has closed and that still send; without those
    /// in TIME_WAIT.
    pub fn sockets(&self) -> impl Iterator<Item = ConnectionInfo> + '_ {
        self.table.iter().map(|(socket, slot)| describe(socket, slot))
    }

    /// Bytes of memory that all buffers hold now; zero when no data waits anywhere.
    pub fn buffer_bytes(&self) -> usize {
        self.shared.pool.used_bytes()
    }

    /// What has been counted since the beginning.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The core that must take this packet, by the same hash on all cores; `None` if any may, as
    /// for echo requests and what is malformed.
    ///
    /// It reads and hashes the addresses, which [`Stack::input`] does again.
    pub fn owner(&self, packet: &[u8]) -> Option<u16> {
        self.core_of(packet)
    }

    /// A turn of a connection to send; false if the sink is full.
    fn take_turn(&mut self, index: u32, sink: &mut dyn Sink) -> bool {
        let Some(entry) = self.table.connection_mut(index) else { return true };
        let sent = self.shared.counters.packets_sent;
        let more = entry.connection.output(TURN_SEGMENTS, sink, &mut self.shared.context());
        let stuck = self.shared.counters.packets_sent == sent;
        let full = more && (stuck || sink.room(usize::from(self.shared.config.mtu)).is_none());
        if !more {
            self.settle_after_turn(index);
            return true;
        }
        self.settle(index);
        // Also if the sink is full: one that has room for less than a turn at a time would take
        // from the same connection for ever.
        if !stuck && let Some(entry) = self.table.connection_mut(index) {
            self.transmit.rotate(index, entry.listed);
        }
        !full
    }

    /// Calls a connection for its application.
    fn with_held<T>(
        &mut self,
        now: Instant,
        socket: SocketId,
        call: impl FnOnce(&mut Entry, &mut Context<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.advance(now);
        let entry = self.table.held_mut(socket)?;
        let result = call(entry, &mut self.shared.context());
        self.settle(socket.index);
        result
    }

    fn give_up(&mut self, socket: SocketId, reset: bool) {
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
        self.settle(socket.index);
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
