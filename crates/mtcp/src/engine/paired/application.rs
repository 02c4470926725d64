//! The application's side: it knows of each connection what the engine has told, and answers from
//! that.

use super::chunk::{CHARGE_BYTES, Chunks};
use super::place::Place;
use super::sender::Sender;
use super::{Command, Event, Fate};
use crate::engine::{Alarm, Engine, Names, Port};
use crate::spsc::Consumer;
use mtcp_proto::{
    ConnectionInfo, Counters, Error, ListenOptions, Manner, Options, Readiness, Shutdown, SocketId,
    Urgent,
};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The port of an application whose engine runs beside it.
pub(crate) struct Application {
    commands: Sender<Command>,
    events: Consumer<Option<Event>>,
    alarm: Arc<Alarm>,
    fate: Arc<Fate>,
    addresses: Vec<IpAddr>,
    chunks: Chunks,
    places: Vec<Place>,
    /// Sockets with news.
    news: VecDeque<SocketId>,
    /// The answer to the last opening.
    opened: Option<Result<SocketId, Error>>,
    lying: bool,
    /// [`Event::Finished`] has come.
    finished: bool,
    thread: Option<JoinHandle<()>>,
}

impl Application {
    pub(super) fn new(
        commands: Sender<Command>,
        events: Consumer<Option<Event>>,
        alarm: Arc<Alarm>,
        fate: Arc<Fate>,
        addresses: Vec<IpAddr>,
        thread: JoinHandle<()>,
    ) -> Application {
        Application {
            commands,
            events,
            alarm,
            fate,
            addresses,
            chunks: Chunks::default(),
            places: Vec::new(),
            news: VecDeque::new(),
            opened: None,
            lying: false,
            finished: false,
            thread: Some(thread),
        }
    }

