//! Connection churn as an open loop (Kawai and Yamaguchi, section 7, first issue): new connections
//! are made when they are due, whatever the server does. On each, some requests follow one
//! another, and the time to the first answer shows how long the server took to accept.
//!
//! The opening thread makes connections and sends first requests; from the moment when a
//! connection is in the epoll set it belongs to the receiving thread, which closes it. A
//! descriptor's number leads to its slot; a number is given out anew only after it was closed, so
//! the two threads never hold a slot at a time.

use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::error::Result;
use crate::open::arrivals::Schedule;
use crate::open::connect::Route;
use crate::open::record::{Due, ReceiveBook, SendBook};
use crate::open::reply::Dialogue;
use crate::open::sender::{Shared, wait_until};
use crate::sys::epoll::{Epoll, event_buffer};
use crate::sys::limits::Limits;
use crate::sys::socket::{self, CongestionControl};
use crate::sys::tsc::Clock;

const EVENTS_PER_WAIT: usize = 256;
const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;
const WAIT_MS: i32 = 50;
/// Descriptors beside the connections.
const SPARE_FILES: usize = 256;
/// Marks of an event after which no further one may come.
const ENDED: libc::c_int = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;

/// What a churn does.
pub(crate) struct Churn {
    pub(crate) route: Route,
    /// Requests on each connection.
    pub(crate) transactions: u32,
    /// Most connections open at a time, per generator.
    pub(crate) most_open: usize,
    pub(crate) congestion: CongestionControl,
}

impl Churn {
    /// Refuses more connections than there may be descriptors.
    pub(crate) fn check(&self, generators: usize) -> Result<()> {
        let most_open = generators * self.most_open + SPARE_FILES;
        Limits::raise_for(most_open)?.check_open_files(most_open)
    }
}

/// A connection; stores are relaxed but for `begun`, which the receiver reads first.
#[derive(Default)]
struct Slot {
    /// When it was due, and when it was made.
    intended_ns: AtomicU64,
    begun_ns: AtomicU64,
    /// Bytes of the first request that are sent.
    sent: AtomicU64,
    /// The connection's number, which its requests are stamped with.
    number: AtomicUsize,
}

/// What the two threads of a churning generator share.
pub(crate) struct Nursery {
    epoll: Epoll,
    slots: Vec<Slot>,
    /// Made by the opener, and ended by the receiver; the difference is open now.
    made: AtomicUsize,
    ended: AtomicUsize,
    most_seen: AtomicUsize,
}

impl Nursery {
    pub(crate) fn new(churn: &Churn, generators: usize) -> Result<Nursery> {
        // Numbers are given out from the lowest, so none is beyond what may be open altogether.
        let slots = generators * churn.most_open + SPARE_FILES + 4 * generators;
        Ok(Nursery {
            epoll: Epoll::new()?,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            made: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            most_seen: AtomicUsize::new(0),
        })
    }

    /// Most connections that were open at a time.
    pub(crate) fn most_seen(&self) -> usize {
        self.most_seen.load(Ordering::Relaxed)
    }
}

/// What both threads look at.
#[derive(Clone, Copy)]
pub(crate) struct World<'a> {
    pub(crate) clock: Clock,
    pub(crate) churn: &'a Churn,
    pub(crate) shared: &'a Shared,
}

/// The opening side.
pub(crate) struct OpenThread<'a> {
    pub(crate) world: World<'a>,
    pub(crate) start_ns: u64,
    pub(crate) schedule: Schedule,
    pub(crate) nursery: &'a Nursery,
    pub(crate) dialogue: Dialogue,
    pub(crate) book: SendBook,
}

