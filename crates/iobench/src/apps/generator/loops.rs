//! One client thread's closed loops over a protocol, driven by edge-triggered epoll.
//!
//! In the manner of the client of `compare`: sending is tried right after connect, an answer costs
//! one receive, and a share of a wait. Connections end by FIN, as those of browsers do, unless it
//! is asked for otherwise; a reset spares the client a new socket and both sides their farewell.

use std::net::SocketAddr;
use std::os::fd::{IntoRawFd, RawFd};

use crate::apps::generator::Protocol;
use crate::apps::generator::answer::{Answer, Complaint};
use crate::client::ClosedLoops;
use crate::client::slices::{Fault, Slicing, Tally};
use crate::error::Result;
use crate::sys::clock::now_ns;
use crate::sys::epoll::{Epoll, event_buffer};
use crate::sys::socket::{self, CongestionControl, RawAddress};

const EVENTS_PER_WAIT: usize = 256;
/// Large answers are taken in few calls, and the buffer still fits the nearest cache but one.
const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;
/// A failed connection tries again this much later, so that a dead server is not hammered.
const RETRY_NS: u64 = 10_000_000;

/// Marks of an event after which no further one may come.
const ENDED: libc::c_int = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;
const INTEREST: libc::c_int = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;

/// How clients end their connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Ending {
    /// By FIN, with a new socket for the next connection
    Fin,
    /// By RST, which keeps the socket and leaves no port waiting
    Reset,
}

/// A closed loop over one connection after the other.
#[derive(Debug, Clone)]
struct Connection<R> {
    /// -1 while there is no socket.
    fd: RawFd,
    request: R,
    sent: usize,
    is_sent: bool,
    answer: Answer,
    /// Requests left on this connection, this one included; 0 for no end.
    left: u32,
    started_ns: u64,
    watches_output: bool,
    registered: bool,
    warm: bool,
    heard_from: bool,
}

/// What went wrong on a connection.
enum Failure {
    Fault(Fault, i32),
    Wrong(Complaint),
}

impl Failure {
    fn system(fault: Fault, error: &std::io::Error) -> Failure {
        Failure::Fault(fault, error.raw_os_error().unwrap_or(0))
    }
}

type Outcome<T> = std::result::Result<T, Failure>;

/// All connections of one thread.
pub(crate) struct Loops<P: Protocol> {
    protocol: P,
    ending: Ending,
    congestion: CongestionControl,
    slicing: Slicing,
    address: RawAddress,
    epoll: Epoll,
    connections: Vec<Connection<P::Request>>,
    failed: Vec<usize>,
    retry_at_ns: u64,
    buffer: Vec<u8>,
    events: Vec<libc::epoll_event>,
    warm: usize,
    tally: Tally,
}

impl<P: Protocol> Loops<P> {
    pub(crate) fn new(
        protocol: P,
        count: usize,
        ending: Ending,
        slicing: Slicing,
    ) -> Result<Loops<P>> {
        let unconnected = Connection {
            fd: -1,
            request: P::Request::default(),
            sent: 0,
            is_sent: false,
            answer: Answer::default(),
            left: 0,
            started_ns: 0,
            watches_output: false,
            registered: false,
            warm: false,
            heard_from: false,
        };
        Ok(Loops {
            protocol,
            ending,
            congestion: CongestionControl::pick(),
            slicing,
            address: RawAddress::new(([127, 0, 0, 1], 0).into()),
            epoll: Epoll::new()?,
            connections: vec![unconnected; count],
            failed: Vec::with_capacity(count),
            retry_at_ns: 0,
            buffer: vec![0; RECEIVE_BUFFER_BYTES],
            events: event_buffer(EVENTS_PER_WAIT),
            warm: 0,
            tally: Tally::new(slicing),
        })
    }

    /// Does whatever a connection's socket allows, until its next wait.
    fn advance(&mut self, index: usize, ended: bool) {
        if self.connections[index].fd < 0 {
            return;
        }
        match self.push(index).and_then(|()| self.pull(index, ended)) {
            Ok(true) => self.complete(index),
            Ok(false) => {}
            Err(failure) => self.fail(index, failure),
        }
    }

