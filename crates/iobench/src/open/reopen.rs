//! Opens connections again that the server has ended, or that were ended because of a wrong reply,
//! on the same sockets, so that a server that comes back gets its load again. Meanwhile the sender
//! finds such a connection ended, and its requests are refused.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use crate::open::sender::Shared;
use crate::sys::epoll::Epoll;
use crate::sys::socket::{self, RawAddress};

/// From the end of a connection, or a failed attempt, to the next attempt.
const DELAY_NS: u64 = 20_000_000;
/// Most attempts at a time, so that replies on other connections are not kept waiting.
const MOST_ATTEMPTS: usize = 16;
/// After so many ends of turns the sender has seen that a connection has ended: one for a turn that
/// was half over, one for a turn that may have looked too early, one to give up unsent bytes.
const TURNS: u64 = 3;

/// The connections of a generator that do not stand.
pub(crate) struct Reopening {
    target: RawAddress,
    /// In the order in which they are due.
    waiting: VecDeque<Ended>,
    connecting: Vec<bool>,
    /// Connections that stood again.
    pub(crate) reopened: u64,
}

#[derive(Debug, Clone, Copy)]
struct Ended {
    connection: usize,
    due_ns: u64,
    /// The sender's turns from which on it takes the connection for ended.
    turns: u64,
}

impl Reopening {
    pub(crate) fn new(target: RawAddress, connections: usize) -> Reopening {
        let waiting = VecDeque::with_capacity(connections);
        Reopening { target, waiting, connecting: vec![false; connections], reopened: 0 }
    }

    /// Whether there is something to do soon.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Ends a connection, which the queues already show as ended.
    pub(crate) fn end(&mut self, connection: usize, fd: RawFd, shared: &Shared, now_ns: u64) {
        // One that the server has reset is gone already.
        let _ = socket::disconnect(fd);
        let turns = shared.turns.load(Ordering::Acquire) + TURNS;
        self.waiting.push_back(Ended { connection, due_ns: now_ns + DELAY_NS, turns });
    }

    /// A connection whose next attempt is due; the caller forgets what is still queued on it.
    pub(crate) fn due(&mut self, attempts: usize, shared: &Shared, now_ns: u64) -> Option<usize> {
        let next = self.waiting.front().filter(|_| attempts < MOST_ATTEMPTS)?;
        let ready = next.due_ns <= now_ns && next.turns <= shared.turns.load(Ordering::Acquire);
        if ready { self.waiting.pop_front().map(|next| next.connection) } else { None }
    }

    /// Begins to connect; an event tells how that went.
    pub(crate) fn attempt(&mut self, connection: usize, fd: RawFd, epoll: &Epoll, now_ns: u64) {
        let begun = match self.target.connect(fd) {
            Err(error) => error.raw_os_error() == Some(libc::EINPROGRESS),
            Ok(()) => true,
        };
        // Registering anew raises an event for what is the case already.
        let interest = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        self.connecting[connection] = begun;
        if !begun || epoll.modify(fd, connection as u64, interest).is_err() {
            self.fail(connection, fd, now_ns);
        }
    }

    /// Takes in an event of a connection that does not stand; true if it stands now.
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
