//! Implements the engine's side: applies commands to the stack, and converts the stack's events
//! into messages.

use super::application::Application;
use super::chunk::{Chunk, Chunks};
use super::sender::Sender;
use super::{ACCEPT_WINDOW, CachedAnswers, Command, EngineStatus, Event, SLOTS, WINDOW_BYTES};
use crate::engine::{Alarm, Engine, EngineFailure, Port};
use crate::spsc::{Consumer, Sleep, ring};
use mtcp_proto::{Error, Readiness, SendFlags, SocketId, Urgent};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;
use sys::seccomp::SeccompError;

/// Interval of checks while a message waits for room in a ring.
const STUCK: Duration = Duration::from_micros(200);
/// The first sleep after work, while the application is awake. Commands collect in the meantime:
/// the application's next waiting call wakes the engine, not each write.
const SHORT_SLEEP: Duration = Duration::from_micros(200);

/// The state of one of the stack's sockets on the engine's side.
#[derive(Default)]
struct EngineSocket {
    generation: u32,
    /// Whether the application has it.
    open: bool,
    listener: bool,
    /// Connections that were given to the application and that it has not accepted.
    offered: u32,
    to_send: VecDeque<(Chunk, SendFlags)>,
    /// Bytes that were given to the application and that it has not read.
    given: usize,
    window: usize,
    /// The last reported state of urgent data.
    urgent: Option<Urgent>,
    /// Whether no more data is read from the stack.
    ended: bool,
    /// The end of sending, after the data in `to_send`.
    end: Option<End>,
}

/// The way in which sending ends after the last data.
#[derive(Clone, Copy)]
enum End {
    Shutdown(mtcp_proto::Shutdown),
    Close,
}

struct Server {
    engine: Engine,
    commands: Consumer<Option<Command>>,
    events: Sender<Event>,
    chunks: Chunks,
    engine_sockets: Vec<EngineSocket>,
    status: Arc<EngineStatus>,
    /// Whether there was work since the last short sleep.
    may_sleep_short: bool,
}

/// The reason why a paired engine cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PairedError {
    /// There are no threads or descriptors left.
    #[error("cannot start a thread: {0}")]
    System(#[from] io::Error),
    /// It would keep all capabilities.
    #[error("cannot drop capabilities: {0}")]
    Capabilities(io::Error),
    /// Its system calls cannot be restricted.
    #[error("{0}")]
    Seccomp(#[from] SeccompError),
}

/// Starts the engine's thread; returns the application's side. Dropping that ends the thread.
///
/// # Errors
/// The errors of pthread_create(3), eventfd(2), capset(2) and seccomp(2).
pub(crate) fn start(
    engine: Engine,
    cpu: Option<usize>,
    has_filter: bool,
) -> Result<Application, PairedError> {
    let alarm = Arc::new(Alarm::new()?);
    let (command_producer, commands) = ring(SLOTS);
    let (event_producer, events) = ring(SLOTS);
    let status = Arc::new(EngineStatus::default());
    let engine_alarm = Arc::clone(engine.alarm());
    let addresses = engine.addresses().to_vec();
    let server = Server {
        commands,
        events: Sender::new(event_producer, Arc::clone(&alarm)),
        chunks: Chunks::default(),
        engine_sockets: Vec::new(),
        status: Arc::clone(&status),
        may_sleep_short: false,
        engine,
    };
    let name = format!("mtcp-{}", server.engine.core());
    let ending = Ending { status: Arc::clone(&status), alarm: Arc::clone(&alarm) };
    let (restricted, outcome) = sync_channel(1);
    let thread = thread::Builder::new().name(name).spawn(move || {
        // It is dropped after the server, when nothing more can be published.
        let _ending = ending;
        let mut server = server;
        if let Some(Err(error)) = cpu.map(crate::system::pin) {
            tracing::warn!(cpu, %error, "the engine runs wherever the system puts it");
        }
        let outcome = restrict(has_filter);
        let is_restricted = outcome.is_ok();
        // The receiver waits for it.
        let _ = restricted.send(outcome);
        if is_restricted {
            server.run();
        }
    })?;
    // Without a message the thread has panicked, which its sockets report.
    outcome.recv().unwrap_or(Ok(()))?;
    let sender = Sender::new(command_producer, engine_alarm);
    Ok(Application::new(sender, events, alarm, status, addresses, thread))
}

/// Restricts the calling thread to what an engine needs.
fn restrict(has_filter: bool) -> Result<(), PairedError> {
    crate::sandbox::drop_capabilities().map_err(PairedError::Capabilities)?;
    if has_filter { Ok(crate::sandbox::enter()?) } else { Ok(()) }
}

/// Reports to the application that the engine has ended, also by a panic, and wakes it.
struct Ending {
    status: Arc<EngineStatus>,
    alarm: Arc<Alarm>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let unknown = self.status.failure.set(EngineFailure::Panicked);
        if unknown.is_ok() && thread::panicking() {
            tracing::error!("the engine has panicked: its sockets fail with ENETDOWN");
        }
        self.alarm.force();
    }
}