    /// The answer is complete: record it, then the next request or the next connection.
    fn complete(&mut self, index: usize) {
        let now_ns = now_ns();
        let connection = &mut self.connections[index];
        self.tally.record(now_ns, now_ns.saturating_sub(connection.started_ns));
        if !connection.warm {
            connection.warm = true;
            self.warm += 1;
        }
        if connection.left == 1 {
            return self.reopen(index);
        }
        connection.left = connection.left.saturating_sub(1);
        self.begin(index, now_ns);
        if let Err(failure) = self.push(index) {
            self.fail(index, failure);
        }
    }

    fn begin(&mut self, index: usize, now_ns: u64) {
        let request = self.protocol.next_request();
        let connection = &mut self.connections[index];
        connection.request = request;
        connection.started_ns = now_ns;
        connection.sent = 0;
        connection.is_sent = false;
        connection.answer.reset();
    }

    /// Opens a connection and sends its first request as far as possible.
    fn open(&mut self, index: usize) {
        let opened = self.connect(index).and_then(|()| self.push(index));
        if let Err(failure) = opened.and_then(|()| self.register(index)) {
            self.fail(index, failure);
        }
    }

    fn connect(&mut self, index: usize) -> Outcome<()> {
        let failed = |error: std::io::Error| Failure::system(Fault::Connect, &error);
        let fd = socket::new_tcp(self.address.family()).map_err(failed)?.into_raw_fd();
        let connection = &mut self.connections[index];
        connection.fd = fd;
        connection.registered = false;
        if self.ending == Ending::Reset {
            socket::set_close_by_reset(fd).map_err(failed)?;
        }
        socket::set_congestion_control(fd, &self.congestion).map_err(failed)?;
        self.establish(index)
    }

    fn reopen(&mut self, index: usize) {
        if self.ending == Ending::Fin {
            self.close(index);
            return self.open(index);
        }
        let reopened = socket::disconnect(self.connections[index].fd)
            .map_err(|error| Failure::system(Fault::Connect, &error))
            .and_then(|()| self.establish(index))
            .and_then(|()| self.push(index));
        if let Err(failure) = reopened {
            self.fail(index, failure);
        }
    }

    /// Connects a socket, and begins the connection's first request.
    fn establish(&mut self, index: usize) -> Outcome<()> {
        self.tally.connections += 1;
        let connected = self.address.connect(self.connections[index].fd);
        self.connections[index].left = self.protocol.connection_requests();
        self.begin(index, now_ns());
        match connected.map_err(|error| error.raw_os_error().unwrap_or(0)) {
            Ok(()) | Err(libc::EINPROGRESS) => Ok(()),
            Err(libc::EADDRNOTAVAIL) => Err(Failure::Fault(Fault::Ports, libc::EADDRNOTAVAIL)),
            Err(errno) => Err(Failure::Fault(Fault::Connect, errno)),
        }
    }

    /// Registers a new socket for answers, and for output only if its request is not out yet.
    fn register(&mut self, index: usize) -> Outcome<()> {
        let connection = &mut self.connections[index];
        connection.watches_output = !connection.is_sent;
        connection.registered = true;
        let interest = interest(connection.watches_output);
        self.epoll
            .add(connection.fd, index as u64, interest)
            .map_err(|error| Failure::system(Fault::Other, &error))
    }

    /// Sends what is left of the request until the socket is full.
    fn push(&mut self, index: usize) -> Outcome<()> {
        let connection = &mut self.connections[index];
        if connection.is_sent {
            return Ok(());
        }
        let bytes = self.protocol.render(connection.request);
        while connection.sent < bytes.len() {
            match socket::send(connection.fd, &bytes[connection.sent..]) {
                Ok(count) => {
                    connection.sent += count;
                    self.tally.bytes_sent += count as u64;
                }
                Err(libc::EAGAIN) => break,
                Err(libc::EINTR) => {}
                Err(errno) => return Err(failure(errno)),
            }
        }
        connection.is_sent = connection.sent == bytes.len();
        if connection.registered && !connection.watches_output && !connection.is_sent {
            connection.watches_output = true;
            return self
                .epoll
                .modify(connection.fd, index as u64, interest(true))
                .map_err(|error| Failure::system(Fault::Other, &error));
        }
        Ok(())
    }

