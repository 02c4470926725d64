//! One client thread's connections: a closed loop on each, driven by edge-triggered events.
//!
//! The client is the limit in many cells, so every call counts. A transaction costs one send and
//! one receive, and a share of a wait; what it costs to end a connection and to begin the next one
//! is the business of the sockets, which belong to the kernel (`kernel`) or to a stack of this
//! process (`sockets`). Nothing here allocates after `new`.

use std::net::SocketAddr;

use crate::client::ClosedLoops;
use crate::client::message::Message;
use crate::client::slices::{Fault, Slicing, Tally};
use crate::exchange::Exchange;
use crate::sys::clock::now_ns;
use crate::sys::socket::CongestionControl;

const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;
/// A message that fits one segment on any path is never held back by Nagle's algorithm here,
/// because nothing is in flight when it is sent; only longer ones pay for TCP_NODELAY.
pub(super) const SINGLE_SEGMENT_BYTES: usize = 512;
/// A failed connection tries again this much later, so that a dead server is not hammered.
const RETRY_NS: u64 = 10_000_000;

/// An event of one socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// What `Sockets::watch` was told.
    pub(crate) token: u64,
    /// There may be something to receive.
    pub(crate) readable: bool,
    /// No further event may come.
    pub(crate) ended: bool,
}

/// Sockets of whoever has them. Errors are errnos, `EAGAIN` where nothing can be done for now.
pub(crate) trait Sockets {
    type Socket: Copy;
    /// Whether sending is worth a try right after `connect`, because the handshake may be over.
    const SENDS_AFTER_CONNECT: bool;
    /// Whether `skip` takes more than there is room for.
    const SKIPS_WITHOUT_ROOM: bool;

    /// Where connections go from now on.
    fn direct(&mut self, server: SocketAddr);
    /// A new socket with all its settings.
    fn open(&mut self) -> Result<Self::Socket, i32>;
    /// Begins to connect.
    fn connect(&mut self, socket: Self::Socket) -> Result<(), i32>;
    /// Ends a connection and gives a socket for the next one, and whether that is watched already.
    /// The old socket is gone even after an error.
    fn renew(&mut self, socket: Self::Socket) -> Result<(Self::Socket, bool), i32>;
    /// Watches a socket for input, and for room for output if `output`, edge-triggered; `again` if
    /// it is watched already.
    fn watch(
        &mut self,
        socket: Self::Socket,
        token: u64,
        output: bool,
        again: bool,
    ) -> Result<(), i32>;
    fn send(&mut self, socket: Self::Socket, bytes: &[u8]) -> Result<usize, i32>;
    /// Bytes received, 0 at the end of the stream.
    fn receive(&mut self, socket: Self::Socket, room: &mut [u8]) -> Result<usize, i32>;
    /// The same for up to `most` bytes that nobody looks at; `room` may be used for them.
    fn skip(&mut self, socket: Self::Socket, most: usize, room: &mut [u8]) -> Result<usize, i32>;
    /// Ends a connection for good.
    fn close(&mut self, socket: Self::Socket);
    /// Goes on for a moment with what was closed; true if it is to be called again.
    fn settle(&mut self) -> bool;
    /// Waits for events; returns how many there are.
    fn wait(&mut self, timeout_ms: i32) -> usize;
    /// An event of the last wait.
    fn event(&self, position: usize) -> Event;
    /// Why none of the sockets will ever work again.
    fn failure(&self) -> Option<String>;
}

/// What every connection does.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    /// Transactions per connection; 0 keeps connections for the whole slot.
    pub(crate) transactions: u32,
    pub(crate) exchange: Exchange,
    pub(crate) congestion: CongestionControl,
    pub(crate) slicing: Slicing,
}