impl Server {
    fn run(&mut self) {
        while !self.status.stop.load(Ordering::Acquire) {
            if self.turn().is_err() {
                let failure = self.engine.failure().unwrap_or(EngineFailure::Panicked);
                let core = self.engine.core();
                tracing::error!(core, %failure, "the engine has failed");
                // Nothing else sets it before the thread ends.
                let _ = self.status.failure.set(failure);
                break;
            }
        }
        self.events.publish();
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut busy = self.engine.receive()?;
        // The caller wanted a check of the state above: the report, and the order to stop.
        self.engine.alarm().answer();
        while let Some((socket, readiness)) = self.engine.stack().next_event() {
            self.notify_readiness(socket, readiness);
        }
        busy |= self.process_commands();
        self.engine.transmit()?;
        if self.status.finishing.load(Ordering::Acquire) && self.engine.unfinished() == 0 {
            self.status.finishing.store(false, Ordering::Relaxed);
            self.events.send(Event::Finished);
        }
        self.events.publish();
        if busy {
            self.may_sleep_short = true;
            return Ok(());
        }
        let mut limit =
            if std::mem::take(&mut self.may_sleep_short) && self.events.alarm().is_awake() {
                self.engine.prepare_for(Sleep::Short, Some(SHORT_SLEEP))
            } else {
                self.engine.prepare_to_sleep(self.events.is_stuck().then_some(STUCK))
            };
        if !self.commands.is_empty() || self.status.stop.load(Ordering::Acquire) {
            limit = Some(Duration::ZERO);
        }
        self.engine.sleep(limit)
    }

    /// Executes the application's commands; true if there were any.
    fn process_commands(&mut self) -> bool {
        let mut any = false;
        for _ in 0..SLOTS {
            let Some(Some(command)) = self.commands.read(Option::take) else { break };
            any = true;
            match command {
                Command::Send { socket, chunk, send_flags } => self.send(socket, chunk, send_flags),
                Command::Taken { socket, chunk } => self.taken(socket, chunk),
                Command::Accepted { listener } => {
                    if let Some(engine_socket) = self.engine_socket(listener) {
                        engine_socket.offered = engine_socket.offered.saturating_sub(1);
                    }
                    self.offer(listener);
                }
                Command::Shutdown { socket, how } => self.end(socket, End::Shutdown(how)),
                Command::Close { socket } => self.end(socket, End::Close),
                Command::Abort { socket } => self.abort(socket),
                Command::Window { socket, bytes } => {
                    if let Some(engine_socket) = self.open(socket) {
                        engine_socket.window = bytes.max(WINDOW_BYTES);
                    }
                    self.deliver(socket);
                }
                Command::Options { socket, options } => {
                    let now = self.engine.now();
                    // The options were checked; a connection that is gone needs no report.
                    let _ = self.engine.stack().set_options(now, socket, &options);
                }
                Command::Call(call) => {
                    call(&mut self.engine);
                    self.events.send(Event::Called);
                }
                Command::Open(opening) => {
                    let outcome = opening(&mut self.engine);
                    let opened = outcome.map(|socket| (socket, self.known(socket)));
                    self.events.send(Event::Opened(opened));
                }
            }
        }
        self.commands.release();
        any
    }

