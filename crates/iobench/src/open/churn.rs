//! Churn: an open loop of new connections (Kawai and Yamaguchi, section 7, first issue).
//! Connections are opened at scheduled times, whatever the server does. On each, some requests
//! follow one another; the time to the first answer includes the time until the server accepts.
//!
//! The opening thread makes connections and sends first requests. Once a connection is in the epoll
//! set it belongs to the receiving thread, which closes it. The descriptor's number is the index of
//! its slot. The kernel reuses a number only after the descriptor was closed, so the two threads
//! never use a slot at the same time.

use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::error::Result;
use crate::open::arrivals::Schedule;
use crate::open::connect::Route;
use crate::open::dialogue::Dialogue;
use crate::open::record::{Due, ReceiveRecord, SendRecord};
use crate::open::sender::{Shared, wait_until};
use crate::sys::clock::now_ns;
use crate::sys::epoll::{Epoll, event_buffer};
use crate::sys::limits::Limits;
use crate::sys::socket::{self, CongestionControl};

const EVENTS_PER_WAIT: usize = 256;
const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;
const WAIT_MS: i32 = 50;
/// Descriptors beside the connections.
const SPARE_FILES: usize = 256;
/// Epoll flags after which no further event follows.
const ENDED: libc::c_int = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;

/// Parameters of a churn.
pub(crate) struct Churn {
    pub(crate) route: Route,
    /// Requests on each connection.
    pub(crate) transactions: u32,
    /// Most connections open at a time, per generator.
    pub(crate) most_open: usize,
    pub(crate) congestion: CongestionControl,
}

impl Churn {
    /// Fails if the limit of open files is too low for the connections.
    pub(crate) fn check(&self, generators: usize) -> Result<()> {
        let most_open = generators * self.most_open + SPARE_FILES;
        Limits::raise_for(most_open)?.check_open_files(most_open)
    }
}

/// The state of a connection. All stores are relaxed but that of `begun`, which the receiver reads
/// first.
#[derive(Default)]
struct Slot {
    /// Scheduled and actual time of opening.
    intended_ns: AtomicU64,
    begun_ns: AtomicU64,
    /// Bytes of the first request that are sent.
    sent: AtomicU64,
    /// The connection's number, which is in the stamps of its requests.
    number: AtomicUsize,
}

/// The open connections, which both threads of a churn generator share.
pub(crate) struct ChurnConnections {
    epoll: Epoll,
    slots: Vec<Slot>,
    /// Connections opened by the opener and closed by the receiver; the difference are open.
    made: AtomicUsize,
    ended: AtomicUsize,
    most_seen: AtomicUsize,
}

impl ChurnConnections {
    pub(crate) fn new(churn: &Churn, generators: usize) -> Result<ChurnConnections> {
        // Numbers are assigned from the lowest, so none exceeds the most that can be open.
        let slots = generators * churn.most_open + SPARE_FILES + 4 * generators;
        Ok(ChurnConnections {
            epoll: Epoll::new()?,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            made: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            most_seen: AtomicUsize::new(0),
        })
    }

    /// Returns the largest number of connections that were open at the same time.
    pub(crate) fn most_seen(&self) -> usize {
        self.most_seen.load(Ordering::Relaxed)
    }
}

/// Data that both threads read.
#[derive(Clone, Copy)]
pub(crate) struct World<'a> {
    pub(crate) churn: &'a Churn,
    pub(crate) shared: &'a Shared,
}

/// The thread that opens connections.
pub(crate) struct OpenThread<'a> {
    pub(crate) world: World<'a>,
    pub(crate) start_ns: u64,
    pub(crate) schedule: Schedule,
    pub(crate) pool: &'a ChurnConnections,
    pub(crate) dialogue: Dialogue,
    pub(crate) record: SendRecord,
}

