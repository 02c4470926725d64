//! Implements the calls of [`Port`] from what the engine has reported.

use super::Command;
use super::application::Application;
use crate::engine::{Alarm, EngineFailure, Names, Port};
use crate::shared_connections::SharedConnections;
use crate::spsc::Sleep;
use mtcp_proto::{
    Congestion, ConnectionInfo, Counters, Error, ListenOptions, Options, Readiness, SendFlags,
    Shutdown, SocketId, Urgent,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The options that the handshake may have determined: only the stack knows whether they still
/// change.
fn fixed_options(options: &Options) -> (Congestion, Option<u16>) {
    (options.congestion, options.maximum_segment)
}

/// The options for the stack. The low-water mark stays on this side, because data below it can be
/// read too.
fn without_low_water(options: &Options) -> Options {
    Options { receive_low_water_bytes: 1, ..*options }
}

impl Port for Application {
    fn turn(&mut self) -> io::Result<bool> {
        if std::mem::take(&mut self.lying) {
            self.alarm.get_up(true);
        }
        self.commands.publish();
        let any = self.take_events();
        self.unless_failed(any)
    }

    fn refresh(&mut self) -> io::Result<bool> {
        let any = self.look();
        self.unless_failed(any)
    }

    fn failure(&self) -> Option<EngineFailure> {
        self.status.failure.get().copied()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let limit = self.prepare_to_sleep(timeout);
        let mut wanted = crate::engine::sleep::Wanted::default();
        wanted.add(self.alarm.descriptor(), libc::POLLIN);
        let outcome = match limit {
            Some(Duration::ZERO) => Ok(()),
            _ => wanted.poll(limit),
        };
        self.lying = false;
        self.alarm.get_up(wanted.is_ready(0));
        outcome
    }

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.alarm.descriptor()]
    }

    fn prepare_to_sleep(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        self.commands.publish();
        self.alarm.lie_down(Sleep::Long);
        self.lying = true;
        if self.alarm.is_called() || !self.events.is_empty() || self.failure().is_some() {
            return Some(Duration::ZERO);
        }
        if self.commands.is_stuck() {
            let soon = Duration::from_micros(200);
            return Some(timeout.map_or(soon, |timeout| timeout.min(soon)));
        }
        timeout
    }

    fn publish(&mut self) {
        self.commands.publish_lazily();
    }

    fn look(&mut self) -> bool {
        if self.events.is_empty() {
            return false;
        }
        if std::mem::take(&mut self.lying) {
            self.alarm.get_up(true);
        }
        self.take_events()
    }

    fn is_disturbed(&self) -> bool {
        !self.lying
    }

    fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn listen(&mut self, local: SocketAddr, options: &ListenOptions) -> Result<SocketId, Error> {
        let mut passed = *options;
        passed.connection = without_low_water(&options.connection);
        let listener = self.make(move |engine| engine.stack().listen(local, &passed))?;
        self.open(listener).low_water = options.connection.receive_low_water_bytes as usize;
        Ok(listener)
    }

    fn accept(&mut self, listener: SocketId) -> Result<SocketId, Error> {
        let socket_state = self.socket_state(listener).ok_or(Error::UnknownSocket)?;
        let socket = socket_state.connections.pop_front().ok_or(Error::WouldBlock)?;
        self.commands.send(Command::Accepted { listener });
        self.news(socket);
        Ok(socket)
    }

    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        let passed = without_low_water(options);
        let socket = self.make(move |engine| engine.connect(local, remote, &passed))?;
        self.set_low_water(socket, options.receive_low_water_bytes as usize);
        Ok(socket)
    }

    fn send_as(
        &mut self,
        socket: SocketId,
        data: &[u8],
        send_flags: SendFlags,
    ) -> Result<usize, Error> {
        let socket_state = self.socket_state(socket).ok_or(Error::UnknownSocket)?;
        if let Some(error) = socket_state.error.take() {
            return Err(error);
        }
        if socket_state.send_ended || socket_state.over() {
            return Err(Error::Shutdown);
        }
        if socket_state.is_cluttered() && !data.is_empty() {
            // The buffer has no room for data that the engine cannot take.
            self.call(|_| ());
        }
        let mut sent = 0;
        while sent < data.len() {
            if !self.socket_state(socket).is_some_and(|socket_state| socket_state.may_send()) {
                break;
            }
            let mut chunk = self.chunks.take();
            sent += chunk.append(&data[sent..]);
            if let Some(socket_state) = self.socket_state(socket) {
                socket_state.unsent += chunk.sending_charge();
                socket_state.unsent_bytes += chunk.filled();
            }
            // The flags of a call apply only to its last chunk.
            let send_flags = if sent == data.len() { send_flags } else { SendFlags::default() };
            self.commands.send(Command::Send { socket, chunk, send_flags });
        }
        if sent == 0 && !data.is_empty() { Err(Error::WouldBlock) } else { Ok(sent) }
    }

    fn receive(&mut self, socket: SocketId, room: &mut [u8]) -> Result<usize, Error> {
        let mut taken = 0;
        while taken < room.len() {
            let socket_state = self.socket_state(socket).ok_or(Error::UnknownSocket)?;
            let Some(chunk) = socket_state.data.front_mut() else { break };
            let bytes = chunk.len().min(room.len() - taken);
            room[taken..taken + bytes].copy_from_slice(&chunk.bytes()[..bytes]);
            chunk.consume(bytes);
            taken += bytes;
            socket_state.data_bytes -= bytes;
            socket_state.taken_bytes += bytes as u64;
            if chunk.len() == 0
                && let Some(chunk) = socket_state.data.pop_front()
            {
                self.commands.send(Command::Taken { socket, chunk });
            }
        }
        let socket_state = self.socket_state(socket).ok_or(Error::UnknownSocket)?;
        if taken > 0 || room.is_empty() {
            return Ok(taken);
        }
        match socket_state.error {
            Some(error) if socket_state.ended && !socket_state.ended_by_peer => {
                socket_state.error = None;
                Err(error)
            }
            _ if socket_state.ended || socket_state.receive_ended => Ok(0),
            _ => Err(Error::WouldBlock),
        }
    }

    fn peek(&mut self, socket: SocketId, offset: usize, room: &mut [u8]) -> Result<usize, Error> {
        let socket_state = self.socket_state(socket).ok_or(Error::UnknownSocket)?;
        let (mut skip, mut copied) = (offset, 0);
        for chunk in &socket_state.data {
            let here = chunk.bytes().get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(chunk.len());
            let bytes = here.len().min(room.len() - copied);
            room[copied..copied + bytes].copy_from_slice(&here[..bytes]);
            copied += bytes;
        }
        match socket_state.error {
            _ if copied > 0 || room.is_empty() => Ok(copied),
            Some(error) if socket_state.ended && !socket_state.ended_by_peer => Err(error),
            _ if socket_state.ended || socket_state.receive_ended => Ok(0),
            _ => Err(Error::WouldBlock),
        }
    }

    fn names(&mut self, socket: SocketId) -> Result<Names, Error> {
        if let Some(known) =
            self.socket_state(socket).and_then(|socket_state| socket_state.known.as_deref())
        {
            return Ok(known.names);
        }
        self.info(socket).map(|info| (info.local, info.remote))
    }

    fn receivable(&mut self, socket: SocketId) -> usize {
        self.socket_state(socket).map_or(0, |socket_state| socket_state.data_bytes)
    }

    fn shutdown(&mut self, socket: SocketId, how: Shutdown) -> Result<(), Error> {
        let socket_state = self.socket_state(socket).ok_or(Error::UnknownSocket)?;
        if !socket_state.connected || socket_state.over() {
            return Err(Error::NotConnected);
        }
        socket_state.send_ended |= how != Shutdown::Receive;
        socket_state.receive_ended |= how != Shutdown::Send;
        self.commands.send(Command::Shutdown { socket, how });
        Ok(())
    }

    fn close(&mut self, socket: SocketId) {
        let unread =
            self.socket_state(socket).is_some_and(|socket_state| socket_state.data_bytes > 0);
        // A reset tells the peer that unread data is lost (RFC 2525, section 2.17).
        let command = if unread { Command::Abort { socket } } else { Command::Close { socket } };
        let known =
            self.socket_state(socket).and_then(|socket_state| socket_state.known.as_deref());
        let resets = unread || known.is_some_and(|known| known.options.linger_reset);
        self.return_command(socket, command);
        if resets {
            // The other end may be in this process, where a socket of the kernel would see the
            // close at once.
            self.commands.publish();
        }
    }

    fn abort(&mut self, socket: SocketId) {
        self.return_command(socket, Command::Abort { socket });
    }

    fn readiness(&self, socket: SocketId) -> Readiness {
        match self.socket_states.get(socket.index as usize) {
            Some(socket_state)
                if socket_state.open && socket_state.generation == socket.generation =>
            {
                socket_state.ready()
            }
            _ => Readiness::CLOSED,
        }
    }

    fn urgent(&self, socket: SocketId) -> Option<(Urgent, u64)> {
        let socket_state = self.socket_states.get(socket.index as usize)?;
        (socket_state.generation == socket.generation)
            .then_some((socket_state.urgent?, socket_state.taken_bytes))
    }

    fn was_established(&self, socket: SocketId) -> bool {
        let socket_state = self.socket_states.get(socket.index as usize);
        socket_state.is_some_and(|socket_state| {
            socket_state.generation == socket.generation && socket_state.connected
        })
    }

    fn take_error(&mut self, socket: SocketId) -> Option<Error> {
        self.socket_state(socket)?.error.take()
    }

    fn next_news(&mut self) -> Option<(SocketId, Readiness, Readiness)> {
        while let Some(socket) = self.news.pop_front() {
            if let Some(socket_state) = self.socket_state(socket) {
                socket_state.queued = false;
                let (ready, arrived) = socket_state.take_news();
                if ready != Readiness::default() {
                    return Some((socket, ready, arrived));
                }
            }
        }
        None
    }

    fn options(&mut self, socket: SocketId) -> Result<Options, Error> {
        let mut options = match self
            .socket_state(socket)
            .and_then(|socket_state| socket_state.known.as_deref())
        {
            Some(known) => known.options,
            None => self.ask_options(socket)?,
        };
        if let Some(socket_state) = self.socket_state(socket) {
            options.receive_low_water_bytes = socket_state.low_water as u32;
        }
        Ok(options)
    }

    fn set_options(&mut self, socket: SocketId, options: &Options) -> Result<(), Error> {
        options.check()?;
        let passed = without_low_water(options);
        let boxed = Box::new(passed);
        self.commands.send(Command::Options { socket, options: boxed });
        let known =
            self.socket_state(socket).and_then(|socket_state| socket_state.known.as_deref_mut());
        let in_force = known.is_some_and(|known| {
            let before = std::mem::replace(&mut known.options, passed);
            // The options of a listener apply to later connections.
            known.names.1.is_some() && fixed_options(&before) == fixed_options(&passed)
        });
        if !in_force {
            let options = self.ask_options(socket)?;
            if let Some(known) =
                self.socket_state(socket).and_then(|socket_state| socket_state.known.as_deref_mut())
            {
                known.options = options;
            }
        }
        self.set_low_water(socket, options.receive_low_water_bytes as usize);
        Ok(())
    }

    fn info(&mut self, socket: SocketId) -> Result<ConnectionInfo, Error> {
        let mut info =
            self.call(move |engine| engine.stack().info(socket)).unwrap_or(Err(Error::Aborted))?;
        if let Some(socket_state) = self.socket_state(socket) {
            let here = socket_state.data_bytes + socket_state.connections.len();
            info.receive_queue = info.receive_queue.saturating_add(here as u32);
            info.send_queue = info.send_queue.saturating_add(socket_state.unsent_bytes as u32);
        }
        Ok(info)
    }

    fn unfinished(&mut self) -> usize {
        self.finished = false;
        self.status.finishing.store(true, Ordering::Release);
        let count = self.call(|engine| engine.unfinished()).unwrap_or(0);
        // The last connection may have ended between the call and its answer, and this is reported
        // only once.
        if self.finished { 0 } else { count }
    }

    fn abort_all(&mut self) {
        self.call(|engine| {
            engine.abort_all();
            // The resets are sent before the thread ends.
            engine.transmit().is_ok()
        });
    }

    fn record_connections(&mut self, shared: Arc<SharedConnections>) {
        self.call(|engine| engine.record_connections(shared));
    }

    fn counters(&mut self) -> Counters {
        self.call(|engine| engine.stack().counters().clone()).unwrap_or_default()
    }
}
