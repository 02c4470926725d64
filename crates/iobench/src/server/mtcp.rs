//! User-level TCP: the same echo loop over the sockets of `mtcp`, with a stack for each thread.
//!
//! In the mode `complete` the serving thread also runs the stack, so its CPU time is all of this
//! side's but what the kernel uses to carry packets. In the mode `paired` a second thread on the
//! same CPU runs the stack, as in the paper.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use mtcp::config::{DeviceKind, Mode};
use mtcp::{Context, Descriptor, EpollControl, EpollEvent, Events, Family, Flags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Error, Result};
use crate::server::framing::{Answers, Flow, Sink};
use crate::server::listener::Listening;
use crate::server::response::Responder;
use crate::server::shared::Counters;
use crate::server::{READ_BUFFER_BYTES, Server, ThreadContext};
use crate::stack::{self, Kind, failed};
use crate::sys::borrow;

const EVENTS_PER_WAIT: usize = 512;
const LISTENER_TOKEN: u64 = u64::MAX;
/// More connections than a slot opens at the same time.
const BACKLOG: u32 = 65_536;
/// Iterations without sleeping after which a thread checks whether it has to end.
const TURNS_PER_LOOK: u32 = 64;
const NO_TIME: Option<Duration> = Some(Duration::ZERO);

/// A server with one loop per thread and stack, for any device.
pub(crate) struct StackServer {
    name: &'static str,
    describe: &'static str,
    kind: Kind,
}

/// The architecture of the paper, in the mode that is faster on one core.
pub(crate) static XDP: StackServer = StackServer {
    name: "mtcp",
    describe: "TCP in user space over AF_XDP, run to completion; needs `compare --path veth`",
    kind: Kind::USUAL,
};

/// The mode of the paper.
pub(crate) static PAIRED: StackServer = StackServer {
    name: "mtcp-paired",
    describe: "the same with a second thread for each stack, on the same CPU",
    kind: Kind { mode: Mode::Paired, ..Kind::USUAL },
};

pub(crate) static PACKET: StackServer = StackServer {
    name: "mtcp-packet",
    describe: "mtcp over AF_PACKET, which needs no BPF",
    kind: Kind { device: DeviceKind::Packet, ..Kind::USUAL },
};

pub(crate) static TAP: StackServer = StackServer {
    name: "mtcp-tap",
    describe: "mtcp over a TAP device, whose other end is the clients' kernel",
    kind: Kind { device: DeviceKind::Tap, ..Kind::USUAL },
};

impl Server for StackServer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn describe(&self) -> &'static str {
        self.describe
    }

    fn limits(&self) -> &'static str {
        "262144 connections for each stack"
    }

    fn check_connections(&self, connections: usize) -> Result<()> {
        let most = stack::settings(1).tcp.max_sockets as usize;
        if connections < most {
            return Ok(());
        }
        Err(Error::setup(
            format!("a stack has fewer than {most} connections"),
            "ask for fewer --connections",
        ))
    }

    fn works_in_its_threads(&self) -> bool {
        self.kind.mode == Mode::Complete
    }

    fn listening(&self) -> Listening {
        Listening::Own
    }

    fn stack(&self) -> Option<Kind> {
        Some(self.kind)
    }

    fn run_thread(&self, context: &mut ThreadContext<'_>) -> Result<()> {
        let Some(stacks) = context.stacks else {
            return Err(Error::setup("a server has no stack", "report this as a bug"));
        };
        let sockets = stack::context(stacks, context.index)?;
        let mut stack = EchoLoop::new(sockets, context.address)?;
        context.ready();
        let (stop, responder, block) = (context.stop(), context.responder, context.block);
        stack.run(stop, responder, &mut context.counters, |counters| block.publish(counters))
    }
}

