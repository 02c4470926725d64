//! The engine's side: commands to the stack, and what the stack says to events.

use super::application::Application;
use super::chunk::{Chunk, Chunks};
use super::sender::Sender;
use super::{ACCEPT_WINDOW, Command, Event, Fate, Known, SLOTS, WINDOW_BYTES};
use crate::engine::{Alarm, Engine, Port};
use crate::spsc::{Consumer, Sleep, ring};
use mtcp_proto::{Error, Manner, Readiness, SocketId, Urgent};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// While something waits for room in a ring, so long until the next look.
const STUCK: Duration = Duration::from_micros(200);
/// The first sleep after work, while the application is awake. Commands collect meanwhile: the
/// application's next waiting call wakes the engine, not each write.
const SHORT_SLEEP: Duration = Duration::from_micros(200);

/// What is on its way for one of the stack's sockets.
#[derive(Default)]
struct Place {
    generation: u32,
    /// The application has it.
    open: bool,
    listener: bool,
    /// Connections that the application was given and has not accepted.
    offered: u32,
    to_send: VecDeque<(Chunk, Manner)>,
    /// Bytes that the application has and has not read.
    given: usize,
    window: usize,
    /// What was told of urgent data.
    urgent: Option<Urgent>,
    /// Nothing more is read from the stack.
    ended: bool,
    /// The end of sending that waits for `to_send`.
    end: Option<End>,
}

/// What comes after the last data.
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
    places: Vec<Place>,
    fate: Arc<Fate>,
    /// There was work since the last short sleep.
    may_sleep_short: bool,
}

/// Starts the engine's thread; gives the application's side. Dropping that ends the thread.
///
/// # Errors
/// Of pthread_create(3) and eventfd(2).
pub(crate) fn start(engine: Engine, cpu: Option<usize>) -> io::Result<Application> {
    let alarm = Arc::new(Alarm::new()?);
    let (command_producer, commands) = ring(SLOTS);
    let (event_producer, events) = ring(SLOTS);
    let fate = Arc::new(Fate::default());
    let engine_alarm = Arc::clone(engine.alarm());
    let addresses = engine.addresses().to_vec();
    let server = Server {
        commands,
        events: Sender::new(event_producer, Arc::clone(&alarm)),
        chunks: Chunks::default(),
        places: Vec::new(),
        fate: Arc::clone(&fate),
        may_sleep_short: false,
        engine,
    };
    let name = format!("mtcp-{}", server.engine.core());
    let ending = Ending { fate: Arc::clone(&fate), alarm: Arc::clone(&alarm) };
    let thread = thread::Builder::new().name(name).spawn(move || {
        // It is dropped after the server, when nothing more can be published.
        let _ending = ending;
        let mut server = server;
        if let Some(Err(error)) = cpu.map(crate::system::pin) {
            tracing::warn!(cpu, %error, "the engine runs wherever the system puts it");
        }
        server.run();
    })?;
    let sender = Sender::new(command_producer, engine_alarm);
    Ok(Application::new(sender, events, alarm, fate, addresses, thread))
}

/// Tells the application that the engine has ended, also by a panic: one that sleeps must see it.
struct Ending {
    fate: Arc<Fate>,
    alarm: Arc<Alarm>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let failed = &self.fate.failed;
        let unknown =
            failed.compare_exchange(0, libc::ENETDOWN, Ordering::AcqRel, Ordering::Acquire);
        if unknown.is_ok() && thread::panicking() {
            tracing::error!("the engine has panicked: its sockets fail with ENETDOWN");
        }
        self.alarm.force();
    }
}

