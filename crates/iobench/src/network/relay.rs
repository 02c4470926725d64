//! The thread between the two devices: it carries packets from one to the other as late, as slowly
//! and as incompletely as the conditions say, and keeps the books.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::figures::{Times, new_times};
use crate::network::conditions::Conditions;
use crate::network::link::{Fate, Link};
use crate::sys::clock::now_ns;

/// Packets read or written in a direction before the other has its turn.
const BATCH_PACKETS: usize = 64;
const LEAST_HEADER_BYTES: usize = 20;
const PROTOCOL_TCP: u8 = 6;
const TCP_FLAGS_AT: usize = 13;
const TCP_RESET: u8 = 0x04;

/// What happened to a direction's packets. `received` is the sum of all other packet counts and of
/// what is under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct DirectionCounters {
    /// From the sending namespace.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// To the receiving namespace.
    pub(crate) delivered: u64,
    pub(crate) delivered_bytes: u64,
    /// By the wire, as the conditions demand.
    pub(crate) lost: u64,
    /// The queue before the rate limit was full.
    pub(crate) queue_full: u64,
    /// More was under way than the relay keeps in memory.
    pub(crate) flight_full: u64,
    /// Not IPv4, such as the neighbour discovery of IPv6; never carried.
    pub(crate) foreign: u64,
    /// The receiving namespace did not take it.
    pub(crate) refused: u64,
    /// In the queue or on the wire at this moment.
    pub(crate) flying: u64,
    /// Never seen by the relay because it was too slow for the device's queue.
    pub(crate) device_full: u64,
}

/// What the relay shares with those who ask.
pub(super) struct Shared {
    books: Mutex<Books>,
    /// From this time of CLOCK_MONOTONIC on nothing is dropped.
    pub(super) lossless_from_ns: AtomicU64,
}

/// The relay's state as of its last round.
pub(super) struct Books {
    /// To the server, to the client.
    pub(super) directions: [DirectionCounters; 2],
    /// From a packet's due time until it was delivered.
    pub(super) late: Times,
    /// Why the relay ended before its time.
    pub(super) failure: Option<String>,
}

impl Shared {
    pub(super) fn new() -> Shared {
        let directions = [DirectionCounters::default(); 2];
        Shared {
            books: Mutex::new(Books { directions, late: new_times(), failure: None }),
            lossless_from_ns: AtomicU64::new(u64::MAX),
        }
    }

    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Where a packet is read to before its size is known.
    scratch: Vec<u8>,
    /// Of the packets delivered in this round.
    late_ns: Vec<u64>,
}

impl Relay {
    /// A relay between the devices of the client and the server.
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
        self.shared.books().failure = outcome.err().map(|error| error.to_string());
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

    /// Until the next packet is due; without one there is nothing to wake up for.
    fn timeout_ns(&self) -> Option<u64> {
        let next = self.directions.iter().filter_map(|direction| direction.link.next_due_ns());
        next.min().map(|due_ns| due_ns.saturating_sub(now_ns()))
    }

    fn publish(&mut self) {
        let mut books = self.shared.books();
        for (shown, direction) in books.directions.iter_mut().zip(&self.directions) {
            *shown = direction.counters;
            shown.flying = direction.link.flying() as u64;
        }
        for late_ns in self.late_ns.drain(..) {
            books.late.saturating_record(late_ns);
        }
    }
}

impl Direction {
    /// Takes what the sending namespace has sent, up to a batch.
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
            // The clients close by reset, to keep their ports. No host repeats a lost one, so the
            // server would keep connections for ever that any other client had closed reliably.
            let spared = now_ns >= lossless_from_ns || is_reset(packet);
            match self.link.offer(now_ns, packet.into(), length, spared) {
                Fate::Flies => {}
                Fate::Lost => self.counters.lost += 1,
                Fate::QueueFull => self.counters.queue_full += 1,
                Fate::FlightFull => self.counters.flight_full += 1,
            }
        }
        Ok(())
    }

    /// Hands over what is due, up to a batch.
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

/// A TCP segment with the RST flag; later fragments carry no header.
fn is_reset(packet: &[u8]) -> bool {
    let header_bytes = usize::from(packet[0] & 0x0f) * 4;
    let first_fragment = packet[6] & 0x1f == 0 && packet[7] == 0;
    let flags = packet.get(header_bytes + TCP_FLAGS_AT);
    packet[9] == PROTOCOL_TCP && first_fragment && flags.is_some_and(|f| f & TCP_RESET != 0)
}

/// Sleeps until a descriptor is readable or the time has passed; which ones are readable.
fn wait(descriptors: [RawFd; 3], timeout_ns: Option<u64>) -> io::Result<[bool; 3]> {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let timeout = timeout_ns.map(|timeout_ns| libc::timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = polled.len() as libc::nfds_t;
    // SAFETY: the array is valid for its length, the timeout is null or valid; no signal mask.
    let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), count, timeout, std::ptr::null()) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::Interrupted => Ok([false; 3]),
            _ => Err(error),
        };
    }
    Ok(polled.map(|entry| entry.revents != 0))
}

/// Timers of the calling thread fire when they are due, instead of up to 50 µs later.
fn wake_precisely() {
    // SAFETY: prctl takes plain numbers here; a refusal only costs precision, which is measured.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
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