impl OpenThread<'_> {
    /// Makes all connections of the schedule.
    pub(crate) fn run(mut self) -> SendBook {
        let mut number = 0;
        while let Some(due_ns) = self.schedule.next() {
            let intended_ns = self.start_ns + due_ns;
            let hurried = self.world.clock.now_ns() > intended_ns;
            let Some(actual_ns) =
                wait_until(&self.world.clock, self.world.shared, intended_ns, || {})
            else {
                break;
            };
            self.book.due(intended_ns, actual_ns, hurried);
            self.world.shared.live.lag.record(actual_ns.saturating_sub(intended_ns));
            number += 1;
            if self.open(number, intended_ns, actual_ns).is_none() {
                self.book.refuse(number, intended_ns, actual_ns);
            }
            std::thread::yield_now();
        }
        self.book.log.flush();
        self.world
            .shared
            .sent
            .store(self.nursery.made.load(Ordering::Relaxed) as u64, Ordering::Release);
        self.world.shared.sent_all.store(true, Ordering::Release);
        self.book
    }

    /// Makes a connection and hands it over; nothing if that is not possible.
    fn open(&mut self, number: usize, intended_ns: u64, actual_ns: u64) -> Option<()> {
        let nursery = self.nursery;
        let made = nursery.made.load(Ordering::Relaxed);
        let open = made - nursery.ended.load(Ordering::Acquire);
        if open >= self.world.churn.most_open {
            return None;
        }
        let socket = self.world.churn.route.connect(number, &self.world.churn.congestion).ok()?;
        let fd = socket.as_raw_fd();
        let slot = nursery.slots.get(fd as usize)?;
        // On loopback the handshake is over by now; elsewhere the receiver sends.
        let request = self.dialogue.request(number, 0);
        let sent = socket::send(fd, request).unwrap_or(0);
        let output = if sent < request.len() { libc::EPOLLOUT } else { 0 };
        slot.number.store(number, Ordering::Relaxed);
        slot.sent.store(sent as u64, Ordering::Relaxed);
        slot.intended_ns.store(intended_ns, Ordering::Relaxed);
        slot.begun_ns.store(actual_ns, Ordering::Release);
        let interest = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET | output;
        if nursery.epoll.add(fd, fd as u64, interest).is_err() {
            // Or the receiver would take the number for a connection that it never heard of.
            slot.begun_ns.store(0, Ordering::Release);
            return None;
        }
        // From here on the receiver owns and closes it.
        let _ = socket.into_raw_fd();
        nursery.made.store(made + 1, Ordering::Relaxed);
        nursery.most_seen.fetch_max(open + 1, Ordering::Relaxed);
        Some(())
    }
}

/// A connection as the receiver knows it.
#[derive(Clone, Copy, Default)]
struct Served {
    /// When the opener made it: tells a number's former connection from the present one.
    begun_ns: u64,
    intended_ns: u64,
    number: usize,
    /// When the present request was due.
    asked_ns: u64,
    sent: usize,
    received: usize,
    answered: u32,
    open: bool,
}

impl Served {
    /// The connection as something that was due.
    fn due(&self, fd: usize) -> Due {
        Due { connection: fd, intended_ns: self.intended_ns, actual_ns: self.begun_ns }
    }
}

/// The receiving side.
pub(crate) struct ServeThread<'a> {
    world: World<'a>,
    nursery: &'a Nursery,
    dialogue: Dialogue,
    give_up_ns: u64,
    book: ReceiveBook,
    served: Vec<Served>,
    ended: usize,
}

/// What became of a connection for now.
enum Progress {
    Waiting,
    Complete,
    Ended(End),
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// After its last answer, by us.
    Done,
    /// By the server.
    Reset,
    /// By us, because of a wrong answer.
    Wrong,
}

impl<'a> ServeThread<'a> {
    pub(crate) fn new(
        world: World<'a>,
        nursery: &'a Nursery,
        dialogue: Dialogue,
        give_up_ns: u64,
        book: ReceiveBook,
    ) -> Self {
        let served = vec![Served::default(); nursery.slots.len()];
        ServeThread { world, nursery, dialogue, give_up_ns, book, served, ended: 0 }
    }

