//! The application's side: it knows of each connection what the engine has told.

use super::chunk::{CHARGE_BYTES, Chunks};
use super::place::Place;
use super::sender::Sender;
use super::{Command, Event, Fate, Known};
use crate::engine::{Alarm, Engine, Port};
use crate::spsc::Consumer;
use mtcp_proto::{Error, Options, SocketId};
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// The port of an application whose engine runs beside it.
pub(crate) struct Application {
    pub(super) commands: Sender<Command>,
    pub(super) events: Consumer<Option<Event>>,
    pub(super) alarm: Arc<Alarm>,
    pub(super) fate: Arc<Fate>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) chunks: Chunks,
    pub(super) places: Vec<Place>,
    /// Sockets with news.
    pub(super) news: VecDeque<SocketId>,
    /// The answer to the last opening.
    pub(super) opened: Option<Result<SocketId, Error>>,
    /// The last call's answer is there.
    pub(super) called: bool,
    pub(super) lying: bool,
    /// [`Event::Finished`] has come.
    pub(super) finished: bool,
    pub(super) thread: Option<JoinHandle<()>>,
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
            called: false,
            lying: false,
            finished: false,
            thread: Some(thread),
        }
    }

    /// Makes a call in the engine's thread and waits for what it gives; `None` if the engine has
    /// ended.
    pub(super) fn call<R: Send + 'static>(
        &mut self,
        call: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, answers) = mpsc::sync_channel(1);
        self.commands.send(Command::Call(Box::new(move |engine| {
            // Nobody waits any more only if the application's thread has ended.
            let _ = answer.send(call(engine));
        })));
        // The event tells of it, not the answer itself, which may overtake what the engine has told
        // before: the program would see a state of which its socket does not know yet.
        self.called = false;
        self.wait_for(|port| std::mem::take(&mut port.called).then(|| answers.try_recv().ok()))?
    }

    /// Returns when all that was asked for is done, and what came of it is with the device.
    pub(crate) fn sync(&mut self) {
        self.call(|engine| engine.transmit().is_ok());
    }

    /// Makes a socket in the engine's thread.
    pub(super) fn make(
        &mut self,
        opening: impl FnOnce(&mut Engine) -> Result<SocketId, Error> + Send + 'static,
    ) -> Result<SocketId, Error> {
        self.commands.send(Command::Open(Box::new(opening)));
        self.wait_for(|port| port.opened.take()).unwrap_or(Err(Error::Aborted))
    }

    /// Takes events until something is there; `None` if the engine has ended.
    pub(super) fn wait_for<R>(
        &mut self,
        mut look: impl FnMut(&mut Application) -> Option<R>,
    ) -> Option<R> {
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

    pub(super) fn place(&mut self, socket: SocketId) -> Option<&mut Place> {
        let place = self.places.get_mut(socket.index as usize)?;
        (place.open && place.generation == socket.generation).then_some(place)
    }

    /// The place of a socket that is told of, maybe for the first time.
    pub(super) fn open(&mut self, socket: SocketId) -> &mut Place {
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

    pub(super) fn news(&mut self, socket: SocketId) {
        if let Some(place) = self.place(socket)
            && !place.queued
        {
            place.queued = true;
            self.news.push_back(socket);
        }
    }

    /// True if there were any.
    pub(super) fn take_events(&mut self) -> bool {
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
            Event::Called => {
                self.called = true;
                return;
            }
            Event::Finished => {
                self.finished = true;
                return;
            }
            Event::Opened(outcome) => {
                // What is told of the socket from now on finds its place.
                self.opened = Some(outcome.map(|(socket, known)| {
                    self.open(socket).known = known;
                    socket
                }));
                return;
            }
            Event::Accepted { listener, socket, known } => {
                self.take_accepted(listener, socket, known);
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

    fn take_accepted(&mut self, listener: SocketId, socket: SocketId, known: Option<Box<Known>>) {
        let place = self.open(socket);
        place.connected = true;
        place.known = known;
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

    pub(super) fn give_up(&mut self, socket: SocketId, command: Command) {
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

    pub(super) fn set_low_water(&mut self, socket: SocketId, bytes: usize) {
        let Some(place) = self.place(socket) else { return };
        if std::mem::replace(&mut place.low_water, bytes) != bytes {
            // It may come byte by byte, each in a chunk of its own.
            let bytes = bytes.saturating_mul(CHARGE_BYTES + 1);
            self.commands.send(Command::Window { socket, bytes });
        }
    }

    /// What was told before the engine failed comes first.
    pub(super) fn unless_failed(&self, any: bool) -> io::Result<bool> {
        match self.failure() {
            Some(error) if !any => Err(error),
            _ => Ok(any),
        }
    }

    pub(super) fn ask_options(&mut self, socket: SocketId) -> Result<Options, Error> {
        let call = self.call(move |engine| engine.stack().options(socket));
        call.unwrap_or(Err(Error::Aborted))
    }

    pub(super) fn failure(&self) -> Option<io::Error> {
        let errno = self.fate.failed.load(Ordering::Acquire);
        (errno != 0).then(|| io::Error::from_raw_os_error(errno))
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