impl Server {
    fn run(&mut self) {
        while !self.fate.stop.load(Ordering::Acquire) {
            if let Err(error) = self.turn() {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                self.fate.failed.store(errno, Ordering::Release);
                tracing::error!(core = self.engine.core(), %error, "the packet device has failed");
                break;
            }
        }
        self.events.publish();
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut busy = self.engine.receive()?;
        // Who called wants a look at what was done above: the snapshot, and the order to stop.
        self.engine.alarm().answer();
        while let Some((socket, readiness)) = self.engine.stack().next_event() {
            self.tell(socket, readiness);
        }
        busy |= self.obey();
        self.engine.transmit()?;
        if self.fate.finishing.load(Ordering::Acquire) && self.engine.unfinished() == 0 {
            self.fate.finishing.store(false, Ordering::Relaxed);
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
        if !self.commands.is_empty() || self.fate.stop.load(Ordering::Acquire) {
            limit = Some(Duration::ZERO);
        }
        self.engine.sleep(limit)
    }

    /// Does what the application asked for; true if it asked for anything.
    fn obey(&mut self) -> bool {
        let mut any = false;
        for _ in 0..SLOTS {
            let Some(Some(command)) = self.commands.read(Option::take) else { break };
            any = true;
            match command {
                Command::Send { socket, chunk, manner } => self.send(socket, chunk, manner),
                Command::Taken { socket, chunk } => self.taken(socket, chunk),
                Command::Accepted { listener } => {
                    if let Some(place) = self.place(listener) {
                        place.offered = place.offered.saturating_sub(1);
                    }
                    self.offer(listener);
                }
                Command::Shutdown { socket, how } => self.end(socket, End::Shutdown(how)),
                Command::Close { socket } => self.end(socket, End::Close),
                Command::Abort { socket } => self.abort(socket),
                Command::Window { socket, bytes } => {
                    if let Some(place) = self.open(socket) {
                        place.window = bytes.max(WINDOW_BYTES);
                    }
                    self.give(socket);
                }
                Command::Options { socket, options } => {
                    let now = self.engine.now();
                    // They were checked; of a connection that is gone there is nothing to tell.
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

    /// The place of a socket that the application has.
    fn place(&mut self, socket: SocketId) -> Option<&mut Place> {
        let place = self.places.get_mut(socket.index as usize)?;
        (place.open && place.generation == socket.generation).then_some(place)
    }

    /// The same, made if the socket is new to us.
    fn open(&mut self, socket: SocketId) -> Option<&mut Place> {
        let index = socket.index as usize;
        if self.engine.stack().readiness(socket).is_err() {
            return None;
        }
        if index >= self.places.len() {
            self.places.resize_with(index + 1, Place::default);
        }
        let place = &mut self.places[index];
        if !place.open || place.generation != socket.generation {
            *place = Place {
                generation: socket.generation,
                open: true,
                window: WINDOW_BYTES,
                ..Place::default()
            };
            place.listener =
                self.engine.stack().info(socket).is_ok_and(|info| info.remote.is_none());
        }
        self.places.get_mut(index)
    }

    fn forget(&mut self, socket: SocketId) {
        let Some(place) = self.place(socket) else { return };
        let place = std::mem::take(place);
        for (chunk, _) in place.to_send {
            self.events.send(Event::Sent { socket, chunk });
        }
    }

    fn send(&mut self, socket: SocketId, chunk: Chunk, manner: Manner) {
        match self.open(socket) {
            Some(place) => place.to_send.push_back((chunk, manner)),
            None => self.events.send(Event::Sent { socket, chunk }),
        }
        self.flush(socket);
    }

    /// Gives the stack what waits to be sent, and then the end that waits behind it.
    fn flush(&mut self, socket: SocketId) {
        loop {
            let now = self.engine.now();
            let Some(place) = self.place(socket) else { return };
            let Some((mut chunk, manner)) = place.to_send.pop_front() else { break };
            match self.engine.stack().send_as(now, socket, chunk.bytes(), manner) {
                Ok(bytes) => chunk.consume(bytes),
                Err(Error::WouldBlock) => {
                    if let Some(place) = self.place(socket) {
                        place.to_send.push_front((chunk, manner));
                    }
                    return;
                }
                // The connection is over; that is told by an event of its own.
                Err(_) => chunk.consume(usize::MAX),
            }
            if chunk.len() > 0 {
                if let Some(place) = self.place(socket) {
                    place.to_send.push_front((chunk, manner));
                }
                continue;
            }
            self.events.send(Event::Sent { socket, chunk });
        }
        let now = self.engine.now();
        match self.place(socket).and_then(|place| place.end.take()) {
            Some(End::Shutdown(how)) => {
                // It may have failed meanwhile, of which the application hears elsewhere.
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
        let Some(place) = self.open(socket) else { return };
        if let End::Shutdown(mtcp_proto::Shutdown::Receive) = end {
            let _ = self.engine.stack().shutdown(now, socket, mtcp_proto::Shutdown::Receive);
            return self.give(socket);
        }
        // What the application took has come back before: the rest, of which it did not know, is
        // unread data.
        if matches!(end, End::Close) && place.given > 0 {
            return self.abort(socket);
        }
        place.end = Some(end);
        self.flush(socket);
    }

    fn abort(&mut self, socket: SocketId) {
        self.forget(socket);
        self.engine.abort(socket);
    }

    /// Data that comes after a close is taken by none (RFC 2525, section 2.17), also as long as the
    /// end waits for what is to be sent before it.
    fn reset_if_unread(&mut self, socket: SocketId) {
        if self.engine.stack().info(socket).is_ok_and(|info| info.receive_queue > 0) {
            self.abort(socket);
        }
    }

    fn taken(&mut self, socket: SocketId, chunk: Chunk) {
        if let Some(place) = self.place(socket) {
            place.given = place.given.saturating_sub(chunk.charge());
        }
        self.chunks.give(chunk);
        self.give(socket);
    }

    /// The stack has news of a socket.
    fn tell(&mut self, socket: SocketId, readiness: Readiness) {
        let Some(place) = self.open(socket) else { return };
        if place.listener {
            return self.offer(socket);
        }
        self.ready(socket);
        if readiness.intersects(Readiness::WRITABLE) {
            self.flush(socket);
        }
        self.give(socket);
    }

    fn ready(&mut self, socket: SocketId) {
        let stack = self.engine.stack();
        let Ok(readiness) = stack.readiness(socket) else { return };
        let established = stack.was_established(socket);
        // Whoever sends is told at once; whoever receives, after the data.
        let error = stack.take_error(socket);
        self.events.send(Event::Ready { socket, readiness, established });
        if let Some(error) = error {
            self.events.send(Event::Failed { socket, error });
        }
        if let Some((urgent, _)) = self.engine.stack().urgent(socket)
            && let Some(place) = self.open(socket)
            && place.urgent.replace(urgent) != Some(urgent)
        {
            self.events.send(Event::Urgent { socket, urgent });
        }
    }

    fn known(&mut self, socket: SocketId) -> Option<Box<Known>> {
        let stack = self.engine.stack();
        let (info, options) = (stack.info(socket).ok()?, stack.options(socket).ok()?);
        Some(Box::new(Known { names: (info.local, info.remote), options }))
    }

    /// Offers connections to the application.
    fn offer(&mut self, listener: SocketId) {
        while self.open(listener).is_some_and(|place| place.offered < ACCEPT_WINDOW) {
            let Ok(socket) = self.engine.stack().accept(listener) else { return };
            let known = self.known(socket);
            self.events.send(Event::Accepted { listener, socket, known });
            if let Some(place) = self.place(listener) {
                place.offered += 1;
            }
            // Events of the connection may have come before it was taken.
            self.ready(socket);
            self.open(socket);
            self.give(socket);
        }
    }

    /// Gives the application data, as much as may be on its way.
    fn give(&mut self, socket: SocketId) {
        loop {
            let now = self.engine.now();
            let Some(place) = self.place(socket) else { return };
            if place.listener || place.ended || place.given >= place.window {
                return;
            }
            if matches!(place.end, Some(End::Close)) {
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
                // After a shutdown of receiving, data may still come.
                Ok(0) if over.intersects(Readiness::PEER_CLOSED.with(Readiness::CLOSED)) => {
                    self.chunks.give(chunk);
                    (true, Event::Ended { socket, by_peer })
                }
                Ok(0) | Err(Error::WouldBlock | Error::NotConnected) => {
                    return self.chunks.give(chunk);
                }
                Err(error) => {
                    self.chunks.give(chunk);
                    (false, Event::Failed { socket, error })
                }
            };
            self.events.send(event);
            if let Some(place) = self.place(socket) {
                place.ended = ended;
                place.given += charge;
            }
        }
    }
}