    /// Serves connections until all are through or given up.
    pub(crate) fn run(mut self) -> ReceiveBook {
        let mut events = event_buffer(EVENTS_PER_WAIT);
        let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
        loop {
            let ending = self.world.shared.sent_all.load(Ordering::Acquire);
            if ending && self.ended as u64 == self.world.shared.sent.load(Ordering::Acquire) {
                break;
            }
            let given_up = self.world.clock.now_ns() >= self.give_up_ns;
            if given_up || self.world.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            let count = self.nursery.epoll.wait(&mut events, if ending { 1 } else { WAIT_MS });
            for event in &events[..count] {
                let ended = event.events & ENDED as u32 != 0;
                self.advance(event.u64 as usize, ended, &mut buffer);
            }
        }
        self.give_up();
        self.book.log.flush();
        self.book
    }

    fn advance(&mut self, fd: usize, ended: bool, buffer: &mut [u8]) {
        let slot = &self.nursery.slots[fd];
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

    /// Checks what a read brought; only one answer is due at a time.
    fn received(&mut self, fd: usize, bytes: &[u8]) -> Progress {
        let Served { number, answered, received, .. } = self.served[fd];
        let missing = self.dialogue.response_bytes() - received;
        let (piece, behind) = bytes.split_at(missing.min(bytes.len()));
        let mut checked = self.dialogue.check(number, answered, received, piece);
        if checked.is_ok() && !behind.is_empty() {
            checked = Err(self.dialogue.surplus(number, answered, behind.len()));
        }
        if let Err(fault) = checked {
            self.book.faults.count(fault);
            return Progress::Ended(End::Wrong);
        }
        self.served[fd].received += piece.len();
        if piece.len() == missing { Progress::Complete } else { Progress::Waiting }
    }

    /// Books an answer; true if it was the connection's last.
    fn answered(&mut self, fd: usize) -> bool {
        let now_ns = self.world.clock.now_ns();
        let connection = &mut self.served[fd];
        let asked_ns = connection.asked_ns;
        if connection.answered == 0 {
            let due = connection.due(fd);
            self.book.answer(due, now_ns);
            self.world.shared.live.service.record(now_ns.saturating_sub(due.intended_ns));
        }
        self.book.request(connection.intended_ns, now_ns.saturating_sub(asked_ns));
        connection.answered += 1;
        (connection.sent, connection.received, connection.asked_ns) = (0, 0, now_ns);
        connection.answered == self.world.churn.transactions
    }

    fn end(&mut self, fd: usize, end: End) {
        let connection = &mut self.served[fd];
        connection.open = false;
        let due = connection.due(fd);
        match end {
            End::Done => {}
            _ if connection.answered > 0 => self.book.cut_short(),
            End::Reset => self.book.give_up(due, true),
            End::Wrong => self.book.wrong(due, self.world.clock.now_ns()),
        }
        // SAFETY: the descriptor was handed to this thread, and is forgotten right here.
        unsafe { libc::close(fd as RawFd) };
        self.ended += 1;
        self.nursery.ended.store(self.ended, Ordering::Release);
    }

    /// Accounts for and closes what is still open. The opener has ended, or is ended now.
    fn give_up(&mut self) {
        self.world.shared.stop.store(true, Ordering::Relaxed);
        while !self.world.shared.sent_all.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // Connections that never had an event are known by their slots only.
        for fd in 0..self.served.len() {
            let begun_ns = self.nursery.slots[fd].begun_ns.load(Ordering::Acquire);
            let known = self.served[fd];
            let unheard = !known.open && begun_ns != 0 && begun_ns != known.begun_ns;
            if unheard {
                let intended_ns = self.nursery.slots[fd].intended_ns.load(Ordering::Relaxed);
                let due = Due { connection: fd, intended_ns, actual_ns: begun_ns };
                self.book.give_up(due, false);
            } else if known.open && known.answered == 0 {
                self.book.give_up(known.due(fd), false);
            } else if known.open {
                self.book.cut_short();
            }
            if unheard || known.open {
                // SAFETY: an open connection that was handed to this thread.
                unsafe { libc::close(fd as RawFd) };
            }
        }
    }
}
