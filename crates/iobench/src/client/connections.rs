//! Runs one client thread's connections: a closed loop on each, driven by edge-triggered events.
//!
//! The client is the limit in many cells, so every system call counts. A transaction costs one send
//! and one receive, and a share of a wait. The type `Sockets` decides how a connection is ended
//! and the next one begun; the protocol decides what is sent and what has to come back. After `new`
//! nothing allocates unless a connection fails.
//!
//! After the measured time no request is made, but answers to requests without progress for long
//! are still awaited: a request that is answered was late, one that is not is lost.

use crate::client::faults::Fault;
use crate::client::protocol::{Complaint, Protocol};
use crate::client::slices::{Slicing, Tally};
use crate::client::sockets::{Event, Sockets};
use crate::client::{ClosedLoops, Order};
use crate::sys::clock::now_ns;

/// Large answers are received in few calls, and the buffer still fits the level 2 cache.
const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;
/// Delay after which a failed connection is tried again, so that a dead server is not flooded.
const RETRY_NS: u64 = 10_000_000;

/// A closed loop over consecutive connections.
struct Connection<S, P: Protocol> {
    socket: Option<S>,
    request: P::Request,
    answer: P::Answer,
    /// Bytes of the request that are sent; `is_sent` is set when all are.
    sent: usize,
    is_sent: bool,
    /// Bytes of the answer that have been received.
    received: usize,
    /// Requests left on this connection, this one included; 0 for no end.
    left: u32,
    started_ns: u64,
    /// When bytes of this transaction were last sent or received, as of the wait before.
    moved_ns: u64,
    progress: Progress,
    /// EPOLLOUT was asked for; without it a complete message needs no such event.
    watches_output: bool,
    registered: bool,
    /// A transaction was completed in this slot.
    warm: bool,
}

/// The state of a connection's current request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// There is no request.
    Idle,
    Open,
    /// Open, and without progress for long when the measured time ended.
    Overdue,
}

impl<S, P: Protocol> Connection<S, P> {
    fn new() -> Connection<S, P> {
        Connection {
            socket: None,
            request: P::Request::default(),
            answer: P::Answer::default(),
            sent: 0,
            is_sent: false,
            received: 0,
            left: 0,
            started_ns: 0,
            moved_ns: 0,
            progress: Progress::Idle,
            watches_output: false,
            registered: false,
            warm: false,
        }
    }
}

/// What went wrong on a connection.
enum Failure {
    /// A fault and the errno behind it (0 if none).
    Fault(Fault, i32),
    Wrong(Complaint),
}

type Outcome<T> = std::result::Result<T, Failure>;

/// All connections of one thread.
pub(crate) struct Connections<S: Sockets, P: Protocol> {
    sockets: S,
    protocol: P,
    connections: Vec<Connection<S::Socket, P>>,
    /// Indices of connections without a socket, which are tried again.
    failed: Vec<usize>,
    retry_at_ns: u64,
    buffer: Vec<u8>,
    /// The time of the wait whose events are being handled.
    now_ns: u64,
    warm: usize,
    overdue: usize,
    /// The measured time is over.
    has_ended: bool,
    tally: Tally,
}

impl<S: Sockets, P: Protocol> Connections<S, P> {
    /// Creates `count` connections, which are not open yet.
    pub(crate) fn new(sockets: S, protocol: P, count: usize, slicing: Slicing) -> Self {
        Connections {
            sockets,
            protocol,
            connections: (0..count).map(|_| Connection::new()).collect(),
            failed: Vec::with_capacity(count),
            retry_at_ns: 0,
            buffer: vec![0; RECEIVE_BUFFER_BYTES],
            now_ns: 0,
            warm: 0,
            overdue: 0,
            has_ended: false,
            tally: Tally::new(slicing),
        }
    }

