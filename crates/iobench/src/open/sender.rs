//! The send thread (Kawai and Yamaguchi, section 4.1 and Figure 3): waits half-busily for the next
//! scheduled time, picks a connection at random, reads the clock, and sends. It never waits for the
//! server: bytes that a socket does not take are sent later, and requests that cannot be queued are
//! counted as refused.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread;
use std::time::Duration;

use crate::open::arrivals::Schedule;
use crate::open::dialogue::Dialogue;
use crate::open::inflight::{InFlight, Sent};
use crate::open::record::SendRecord;
use crate::open::timestamps::{self, Sampler};
use crate::random::SplitMix64;
use crate::sys::clock::now_ns;
use crate::sys::socket;

/// State that the two threads of a generator share.
pub(crate) struct Shared {
    pub(crate) in_flight: InFlight,
    /// Requests added to the queues, counted by the sender.
    pub(crate) sent: AtomicU64,
    /// Iterations of the sender. At the end of one it has no request half queued, and has discarded
    /// the unsent bytes of connections that it saw as ended.
    pub(crate) turns: AtomicU64,
    /// The sender has sent its last request.
    pub(crate) sent_all: AtomicBool,
    /// Set to send no more requests, and to wait for the answers to those that were sent.
    pub(crate) last: AtomicBool,
    /// Set to end the run early.
    pub(crate) stop: AtomicBool,
    /// The threads' CPU times were read for the last time; /proc has no entry for a thread that has
    /// ended.
    pub(crate) sampled: AtomicBool,
}

impl Shared {
    pub(crate) fn new(in_flight: InFlight) -> Shared {
        Shared {
            in_flight,
            sent: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            sent_all: AtomicBool::new(false),
            last: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sampled: AtomicBool::new(false),
        }
    }

    /// Ends the run early.
    pub(crate) fn cancel(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.sampled.store(true, Ordering::Relaxed);
    }

    /// Keeps a finished thread alive until its CPU time was read.
    pub(crate) fn wait_until_sampled(&self) {
        while !self.sampled.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Waits half-busily: yields the CPU to the receiver whenever it is ready, and calls `meanwhile`
/// repeatedly. Returns the time at the end, or `None` if the run has to end.
pub(crate) fn wait_until(shared: &Shared, due_ns: u64, mut meanwhile: impl FnMut()) -> Option<u64> {
    loop {
        if shared.stop.load(Ordering::Relaxed) || shared.last.load(Ordering::Relaxed) {
            return None;
        }
        let now_ns = now_ns();
        if now_ns >= due_ns {
            return Some(now_ns);
        }
        meanwhile();
        thread::yield_now();
    }
}

/// The send thread of one generator.
pub(crate) struct SendThread<'a> {
    pub(crate) start_ns: u64,
    pub(crate) schedule: Schedule,
    pub(crate) connections: Vec<RawFd>,
    pub(crate) dialogue: Dialogue,
    pub(crate) shared: &'a Shared,
    pub(crate) random: SplitMix64,
    pub(crate) sampler: Sampler,
    pub(crate) record: SendRecord,
    /// Unsent bytes of each connection.
    pub(crate) unsent: Vec<usize>,
    /// Connections with unsent bytes.
    pub(crate) clogged: Vec<usize>,
    /// The number of the latest request of each connection.
    pub(crate) latest: Vec<u32>,
}

impl SendThread<'_> {
    /// Sends all requests of the schedule.
    pub(crate) fn run(mut self) -> SendRecord {
        let mut sent = 0;
        while let Some(due_ns) = self.schedule.next() {
            let intended_ns = self.start_ns + due_ns;
            let hurried = now_ns() > intended_ns;
            let shared = self.shared;
            let meanwhile = || {
                self.unclog();
                self.end_turn();
            };
            let waited = wait_until(shared, intended_ns, meanwhile);
            let Some(actual_ns) = waited else { break };
            let connection = self.random.below(self.connections.len());
            self.record.due(intended_ns, actual_ns, hurried);
            let queued = self.shared.in_flight.add(connection, Sent { intended_ns, actual_ns });
            if let Some(number) = queued {
                sent += 1;
                self.shared.sent.store(sent, Ordering::Release);
                self.send(connection, number, actual_ns);
            } else {
                self.record.refuse(connection, intended_ns, actual_ns);
            }
            self.end_turn();
            // As in the paper: the receiver gets a chance to run between two requests.
            thread::yield_now();
        }
        self.drain();
        self.record.log.flush();
        self.shared.sent_all.store(true, Ordering::Release);
        self.record
    }

    fn send(&mut self, connection: usize, number: u32, actual_ns: u64) {
        let length = self.dialogue.request_bytes();
        self.latest[connection] = number;
        let waiting = self.unsent[connection];
        if waiting > 0 {
            self.unsent[connection] += length;
            return;
        }
        let fd = self.connections[connection];
        let request = self.dialogue.request(connection, number);
        let sampled = self.sampler.picks();
        let result = if sampled {
            // A late timestamp of an earlier message must not count for this one.
            while timestamps::take(fd).is_some() {}
            timestamps::send_stamped(fd, request)
        } else {
            socket::send(fd, request)
        };
        if sampled && let Some(stamp_ns) = timestamps::take(fd) {
            self.record.transmit.saturating_record(stamp_ns.saturating_sub(actual_ns).max(1));
        }
        let taken = match result {
            Ok(count) => count,
            Err(libc::EAGAIN | libc::EINTR) => 0,
            // The receiver sees the end of the connection, and the request is in its queue.
            Err(_) => return,
        };
        if taken < length {
            self.unsent[connection] = length - taken;
            self.clogged.push(connection);
        }
    }

    /// Tries to send the unsent bytes again.
    fn unclog(&mut self) {
        if self.clogged.is_empty() {
            return;
        }
        let length = self.dialogue.request_bytes();
        let mut clogged = std::mem::take(&mut self.clogged);
        clogged.retain(|&connection| {
            while self.unsent[connection] > 0 {
                // The unsent rest belongs to the latest request.
                let left = self.unsent[connection];
                let further = left.div_ceil(length) - 1;
                let number = self.latest[connection].wrapping_sub(further as u32);
                let request = self.dialogue.request(connection, number);
                let rest = &request[length - (left - further * length)..];
                match socket::send(self.connections[connection], rest) {
                    Ok(count) => self.unsent[connection] -= count,
                    Err(libc::EAGAIN | libc::EINTR) => return true,
                    Err(_) => self.unsent[connection] = 0,
                }
            }
            false
        });
        self.clogged = clogged;
    }

    /// Discards the unsent bytes of connections that have ended, and ends the iteration: the
    /// receiver reopens a connection only when no iteration is running that may see it as open.
    fn end_turn(&mut self) {
        if !self.clogged.is_empty() {
            let in_flight = &self.shared.in_flight;
            self.clogged.retain(|&connection| {
                let ended = in_flight.has_ended(connection);
                if ended {
                    self.unsent[connection] = 0;
                }
                !ended
            });
        }
        fence(Ordering::SeqCst);
        let turns = &self.shared.turns;
        turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Sends unsent bytes as long as the receiver still waits for answers.
    fn drain(&mut self) {
        let deadline_ns = now_ns() + DRAIN_NS;
        while !self.clogged.is_empty()
            && !self.shared.stop.load(Ordering::Relaxed)
            && now_ns() < deadline_ns
        {
            self.unclog();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Longest time after the last request for which unsent bytes are tried.
const DRAIN_NS: u64 = 1_000_000_000;
