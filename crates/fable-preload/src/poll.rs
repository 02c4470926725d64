//! Implements poll(2) over upgraded connections.

use core::ffi::{c_int, c_short};
use preload::deadline::Deadline;
use preload::real;

use libc::{pollfd, sigset_t};

use crate::connection::{ASKED, Connection};
use crate::counted::CountedRef;
use crate::epoll::{self, Set};
use crate::statistics::{self, Why};
use crate::{sys, table};

const LOOKS_PER_CLOCK: u32 = 32;
const WRITABLE: c_short = libc::POLLOUT | libc::POLLWRNORM;
/// Events that poll(2) reports even if they were not asked for.
const ALWAYS: c_short = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
/// After so many wake-ups without an event, the next one waits: the kernel only reports what is
/// already known.
const IDLE_TURNS: u32 = 3;

/// An upgraded connection in the list of descriptors.
struct Watched {
    place: usize,
    fd: c_int,
    events: c_short,
    connection: CountedRef<Connection>,
}

/// A poll in progress.
struct Poll {
    watched: Vec<Watched>,
    /// The list that is passed to the kernel.
    kernel: Vec<pollfd>,
    mask: *const sigset_t,
}

/// Returns whether any of the descriptors is an upgraded connection. Returns the upgraded members
/// of an epoll set in the list to TCP, because the library cannot tell the kernel when the set is
/// ready.
pub(crate) fn concerns(list: &[pollfd]) -> bool {
    let mut found = false;
    for entry in list {
        if table::is_foreign(entry.fd) {
            found |= table::is_reserved(entry.fd);
            continue;
        }
        match table::get::<Set>(entry.fd) {
            Some(set) => epoll::bar(&set),
            None => found |= table::get::<Connection>(entry.fd).is_some(),
        }
    }
    found
}

/// Does what ppoll(2) does.
///
/// # Safety
/// `mask` must be null or a set of signals.
pub(crate) unsafe fn poll(list: &mut [pollfd], deadline: Deadline, mask: *const sigset_t) -> c_int {
    let mut poll = Poll::new(list, mask);
    let mut idle = 0_u32;
    loop {
        let (ready, complete) = poll.glance(list);
        if ready > 0 && complete {
            return ready;
        }
        let news = ready > 0 || (!deadline.has_passed() && poll.look());
        let (news, asked) =
            if news { (true, poll.ask_kernel(Deadline::Now)) } else { poll.sleep(deadline) };
        if asked < 0 {
            return asked;
        }
        let ready = poll.translate(list);
        if ready > 0 || deadline.has_passed() {
            return ready;
        }
        idle = if news { idle } else { idle + 1 };
        if idle > IDLE_TURNS {
            sys::nap(1);
        }
    }
}

impl Poll {
    fn new(list: &[pollfd], mask: *const sigset_t) -> Self {
        let mut watched = Vec::new();
        for (place, entry) in list.iter().enumerate() {
            if let Some(connection) = table::get::<Connection>(entry.fd) {
                // A connection that memory does not show yet may wait for the peer's acceptance.
                if connection.progress(entry.fd) == Ok(true) {
                    let (fd, events) = (entry.fd, entry.events);
                    watched.push(Watched { place, fd, events, connection });
                }
            }
        }
        let mut kernel = list.to_vec();
        for entry in kernel.iter_mut().filter(|entry| table::is_reserved(entry.fd)) {
            // The application has opened no such descriptor: for this number the kernel reports
            // POLLNVAL.
            entry.fd = c_int::MAX;
        }
        Poll { watched, kernel, mask }
    }

    /// Returns what the memory alone shows, and whether that is everything that was asked for. If
    /// not, the kernel is asked too: only the kernel knows that a peer was killed.
    fn glance(&self, list: &mut [pollfd]) -> (c_int, bool) {
        let mut ready = 0;
        let mut complete = self.watched.len() == list.len();
        for entry in list.iter_mut() {
            entry.revents = 0;
        }
        for watched in &self.watched {
            if !watched.connection.is_inside() {
                complete = false;
                continue;
            }
            let events = expand(watched.connection.glance()) & watched.events;
            list[watched.place].revents = events;
            ready += c_int::from(events != 0);
            complete &= events == watched.events & !ALWAYS;
            // A ring has room even if its reader is gone, which only the kernel knows.
            let is_known = !watched.connection.has_ended() && !watched.connection.is_look_due();
            complete &= events & WRITABLE == 0 || is_known;
        }
        (ready, complete)
    }