    /// Sends and receives as much as the socket allows, until the next wait.
    fn advance(&mut self, index: usize, event: Event) {
        let connection = &self.connections[index];
        if connection.socket.is_none() || connection.progress == Progress::Idle {
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

    /// Records a complete answer, then begins the next transaction or the next connection.
    fn complete(&mut self, index: usize) {
        let now_ns = now_ns();
        let connection = &mut self.connections[index];
        self.tally.record(now_ns, now_ns.saturating_sub(connection.started_ns));
        if !connection.warm {
            connection.warm = true;
            self.warm += 1;
        }
        if self.has_ended {
            return self.rest(index);
        }
        if connection.left == 1 {
            return self.reopen(index, now_ns);
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
        connection.moved_ns = now_ns;
        connection.progress = Progress::Open;
        connection.sent = 0;
        connection.is_sent = false;
        connection.received = 0;
        P::begin_answer(&mut connection.answer);
    }

    /// Ends the current request; no other follows it for now.
    fn rest(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        self.overdue -= usize::from(connection.progress == Progress::Overdue);
        connection.progress = Progress::Idle;
    }

    /// Opens a connection and sends its first message as far as possible. The first transaction of
    /// a connection begins here: its latency includes the connection's establishment.
    fn open(&mut self, index: usize, now_ns: u64) {
        let opened = self.sockets.open().map_err(|errno| Failure::Fault(Fault::Connect, errno));
        let opened = opened.and_then(|socket| self.establish(index, (socket, false), now_ns));
        if let Err(failure) = opened {
            self.fail(index, failure);
        }
    }

    /// Ends the connection and opens the next one.
    fn reopen(&mut self, index: usize, now_ns: u64) {
        let Some(socket) = self.connections[index].socket.take() else { return };
        let renewed = self.sockets.renew(socket);
        let renewed = renewed.map_err(|errno| Failure::Fault(Fault::Connect, errno));
        let reopened = renewed.and_then(|renewed| self.establish(index, renewed, now_ns));
        if let Err(failure) = reopened {
            self.fail(index, failure);
        }
    }

    /// Connects a socket, which may be watched already, and begins the connection's first
    /// transaction.
    fn establish(
        &mut self,
        index: usize,
        (socket, registered): (S::Socket, bool),
        now_ns: u64,
    ) -> Outcome<()> {
        let requests = self.protocol.connection_requests();
        self.begin(index, now_ns);
        let connection = &mut self.connections[index];
        connection.socket = Some(socket);
        connection.registered = registered;
        connection.left = requests;
        self.tally.connections += 1;
        self.sockets.connect(socket).map_err(|errno| match errno {
            libc::EADDRNOTAVAIL => Failure::Fault(Fault::Ports, errno),
            errno => Failure::Fault(Fault::Connect, errno),
        })?;
        if S::SENDS_AFTER_CONNECT {
            self.push(index)?;
        }
        if registered { Ok(()) } else { self.register(index, socket) }
    }

    /// Watches a new socket for input, and for output only if its request is not sent yet.
    fn register(&mut self, index: usize, socket: S::Socket) -> Outcome<()> {
        let connection = &mut self.connections[index];
        connection.watches_output = !connection.is_sent;
        connection.registered = true;
        let output = connection.watches_output;
        let watched = self.sockets.watch(socket, index as u64, output, false);
        watched.map_err(|errno| Failure::Fault(Fault::Other, errno))
    }

    /// Sends the rest of the request until the socket is full.
    fn push(&mut self, index: usize) -> Outcome<()> {
        let connection = &mut self.connections[index];
        let Some(socket) = connection.socket.filter(|_| !connection.is_sent) else {
            return Ok(());
        };
        let bytes = self.protocol.render(connection.request);
        while connection.sent < bytes.len() {
            match self.sockets.send(socket, &bytes[connection.sent..]) {
                Ok(count) => {
                    connection.sent += count;
                    connection.moved_ns = connection.moved_ns.max(self.now_ns);
                    self.tally.bytes_sent += count as u64;
                }
                // ENOTCONN cannot happen after connect(); EAGAIN also means "still connecting".
                Err(libc::EAGAIN) => break,
                Err(libc::EINTR) => {}
                Err(errno) => return Err(failure(errno)),
            }
        }
        connection.is_sent = connection.sent == bytes.len();
        if connection.registered && !connection.watches_output && !connection.is_sent {
            connection.watches_output = true;
            let watched = self.sockets.watch(socket, index as u64, true, true);
            return watched.map_err(|errno| Failure::Fault(Fault::Other, errno));
        }
        Ok(())
    }

    /// Receives until the answer is complete (true) or the socket has no more (false).
    fn pull(&mut self, index: usize, ended: bool) -> Outcome<bool> {
        let connection = &mut self.connections[index];
        let Some(socket) = connection.socket else { return Ok(false) };
        loop {
            let intake = self.protocol.intake(&connection.answer, connection.request);
            let room = if intake.is_seen || !S::SKIPS_WITHOUT_ROOM {
                intake.most_bytes.min(self.buffer.len())
            } else {
                intake.most_bytes
            };
            let received = if intake.is_seen {
                self.sockets.receive(socket, &mut self.buffer[..room])
            } else {
                self.sockets.skip(socket, room, &mut self.buffer)
            };
            let count = match received {
                Ok(0) => return Err(Failure::Fault(Fault::Reset, 0)),
                Ok(count) => count,
                Err(libc::EAGAIN) => return Ok(false),
                Err(libc::EINTR) => continue,
                Err(errno) => return Err(failure(errno)),
            };
            self.tally.bytes_received += count as u64;
            connection.received += count;
            connection.moved_ns = connection.moved_ns.max(self.now_ns);
            if !is_due::<S::Socket, P>(connection) {
                return Err(Failure::Wrong(Complaint("came before its request".to_owned())));
            }
            let answer = &mut connection.answer;
            let fed = if intake.is_seen {
                let bytes = &self.buffer[..count];
                self.protocol.feed(answer, connection.request, bytes).map_err(Failure::Wrong)?
            } else {
                self.protocol.feed_unseen(answer, count)
            };
            if fed.complete && fed.used < count {
                let surplus = count - fed.used;
                let words = format!("has surplus bytes behind it, {surplus} or more");
                return Err(Failure::Wrong(Complaint(words)));
            }
            if fed.complete {
                return Ok(true);
            }
            // A short read has emptied the socket: the next byte raises a new edge. An end that the
            // present event announced does not, so it has to be read now.
            if count < room && !ended {
                return Ok(false);
            }
        }
    }

    fn fail(&mut self, index: usize, failure: Failure) {
        match failure {
            Failure::Fault(fault, errno) => self.tally.faults.count(fault, errno),
            Failure::Wrong(complaint) => {
                self.tally.faults.count_wrong(self.tally.transactions, &complaint);
            }
        }
        self.rest(index);
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

impl<S: Sockets, P: Protocol> ClosedLoops for Connections<S, P> {
    fn reset(&mut self, order: &Order) {
        self.close_all();
        self.sockets.direct(order.address);
        self.protocol.restart(order.is_ours);
        (self.warm, self.overdue, self.has_ended) = (0, 0, false);
        self.failed.clear();
        self.tally.restart();
        self.connections.iter_mut().for_each(|connection| connection.warm = false);
    }

    fn warm(&self) -> usize {
        self.warm
    }

    fn open_all(&mut self) {
        (0..self.connections.len()).for_each(|index| self.open(index, now_ns()));
    }

    fn close_all(&mut self) {
        for index in 0..self.connections.len() {
            self.close(index);
            self.connections[index].progress = Progress::Idle;
        }
    }

    fn begin_measuring(&mut self, start_ns: u64) {
        self.tally.begin(start_ns);
    }

    fn end_measuring(&mut self, end_ns: u64) {
        self.has_ended = true;
        let longest_ns = self.tally.longest_silence_ns();
        for connection in &mut self.connections {
            if connection.progress == Progress::Idle || connection.started_ns >= end_ns {
                continue;
            }
            self.tally.open_ages_ns.push(end_ns - connection.started_ns);
            if end_ns.saturating_sub(connection.moved_ns) > longest_ns {
                connection.progress = Progress::Overdue;
                self.overdue += 1;
            }
        }
    }

    fn overdue(&self) -> usize {
        self.overdue
    }

    fn count_unanswered(&mut self, now_ns: u64) {
        for connection in &self.connections {
            if connection.progress == Progress::Overdue {
                let age_ns = now_ns.saturating_sub(connection.started_ns);
                self.tally.faults.count_unanswered(age_ns);
            }
        }
        self.tally.failure = self.sockets.failure();
    }

    fn wait(&mut self, timeout_ms: i32) -> usize {
        self.sockets.wait(timeout_ms)
    }

    fn handle(&mut self, count: usize, now_ns: u64) {
        self.now_ns = now_ns;
        for position in 0..count {
            let event = self.sockets.event(position);
            self.advance(event.token as usize, event);
        }
        if !self.failed.is_empty() && now_ns >= self.retry_at_ns && !self.has_ended {
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

    fn progress_closes(&mut self) -> bool {
        self.sockets.progress_closes()
    }
}

impl<S: Sockets, P: Protocol> Drop for Connections<S, P> {
    fn drop(&mut self) {
        self.close_all();
    }
}

/// Returns whether as much of an answer as has arrived is plausible: all after the complete
/// request, or no more than was sent of it if the protocol echoes.
fn is_due<S, P: Protocol>(connection: &Connection<S, P>) -> bool {
    connection.is_sent || (P::ECHOES && connection.received <= connection.sent)
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
#[path = "connections_tests.rs"]
mod tests;