impl OpenThread<'_> {
    /// Opens all connections of the schedule.
    pub(crate) fn run(mut self) -> SendRecord {
        let mut number = 0;
        while let Some(due_ns) = self.schedule.next() {
            let intended_ns = self.start_ns + due_ns;
            let hurried = now_ns() > intended_ns;
            let Some(actual_ns) = wait_until(self.world.shared, intended_ns, || {}) else {
                break;
            };
            self.record.due(intended_ns, actual_ns, hurried);
            number += 1;
            if self.open(number, intended_ns, actual_ns).is_none() {
                self.record.refuse(number, intended_ns, actual_ns);
            }
            std::thread::yield_now();
        }
        self.record.log.flush();
        self.world
            .shared
            .sent
            .store(self.pool.made.load(Ordering::Relaxed) as u64, Ordering::Release);
        self.world.shared.sent_all.store(true, Ordering::Release);
        self.record
    }

    /// Opens a connection and hands it over; `None` if that fails.
    fn open(&mut self, number: usize, intended_ns: u64, actual_ns: u64) -> Option<()> {
        let pool = self.pool;
        let made = pool.made.load(Ordering::Relaxed);
        let open = made - pool.ended.load(Ordering::Acquire);
        if open >= self.world.churn.most_open {
            return None;
        }
        let socket = self.world.churn.route.connect(number, &self.world.churn.congestion).ok()?;
        let fd = socket.as_raw_fd();
        let slot = pool.slots.get(fd as usize)?;
        // On loopback the handshake is complete by now; otherwise the receiver sends the request.
        let request = self.dialogue.request(number, 0);
        let sent = socket::send(fd, request).unwrap_or(0);
        let output = if sent < request.len() { libc::EPOLLOUT } else { 0 };
        slot.number.store(number, Ordering::Relaxed);
        slot.sent.store(sent as u64, Ordering::Relaxed);
        slot.intended_ns.store(intended_ns, Ordering::Relaxed);
        slot.begun_ns.store(actual_ns, Ordering::Release);
        let interest = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET | output;
        if pool.epoll.add(fd, fd as u64, interest).is_err() {
            // Otherwise the receiver could take the number for a connection that it does not know.
            slot.begun_ns.store(0, Ordering::Release);
            return None;
        }
        // From here on the receiver owns and closes it.
        let _ = socket.into_raw_fd();
        pool.made.store(made + 1, Ordering::Relaxed);
        pool.most_seen.fetch_max(open + 1, Ordering::Relaxed);
        Some(())
    }
}

/// A connection's state in the receiving thread.
#[derive(Clone, Copy, Default)]
struct Served {
    /// When the opener made it; distinguishes connections that used the same descriptor number.
    begun_ns: u64,
    intended_ns: u64,
    number: usize,
    /// Start time of the current request: the scheduled time of the connection for the first one.
    asked_ns: u64,
    sent: usize,
    received: usize,
    answered: u32,
    open: bool,
}

impl Served {
    /// Returns the connection as a scheduled item, for the records.
    fn due(&self) -> Due {
        let Served { number, intended_ns, begun_ns, .. } = *self;
        Due { connection: number, intended_ns, actual_ns: begun_ns }
    }
}

/// The thread that receives answers, sends further requests, and closes connections.
pub(crate) struct ServeThread<'a> {
    world: World<'a>,
    pool: &'a ChurnConnections,
    dialogue: Dialogue,
    give_up_ns: u64,
    record: ReceiveRecord,
    served: Vec<Served>,
    ended: usize,
}

/// What to do next with a connection.
enum Progress {
    Waiting,
    Complete,
    Ended(End),
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Closed by the client after its last answer.
    Done,
    /// Closed by the server.
    Reset,
    /// Closed by the client because of a wrong answer.
    Wrong,
}

impl<'a> ServeThread<'a> {
    pub(crate) fn new(
        world: World<'a>,
        pool: &'a ChurnConnections,
        dialogue: Dialogue,
        give_up_ns: u64,
        record: ReceiveRecord,
    ) -> Self {
        let served = vec![Served::default(); pool.slots.len()];
        ServeThread { world, pool, dialogue, give_up_ns, record, served, ended: 0 }
    }

    /// Serves connections until all have ended or were given up.
    pub(crate) fn run(mut self) -> ReceiveRecord {
        let mut events = event_buffer(EVENTS_PER_WAIT);
        let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
        loop {
            let ending = self.world.shared.sent_all.load(Ordering::Acquire);
            if ending && self.ended as u64 == self.world.shared.sent.load(Ordering::Acquire) {
                break;
            }
            let given_up = now_ns() >= self.give_up_ns;
            if given_up || self.world.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            let count = self.pool.epoll.wait(&mut events, if ending { 1 } else { WAIT_MS });
            for event in &events[..count] {
                let ended = event.events & ENDED as u32 != 0;
                self.advance(event.u64 as usize, ended, &mut buffer);
            }
        }
        self.give_up();
        self.record.log.flush();
        self.record
    }

