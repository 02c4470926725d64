//! The report's baseline (section 2.2): one level-triggered epoll loop per thread and non-blocking
//! sockets, on one listening socket that all threads share, or on one per CPU. The same loop also
//! runs edge-triggered.
//!
//! The shared listener is registered without EPOLLEXCLUSIVE, as in the report: every idle thread
//! wakes up for a new connection. With EPOLLEXCLUSIVE the load of the threads would be less even.

use rustix::net::SocketFlags;

use crate::error::{Context, Result};
use crate::server::listener::Listening;
use crate::server::stream::{Next, Rest, Table, accept};
use crate::server::{READ_BUFFER_BYTES, Server, ThreadContext};
use crate::sys::epoll::{Epoll, event_buffer};

/// Most events of one wait; enough that the number of ready connections limits a batch.
const EVENTS_PER_WAIT: usize = 512;
const LISTENER_TOKEN: u64 = u64::MAX;
const STOP_TOKEN: u64 = u64::MAX - 1;
/// Most reads of one edge-triggered connection before other connections are served.
const READS_PER_TURN: usize = 16;
/// Events for which an edge-triggered connection is registered, once.
const EDGES: libc::c_int = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;

/// The epoll server, for all ways to listen and both kinds of events.
pub(crate) struct EpollServer {
    name: &'static str,
    describe: &'static str,
    listening: Listening,
    edge_triggered: bool,
}

/// The report's baseline.
pub(crate) static SHARED: EpollServer = EpollServer {
    name: "epoll",
    describe: "level-triggered epoll loop per thread, one listening socket shared by all",
    listening: Listening::Shared,
    edge_triggered: false,
};

/// The stronger baseline: the same loop with partitioned listening sockets.
pub(crate) static PARTITIONED: EpollServer = EpollServer {
    name: "epoll-partitioned",
    describe: "level-triggered epoll loop per thread, a listening socket per CPU (SO_REUSEPORT)",
    listening: Listening::PerCpu,
    edge_triggered: false,
};

/// Edge-triggered: a connection is read until nothing is left.
pub(crate) static EDGE: EpollServer = EpollServer {
    name: "epoll-edge",
    describe: "edge-triggered epoll loop per thread, which reads until a short read or EAGAIN",
    listening: Listening::Shared,
    edge_triggered: true,
};

impl Server for EpollServer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn describe(&self) -> &'static str {
        self.describe
    }

    fn listening(&self) -> Listening {
        self.listening
    }

    fn run_thread(&self, context: &mut ThreadContext<'_>) -> Result<()> {
        EventLoop::new(context, self.edge_triggered)?.run()
    }
}

struct EventLoop<'a, 'b> {
    context: &'a mut ThreadContext<'b>,
    epoll: Epoll,
    edge_triggered: bool,
    table: Table,
    buffer: Vec<u8>,
    /// Connections that were interrupted before all bytes were read; no further event reports those
    /// bytes.
    unfinished: Vec<usize>,
}

impl<'a, 'b> EventLoop<'a, 'b> {
    fn new(context: &'a mut ThreadContext<'b>, edge_triggered: bool) -> Result<Self> {
        let epoll = Epoll::new()?;
        let watch = |fd, token| {
            epoll
                .add(fd, token, libc::EPOLLIN)
                .context("watch a descriptor", "raise fs.epoll.max_user_watches")
        };
        watch(context.shared_listener(), LISTENER_TOKEN)?;
        watch(context.stop(), STOP_TOKEN)?;
        Ok(EventLoop {
            context,
            epoll,
            edge_triggered,
            table: Table::default(),
            buffer: vec![0; READ_BUFFER_BYTES],
            unfinished: Vec::new(),
        })
    }

    fn run(&mut self) -> Result<()> {
        let mut events = event_buffer(EVENTS_PER_WAIT);
        let mut turns = Vec::new();
        self.context.ready();
        loop {
            self.context.counters.system_calls += 1;
            self.context.publish();
            let timeout_ms = if self.unfinished.is_empty() { -1 } else { 0 };
            let count = self.epoll.wait(&mut events, timeout_ms);
            for event in &events[..count] {
                let (token, events) = (event.u64, event.events);
                match token {
                    STOP_TOKEN => return Ok(()),
                    LISTENER_TOKEN => self.accept_all()?,
                    _ if self.edge_triggered => self.serve_edge(token as usize, events),
                    _ => self.serve(token as usize),
                }
            }
            // Each connection once, although an event may have added one to the list again.
            turns.append(&mut self.unfinished);
            turns.sort_unstable();
            turns.dedup();
            for index in turns.drain(..) {
                self.drain(index, true);
            }
        }
    }

    /// Accepts until the accept queue is empty.
    fn accept_all(&mut self) -> Result<()> {
        let listener = self.context.shared_listener();
        let counters = &mut self.context.counters;
        while let Some(stream) = accept(listener, SocketFlags::NONBLOCK, counters)? {
            let fd = stream.raw();
            let index = self.table.insert(stream);
            let interest = if self.edge_triggered { EDGES } else { libc::EPOLLIN };
            counters.system_calls += 1;
            if self.epoll.add(fd, index as u64, interest).is_err() {
                counters.errors += 1;
                self.table.close(index, counters);
            }
        }
        Ok(())
    }

    /// Handles one connection's event. A wait returns at most one event per connection, so an index
    /// that is freed and used again within a batch cannot get an event of its former connection.
    ///
    /// One read and, usually, one write. Level-triggered: remaining bytes cause the next event.
    fn serve(&mut self, index: usize) {
        let Some(stream) = self.table.get(index) else { return };
        let (responder, counters) = (self.context.responder, &mut self.context.counters);
        let was_blocked = stream.is_blocked();
        let next = if was_blocked {
            stream.write(responder, counters)
        } else {
            stream.read(&mut self.buffer, responder, counters)
        };
        match next {
            Next::Read(_) if was_blocked => self.watch(index, libc::EPOLLIN),
            Next::Write if !was_blocked => self.watch(index, libc::EPOLLOUT),
            Next::Read(_) | Next::Write => {}
            Next::End => self.table.close(index, counters),
        }
    }

    fn watch(&mut self, index: usize, interest: libc::c_int) {
        let Some(stream) = self.table.get(index) else { return };
        self.context.counters.system_calls += 1;
        if self.epoll.modify(stream.raw(), index as u64, interest).is_err() {
            self.context.counters.errors += 1;
            self.table.close(index, &mut self.context.counters);
        }
    }

    fn serve_edge(&mut self, index: usize, events: u32) {
        let ending = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;
        self.drain(index, events & ending as u32 != 0);
    }

    /// Serves a connection until there is nothing left to read or no room to write. The end of the
    /// stream may have been reported together with its last bytes; a short read then does not mean
    /// that nothing is left.
    fn drain(&mut self, index: usize, ending: bool) {
        let Some(stream) = self.table.get(index) else { return };
        let (responder, counters) = (self.context.responder, &mut self.context.counters);
        for _ in 0..READS_PER_TURN {
            let next = if stream.is_blocked() {
                stream.write(responder, counters)
            } else {
                stream.read(&mut self.buffer, responder, counters)
            };
            match next {
                Next::Read(Rest::Nothing) => return,
                Next::Read(Rest::Short) if !ending => return,
                Next::Read(_) => {}
                Next::Write => return,
                Next::End => return self.table.close(index, counters),
            }
        }
        self.unfinished.push(index);
    }
}
