//! The receive thread (Kawai and Yamaguchi, section 4.1): it waits for answers on all connections
//! and takes the time when one is complete.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use crate::open::record::ReceiveBook;
use crate::open::sender::Shared;
use crate::sys::epoll::{Epoll, event_buffer};
use crate::sys::socket;
use crate::sys::tsc::Clock;

const EVENTS_PER_WAIT: usize = 64;
const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;
/// A waiting thread looks at the flags at least this often; rarely, because it takes the CPU from
/// the sender.
const WAIT_MS: i32 = 50;
/// Marks of an event after which no further one may come.
const ENDED: libc::c_int = libc::EPOLLRDHUP | libc::EPOLLHUP;

/// The receiving side of one generator.
pub(crate) struct ReceiveThread<'a> {
    pub(crate) clock: Clock,
    pub(crate) connections: Vec<RawFd>,
    pub(crate) response_bytes: usize,
    pub(crate) shared: &'a Shared,
    /// When the last answers are given up: some time after the last request.
    pub(crate) give_up_ns: u64,
    pub(crate) epoll: Epoll,
    pub(crate) book: ReceiveBook,
    /// Bytes of each connection's incomplete answer.
    pub(crate) partial: Vec<usize>,
    /// Requests taken from the queues.
    pub(crate) taken: u64,
    /// Answers that nobody had asked for.
    pub(crate) unasked: u64,
}

impl ReceiveThread<'_> {
    /// An epoll instance that watches the connections; edges, because every event is read to its
    /// end.
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

    /// Receives until every request is answered or given up; the book, and the number of answers
    /// without a request.
    pub(crate) fn run(mut self) -> (ReceiveBook, u64) {
        let mut events = event_buffer(EVENTS_PER_WAIT);
        let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
        loop {
            let ending = self.shared.sent_all.load(Ordering::Acquire);
            if ending && self.taken == self.shared.sent.load(Ordering::Acquire) {
                break;
            }
            let given_up = self.clock.now_ns() >= self.give_up_ns;
            if given_up || self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            let count = self.epoll.wait(&mut events, if ending { 1 } else { WAIT_MS });
            for event in &events[..count] {
                let ended = event.events & ENDED as u32 != 0;
                self.drain(event.u64 as usize, ended, &mut buffer);
            }
        }
        self.give_up();
        self.book.log.flush();
        (self.book, self.unasked)
    }

    /// Reads one connection until it is empty. A short read has emptied it, but an end that was
    /// announced raises no further edge and has to be read.
    fn drain(&mut self, connection: usize, ended: bool, buffer: &mut [u8]) {
        loop {
            match socket::receive(self.connections[connection], buffer) {
                Ok(0) => return self.end(connection),
                Ok(count) => {
                    self.received(connection, count);
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

    fn received(&mut self, connection: usize, count: usize) {
        let now_ns = self.clock.now_ns();
        let mut bytes = self.partial[connection] + count;
        while bytes >= self.response_bytes {
            bytes -= self.response_bytes;
            // SAFETY: this thread is the generator's only receiver.
            let Some(sent) = (unsafe { self.shared.in_flight.take(connection) }) else {
                self.unasked += 1;
                continue;
            };
            self.taken += 1;
            self.shared.live.service.record(now_ns.saturating_sub(sent.intended_ns));
            self.book.answer(connection, sent.intended_ns, sent.actual_ns, now_ns);
        }
        self.partial[connection] = bytes;
    }

    /// The connection has ended: what it owed is reset.
    fn end(&mut self, connection: usize) {
        self.shared.in_flight.end(connection);
        self.forget(connection, true);
    }

    fn forget(&mut self, connection: usize, ended: bool) {
        // SAFETY: this thread is the generator's only receiver.
        while let Some(sent) = unsafe { self.shared.in_flight.take(connection) } {
            self.taken += 1;
            self.book.give_up(connection, sent.intended_ns, sent.actual_ns, ended);
        }
    }

    /// Accounts for every request that is still open. The sender has ended, or is ended now.
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
