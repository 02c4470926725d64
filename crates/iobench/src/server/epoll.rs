//! The report's baseline (section 2.2): one level-triggered epoll loop per thread and non-blocking
//! sockets, on one listening socket that all threads share, or on one per CPU.
//!
//! The shared listener is registered plainly, without EPOLLEXCLUSIVE, as the report's was: every
//! idle thread wakes for a new connection. EPOLLEXCLUSIVE would trade that for uneven threads.

use std::os::fd::RawFd;

use crate::error::{Context, Result};
use crate::server::listener::Listening;
use crate::server::{READ_BUFFER_BYTES, Server, ThreadContext};
use crate::sys::epoll::{Epoll, event_buffer};
use crate::sys::{errno, socket};

/// Events fetched by one wait; enough that a batch is limited by what is ready.
const EVENTS_PER_WAIT: usize = 512;
const LISTENER_TOKEN: u64 = u64::MAX;
const STOP_TOKEN: u64 = u64::MAX - 1;

/// One loop per thread, whichever way it listens.
pub(crate) struct EpollServer {
    name: &'static str,
    describe: &'static str,
    listening: Listening,
}

/// The report's baseline.
pub(crate) static SHARED: EpollServer = EpollServer {
    name: "epoll",
    describe: "level-triggered epoll loop per thread, one listening socket shared by all",
    listening: Listening::Shared,
};

/// The honest second baseline: the same loop with partitioned listening sockets.
pub(crate) static PARTITIONED: EpollServer = EpollServer {
    name: "epoll-partitioned",
    describe: "level-triggered epoll loop per thread, a listening socket per CPU (SO_REUSEPORT)",
    listening: Listening::PerCpu,
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
        EventLoop::new(context)?.run()
    }
}

/// A connection, or a free place with `fd` -1.
struct Connection {
    fd: RawFd,
    /// Bytes that the socket did not take; `pending[written..]` is still to be sent.
    pending: Vec<u8>,
    written: usize,
}

struct EventLoop<'a, 'b> {
    context: &'a mut ThreadContext<'b>,
    epoll: Epoll,
    connections: Vec<Connection>,
    free: Vec<usize>,
    buffer: Vec<u8>,
}

impl<'a, 'b> EventLoop<'a, 'b> {
    fn new(context: &'a mut ThreadContext<'b>) -> Result<Self> {
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
            connections: Vec::new(),
            free: Vec::new(),
            buffer: vec![0; READ_BUFFER_BYTES],
        })
    }

    fn run(&mut self) -> Result<()> {
        let mut events = event_buffer(EVENTS_PER_WAIT);
        self.context.ready();
        loop {
            self.context.counters.system_calls += 1;
            self.context.publish();
            let count = self.epoll.wait(&mut events, -1);
            for event in &events[..count] {
                match event.u64 {
                    STOP_TOKEN => return Ok(()),
                    LISTENER_TOKEN => self.accept_all(),
                    token => self.serve(token as usize),
                }
            }
        }
    }

    /// Accepts until the queue is empty.
    fn accept_all(&mut self) {
        let listener = self.context.shared_listener();
        loop {
            self.context.counters.system_calls += 1;
            let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            // SAFETY: accept4 without an address needs only a descriptor.
            let fd = unsafe {
                libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), flags)
            };
            if fd >= 0 {
                self.insert(fd);
                continue;
            }
            match errno() {
                libc::EAGAIN => return,
                libc::EINTR | libc::ECONNABORTED => {}
                // Out of descriptors or memory: counted, and tried again at the next wake-up.
                _ => {
                    self.context.counters.errors += 1;
                    return;
                }
            }
        }
    }

    fn insert(&mut self, fd: RawFd) {
        self.context.counters.accepted += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(Connection { fd: -1, pending: Vec::new(), written: 0 });
            self.connections.len() - 1
        });
        self.connections[index].fd = fd;
        self.context.counters.system_calls += 1;
        if self.epoll.add(fd, index as u64, libc::EPOLLIN).is_err() {
            self.context.counters.errors += 1;
            self.close(index);
        }
    }

    /// Handles one connection's event. There is at most one per wait, so a place that is freed and
    /// taken again within a batch cannot meet an event of its former owner.
    fn serve(&mut self, index: usize) {
        if self.connections[index].pending.is_empty() {
            self.echo(index)
        } else {
            self.flush(index)
        }
    }

    /// One read and, usually, one write. Level-triggered: what is left raises the next event.
    fn echo(&mut self, index: usize) {
        let fd = self.connections[index].fd;
        self.context.counters.system_calls += 1;
        let received = match socket::receive(fd, &mut self.buffer) {
            Ok(0) => return self.close(index),
            Ok(count) => count,
            Err(libc::EAGAIN | libc::EINTR) => return,
            Err(error) => return self.close_after(index, error),
        };
        self.context.counters.bytes_received += received as u64;
        let sent = match self.send(fd, 0, received) {
            Ok(sent) => sent,
            Err(error) => return self.close_after(index, error),
        };
        if sent < received {
            let connection = &mut self.connections[index];
            connection.pending.extend_from_slice(&self.buffer[sent..received]);
            // Reading stops until the rest is gone, so a peer that does not read is not buffered
            // for without limit.
            self.watch(index, libc::EPOLLOUT);
        }
    }

    /// Sends from the thread's buffer until done or the socket is full.
    fn send(&mut self, fd: RawFd, from: usize, to: usize) -> std::result::Result<usize, i32> {
        let mut sent = from;
        while sent < to {
            self.context.counters.system_calls += 1;
            match socket::send(fd, &self.buffer[sent..to]) {
                Ok(count) => {
                    sent += count;
                    self.context.counters.bytes_sent += count as u64;
                }
                Err(libc::EAGAIN) => break,
                Err(libc::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Sends what is left over from an earlier read.
    fn flush(&mut self, index: usize) {
        loop {
            let connection = &mut self.connections[index];
            if connection.written == connection.pending.len() {
                connection.pending.clear();
                connection.written = 0;
                return self.watch(index, libc::EPOLLIN);
            }
            self.context.counters.system_calls += 1;
            match socket::send(connection.fd, &connection.pending[connection.written..]) {
                Ok(count) => {
                    connection.written += count;
                    self.context.counters.bytes_sent += count as u64;
                }
                Err(libc::EAGAIN) => return,
                Err(libc::EINTR) => {}
                Err(error) => return self.close_after(index, error),
            }
        }
    }

    fn watch(&mut self, index: usize, interest: libc::c_int) {
        self.context.counters.system_calls += 1;
        let fd = self.connections[index].fd;
        if self.epoll.modify(fd, index as u64, interest).is_err() {
            self.context.counters.errors += 1;
            self.close(index);
        }
    }

    fn close_after(&mut self, index: usize, error: i32) {
        // The benchmark's clients end every connection with RST.
        if !matches!(error, libc::ECONNRESET | libc::EPIPE) {
            self.context.counters.errors += 1;
        }
        self.close(index);
    }

    fn close(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        self.context.counters.system_calls += 1;
        self.context.counters.closed += 1;
        // SAFETY: the descriptor is this connection's own and is forgotten right here.
        unsafe { libc::close(connection.fd) };
        connection.fd = -1;
        connection.pending.clear();
        connection.written = 0;
        self.free.push(index);
    }
}

impl Drop for EventLoop<'_, '_> {
    fn drop(&mut self) {
        for connection in self.connections.iter().filter(|connection| connection.fd >= 0) {
            // SAFETY: the descriptor is this connection's own and the loop is gone.
            unsafe { libc::close(connection.fd) };
        }
    }
}