/// A closed loop over one connection after the other.
#[derive(Debug, Clone)]
struct Connection<S> {
    socket: Option<S>,
    sent: usize,
    received: usize,
    /// Transactions completed on this socket.
    completed: u32,
    /// Transactions begun since the start; makes every message different.
    sequence: u64,
    started_ns: u64,
    /// EPOLLOUT was asked for; without it a complete message needs no such event.
    watches_output: bool,
    registered: bool,
    /// A transaction was completed in this slot.
    warm: bool,
    /// Bytes came in since the measurement began.
    heard_from: bool,
}

impl<S> Connection<S> {
    const UNCONNECTED: Connection<S> = Connection {
        socket: None,
        sent: 0,
        received: 0,
        completed: 0,
        sequence: 0,
        started_ns: 0,
        watches_output: false,
        registered: false,
        warm: false,
        heard_from: false,
    };
}

/// A fault and the errno behind it (0 if none).
type Failure = (Fault, i32);

/// All connections of one thread.
pub(crate) struct Connections<S: Sockets> {
    workload: Workload,
    sockets: S,
    connections: Vec<Connection<S::Socket>>,
    /// Connections without a socket, to be tried again.
    failed: Vec<usize>,
    retry_at_ns: u64,
    message: Message,
    buffer: Vec<u8>,
    /// Tells this thread's messages from those of others.
    salt: u64,
    warm: usize,
    tally: Tally,
}

impl<S: Sockets> Connections<S> {
    /// Connections that are not open yet; `thread` makes the messages of one thread differ from
    /// those of others.
    pub(crate) fn new(sockets: S, workload: Workload, count: usize, thread: usize) -> Self {
        Connections {
            sockets,
            connections: (0..count).map(|_| Connection::UNCONNECTED).collect(),
            failed: Vec::with_capacity(count),
            retry_at_ns: 0,
            message: Message::new(workload.exchange),
            buffer: vec![0; RECEIVE_BUFFER_BYTES],
            salt: (thread as u64 + 1) << 56,
            warm: 0,
            tally: Tally::new(workload.slicing),
            workload,
        }
    }

    /// Does whatever a connection's socket allows, until its next wait.
    fn advance(&mut self, index: usize, event: Event) {
        if self.connections[index].socket.is_none() {
            return;
        }
        let complete = self.push(index).and_then(|()| {
            let worth_a_try = event.readable || event.ended;
            if worth_a_try { self.pull(index, event.ended) } else { Ok(false) }
        });
        match complete {
            Ok(true) => self.complete(index),
            Ok(false) => {}
            Err(failure) => self.fail(index, failure),
        }
    }

    /// The answer is complete: record it, then the next transaction or the next connection.
    fn complete(&mut self, index: usize) {
        let now_ns = now_ns();
        let connection = &mut self.connections[index];
        self.tally.record(now_ns, now_ns.saturating_sub(connection.started_ns));
        if !connection.warm {
            connection.warm = true;
            self.warm += 1;
        }
        connection.completed += 1;
        if connection.completed == self.workload.transactions {
            self.reopen(index, now_ns);
            return;
        }
        self.begin(index, now_ns);
        if let Err(failure) = self.push(index) {
            self.fail(index, failure);
        }
    }

    fn begin(&mut self, index: usize, now_ns: u64) {
        let connection = &mut self.connections[index];
        connection.sequence += 1;
        connection.started_ns = now_ns;
        connection.sent = 0;
        connection.received = 0;
    }

    /// Opens a connection and sends its first message as far as possible. The first transaction of
    /// a connection begins here: its latency includes the connection's establishment.
    fn open(&mut self, index: usize, now_ns: u64) {
        let opened = self.sockets.open().map_err(|errno| (Fault::Connect, errno));
        let opened = opened.and_then(|socket| self.establish(index, (socket, false), now_ns));
        if let Err(failure) = opened {
            self.fail(index, failure);
        }
    }

