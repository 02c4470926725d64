//! The receive thread (Kawai and Yamaguchi, section 4.1): waits for answers on all connections,
//! reads the clock when one is complete, and checks every byte of it. A connection with a wrong
//! answer is closed, because the start of the next answer is unknown; it is then opened again, like
//! one that the server has closed.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use crate::open::dialogue::{Dialogue, WrongReply};
use crate::open::record::{Due, ReceiveRecord};
use crate::open::reopen::Reopening;
use crate::open::sender::Shared;
use crate::open::timestamps;
use crate::sys::clock::now_ns;
use crate::sys::epoll::{Epoll, event_buffer};

const EVENTS_PER_WAIT: usize = 64;
const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;
/// Longest wait of a thread before it reads the flags; long, because waking up takes the CPU from
/// the sender.
const WAIT_MS: i32 = 50;
/// The same limit while connections wait to be opened again.
const WAIT_TO_REOPEN_MS: i32 = 5;
/// Epoll flags after which no further event follows.
const ENDED: libc::c_int = libc::EPOLLRDHUP | libc::EPOLLHUP;

/// The receive thread of one generator.
pub(crate) struct ReceiveThread<'a> {
    pub(crate) connections: Vec<RawFd>,
    pub(crate) dialogue: Dialogue,
    pub(crate) reopening: Reopening,
    pub(crate) shared: &'a Shared,
    /// When open requests are given up: some time after the last request.
    pub(crate) give_up_ns: u64,
    pub(crate) epoll: Epoll,
    pub(crate) record: ReceiveRecord,
    /// Bytes of each connection's incomplete answer.
    pub(crate) partial: Vec<usize>,
    /// Number of requests taken from the queues.
    pub(crate) taken: u64,
    /// The number of the latest answered request of each connection.
    pub(crate) latest: Vec<u32>,
}

/// When a read was complete, and when the kernel received the last packet of it, if known.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    now_ns: u64,
    stamp_ns: Option<u64>,
}

