//! One client thread's connections: a closed loop on each, driven by edge-triggered epoll.
//!
//! The client is the limit in many cells, so every call counts. A place keeps its socket from one
//! connection to the next, which then costs two calls of connect, one to end the old connection;
//! a transaction costs one send and one receive, and a share of a wait. Sending is tried right
//! after connect, because on loopback the handshake is over by then. Answers of which only the
//! size is known are never copied out of the kernel. Nothing here allocates after `new`.

use std::os::fd::{IntoRawFd, RawFd};

use crate::client::ClosedLoops;
use crate::client::message::Message;
use crate::client::slices::{Fault, Slicing, Tally};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::sys::clock::now_ns;
use crate::sys::epoll::{Epoll, event_buffer};
use crate::sys::socket::{self, CongestionControl, RawAddress};

const EVENTS_PER_WAIT: usize = 256;
const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;
/// A message that fits one segment on any path is never held back by Nagle's algorithm here,
/// because nothing is in flight when it is sent; only longer ones pay for TCP_NODELAY.
const SINGLE_SEGMENT_BYTES: usize = 512;
/// A failed connection tries again this much later, so that a dead server is not hammered.
const RETRY_NS: u64 = 10_000_000;

/// Marks of an event after which no further one may come.
const ENDED: libc::c_int = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;

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
struct Connection {
    /// -1 while there is no socket.
    fd: RawFd,
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

const UNCONNECTED: Connection = Connection {
    fd: -1,
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

/// A fault and the errno behind it (0 if none).
type Failure = (Fault, i32);

/// All connections of one thread.
pub(crate) struct Connections {
    workload: Workload,
    address: RawAddress,
    epoll: Epoll,
    connections: Vec<Connection>,
    /// Connections without a socket, to be tried again.
    failed: Vec<usize>,
    retry_at_ns: u64,
    message: Message,
    buffer: Vec<u8>,
    events: Vec<libc::epoll_event>,
    /// Tells this thread's messages from those of others.
    salt: u64,
    warm: usize,
    tally: Tally,
}

impl Connections {
    pub(crate) fn new(
        workload: Workload,
        count: usize,
        salt: u64,
        address: RawAddress,
    ) -> Result<Self> {
        Ok(Connections {
            address,
            epoll: Epoll::new()?,
            connections: vec![UNCONNECTED; count],
            failed: Vec::with_capacity(count),
            retry_at_ns: 0,
            message: Message::new(workload.exchange),
            buffer: vec![0; RECEIVE_BUFFER_BYTES],
            events: event_buffer(EVENTS_PER_WAIT),
            salt,
            warm: 0,
            tally: Tally::new(workload.slicing),
            workload,
        })
    }

    /// Does whatever a connection's socket allows, until its next wait.
    fn advance(&mut self, index: usize, ended: bool) {
        if self.connections[index].fd < 0 {
            return;
        }
        let complete = self.push(index).and_then(|()| self.pull(index, ended));
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
        let opened = self.connect(index, now_ns).and_then(|()| self.push(index));
        let opened = opened.and_then(|()| self.register(index));
        if let Err(failure) = opened {
            self.fail(index, failure);
        }
    }

    fn connect(&mut self, index: usize, now_ns: u64) -> std::result::Result<(), Failure> {
        let failed = |error: std::io::Error| (Fault::Connect, error.raw_os_error().unwrap_or(0));
        let fd = socket::new_tcp(self.address.family()).map_err(failed)?.into_raw_fd();
        let connection = &mut self.connections[index];
        connection.fd = fd;
        connection.registered = false;
        socket::set_close_by_reset(fd).map_err(failed)?;
        socket::set_congestion_control(fd, &self.workload.congestion).map_err(failed)?;
        if self.workload.exchange.request_bytes > SINGLE_SEGMENT_BYTES {
            socket::set_no_delay(fd).map_err(failed)?;
        }
        self.establish(index, now_ns)
    }

    /// Ends the connection by RST and opens the next one with the same socket, which keeps its
    /// options and its registration: half the calls of a new socket.
    fn reopen(&mut self, index: usize, now_ns: u64) {
        let reopened = socket::disconnect(self.connections[index].fd)
            .map_err(|error| (Fault::Connect, error.raw_os_error().unwrap_or(0)))
            .and_then(|()| self.establish(index, now_ns))
            .and_then(|()| self.push(index));
        if let Err(failure) = reopened {
            self.fail(index, failure);
        }
    }

    /// Connects a socket; the connection's first transaction begins with it.
    fn establish(&mut self, index: usize, now_ns: u64) -> std::result::Result<(), Failure> {
        self.begin(index, now_ns);
        let connection = &mut self.connections[index];
        connection.completed = 0;
        self.tally.connections += 1;
        match self.address.connect(connection.fd) {
            Ok(()) => Ok(()),
            Err(error) => match error.raw_os_error().unwrap_or(0) {
                libc::EINPROGRESS => Ok(()),
                libc::EADDRNOTAVAIL => Err((Fault::Ports, libc::EADDRNOTAVAIL)),
                errno => Err((Fault::Connect, errno)),
            },
        }
    }

    /// Registers a new socket for answers, and for output only if its message is not out yet.
    fn register(&mut self, index: usize) -> std::result::Result<(), Failure> {
        let connection = &mut self.connections[index];
        connection.watches_output = connection.sent < self.workload.exchange.request_bytes;
        connection.registered = true;
        let interest = interest(connection.watches_output);
        let (fd, token) = (connection.fd, index as u64);
        self.epoll
            .add(fd, token, interest)
            .map_err(|error| (Fault::Other, error.raw_os_error().unwrap_or(0)))
    }

    /// Sends what is left of the request until the socket is full.
    fn push(&mut self, index: usize) -> std::result::Result<(), Failure> {
        let length = self.workload.exchange.request_bytes;
        if self.connections[index].sent == length {
            return Ok(());
        }
        self.stamp(index);
        let connection = &mut self.connections[index];
        while connection.sent < length {
            match socket::send(connection.fd, &self.message.request()[connection.sent..]) {
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
            return self
                .epoll
                .modify(connection.fd, index as u64, interest(true))
                .map_err(|error| (Fault::Other, error.raw_os_error().unwrap_or(0)));
        }
        Ok(())
    }

    /// Receives until the answer is complete (true) or nothing is left (false).
    fn pull(&mut self, index: usize, ended: bool) -> std::result::Result<bool, Failure> {
        loop {
            let connection = &self.connections[index];
            let (from, length) = (connection.received, self.message.response_bytes());
            // One byte more than is due, so that surplus bytes are noticed by the same call.
            let room = length - from + 1;
            let (room, answer) = if self.message.is_echo() {
                let room = room.min(self.buffer.len());
                (room, socket::receive(connection.fd, &mut self.buffer[..room]))
            } else {
                (room, socket::receive_unseen(connection.fd, room))
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
        let connection = &mut self.connections[index];
        if connection.fd >= 0 {
            // SAFETY: the descriptor is this connection's own and is forgotten right here.
            unsafe { libc::close(connection.fd) };
            connection.fd = -1;
        }
    }
}

impl ClosedLoops for Connections {
    fn reset(&mut self, address: RawAddress) {
        self.close_all();
        self.address = address;
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

    /// Closes every connection by RST.
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
        let silent = |c: &&Connection| c.fd >= 0 && !c.heard_from;
        self.tally.stalled = self.connections.iter().filter(silent).count() as u64;
    }

    fn wait(&mut self, timeout_ms: i32) -> usize {
        self.epoll.wait(&mut self.events, timeout_ms)
    }

    fn handle(&mut self, count: usize, now_ns: u64) {
        for position in 0..count {
            let event = self.events[position];
            let ended = event.events & ENDED as u32 != 0;
            self.advance(event.u64 as usize, ended);
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
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.close_all();
    }
}

fn interest(output: bool) -> libc::c_int {
    let output = if output { libc::EPOLLOUT } else { 0 };
    libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET | output
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