    /// Makes a call in the engine's thread and waits for what it gives; `None` if the engine has
    /// ended.
    fn call<R: Send + 'static>(
        &mut self,
        call: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, answers) = mpsc::sync_channel(1);
        self.commands.send(Command::Call(Box::new(move |engine| {
            // Nobody waits any more only if the application's thread has ended.
            let _ = answer.send(call(engine));
        })));
        self.wait_for(|_| answers.try_recv().ok())
    }

    /// Returns when all that was asked for is done, and what came of it is with the device.
    pub(crate) fn sync(&mut self) {
        self.call(|engine| engine.transmit().is_ok());
    }

    /// Makes a socket in the engine's thread.
    fn make(
        &mut self,
        opening: impl FnOnce(&mut Engine) -> Result<SocketId, Error> + Send + 'static,
    ) -> Result<SocketId, Error> {
        self.commands.send(Command::Open(Box::new(opening)));
        self.wait_for(|port| port.opened.take()).unwrap_or(Err(Error::Aborted))
    }

    /// Takes events until something is there; `None` if the engine has ended.
    fn wait_for<R>(&mut self, mut look: impl FnMut(&mut Application) -> Option<R>) -> Option<R> {
        loop {
            self.commands.publish();
            let failed = self.fate.failed.load(Ordering::Acquire) != 0;
            self.take_events();
            if let Some(found) = look(self) {
                return Some(found);
            }
            if failed {
                return None;
            }
            // A signal only shortens the sleep.
            let _ = Port::wait(self, None);
        }
    }

    fn place(&mut self, socket: SocketId) -> Option<&mut Place> {
        let place = self.places.get_mut(socket.index as usize)?;
        (place.open && place.generation == socket.generation).then_some(place)
    }

    /// The place of a socket that is told of, maybe for the first time.
    fn open(&mut self, socket: SocketId) -> &mut Place {
        let index = socket.index as usize;
        if index >= self.places.len() {
            self.places.resize_with(index + 1, Place::default);
        }
        let place = &mut self.places[index];
        if place.generation != socket.generation || !place.open {
            *place = Place {
                generation: socket.generation,
                open: true,
                low_water: 1,
                ..Place::default()
            };
        }
        place
    }

    fn news(&mut self, socket: SocketId) {
        if let Some(place) = self.place(socket)
            && !place.queued
        {
            place.queued = true;
            self.news.push_back(socket);
        }
    }

    /// True if there were any.
    fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(Some(event)) = self.events.read(Option::take) {
            any = true;
            self.take_event(event);
        }
        self.events.release();
        any
    }

    fn take_event(&mut self, event: Event) {
        let socket = match event {
            Event::Called => return,
            Event::Finished => {
                self.finished = true;
                return;
            }
            Event::Opened(outcome) => {
                // What is told of the socket from now on finds its place.
                self.opened = Some(outcome.map(|(socket, names)| {
                    self.open(socket).names = names;
                    socket
                }));
                return;
            }
            Event::Accepted { listener, socket, names } => {
                self.take_accepted(listener, socket, names);
                listener
            }
            Event::Data { socket, chunk } => match self.place(socket) {
                Some(place) => {
                    place.data_bytes += chunk.len();
                    place.data.push_back(chunk);
                    place.data_arrived();
                    socket
                }
                None => return self.commands.send(Command::Taken { socket, chunk }),
            },
            Event::Urgent { socket, urgent } => {
                let Some(place) = self.place(socket) else { return };
                place.urgent = Some(urgent);
                place.data_arrived();
                socket
            }
            Event::Sent { socket, chunk } => {
                let (charge, bytes) = (chunk.sending_charge(), chunk.filled());
                self.chunks.give(chunk);
                let Some(place) = self.place(socket) else { return };
                place.unsent = place.unsent.saturating_sub(charge);
                place.unsent_bytes = place.unsent_bytes.saturating_sub(bytes);
                socket
            }
            Event::Ended { socket, by_peer } => {
                let Some(place) = self.place(socket) else { return };
                place.end_arrived(by_peer);
                socket
            }
            Event::Failed { socket, error } => {
                let Some(place) = self.place(socket) else { return };
                place.error_arrived(error);
                socket
            }
            Event::Ready { socket, readiness, established } => {
                let Some(place) = self.place(socket) else { return };
                place.readiness = readiness;
                place.connected |= established;
                socket
            }
        };
        self.news(socket);
    }

    fn take_accepted(&mut self, listener: SocketId, socket: SocketId, names: Option<Box<Names>>) {
        let place = self.open(socket);
        place.connected = true;
        place.names = names;
        let low_water = self.place(listener).map(|place| {
            place.connections.push_back(socket);
            place.data_arrived();
            place.low_water
        });
        match low_water {
            Some(low_water) => self.set_low_water(socket, low_water),
            // The listener was closed meanwhile: a connection that was not accepted is reset.
            None => self.give_up(socket, Command::Abort { socket }),
        }
    }

    fn give_up(&mut self, socket: SocketId, command: Command) {
        let Some(place) = self.place(socket) else { return };
        let place = std::mem::take(place);
        for chunk in place.data {
            self.commands.send(Command::Taken { socket, chunk });
        }
        self.commands.send(command);
        for connection in place.connections {
            self.give_up(connection, Command::Abort { socket: connection });
        }
    }

    fn set_low_water(&mut self, socket: SocketId, bytes: usize) {
        let Some(place) = self.place(socket) else { return };
        if std::mem::replace(&mut place.low_water, bytes) != bytes {
            // It may come byte by byte, each in a chunk of its own.
            let bytes = bytes.saturating_mul(CHARGE_BYTES + 1);
            self.commands.send(Command::Window { socket, bytes });
        }
    }

    fn failure(&self) -> Option<io::Error> {
        let errno = self.fate.failed.load(Ordering::Acquire);
        (errno != 0).then(|| io::Error::from_raw_os_error(errno))
    }
}