impl ReceiveThread<'_> {
    /// Returns an epoll instance that watches the connections, edge-triggered, because every event
    /// is read until EAGAIN.
    pub(crate) fn watch(connections: &[RawFd]) -> crate::error::Result<Epoll> {
        use crate::error::Context;
        let epoll = Epoll::new()?;
        for (number, &fd) in connections.iter().enumerate() {
            let interest = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;
            epoll
                .add(fd, number as u64, interest)
                .context("watch a connection", "raise fs.epoll.max_user_watches")?;
        }
        Ok(epoll)
    }

    /// Receives until every request is answered or given up.
    pub(crate) fn run(mut self) -> ReceiveRecord {
        let mut events = event_buffer(EVENTS_PER_WAIT);
        let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
        loop {
            let ending = self.shared.sent_all.load(Ordering::Acquire);
            if ending && self.taken == self.shared.sent.load(Ordering::Acquire) {
                break;
            }
            let given_up = now_ns() >= self.give_up_ns;
            if given_up || self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            let timeout_ms = match () {
                () if ending => 1,
                () if self.reopening.is_waiting() => WAIT_TO_REOPEN_MS,
                () => WAIT_MS,
            };
            let count = self.epoll.wait(&mut events, timeout_ms);
            for event in &events[..count] {
                self.advance(event.u64 as usize, event.events, &mut buffer);
            }
            if !ending && self.reopening.is_waiting() {
                self.reopen();
            }
        }
        self.give_up();
        self.record.reopened = self.reopening.reopened;
        self.record.log.flush();
        self.record
    }

    fn advance(&mut self, connection: usize, events: u32, buffer: &mut [u8]) {
        if self.shared.in_flight.has_ended(connection) {
            let fd = self.connections[connection];
            if !self.reopening.advance(connection, fd, events, now_ns()) {
                return;
            }
            self.shared.in_flight.reopen(connection);
        }
        self.drain(connection, events & ENDED as u32 != 0, buffer);
    }

    /// Reads one connection until it is empty. A short read means that it is empty, unless the end
    /// was announced: that causes no further edge and has to be read.
    fn drain(&mut self, connection: usize, ended: bool, buffer: &mut [u8]) {
        loop {
            let (result, arrival) = self.receive(connection, buffer);
            match result {
                Ok(0) => return self.end(connection),
                Ok(count) => {
                    if let Err(fault) = self.received(connection, &buffer[..count], arrival) {
                        self.record.faults.count(fault);
                        return self.end(connection);
                    }
                    if count < buffer.len() && !ended {
                        return;
                    }
                }
                Err(libc::EAGAIN) => return,
                Err(libc::EINTR) => {}
                Err(_) => return self.end(connection),
            }
        }
    }

    /// Reads with the kernel's timestamp, always: a sample could miss the one read whose answers
    /// waited for a server that stood still.
    fn receive(&mut self, connection: usize, buffer: &mut [u8]) -> (Result<usize, i32>, Arrival) {
        let fd = self.connections[connection];
        let (result, stamp_ns) = timestamps::receive_stamped(fd, buffer);
        let now_ns = now_ns();
        let stamp_ns = stamp_ns.and_then(timestamps::on_clock);
        (result, Arrival { now_ns, stamp_ns })
    }

    /// Checks received bytes, and records the answers that they complete.
    fn received(
        &mut self,
        connection: usize,
        bytes: &[u8],
        arrival: Arrival,
    ) -> Result<(), WrongReply> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some(number) = self.shared.in_flight.oldest(connection) else {
                // Surplus bytes after all answers belong to the last of them.
                return Err(self.dialogue.surplus(connection, self.latest[connection], rest.len()));
            };
            self.latest[connection] = number;
            let received = &mut self.partial[connection];
            let fed = match self.dialogue.feed(received, connection, number, rest) {
                Ok(fed) => fed,
                Err(fault) => {
                    self.wrong(connection, arrival.now_ns);
                    return Err(fault);
                }
            };
            rest = &rest[fed.used..];
            if !fed.complete {
                return Ok(());
            }
            self.partial[connection] = 0;
            self.complete(connection, number, rest.len(), arrival)?;
        }
        Ok(())
    }

    /// Records a complete answer, which may be followed by other bytes.
    fn complete(
        &mut self,
        connection: usize,
        number: u32,
        behind: usize,
        arrival: Arrival,
    ) -> Result<(), WrongReply> {
        let Some(due) = self.take(connection) else { return Ok(()) };
        if behind > 0 && self.shared.in_flight.oldest(connection).is_none() {
            self.record.wrong(due, arrival.now_ns);
            return Err(self.dialogue.surplus(connection, number, behind));
        }
        let Arrival { now_ns, stamp_ns } = arrival;
        self.record.answer(due, now_ns);
        // The timestamp is that of the last packet. Earlier answers of the same read had arrived by
        // then, so each of them has a turnaround.
        if let Some(stamp_ns) = stamp_ns {
            self.record.received(due, stamp_ns, now_ns);
        }
        Ok(())
    }

    fn wrong(&mut self, connection: usize, now_ns: u64) {
        if let Some(due) = self.take(connection) {
            self.record.wrong(due, now_ns);
        }
    }

    /// Takes the oldest request of a connection.
    fn take(&mut self, connection: usize) -> Option<Due> {
        let sent = self.shared.in_flight.take(connection)?;
        self.taken += 1;
        Some(Due { connection, intended_ns: sent.intended_ns, actual_ns: sent.actual_ns })
    }

    /// Handles the end of a connection, or ends it: its open requests count as reset.
    fn end(&mut self, connection: usize) {
        self.shared.in_flight.end(connection);
        self.partial[connection] = 0;
        self.forget(connection, true);
        let (fd, now_ns) = (self.connections[connection], now_ns());
        self.reopening.end(connection, fd, self.shared, now_ns);
    }

    /// Reopens connections whose delay has passed.
    fn reopen(&mut self) {
        let now_ns = now_ns();
        for attempts in 0.. {
            let Some(connection) = self.reopening.due(attempts, self.shared, now_ns) else { break };
            // Requests that the sender had queued before it saw the end were never sent.
            self.forget(connection, true);
            let fd = self.connections[connection];
            self.reopening.attempt(connection, fd, &self.epoll, now_ns);
        }
    }

    fn forget(&mut self, connection: usize, ended: bool) {
        while let Some(due) = self.take(connection) {
            self.record.give_up(due, ended);
        }
    }

    /// Records every request that is still open. The sender has ended, or is stopped here.
    fn give_up(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        while !self.shared.sent_all.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        for connection in 0..self.connections.len() {
            let ended = self.shared.in_flight.has_ended(connection);
            self.forget(connection, ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use super::*;
    use crate::exchange::Exchange;
    use crate::open::Numbering;
    use crate::open::inflight::{InFlight, Sent};
    use crate::open::phases::Course;
    use crate::open::record::LogTap;
    use crate::sys::socket::RawAddress;

    /// A server that stood still answers all waiting requests at once; the client reads them at
    /// once, too.
    #[test]
    fn every_answer_of_a_read_has_its_three_parts() {
        const WAITING: u64 = 5;
        const LAG_NS: u64 = 1_000_000_000;
        const AGE_NS: u64 = 3_000_000_000;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, address) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        timestamps::prepare(stream.as_raw_fd());
        let exchange = Exchange { request_bytes: 2, response_bytes: 1 };
        let course = Course { rate: 1.0, growth_ns: 0, steady_ns: 0, measure_ns: 60_000_000_000 };
        let shared = Shared::new(InFlight::new(1, 16));
        let numbering = Numbering::ALONE;
        let record = || ReceiveRecord::new(course, 0, u64::MAX, LogTap::new(None, numbering));
        let mut thread = ReceiveThread {
            connections: vec![stream.as_raw_fd()],
            dialogue: Dialogue::new(exchange, true, 0, numbering),
            reopening: Reopening::new(RawAddress::new(address), 1),
            shared: &shared,
            give_up_ns: u64::MAX,
            epoll: Epoll::new().unwrap(),
            record: record(),
            partial: vec![0],
            taken: 0,
            latest: vec![0],
        };
        // The kernel may start to take receive timestamps a moment after they are requested.
        let stamped = (0..1_000).any(|_| {
            thread.record = record();
            let intended_ns = now_ns() - AGE_NS;
            for _ in 0..WAITING {
                let actual_ns = intended_ns + LAG_NS;
                shared.in_flight.add(0, Sent { intended_ns, actual_ns }).unwrap();
            }
            server.write_all(&exchange.filler().repeat(WAITING as usize)).unwrap();
            thread.drain(0, false, &mut [0; 64]);
            assert_eq!(thread.record.service.len(), WAITING);
            !thread.record.turnaround.is_empty()
        });
        assert!(stamped, "no stamp in a thousand tries");
        let ReceiveRecord { service, turnaround, receive_lag, .. } = &thread.record;
        assert_eq!((turnaround.len(), receive_lag.len()), (WAITING, WAITING));
        let parts_ns = LAG_NS + turnaround.min() + receive_lag.min();
        // Histograms have three digits.
        let difference_ns = parts_ns.abs_diff(service.min());
        assert!(difference_ns <= service.min() / 200, "{parts_ns} of {}", service.min());
    }
}