    /// The state of a socket that the application has.
    fn engine_socket(&mut self, socket: SocketId) -> Option<&mut EngineSocket> {
        let engine_socket = self.engine_sockets.get_mut(socket.index as usize)?;
        (engine_socket.open && engine_socket.generation == socket.generation)
            .then_some(engine_socket)
    }

    /// The state of a socket, created if the socket is new.
    fn open(&mut self, socket: SocketId) -> Option<&mut EngineSocket> {
        let index = socket.index as usize;
        if self.engine.stack().readiness(socket).is_err() {
            return None;
        }
        if index >= self.engine_sockets.len() {
            self.engine_sockets.resize_with(index + 1, EngineSocket::default);
        }
        let engine_socket = &mut self.engine_sockets[index];
        if !engine_socket.open || engine_socket.generation != socket.generation {
            *engine_socket = EngineSocket {
                generation: socket.generation,
                open: true,
                window: WINDOW_BYTES,
                ..EngineSocket::default()
            };
            engine_socket.listener =
                self.engine.stack().info(socket).is_ok_and(|info| info.remote.is_none());
        }
        self.engine_sockets.get_mut(index)
    }

    fn forget(&mut self, socket: SocketId) {
        let Some(engine_socket) = self.engine_socket(socket) else { return };
        let engine_socket = std::mem::take(engine_socket);
        for (chunk, _) in engine_socket.to_send {
            self.events.send(Event::Sent { socket, chunk });
        }
    }

    fn send(&mut self, socket: SocketId, chunk: Chunk, send_flags: SendFlags) {
        match self.open(socket) {
            Some(engine_socket) => engine_socket.to_send.push_back((chunk, send_flags)),
            None => self.events.send(Event::Sent { socket, chunk }),
        }
        self.flush(socket);
    }

    /// Passes the data that waits to be sent to the stack, and then the end of sending.
    fn flush(&mut self, socket: SocketId) {
        loop {
            let now = self.engine.now();
            let Some(engine_socket) = self.engine_socket(socket) else { return };
            let Some((mut chunk, send_flags)) = engine_socket.to_send.pop_front() else { break };
            match self.engine.stack().send_as(now, socket, chunk.bytes(), send_flags) {
                Ok(bytes) => chunk.consume(bytes),
                Err(Error::WouldBlock) => {
                    if let Some(engine_socket) = self.engine_socket(socket) {
                        engine_socket.to_send.push_front((chunk, send_flags));
                    }
                    return;
                }
                // The connection is over; another event reports that.
                Err(_) => chunk.consume(usize::MAX),
            }
            if chunk.len() > 0 {
                if let Some(engine_socket) = self.engine_socket(socket) {
                    engine_socket.to_send.push_front((chunk, send_flags));
                }
                continue;
            }
            self.events.send(Event::Sent { socket, chunk });
        }
        let now = self.engine.now();
        match self.engine_socket(socket).and_then(|engine_socket| engine_socket.end.take()) {
            Some(End::Shutdown(how)) => {
                // The connection may have failed in the meantime; another event reports that.
                let _ = self.engine.stack().shutdown(now, socket, how);
                self.ready(socket);
            }
            Some(End::Close) => {
                self.forget(socket);
                self.engine.close(socket);
            }
            None => {}
        }
    }

    fn end(&mut self, socket: SocketId, end: End) {
        let now = self.engine.now();
        let Some(engine_socket) = self.open(socket) else { return };
        if let End::Shutdown(mtcp_proto::Shutdown::Receive) = end {
            let _ = self.engine.stack().shutdown(now, socket, mtcp_proto::Shutdown::Receive);
            return self.deliver(socket);
        }
        // The chunks that the application has read were returned before. The rest, which it did not
        // see, is unread data.
        if matches!(end, End::Close) && engine_socket.given > 0 {
            return self.abort(socket);
        }
        engine_socket.end = Some(end);
        self.flush(socket);
    }

    fn abort(&mut self, socket: SocketId) {
        self.forget(socket);
        self.engine.abort(socket);
    }

    /// Resets a connection if data arrives after a close (RFC 2525, section 2.17), also while the
    /// end of sending waits for earlier data.
    fn reset_if_unread(&mut self, socket: SocketId) {
        if self.engine.stack().info(socket).is_ok_and(|info| info.receive_queue > 0) {
            self.abort(socket);
        }
    }