    /// Ends the connection and opens the next one.
    fn reopen(&mut self, index: usize, now_ns: u64) {
        let Some(socket) = self.connections[index].socket.take() else { return };
        let renewed = self.sockets.renew(socket).map_err(|errno| (Fault::Connect, errno));
        let reopened = renewed.and_then(|renewed| self.establish(index, renewed, now_ns));
        if let Err(failure) = reopened {
            self.fail(index, failure);
        }
    }

    /// Connects a socket, which may be watched already; the connection's first transaction begins
    /// with it.
    fn establish(
        &mut self,
        index: usize,
        (socket, registered): (S::Socket, bool),
        now_ns: u64,
    ) -> std::result::Result<(), Failure> {
        self.begin(index, now_ns);
        let connection = &mut self.connections[index];
        connection.socket = Some(socket);
        connection.registered = registered;
        connection.completed = 0;
        self.tally.connections += 1;
        self.sockets.connect(socket).map_err(|errno| match errno {
            libc::EADDRNOTAVAIL => (Fault::Ports, errno),
            errno => (Fault::Connect, errno),
        })?;
        if S::SENDS_AFTER_CONNECT {
            self.push(index)?;
        }
        if registered { Ok(()) } else { self.register(index, socket) }
    }

    /// Registers a new socket for answers, and for output only if its message is not out yet.
    fn register(&mut self, index: usize, socket: S::Socket) -> std::result::Result<(), Failure> {
        let connection = &mut self.connections[index];
        connection.watches_output = connection.sent < self.workload.exchange.request_bytes;
        connection.registered = true;
        let output = connection.watches_output;
        let watched = self.sockets.watch(socket, index as u64, output, false);
        watched.map_err(|errno| (Fault::Other, errno))
    }

    /// Sends what is left of the request until the socket is full.
    fn push(&mut self, index: usize) -> std::result::Result<(), Failure> {
        let length = self.workload.exchange.request_bytes;
        let Some(socket) = self.connections[index].socket else { return Ok(()) };
        if self.connections[index].sent == length {
            return Ok(());
        }
        self.stamp(index);
        let connection = &mut self.connections[index];
        while connection.sent < length {
            match self.sockets.send(socket, &self.message.request()[connection.sent..]) {
                Ok(count) => {
                    connection.sent += count;
                    self.tally.bytes_sent += count as u64;
                }
                // ENOTCONN cannot happen after connect(); EAGAIN also means "still connecting".
                Err(libc::EAGAIN) => break,
                Err(libc::EINTR) => {}
                Err(errno) => return Err(failure(errno)),
            }
        }
        if connection.registered && !connection.watches_output && connection.sent < length {
            connection.watches_output = true;
            let watched = self.sockets.watch(socket, index as u64, true, true);
            return watched.map_err(|errno| (Fault::Other, errno));
        }
        Ok(())
    }

    /// Receives until the answer is complete (true) or nothing is left (false).
    fn pull(&mut self, index: usize, ended: bool) -> std::result::Result<bool, Failure> {
        let Some(socket) = self.connections[index].socket else { return Ok(false) };
        loop {
            let connection = &self.connections[index];
            let (from, length) = (connection.received, self.message.response_bytes());
            // One byte more than is due, so that surplus bytes are noticed by the same call.
            let room = length - from + 1;
            let (room, answer) = if self.message.is_echo() {
                let room = room.min(self.buffer.len());
                (room, self.sockets.receive(socket, &mut self.buffer[..room]))
            } else {
                let room = if S::SKIPS_WITHOUT_ROOM { room } else { room.min(self.buffer.len()) };
                (room, self.sockets.skip(socket, room, &mut self.buffer))
            };
            let count = match answer {
                Ok(0) => return Err((Fault::Reset, 0)),
                Ok(count) => count,
                Err(libc::EAGAIN) => return Ok(false),
                Err(libc::EINTR) => continue,
                Err(errno) => return Err(failure(errno)),
            };
            self.tally.bytes_received += count as u64;
            if from + count > length || !self.is_due(index, from, count) {
                return Err((Fault::Corrupt, 0));
            }
            let connection = &mut self.connections[index];
            connection.received += count;
            connection.heard_from = true;
            if connection.received == length {
                return Ok(true);
            }
            // A short read has emptied the socket: the next byte raises a new edge. An end that the
            // present event announced does not, so it has to be read now.
            if count < room && !ended {
                return Ok(false);
            }
        }
    }