/// The descriptors of the end and of the stack's device, for poll(2).
struct Waiting(Vec<PollFd<'static>>);

impl Waiting {
    fn new(stop: RawFd, descriptors: &[RawFd]) -> Waiting {
        let watched = |&fd: &RawFd| PollFd::from_borrowed_fd(borrow(fd), PollFlags::IN);
        Waiting(std::iter::once(&stop).chain(descriptors).map(watched).collect())
    }

    /// Sleeps until there is something to do, at most `limit`; true at the end of the server.
    fn is_over_within(&mut self, limit: Option<Duration>) -> bool {
        let time = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs().min(3600) as i64,
            tv_nsec: limit.subsec_nanos().into(),
        });
        let ready = poll(&mut self.0, time.as_ref());
        ready.is_ok_and(|ready| ready > 0) && !self.0[0].revents().is_empty()
    }
}

struct Connection {
    socket: Descriptor,
    answers: Answers,
}

/// One stack's listener and connections, edge-triggered.
pub(crate) struct EchoLoop {
    sockets: Context,
    epoll: Descriptor,
    listener: Descriptor,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
    events: Vec<EpollEvent>,
}

impl EchoLoop {
    pub(crate) fn new(mut sockets: Context, address: SocketAddr) -> Result<EchoLoop> {
        let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
        let listener = sockets.socket(family).map_err(failed("make a listening socket"))?;
        sockets.bind(listener, address).map_err(failed("bind the listening socket"))?;
        sockets.set_nonblocking(listener, true).map_err(failed("make a socket not block"))?;
        sockets.listen(listener, BACKLOG).map_err(failed("listen"))?;
        let epoll = sockets.epoll_create().map_err(failed("make an epoll"))?;
        let event = EpollEvent { events: Events::IN, data: LISTENER_TOKEN };
        sockets
            .epoll_ctl(epoll, listener, EpollControl::Add(event))
            .map_err(failed("watch the listening socket"))?;
        Ok(EchoLoop {
            sockets,
            epoll,
            listener,
            connections: Vec::new(),
            free: Vec::new(),
            buffer: vec![0; READ_BUFFER_BYTES],
            events: vec![EpollEvent::default(); EVENTS_PER_WAIT],
        })
    }

    /// Serves until `stop` becomes readable; reports the counters after every iteration.
    pub(crate) fn run(
        &mut self,
        stop: RawFd,
        responder: &Responder,
        counters: &mut Counters,
        mut publish: impl FnMut(&Counters),
    ) -> Result<()> {
        let mut waiting = Waiting::new(stop, &self.sockets.system_descriptors());
        let mut turns = 0;
        loop {
            let count = self.turn(responder, counters)?;
            publish(counters);
            turns += 1;
            if count > 0 && turns < TURNS_PER_LOOK {
                continue;
            }
            turns = 0;
            let limit = if count > 0 { NO_TIME } else { self.sockets.prepare_to_sleep(None) };
            if waiting.is_over_within(limit) {
                return Ok(());
            }
        }
    }

    /// Runs one iteration of the stack and serves its events, without waiting; returns the number
    /// of events. The error is the device's.
    pub(crate) fn turn(&mut self, responder: &Responder, counters: &mut Counters) -> Result<usize> {
        let count = self
            .sockets
            .epoll_wait(self.epoll, &mut self.events, NO_TIME)
            .map_err(failed("move packets"))?;
        for position in 0..count {
            let event = self.events[position];
            if event.data == LISTENER_TOKEN {
                self.accept_all(counters);
            } else {
                self.serve(event.data as usize, event.events, responder, counters);
            }
        }
        Ok(count)
    }

    fn accept_all(&mut self, counters: &mut Counters) {
        loop {
            let socket = match self.sockets.accept(self.listener) {
                Ok(socket) => socket,
                Err(error) => {
                    let temporary = [libc::EAGAIN, libc::ECONNABORTED].map(Some);
                    if !temporary.contains(&error.raw_os_error()) {
                        counters.errors += 1;
                    }
                    return;
                }
            };
            counters.accepted += 1;
            let place = self.free.pop().unwrap_or(self.connections.len());
            if place == self.connections.len() {
                self.connections.push(None);
            }
            let answers = Answers::default();
            self.connections[place] = Some(Connection { socket, answers });
            if !self.watch(place, false, EpollControl::Add) {
                self.end(place, counters);
            }
        }
    }

