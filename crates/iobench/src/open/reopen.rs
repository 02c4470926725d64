//! Reopens connections that the server closed, or that were closed because of a wrong reply, on the
//! same sockets, so that a restarted server gets its load again. Until then the sender sees the
//! connection as ended, and its requests count as refused.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use crate::open::sender::Shared;
use crate::sys::epoll::Epoll;
use crate::sys::socket::{self, RawAddress};

/// Delay from the end of a connection, or from a failed attempt, to the next attempt.
const DELAY_NS: u64 = 20_000_000;
/// Most attempts at a time, so that replies on other connections are not delayed.
const MOST_ATTEMPTS: usize = 16;
/// After this many ends of iterations the sender has seen that a connection has ended: one for an
/// iteration that was already running, one for an iteration that may have read the flag too early,
/// one to discard unsent bytes.
const TURNS: u64 = 3;

/// The connections of a generator that are not open.
pub(crate) struct Reopening {
    target: RawAddress,
    /// In the order of their next attempts.
    waiting: VecDeque<Ended>,
    connecting: Vec<bool>,
    /// Number of connections that were opened again.
    pub(crate) reopened: u64,
}

#[derive(Debug, Clone, Copy)]
struct Ended {
    connection: usize,
    due_ns: u64,
    /// The number of the sender's iteration from which on it sees the connection as ended.
    turns: u64,
}

impl Reopening {
    pub(crate) fn new(target: RawAddress, connections: usize) -> Reopening {
        let waiting = VecDeque::with_capacity(connections);
        Reopening { target, waiting, connecting: vec![false; connections], reopened: 0 }
    }

    /// Returns whether an attempt is due soon.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds a connection that the queues already show as ended.
    pub(crate) fn end(&mut self, connection: usize, fd: RawFd, shared: &Shared, now_ns: u64) {
        // Fails if the server has reset the connection.
        let _ = socket::disconnect(fd);
        let turns = shared.turns.load(Ordering::Acquire) + TURNS;
        self.waiting.push_back(Ended { connection, due_ns: now_ns + DELAY_NS, turns });
    }

    /// Returns a connection whose next attempt is due; the caller discards what is still queued on
    /// it.
    pub(crate) fn due(&mut self, attempts: usize, shared: &Shared, now_ns: u64) -> Option<usize> {
        let next = self.waiting.front().filter(|_| attempts < MOST_ATTEMPTS)?;
        let ready = next.due_ns <= now_ns && next.turns <= shared.turns.load(Ordering::Acquire);
        if ready { self.waiting.pop_front().map(|next| next.connection) } else { None }
    }

    /// Starts to connect; an event follows with the result.
    pub(crate) fn attempt(&mut self, connection: usize, fd: RawFd, epoll: &Epoll, now_ns: u64) {
        let begun = match self.target.connect(fd) {
            Err(error) => error.raw_os_error() == Some(libc::EINPROGRESS),
            Ok(()) => true,
        };
        // A new registration raises an event for the present state.
        let interest = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        self.connecting[connection] = begun;
        if !begun || epoll.modify(fd, connection as u64, interest).is_err() {
            self.fail(connection, fd, now_ns);
        }
    }

    /// Handles an event of a connection that is being opened; true if it is open now.
    pub(crate) fn advance(
        &mut self,
        connection: usize,
        fd: RawFd,
        events: u32,
        now_ns: u64,
    ) -> bool {
        if !self.connecting[connection] {
            return false;
        }
        let has = |mark: libc::c_int| events & mark as u32 != 0;
        if socket::take_error(fd) != 0 || has(libc::EPOLLHUP) {
            self.fail(connection, fd, now_ns);
            return false;
        }
        let stands = has(libc::EPOLLOUT);
        if stands {
            self.connecting[connection] = false;
            self.reopened += 1;
        }
        stands
    }

    fn fail(&mut self, connection: usize, fd: RawFd, now_ns: u64) {
        self.connecting[connection] = false;
        let _ = socket::disconnect(fd);
        self.waiting.push_back(Ended { connection, due_ns: now_ns + DELAY_NS, turns: 0 });
    }
}