    fn beckons(&self) -> bool {
        self.watched.iter().any(|watched| {
            let connection = &watched.connection;
            let wants = expand(connection.glance()) & watched.events != 0;
            connection.is_inside() && wants
        })
    }

    /// Spins on the memory for a while. Returns whether anything became ready.
    fn look(&self) -> bool {
        let mut inside = self.watched.iter().filter(|it| it.connection.is_inside());
        let Some(first) = inside.find(|it| !it.connection.shares_processor()) else { return false };
        let budget_ns = first.connection.spin.budget_ns();
        if budget_ns == 0 {
            return false;
        }
        let end_ns = sys::now_ns() + budget_ns;
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.beckons() {
                    first.connection.spin.succeeded();
                    return true;
                }
                core::hint::spin_loop();
            }
            if sys::now_ns() >= end_ns {
                first.connection.spin.failed();
                return false;
            }
        }
    }

    /// Asks the peers for doorbells, which other threads leave to this one, and sleeps until one
    /// arrives. Returns whether there was an event already, and the kernel's result.
    fn sleep(&mut self, deadline: Deadline) -> (bool, c_int) {
        let mut news = false;
        for watched in &self.watched {
            watched.connection.tidy(watched.fd);
            watched.connection.fall_asleep();
            news |= watched.connection.arm(compress(watched.events));
        }
        let asked = self.ask_kernel(if news { Deadline::Now } else { deadline });
        for watched in &self.watched {
            watched.connection.wake_up();
        }
        (news, asked)
    }

    fn ask_kernel(&mut self, until: Deadline) -> c_int {
        for watched in &self.watched {
            let to_stream = watched.connection.writes_to_stream();
            let wants = compress(watched.events) & libc::POLLOUT != 0;
            let room = to_stream && (wants || watched.connection.is_resending());
            self.kernel[watched.place].events = ASKED | if room { libc::POLLOUT } else { 0 };
        }
        if !until.has_passed() {
            statistics::count(Why::Sleeps);
        }
        let timeout = until.left_timespec();
        let pointer = timeout.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        let count = self.kernel.len() as libc::nfds_t;
        // SAFETY: the list belongs to this poll, and the mask is the application's.
        unsafe { real::ppoll(self.kernel.as_mut_ptr(), count, pointer, self.mask) }
    }

    /// Converts the events for the application.
    fn translate(&mut self, list: &mut [pollfd]) -> c_int {
        for (entry, kernel) in list.iter_mut().zip(&self.kernel) {
            entry.revents = kernel.revents;
        }
        for watched in &self.watched {
            let kernel = self.kernel[watched.place].revents;
            let said = watched.connection.translate(watched.fd, kernel);
            let events = expand(said.unwrap_or(kernel)) & (watched.events | ALWAYS);
            list[watched.place].revents = events;
        }
        // In the next iteration the kernel handles a descriptor that became plain, with the
        // application's events.
        let kernel = &mut self.kernel;
        self.watched.retain(|watched| {
            let left = watched.connection.own().has_left();
            if left {
                kernel[watched.place].events = watched.events;
            }
            !left
        });
        list.iter().filter(|entry| entry.revents != 0).count() as c_int
    }
}

/// Adds the normal-priority names of the same events.
fn expand(events: c_short) -> c_short {
    let mut all = events;
    if events & libc::POLLIN != 0 {
        all |= libc::POLLRDNORM;
    }
    if events & libc::POLLOUT != 0 {
        all |= libc::POLLWRNORM;
    }
    all
}

/// Adds the usual names of the same events.
fn compress(events: c_short) -> c_short {
    let mut all = events;
    if events & libc::POLLRDNORM != 0 {
        all |= libc::POLLIN;
    }
    if events & libc::POLLWRNORM != 0 {
        all |= libc::POLLOUT;
    }
    all
}