    /// Registers a connection for input, and for room for output if `output`.
    fn watch(
        &mut self,
        place: usize,
        output: bool,
        control: fn(EpollEvent) -> EpollControl,
    ) -> bool {
        let Some(connection) = &self.connections[place] else { return true };
        let mut events = Events::IN | Events::READ_HANG_UP | Events::EDGE;
        if output {
            events |= Events::OUT;
        }
        let control = control(EpollEvent { events, data: place as u64 });
        self.sockets.epoll_ctl(self.epoll, connection.socket, control).is_ok()
    }

    fn serve(
        &mut self,
        place: usize,
        events: Events,
        responder: &Responder,
        counters: &mut Counters,
    ) {
        let Some(Some(connection)) = self.connections.get_mut(place) else { return };
        let mut connection = Session { connection, sockets: &mut self.sockets };
        let was_blocked = connection.connection.answers.are_blocked();
        let ended = events.intersects(Events::READ_HANG_UP | Events::HANG_UP | Events::ERROR);
        let next = connection.advance(ended, &mut self.buffer, responder, counters);
        match next {
            Next::Wait if was_blocked => {
                self.watch(place, false, EpollControl::Modify);
            }
            Next::Room if !was_blocked => {
                self.watch(place, true, EpollControl::Modify);
            }
            Next::End => self.end(place, counters),
            Next::Wait | Next::Room => {}
        }
    }

    fn end(&mut self, place: usize, counters: &mut Counters) {
        if let Some(connection) = self.connections[place].take() {
            // The descriptor belongs to this context, so closing fails only if the device fails,
            // which the next iteration reports.
            let _ = self.sockets.close(connection.socket);
            counters.closed += 1;
            self.free.push(place);
        }
    }
}

/// What a connection waits for next.
enum Next {
    Wait,
    Room,
    End,
}

/// A connection and the stack that has it.
struct Session<'a> {
    connection: &'a mut Connection,
    sockets: &'a mut Context,
}

struct Stream<'a>(Descriptor, &'a mut Context);

impl Sink for Stream<'_> {
    fn send(&mut self, bytes: &[u8], counters: &mut Counters) -> Result<usize, i32> {
        let sent = self.1.send(self.0, bytes, Flags::DONT_WAIT);
        let sent = sent.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        counters.bytes_sent += sent as u64;
        Ok(sent)
    }
}

impl Session<'_> {
    /// Reads and answers until nothing is left or the peer takes no more.
    fn advance(
        &mut self,
        ended: bool,
        buffer: &mut [u8],
        responder: &Responder,
        counters: &mut Counters,
    ) -> Next {
        let Connection { socket, answers } = &mut *self.connection;
        let socket = *socket;
        if answers.are_blocked() {
            let mut sink = Stream(socket, self.sockets);
            match answers.resume(responder, &mut sink, counters) {
                Ok(Flow::Done) => {}
                Ok(Flow::Blocked) => return Next::Room,
                Ok(Flow::Stopping) => return Next::End,
                Err(error) => return failure(error, counters),
            }
        }
        loop {
            let count = match self.sockets.recv(socket, buffer, Flags::DONT_WAIT) {
                Ok(0) => return Next::End,
                Ok(count) => count,
                Err(error) => match error.raw_os_error().unwrap_or(libc::EIO) {
                    libc::EAGAIN => return Next::Wait,
                    error => return failure(error, counters),
                },
            };
            counters.bytes_received += count as u64;
            let mut sink = Stream(socket, self.sockets);
            match answers.feed(&buffer[..count], responder, &mut sink, counters) {
                Ok(Flow::Done) => {}
                Ok(Flow::Blocked) => return Next::Room,
                Ok(Flow::Stopping) => return Next::End,
                Err(error) => return failure(error, counters),
            }
            // A short read has emptied the socket, and the next byte causes a new edge. The end of
            // the stream that the current event has reported causes no further edge.
            if count < buffer.len() && !ended {
                return Next::Wait;
            }
        }
    }
}

fn failure(error: i32, counters: &mut Counters) -> Next {
    // The benchmark's clients end every connection with RST.
    if !matches!(error, libc::ECONNRESET | libc::EPIPE) {
        counters.errors += 1;
    }
    Next::End
}