    fn taken(&mut self, socket: SocketId, chunk: Chunk) {
        if let Some(engine_socket) = self.engine_socket(socket) {
            engine_socket.given = engine_socket.given.saturating_sub(chunk.charge());
        }
        self.chunks.deliver(chunk);
        self.deliver(socket);
    }

    /// Processes an event of the stack's socket.
    fn notify_readiness(&mut self, socket: SocketId, readiness: Readiness) {
        let Some(engine_socket) = self.open(socket) else { return };
        if engine_socket.listener {
            return self.offer(socket);
        }
        self.ready(socket);
        if readiness.intersects(Readiness::WRITABLE) {
            self.flush(socket);
        }
        self.deliver(socket);
    }

    fn ready(&mut self, socket: SocketId) {
        let stack = self.engine.stack();
        let Ok(readiness) = stack.readiness(socket) else { return };
        let established = stack.was_established(socket);
        // Senders see an error at once; receivers see it after the data.
        let error = stack.take_error(socket);
        self.events.send(Event::Ready { socket, readiness, established });
        if let Some(error) = error {
            self.events.send(Event::Failed { socket, error });
        }
        if let Some((urgent, _)) = self.engine.stack().urgent(socket)
            && let Some(engine_socket) = self.open(socket)
            && engine_socket.urgent.replace(urgent) != Some(urgent)
        {
            self.events.send(Event::Urgent { socket, urgent });
        }
    }

    fn known(&mut self, socket: SocketId) -> Option<Box<CachedAnswers>> {
        let stack = self.engine.stack();
        let (info, options) = (stack.info(socket).ok()?, stack.options(socket).ok()?);
        Some(Box::new(CachedAnswers { names: (info.local, info.remote), options }))
    }

    /// Gives waiting connections to the application.
    fn offer(&mut self, listener: SocketId) {
        while self.open(listener).is_some_and(|engine_socket| engine_socket.offered < ACCEPT_WINDOW)
        {
            let Ok(socket) = self.engine.stack().accept(listener) else { return };
            let known = self.known(socket);
            self.events.send(Event::Accepted { listener, socket, known });
            if let Some(engine_socket) = self.engine_socket(listener) {
                engine_socket.offered += 1;
            }
            // Events of the connection may have occurred before it was taken.
            self.ready(socket);
            self.open(socket);
            self.deliver(socket);
        }
    }

    /// Gives data to the application, as much as may be in flight.
    fn deliver(&mut self, socket: SocketId) {
        loop {
            let now = self.engine.now();
            let Some(engine_socket) = self.engine_socket(socket) else { return };
            if engine_socket.listener
                || engine_socket.ended
                || engine_socket.given >= engine_socket.window
            {
                return;
            }
            if matches!(engine_socket.end, Some(End::Close)) {
                return self.reset_if_unread(socket);
            }
            let mut chunk = self.chunks.take();
            let stack = self.engine.stack();
            let outcome = chunk.fill(|room| stack.receive(now, socket, room));
            let charge = if matches!(outcome, Ok(1..)) { chunk.charge() } else { 0 };
            let over = stack.readiness(socket).unwrap_or(Readiness::CLOSED);
            let by_peer = stack.has_peer_ended(socket);
            let (ended, event) = match outcome {
                Ok(1..) => (false, Event::Data { socket, chunk }),
                // After a shutdown of receiving, data may still arrive.
                Ok(0) if over.intersects(Readiness::PEER_CLOSED.with(Readiness::CLOSED)) => {
                    self.chunks.deliver(chunk);
                    (true, Event::Ended { socket, by_peer })
                }
                Ok(0) | Err(Error::WouldBlock | Error::NotConnected) => {
                    return self.chunks.deliver(chunk);
                }
                Err(error) => {
                    self.chunks.deliver(chunk);
                    (false, Event::Failed { socket, error })
                }
            };
            self.events.send(event);
            if let Some(engine_socket) = self.engine_socket(socket) {
                engine_socket.ended = ended;
                engine_socket.given += charge;
            }
        }
    }
}