    /// Receives until the answer is complete (true) or nothing is left (false).
    fn pull(&mut self, index: usize, ended: bool) -> Outcome<bool> {
        let connection = &mut self.connections[index];
        loop {
            let count = match socket::receive(connection.fd, &mut self.buffer) {
                Ok(0) => return Err(Failure::Fault(Fault::Reset, 0)),
                Ok(count) => count,
                Err(libc::EAGAIN) => return Ok(false),
                Err(libc::EINTR) => continue,
                Err(errno) => return Err(failure(errno)),
            };
            self.tally.bytes_received += count as u64;
            connection.heard_from = true;
            let bytes = &self.buffer[..count];
            if !connection.is_sent {
                return Err(Failure::Wrong(Complaint("an answer before the request".to_owned())));
            }
            let fed = self
                .protocol
                .feed(&mut connection.answer, connection.request, bytes)
                .map_err(Failure::Wrong)?;
            if fed.complete && fed.used < count {
                let surplus = format!("{} bytes behind an answer", count - fed.used);
                return Err(Failure::Wrong(Complaint(surplus)));
            }
            if fed.complete {
                return Ok(true);
            }
            // A short read has emptied the socket: the next byte raises a new edge. An end that the
            // present event announced does not, so it has to be read now.
            if count < self.buffer.len() && !ended {
                return Ok(false);
            }
        }
    }

    fn fail(&mut self, index: usize, failure: Failure) {
        match failure {
            Failure::Fault(fault, errno) => self.tally.faults.count(fault, errno),
            Failure::Wrong(Complaint(what)) => {
                self.tally.faults.count(Fault::Corrupt, 0);
                self.tally
                    .complaint
                    .get_or_insert_with(|| format!("the first wrong answer: {what}"));
            }
        }
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

impl<P: Protocol> ClosedLoops for Loops<P> {
    fn reset(&mut self, address: SocketAddr) {
        self.close_all();
        self.address = RawAddress::new(address);
        self.warm = 0;
        self.failed.clear();
        self.tally = Tally::new(self.slicing);
        self.protocol.restart();
        self.connections.iter_mut().for_each(|connection| connection.warm = false);
    }

    fn open_all(&mut self) {
        (0..self.connections.len()).for_each(|index| self.open(index));
    }

    fn close_all(&mut self) {
        (0..self.connections.len()).for_each(|index| self.close(index));
    }

    fn warm(&self) -> usize {
        self.warm
    }

    fn begin_measuring(&mut self, start_ns: u64) {
        self.tally.begin(start_ns);
        self.connections.iter_mut().for_each(|connection| connection.heard_from = false);
    }

    fn count_stalled(&mut self) {
        let silent = |c: &&Connection<P::Request>| c.fd >= 0 && !c.heard_from;
        self.tally.stalled = self.connections.iter().filter(silent).count() as u64;
    }

    fn wait(&mut self, timeout_ms: i32) -> usize {
        self.epoll.wait(&mut self.events, timeout_ms)
    }

    fn handle(&mut self, count: usize, now_ns: u64) {
        for position in 0..count {
            let event = self.events[position];
            self.advance(event.u64 as usize, event.events & ENDED as u32 != 0);
        }
        if !self.failed.is_empty() && now_ns >= self.retry_at_ns {
            for index in std::mem::take(&mut self.failed) {
                self.open(index);
            }
            self.retry_at_ns = now_ns + RETRY_NS;
        }
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }
}

impl<P: Protocol> Drop for Loops<P> {
    fn drop(&mut self) {
        self.close_all();
    }
}

fn interest(output: bool) -> libc::c_int {
    if output { INTEREST | libc::EPOLLOUT } else { INTEREST }
}

fn failure(errno: i32) -> Failure {
    let fault = match errno {
        libc::ECONNRESET | libc::EPIPE => Fault::Reset,
        libc::ECONNREFUSED | libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
            Fault::Connect
        }
        _ => Fault::Other,
    };
    Failure::Fault(fault, errno)
}

#[cfg(test)]
#[path = "loops_tests.rs"]
mod tests;
