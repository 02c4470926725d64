//! The relay: a thread that carries packets between the two devices with the delay, rate and loss
//! of the conditions, and counts them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::figures::{Times, new_times};
use crate::network::conditions::Conditions;
use crate::network::link::{Link, LinkOutcome};
use crate::sys::borrow;
use crate::sys::clock::now_ns;

/// Packets read or written in one direction before the other direction is served.
const BATCH_PACKETS: usize = 64;
const LEAST_HEADER_BYTES: usize = 20;
const PROTOCOL_TCP: u8 = 6;
const TCP_FLAGS_AT: usize = 13;
const TCP_RESET: u8 = 0x04;

/// Counters of one direction's packets. `received` is the sum of all other packet counts and of the
/// packets in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct DirectionCounters {
    /// Read from the sending namespace.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Written to the receiving namespace.
    pub(crate) delivered: u64,
    pub(crate) delivered_bytes: u64,
    /// Lost on the wire, as the conditions demand.
    pub(crate) lost: u64,
    /// Dropped because the queue before the rate limit was full.
    pub(crate) queue_full: u64,
    /// Dropped because the packets in flight exceeded the relay's memory limit.
    pub(crate) flight_full: u64,
    /// Not IPv4, such as the neighbour discovery of IPv6; always dropped.
    pub(crate) foreign: u64,
    /// Not accepted by the receiving namespace.
    pub(crate) refused: u64,
    /// In the queue or on the wire now.
    pub(crate) flying: u64,
    /// Dropped by the device because the relay did not read its queue in time.
    pub(crate) device_full: u64,
}

/// State that the relay shares with other threads.
pub(super) struct Shared {
    counters: Mutex<RelayCounters>,
    /// From this time of CLOCK_MONOTONIC on no packet is dropped.
    pub(super) lossless_from_ns: AtomicU64,
}

/// The relay's counters as of its last iteration.
pub(super) struct RelayCounters {
    /// To the server, to the client.
    pub(super) directions: [DirectionCounters; 2],
    /// Time from a packet's due time until it was delivered.
    pub(super) late: Times,
    /// Why the relay ended early.
    pub(super) failure: Option<String>,
}

impl Shared {
    pub(super) fn new() -> Shared {
        let directions = [DirectionCounters::default(); 2];
        Shared {
            counters: Mutex::new(RelayCounters { directions, late: new_times(), failure: None }),
            lossless_from_ns: AtomicU64::new(u64::MAX),
        }
    }

    pub(super) fn counters(&self) -> MutexGuard<'_, RelayCounters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Direction {
    from: File,
    to: File,
    link: Link<Box<[u8]>>,
    counters: DirectionCounters,
}

/// The relay of one network.
pub(super) struct Relay {
    directions: [Direction; 2],
    shared: Arc<Shared>,
    /// Buffer for reading a packet before its size is known.
    scratch: Vec<u8>,
    /// Lateness of the packets delivered in this iteration.
    late_ns: Vec<u64>,
}

impl Relay {
    /// Creates a relay between the devices of the client and the server.
    pub(super) fn new(
        [client, server]: [&File; 2],
        conditions: &Conditions,
        seed: u64,
        shared: Arc<Shared>,
    ) -> io::Result<Relay> {
        let direction = |from: &File, to: &File, seed| -> io::Result<Direction> {
            let link = Link::new(conditions, seed);
            let counters = DirectionCounters::default();
            Ok(Direction { from: from.try_clone()?, to: to.try_clone()?, link, counters })
        };
        Ok(Relay {
            directions: [direction(client, server, seed)?, direction(server, client, !seed)?],
            shared,
            scratch: vec![0; conditions.mtu as usize],
            late_ns: Vec::with_capacity(2 * BATCH_PACKETS),
        })
    }

    /// Carries packets until `stop` becomes readable.
    pub(super) fn run(&mut self, stop: RawFd) {
        wake_precisely();
        let outcome = self.carry(stop);
        self.publish();
        self.shared.counters().failure = outcome.err().map(|error| error.to_string());
    }

    fn carry(&mut self, stop: RawFd) -> io::Result<()> {
        let sources = self.directions.each_ref().map(|direction| direction.from.as_raw_fd());
        loop {
            let [to_server, to_client, stopped] =
                wait([sources[0], sources[1], stop], self.timeout_ns())?;
            if stopped {
                return Ok(());
            }
            let lossless_from_ns = self.shared.lossless_from_ns.load(Ordering::Acquire);
            for (direction, readable) in self.directions.iter_mut().zip([to_server, to_client]) {
                if readable {
                    direction.fetch(&mut self.scratch, lossless_from_ns)?;
                }
                direction.deliver(&mut self.late_ns)?;
            }
            self.publish();
        }
    }

