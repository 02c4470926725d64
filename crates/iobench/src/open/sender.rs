//! The send thread (Kawai and Yamaguchi, section 4.1 and Figure 3): it waits half-busily for the
//! next due time, picks a connection at random, takes the time, and sends. It never waits for the
//! server: what a socket does not take is left to be sent later, and what cannot be queued is
//! counted as refused.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::open::arrivals::Schedule;
use crate::open::inflight::{InFlight, Sent};
use crate::open::live::Live;
use crate::open::record::SendBook;
use crate::open::transmit::{self, Sampler};
use crate::random::SplitMix64;
use crate::sys::socket;
use crate::sys::tsc::Clock;

/// What the two threads of a generator tell each other.
pub(crate) struct Shared {
    pub(crate) in_flight: InFlight,
    /// Requests added to the queues, by the sender.
    pub(crate) sent: AtomicU64,
    /// The sender has sent its last request.
    pub(crate) sent_all: AtomicBool,
    /// Somebody wants the run to end now.
    pub(crate) stop: AtomicBool,
    /// The threads' CPU times were read for the last time; /proc forgets a thread that has ended.
    pub(crate) sampled: AtomicBool,
    pub(crate) live: Live,
}

impl Shared {
    /// Ends the run early.
    pub(crate) fn cancel(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.sampled.store(true, Ordering::Relaxed);
    }

    /// Keeps a thread that is done alive until its CPU time was read.
    pub(crate) fn wait_until_sampled(&self) {
        while !self.sampled.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Waits half-busily: the receiver gets the CPU whenever it wants it, and `meanwhile` is called
/// again and again. The time at the end, or nothing if the run is to end.
pub(crate) fn wait_until(
    clock: &Clock,
    shared: &Shared,
    due_ns: u64,
    mut meanwhile: impl FnMut(),
) -> Option<u64> {
    loop {
        let now_ns = clock.now_ns();
        if now_ns >= due_ns {
            return Some(now_ns);
        }
        if shared.stop.load(Ordering::Relaxed) {
            return None;
        }
        meanwhile();
        thread::yield_now();
    }
}

/// The sending side of one generator.
pub(crate) struct SendThread<'a> {
    pub(crate) clock: Clock,
    pub(crate) start_ns: u64,
    pub(crate) schedule: Schedule,
    pub(crate) connections: Vec<RawFd>,
    pub(crate) request: &'a [u8],
    pub(crate) shared: &'a Shared,
    pub(crate) random: SplitMix64,
    pub(crate) sampler: Sampler,
    pub(crate) book: SendBook,
    /// Bytes that each socket did not take yet.
    pub(crate) unsent: Vec<usize>,
    /// The connections that have such bytes.
    pub(crate) clogged: Vec<usize>,
}

impl SendThread<'_> {
    /// Sends all requests of the schedule.
    pub(crate) fn run(mut self) -> SendBook {
        let mut sent = 0;
        while let Some(due_ns) = self.schedule.next() {
            let intended_ns = self.start_ns + due_ns;
            let hurried = self.clock.now_ns() > intended_ns;
            let (clock, shared) = (self.clock, self.shared);
            let unclog = || self.unclog();
            let Some(actual_ns) = wait_until(&clock, shared, intended_ns, unclog) else { break };
            let connection = self.random.below(self.connections.len());
            self.book.due(intended_ns, actual_ns, hurried);
            self.shared.live.lag.record(actual_ns.saturating_sub(intended_ns));
            // SAFETY: this thread is the generator's only sender.
            let queued =
                unsafe { self.shared.in_flight.add(connection, Sent { intended_ns, actual_ns }) };
            if queued {
                sent += 1;
                self.shared.sent.store(sent, Ordering::Release);
                self.send(connection, actual_ns);
            } else {
                self.book.refuse(connection, intended_ns, actual_ns);
            }
            // As in the paper: never two requests in a row without a chance for the receiver.
            thread::yield_now();
        }
        self.drain();
        self.book.log.flush();
        self.shared.sent_all.store(true, Ordering::Release);
        self.book
    }

    fn send(&mut self, connection: usize, actual_ns: u64) {
        let waiting = self.unsent[connection];
        if waiting > 0 {
            self.unsent[connection] += self.request.len();
            return;
        }
        let fd = self.connections[connection];
        let sampled = self.sampler.picks();
        let result = if sampled {
            // A stamp that came too late for its own message must not count for this one.
            while transmit::take(fd, &self.clock).is_some() {}
            transmit::send_stamped(fd, self.request)
        } else {
            socket::send(fd, self.request)
        };
        if sampled && let Some(stamp_ns) = transmit::take(fd, &self.clock) {
            self.book.transmit.saturating_record(stamp_ns.saturating_sub(actual_ns).max(1));
        }
        let taken = match result {
            Ok(count) => count,
            Err(libc::EAGAIN | libc::EINTR) => 0,
            // The receiver sees the end of the connection, and the request is in its queue.
            Err(_) => return,
        };
        if taken < self.request.len() {
            self.unsent[connection] = self.request.len() - taken;
            self.clogged.push(connection);
        }
    }

    /// Offers what was left over to the sockets again.
    fn unclog(&mut self) {
        if self.clogged.is_empty() {
            return;
        }
        let mut clogged = std::mem::take(&mut self.clogged);
        clogged.retain(|&connection| {
            while self.unsent[connection] > 0 {
                // What is left ends with the end of a request.
                let left = self.unsent[connection] % self.request.len();
                let from = if left == 0 { 0 } else { self.request.len() - left };
                match socket::send(self.connections[connection], &self.request[from..]) {
                    Ok(count) => self.unsent[connection] -= count,
                    Err(libc::EAGAIN | libc::EINTR) => return true,
                    Err(_) => self.unsent[connection] = 0,
                }
            }
            false
        });
        self.clogged = clogged;
    }

    /// Gets rid of left-over bytes as long as the receiver still waits for answers.
    fn drain(&mut self) {
        let deadline_ns = self.clock.now_ns() + DRAIN_NS;
        while !self.clogged.is_empty()
            && !self.shared.stop.load(Ordering::Relaxed)
            && self.clock.now_ns() < deadline_ns
        {
            self.unclog();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// How long left-over bytes are offered after the last request.
const DRAIN_NS: u64 = 1_000_000_000;