    fn advance(&mut self, fd: usize, ended: bool, buffer: &mut [u8]) {
        let slot = &self.pool.slots[fd];
        let begun_ns = slot.begun_ns.load(Ordering::Acquire);
        if !self.served[fd].open {
            let intended_ns = slot.intended_ns.load(Ordering::Relaxed);
            self.served[fd] = Served {
                begun_ns,
                intended_ns,
                asked_ns: intended_ns,
                number: slot.number.load(Ordering::Relaxed),
                sent: slot.sent.load(Ordering::Relaxed) as usize,
                open: true,
                ..Served::default()
            };
        }
        loop {
            match self.exchange(fd, ended, buffer) {
                Progress::Waiting => return,
                Progress::Ended(end) => return self.end(fd, end),
                Progress::Complete if self.answered(fd) => return self.end(fd, End::Done),
                Progress::Complete => {}
            }
        }
    }

    /// Sends the request and receives the answer as far as the socket allows.
    fn exchange(&mut self, fd: usize, ended: bool, buffer: &mut [u8]) -> Progress {
        const RESET: Progress = Progress::Ended(End::Reset);
        let connection = &mut self.served[fd];
        let request = self.dialogue.request(connection.number, connection.answered);
        while connection.sent < request.len() {
            match socket::send(fd as RawFd, &request[connection.sent..]) {
                Ok(count) => connection.sent += count,
                Err(libc::EAGAIN) => break,
                Err(libc::EINTR) => {}
                Err(_) => return RESET,
            }
        }
        loop {
            match socket::receive(fd as RawFd, buffer) {
                Ok(0) => return RESET,
                Ok(count) => match self.received(fd, &buffer[..count]) {
                    Progress::Waiting => {}
                    progress => return progress,
                },
                Err(libc::EAGAIN) if ended => return RESET,
                Err(libc::EAGAIN) => return Progress::Waiting,
                Err(libc::EINTR) => {}
                Err(_) => return RESET,
            }
        }
    }

    /// Checks received bytes; only one answer is outstanding at a time.
    fn received(&mut self, fd: usize, bytes: &[u8]) -> Progress {
        let Served { number, answered, received, .. } = &mut self.served[fd];
        let checked = self.dialogue.feed(received, *number, *answered, bytes);
        let checked = checked.and_then(|fed| match bytes.len() - fed.used {
            0 => Ok(fed.complete),
            surplus => Err(self.dialogue.surplus(*number, *answered, surplus)),
        });
        match checked {
            Ok(true) => Progress::Complete,
            Ok(false) => Progress::Waiting,
            Err(fault) => {
                self.record.faults.count(fault);
                Progress::Ended(End::Wrong)
            }
        }
    }

    /// Records an answer; true if it was the connection's last.
    fn answered(&mut self, fd: usize) -> bool {
        let now_ns = now_ns();
        let connection = &mut self.served[fd];
        let asked_ns = connection.asked_ns;
        if connection.answered == 0 {
            self.record.answer(connection.due(), now_ns);
        }
        self.record.request(connection.intended_ns, now_ns.saturating_sub(asked_ns));
        connection.answered += 1;
        (connection.sent, connection.received, connection.asked_ns) = (0, 0, now_ns);
        connection.answered == self.world.churn.transactions
    }

    fn end(&mut self, fd: usize, end: End) {
        let connection = &mut self.served[fd];
        connection.open = false;
        let due = connection.due();
        match end {
            End::Done => {}
            _ if connection.answered > 0 => self.record.cut_short(),
            End::Reset => self.record.give_up(due, true),
            End::Wrong => self.record.wrong(due, now_ns()),
        }
        // SAFETY: the descriptor was passed to this thread, which does not use it afterwards.
        unsafe { libc::close(fd as RawFd) };
        self.ended += 1;
        self.pool.ended.store(self.ended, Ordering::Release);
    }

    /// Records and closes the connections that are still open. The opener has ended, or is stopped
    /// here.
    fn give_up(&mut self) {
        self.world.shared.stop.store(true, Ordering::Relaxed);
        while !self.world.shared.sent_all.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // Connections without any event are only in the slots.
        for fd in 0..self.served.len() {
            let begun_ns = self.pool.slots[fd].begun_ns.load(Ordering::Acquire);
            let known = self.served[fd];
            let unheard = !known.open && begun_ns != 0 && begun_ns != known.begun_ns;
            if unheard {
                let slot = &self.pool.slots[fd];
                let intended_ns = slot.intended_ns.load(Ordering::Relaxed);
                let connection = slot.number.load(Ordering::Relaxed);
                let due = Due { connection, intended_ns, actual_ns: begun_ns };
                self.record.give_up(due, false);
            } else if known.open && known.answered == 0 {
                self.record.give_up(known.due(), false);
            } else if known.open {
                self.record.cut_short();
            }
            if unheard || known.open {
                // SAFETY: the descriptor is an open connection that was passed to this thread.
                unsafe { libc::close(fd as RawFd) };
            }
        }
    }
}
