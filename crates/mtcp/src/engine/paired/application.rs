//! Implements the application's side, which keeps the reported state of each connection.

use super::chunk::{CHARGE_BYTES, Chunks};
use super::sender::Sender;
use super::socket_state::SocketState;
use super::{CachedAnswers, Command, EngineStatus, Event};
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

/// The port of an application whose engine runs on another thread.
pub(crate) struct Application {
    pub(super) commands: Sender<Command>,
    pub(super) events: Consumer<Option<Event>>,
    pub(super) alarm: Arc<Alarm>,
    pub(super) status: Arc<EngineStatus>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) chunks: Chunks,
    pub(super) socket_states: Vec<SocketState>,
    /// Sockets with new events.
    pub(super) news: VecDeque<SocketId>,
    /// The result of the last call that makes a socket.
    pub(super) opened: Option<Result<SocketId, Error>>,
    /// Whether the last call has been executed.
    pub(super) called: bool,
    pub(super) lying: bool,
    /// Whether [`Event::Finished`] has arrived.
    pub(super) finished: bool,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Application {
    pub(super) fn new(
        commands: Sender<Command>,
        events: Consumer<Option<Event>>,
        alarm: Arc<Alarm>,
        status: Arc<EngineStatus>,
        addresses: Vec<IpAddr>,
        thread: JoinHandle<()>,
    ) -> Application {
        Application {
            commands,
            events,
            alarm,
            status,
            addresses,
            chunks: Chunks::default(),
            socket_states: Vec::new(),
            news: VecDeque::new(),
            opened: None,
            called: false,
            lying: false,
            finished: false,
            thread: Some(thread),
        }
    }

    /// Executes a call in the engine's thread and waits for its result; `None` if the engine has
    /// ended.
    pub(super) fn call<R: Send + 'static>(
        &mut self,
        call: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, answers) = mpsc::sync_channel(1);
        self.commands.send(Command::Call(Box::new(move |engine| {
            // The receiver is gone only if the application's thread has ended.
            let _ = answer.send(call(engine));
        })));
        // The event reports the end of the call, not the result itself, which could overtake
        // earlier events of the engine. The program would then see a state that its socket does not
        // have yet.
        self.called = false;
        self.wait_for(|port| std::mem::take(&mut port.called).then(|| answers.try_recv().ok()))?
    }

    /// Waits until all commands are executed and their packets are with the device.
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

    /// Takes events until `look` returns a value; `None` if the engine has ended.
    pub(super) fn wait_for<R>(
        &mut self,
        mut look: impl FnMut(&mut Application) -> Option<R>,
    ) -> Option<R> {
        loop {
            self.commands.publish();
            let failed = self.failure().is_some();
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

    pub(super) fn socket_state(&mut self, socket: SocketId) -> Option<&mut SocketState> {
        let socket_state = self.socket_states.get_mut(socket.index as usize)?;
        (socket_state.open && socket_state.generation == socket.generation).then_some(socket_state)
    }

    /// The state of a socket that an event concerns; created at the first event.
    pub(super) fn open(&mut self, socket: SocketId) -> &mut SocketState {
        let index = socket.index as usize;
        if index >= self.socket_states.len() {
            self.socket_states.resize_with(index + 1, SocketState::default);
        }
        let socket_state = &mut self.socket_states[index];
        if socket_state.generation != socket.generation || !socket_state.open {
            *socket_state = SocketState {
                generation: socket.generation,
                open: true,
                low_water: 1,
                ..SocketState::default()
            };
        }
        socket_state
    }

    /// Queues a socket that has new events.
    pub(super) fn news(&mut self, socket: SocketId) {
        if let Some(socket_state) = self.socket_state(socket)
            && !socket_state.queued
        {
            socket_state.queued = true;
            self.news.push_back(socket);
        }
    }

    /// Takes the events of the engine; true if there were any.
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
                // Later events of the socket find its state.
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
            Event::Data { socket, chunk } => match self.socket_state(socket) {
                Some(socket_state) => {
                    socket_state.data_bytes += chunk.len();
                    socket_state.data.push_back(chunk);
                    socket_state.data_arrived();
                    socket
                }
                None => return self.commands.send(Command::Taken { socket, chunk }),
            },
            Event::Urgent { socket, urgent } => {
                let Some(socket_state) = self.socket_state(socket) else { return };
                socket_state.urgent = Some(urgent);
                socket_state.data_arrived();
                socket
            }
            Event::Sent { socket, chunk } => {
                let (charge, bytes) = (chunk.sending_charge(), chunk.filled());
                self.chunks.deliver(chunk);
                let Some(socket_state) = self.socket_state(socket) else { return };
                socket_state.unsent = socket_state.unsent.saturating_sub(charge);
                socket_state.unsent_bytes = socket_state.unsent_bytes.saturating_sub(bytes);
                socket
            }
            Event::Ended { socket, by_peer } => {
                let Some(socket_state) = self.socket_state(socket) else { return };
                socket_state.end_arrived(by_peer);
                socket
            }
            Event::Failed { socket, error } => {
                let Some(socket_state) = self.socket_state(socket) else { return };
                socket_state.error_arrived(error);
                socket
            }
            Event::Ready { socket, readiness, established } => {
                let Some(socket_state) = self.socket_state(socket) else { return };
                socket_state.readiness = readiness;
                socket_state.connected |= established;
                socket
            }
        };
        self.news(socket);
    }

    fn take_accepted(
        &mut self,
        listener: SocketId,
        socket: SocketId,
        known: Option<Box<CachedAnswers>>,
    ) {
        let socket_state = self.open(socket);
        socket_state.connected = true;
        socket_state.known = known;
        let low_water = self.socket_state(listener).map(|socket_state| {
            socket_state.connections.push_back(socket);
            socket_state.data_arrived();
            socket_state.low_water
        });
        match low_water {
            Some(low_water) => self.set_low_water(socket, low_water),
            // The listener was closed in the meantime: a connection that was not accepted is reset.
            None => self.return_command(socket, Command::Abort { socket }),
        }
    }

    /// Returns the unread chunks of a socket that is closed, sends the command, and resets its
    /// connections that were not accepted.
    pub(super) fn return_command(&mut self, socket: SocketId, command: Command) {
        let Some(socket_state) = self.socket_state(socket) else { return };
        let socket_state = std::mem::take(socket_state);
        for chunk in socket_state.data {
            self.commands.send(Command::Taken { socket, chunk });
        }
        self.commands.send(command);
        for connection in socket_state.connections {
            self.return_command(connection, Command::Abort { socket: connection });
        }
    }

    /// Sets the low-water mark of receiving, and the window that it needs.
    pub(super) fn set_low_water(&mut self, socket: SocketId, bytes: usize) {
        let Some(socket_state) = self.socket_state(socket) else { return };
        if std::mem::replace(&mut socket_state.low_water, bytes) != bytes {
            // Data may arrive byte by byte, each in a chunk of its own.
            let bytes = bytes.saturating_mul(CHARGE_BYTES + 1);
            self.commands.send(Command::Window { socket, bytes });
        }
    }

    /// Events before the engine's failure are delivered first.
    pub(super) fn unless_failed(&self, any: bool) -> io::Result<bool> {
        match self.failure() {
            Some(failure) if !any => Err(failure.into()),
            _ => Ok(any),
        }
    }

    /// Reads the options of a socket from the stack.
    pub(super) fn ask_options(&mut self, socket: SocketId) -> Result<Options, Error> {
        let call = self.call(move |engine| engine.stack().options(socket));
        call.unwrap_or(Err(Error::Aborted))
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.commands.publish();
        self.status.stop.store(true, Ordering::Release);
        self.commands.alarm().force();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}