/// What the stack is told: the mark is kept on this side, because data below it can be read, too.
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
        match self.failure() {
            Some(error) if !any => Err(error),
            _ => Ok(any),
        }
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
        self.alarm.lie_down();
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
        self.commands.publish();
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
        let place = self.place(listener).ok_or(Error::UnknownSocket)?;
        let socket = place.connections.pop_front().ok_or(Error::WouldBlock)?;
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

    fn send_as(&mut self, socket: SocketId, data: &[u8], manner: Manner) -> Result<usize, Error> {
        let place = self.place(socket).ok_or(Error::UnknownSocket)?;
        if let Some(error) = place.error.take() {
            return Err(error);
        }
        if place.send_ended || place.over() {
            return Err(Error::Shutdown);
        }
        if place.is_cluttered() && !data.is_empty() {
            // What the engine cannot take, its buffer has no room for.
            self.call(|_| ());
        }
        let mut sent = 0;
        while sent < data.len() {
            if !self.place(socket).is_some_and(|place| place.may_send()) {
                break;
            }
            let mut chunk = self.chunks.take();
            sent += chunk.append(&data[sent..]);
            if let Some(place) = self.place(socket) {
                place.unsent += chunk.sending_charge();
                place.unsent_bytes += chunk.filled();
            }
            // Only the last chunk of a call ends with what its manner says.
            let manner = if sent == data.len() { manner } else { Manner::default() };
            self.commands.send(Command::Send { socket, chunk, manner });
        }
        if sent == 0 && !data.is_empty() { Err(Error::WouldBlock) } else { Ok(sent) }
    }

    fn receive(&mut self, socket: SocketId, room: &mut [u8]) -> Result<usize, Error> {
        let mut taken = 0;
        while taken < room.len() {
            let place = self.place(socket).ok_or(Error::UnknownSocket)?;
            let Some(chunk) = place.data.front_mut() else { break };
            let bytes = chunk.len().min(room.len() - taken);
            room[taken..taken + bytes].copy_from_slice(&chunk.bytes()[..bytes]);
            chunk.consume(bytes);
            taken += bytes;
            place.data_bytes -= bytes;
            place.taken_bytes += bytes as u64;
            if chunk.len() == 0
                && let Some(chunk) = place.data.pop_front()
            {
                self.commands.send(Command::Taken { socket, chunk });
            }
        }
        let place = self.place(socket).ok_or(Error::UnknownSocket)?;
        if taken > 0 || room.is_empty() {
            return Ok(taken);
        }
        match place.error {
            Some(error) if place.ended && !place.ended_by_peer => {
                place.error = None;
                Err(error)
            }
            _ if place.ended || place.receive_ended => Ok(0),
            _ => Err(Error::WouldBlock),
        }
    }

    fn peek(&mut self, socket: SocketId, offset: usize, room: &mut [u8]) -> Result<usize, Error> {
        let place = self.place(socket).ok_or(Error::UnknownSocket)?;
        let (mut skip, mut copied) = (offset, 0);
        for chunk in &place.data {
            let here = chunk.bytes().get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(chunk.len());
            let bytes = here.len().min(room.len() - copied);
            room[copied..copied + bytes].copy_from_slice(&here[..bytes]);
            copied += bytes;
        }
        match place.error {
            _ if copied > 0 || room.is_empty() => Ok(copied),
            Some(error) if place.ended && !place.ended_by_peer => Err(error),
            _ if place.ended || place.receive_ended => Ok(0),
            _ => Err(Error::WouldBlock),
        }
    }

    fn names(&mut self, socket: SocketId) -> Result<Names, Error> {
        if let Some(names) = self.place(socket).and_then(|place| place.names.as_deref()) {
            return Ok(*names);
        }
        self.info(socket).map(|info| (info.local, info.remote))
    }

    fn receivable(&mut self, socket: SocketId) -> usize {
        self.place(socket).map_or(0, |place| place.data_bytes)
    }

    fn shutdown(&mut self, socket: SocketId, how: Shutdown) -> Result<(), Error> {
        let place = self.place(socket).ok_or(Error::UnknownSocket)?;
        if !place.connected || place.over() {
            return Err(Error::NotConnected);
        }
        place.send_ended |= how != Shutdown::Receive;
        place.receive_ended |= how != Shutdown::Send;
        self.commands.send(Command::Shutdown { socket, how });
        Ok(())
    }

    fn close(&mut self, socket: SocketId) {
        let unread = self.place(socket).is_some_and(|place| place.data_bytes > 0);
        // Data that nobody reads is said to be lost by a reset (RFC 2525, section 2.17).
        let command = if unread { Command::Abort { socket } } else { Command::Close { socket } };
        self.give_up(socket, command);
    }

    fn abort(&mut self, socket: SocketId) {
        self.give_up(socket, Command::Abort { socket });
    }

    fn readiness(&self, socket: SocketId) -> Readiness {
        match self.places.get(socket.index as usize) {
            Some(place) if place.open && place.generation == socket.generation => place.ready(),
            _ => Readiness::CLOSED,
        }
    }

    fn urgent(&self, socket: SocketId) -> Option<(Urgent, u64)> {
        let place = self.places.get(socket.index as usize)?;
        (place.generation == socket.generation).then_some((place.urgent?, place.taken_bytes))
    }

    fn was_established(&self, socket: SocketId) -> bool {
        let place = self.places.get(socket.index as usize);
        place.is_some_and(|place| place.generation == socket.generation && place.connected)
    }

    fn take_error(&mut self, socket: SocketId) -> Option<Error> {
        self.place(socket)?.error.take()
    }

    fn next_news(&mut self) -> Option<(SocketId, Readiness, Readiness)> {
        while let Some(socket) = self.news.pop_front() {
            if let Some(place) = self.place(socket) {
                place.queued = false;
                let (ready, arrived) = place.take_news();
                if ready != Readiness::default() {
                    return Some((socket, ready, arrived));
                }
            }
        }
        None
    }

    fn options(&mut self, socket: SocketId) -> Result<Options, Error> {
        let call = self.call(move |engine| engine.stack().options(socket));
        let mut options = call.unwrap_or(Err(Error::Aborted))?;
        if let Some(place) = self.place(socket) {
            options.receive_low_water_bytes = place.low_water as u32;
        }
        Ok(options)
    }

    fn set_options(&mut self, socket: SocketId, options: &Options) -> Result<(), Error> {
        let passed = without_low_water(options);
        self.call(move |engine| {
            let now = engine.now();
            engine.stack().set_options(now, socket, &passed)
        })
        .unwrap_or(Err(Error::Aborted))?;
        self.set_low_water(socket, options.receive_low_water_bytes as usize);
        Ok(())
    }

    fn info(&mut self, socket: SocketId) -> Result<ConnectionInfo, Error> {
        let mut info =
            self.call(move |engine| engine.stack().info(socket)).unwrap_or(Err(Error::Aborted))?;
        if let Some(place) = self.place(socket) {
            let here = place.data_bytes + place.connections.len();
            info.receive_queue = info.receive_queue.saturating_add(here as u32);
            info.send_queue = info.send_queue.saturating_add(place.unsent_bytes as u32);
        }
        Ok(info)
    }

    fn unfinished(&mut self) -> usize {
        self.finished = false;
        self.fate.finishing.store(true, Ordering::Release);
        let count = self.call(|engine| engine.unfinished()).unwrap_or(0);
        // The last one may have ended between the call and its answer, which is told only once.
        if self.finished { 0 } else { count }
    }

    fn abort_all(&mut self) {
        self.call(|engine| {
            engine.abort_all();
            // The resets go out before the thread ends.
            engine.transmit().is_ok()
        });
    }

    fn counters(&mut self) -> Counters {
        self.call(|engine| engine.stack().counters().clone()).unwrap_or_default()
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.commands.publish();
        self.fate.stop.store(true, Ordering::Release);
        self.commands.alarm().force();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so itself.
            let _ = thread.join();
        }
    }
}