    /// Whether bytes may come now, and whether those of an echo are the right ones.
    fn is_due(&mut self, index: usize, from: usize, count: usize) -> bool {
        let sent = self.connections[index].sent;
        if !self.message.is_echo() {
            return sent == self.workload.exchange.request_bytes;
        }
        self.stamp(index);
        // More than has been sent cannot be an echo.
        from + count <= sent && self.message.matches(from, &self.buffer[..count])
    }

    /// Gives the message the stamp of the connection's present transaction.
    fn stamp(&mut self, index: usize) {
        if !self.message.is_echo() {
            return;
        }
        let sequence = self.connections[index].sequence;
        self.message.stamp(mix(self.salt ^ (index as u64) << 32 ^ sequence));
    }

    fn fail(&mut self, index: usize, (fault, errno): Failure) {
        self.tally.faults.count(fault, errno);
        self.close(index);
        if self.failed.is_empty() {
            self.retry_at_ns = now_ns() + RETRY_NS;
        }
        self.failed.push(index);
    }

    fn close(&mut self, index: usize) {
        if let Some(socket) = self.connections[index].socket.take() {
            self.sockets.close(socket);
        }
    }
}

impl<S: Sockets> ClosedLoops for Connections<S> {
    fn reset(&mut self, address: SocketAddr) {
        self.close_all();
        self.sockets.direct(address);
        self.warm = 0;
        self.failed.clear();
        self.tally = Tally::new(self.workload.slicing);
        for connection in &mut self.connections {
            connection.warm = false;
        }
    }

    fn warm(&self) -> usize {
        self.warm
    }

    fn open_all(&mut self) {
        for index in 0..self.connections.len() {
            self.open(index, now_ns());
        }
    }

    fn close_all(&mut self) {
        for index in 0..self.connections.len() {
            self.close(index);
        }
    }

    fn begin_measuring(&mut self, start_ns: u64) {
        self.tally.begin(start_ns);
        for connection in &mut self.connections {
            connection.heard_from = false;
        }
    }

    fn count_stalled(&mut self) {
        let silent = |c: &&Connection<S::Socket>| c.socket.is_some() && !c.heard_from;
        self.tally.stalled = self.connections.iter().filter(silent).count() as u64;
        self.tally.complaint = self.sockets.failure();
    }

    fn wait(&mut self, timeout_ms: i32) -> usize {
        self.sockets.wait(timeout_ms)
    }

    fn handle(&mut self, count: usize, now_ns: u64) {
        for position in 0..count {
            let event = self.sockets.event(position);
            self.advance(event.token as usize, event);
        }
        if !self.failed.is_empty() && now_ns >= self.retry_at_ns {
            for _ in 0..self.failed.len() {
                let index = self.failed.remove(0);
                self.open(index, now_ns);
            }
            self.retry_at_ns = now_ns + RETRY_NS;
        }
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn settle(&mut self) -> bool {
        self.sockets.settle()
    }
}

impl<S: Sockets> Drop for Connections<S> {
    fn drop(&mut self) {
        self.close_all();
    }
}

fn failure(errno: i32) -> Failure {
    match errno {
        libc::ECONNRESET | libc::EPIPE => (Fault::Reset, errno),
        libc::ECONNREFUSED | libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
            (Fault::Connect, errno)
        }
        _ => (Fault::Other, errno),
    }
}

/// Scatters the bits (the finisher of SplitMix64), so that neighbouring stamps share no bytes.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