    /// Time until the next packet is due; `None` without packets.
    fn timeout_ns(&self) -> Option<u64> {
        let next = self.directions.iter().filter_map(|direction| direction.link.next_due_ns());
        next.min().map(|due_ns| due_ns.saturating_sub(now_ns()))
    }

    fn publish(&mut self) {
        let mut counters = self.shared.counters();
        for (shown, direction) in counters.directions.iter_mut().zip(&self.directions) {
            *shown = direction.counters;
            shown.flying = direction.link.flying() as u64;
        }
        for late_ns in self.late_ns.drain(..) {
            counters.late.saturating_record(late_ns);
        }
    }
}

impl Direction {
    /// Reads packets that the sending namespace has sent, up to a batch.
    fn fetch(&mut self, scratch: &mut [u8], lossless_from_ns: u64) -> io::Result<()> {
        for _ in 0..BATCH_PACKETS {
            let length = match (&self.from).read(scratch) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let packet = &scratch[..length];
            self.counters.received += 1;
            self.counters.received_bytes += length as u64;
            if length < LEAST_HEADER_BYTES || packet[0] >> 4 != 4 {
                self.counters.foreign += 1;
                continue;
            }
            let now_ns = now_ns();
            // The clients close by RST, to keep their ports. No host repeats a lost RST, so the
            // server would keep connections for ever that another client would have closed
            // reliably.
            let spared = now_ns >= lossless_from_ns || is_reset(packet);
            match self.link.offer(now_ns, packet.into(), length, spared) {
                LinkOutcome::Delivered => {}
                LinkOutcome::Lost => self.counters.lost += 1,
                LinkOutcome::QueueFull => self.counters.queue_full += 1,
                LinkOutcome::FlightFull => self.counters.flight_full += 1,
            }
        }
        Ok(())
    }

    /// Delivers packets that are due, up to a batch.
    fn deliver(&mut self, late_ns: &mut Vec<u64>) -> io::Result<()> {
        for _ in 0..BATCH_PACKETS {
            let Some((due_ns, packet)) = self.link.take(now_ns()) else { return Ok(()) };
            match (&self.to).write(&packet) {
                Ok(_) => {
                    self.counters.delivered += 1;
                    self.counters.delivered_bytes += packet.len() as u64;
                }
                Err(error) if error.raw_os_error() == Some(libc::EBADFD) => return Err(error),
                Err(_) => self.counters.refused += 1,
            }
            late_ns.push(now_ns().saturating_sub(due_ns));
        }
        Ok(())
    }
}

/// Returns whether the packet is a TCP segment with the RST flag; later fragments have no TCP
/// header.
fn is_reset(packet: &[u8]) -> bool {
    let header_bytes = usize::from(packet[0] & 0x0f) * 4;
    let first_fragment = packet[6] & 0x1f == 0 && packet[7] == 0;
    let flags = packet.get(header_bytes + TCP_FLAGS_AT);
    packet[9] == PROTOCOL_TCP && first_fragment && flags.is_some_and(|f| f & TCP_RESET != 0)
}

/// Sleeps until a descriptor is readable or the time has passed; returns which ones are readable.
fn wait(descriptors: [RawFd; 3], timeout_ns: Option<u64>) -> io::Result<[bool; 3]> {
    let mut polled = descriptors.map(|fd| PollFd::from_borrowed_fd(borrow(fd), PollFlags::IN));
    let timeout = timeout_ns.map(|timeout_ns| Timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as i64,
        tv_nsec: (timeout_ns % 1_000_000_000) as i64,
    });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.map(|entry| !entry.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; 3]),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes timers of the calling thread fire when they are due, instead of up to 50 µs later (timer
/// slack).
fn wake_precisely() {
    // A refusal only costs precision, which is measured.
    let _ = rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(flags: u8) -> Vec<u8> {
        let mut packet = vec![0_u8; 40];
        (packet[0], packet[9], packet[33]) = (0x45, PROTOCOL_TCP, flags);
        packet
    }

    #[test]
    fn resets_are_told_from_other_segments() {
        assert!(is_reset(&segment(0x14)));
        assert!(!is_reset(&segment(0x10)));
        let mut datagram = segment(0x14);
        datagram[9] = 17;
        assert!(!is_reset(&datagram));
        let mut fragment = segment(0x14);
        fragment[7] = 1;
        assert!(!is_reset(&fragment));
        assert!(!is_reset(&segment(0x14)[..24]));
    }
}
