//! Emulates one direction of the path, without I/O: packets with times go in, packets with times
//! come out.
//!
//! A packet passes three stages, as on a real path. The sender's queue is served at the rate and
//! drops packets that do not fit (drop tail). The wire loses some packets. The rest is delayed. A
//! lost packet has used the rate, as on a radio link.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::network::conditions::Conditions;
use crate::random::SplitMix64;

/// Most bytes in flight in one direction, with the overhead of each packet.
const MOST_FLYING_BYTES: usize = 128 << 20;
/// Memory of a packet beside its bytes.
const PACKET_OVERHEAD_BYTES: usize = 64;
const PICOSECONDS_PER_SECOND: u128 = 1_000_000_000_000;

/// The link's decision about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkOutcome {
    /// It will be delivered.
    Delivered,
    /// The wire lost it.
    Lost,
    /// The queue before the rate limit was full.
    QueueFull,
    /// The packets in flight would exceed the memory limit.
    FlightFull,
}

struct Flying<P> {
    due_ns: u64,
    /// Packets due at the same time leave in the order of arrival.
    sequence: u64,
    bytes: usize,
    packet: P,
}

impl<P> Ord for Flying<P> {
    // Reversed, because the heap gives out its greatest element.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due_ns, other.sequence).cmp(&(self.due_ns, self.sequence))
    }
}

impl<P> PartialOrd for Flying<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> PartialEq for Flying<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<P> Eq for Flying<P> {}

/// One direction of the path. Times are nanoseconds of any one clock, in ascending order.
pub(crate) struct Link<P> {
    delay_ns: u64,
    jitter_ns: u64,
    loss: f64,
    rate_bits: Option<u64>,
    queue_bytes: usize,
    reorder: bool,
    random: SplitMix64,
    /// When the last accepted packet leaves the queue, in picoseconds so that rates are not
    /// rounded.
    free_at_ps: u128,
    flying: BinaryHeap<Flying<P>>,
    flying_bytes: usize,
    last_due_ns: u64,
    sequence: u64,
}

impl<P> Link<P> {
    /// Loss and jitter are functions of the seed and the order of the packets.
    pub(crate) fn new(conditions: &Conditions, seed: u64) -> Link<P> {
        Link {
            delay_ns: conditions.delay.as_nanos() as u64,
            jitter_ns: conditions.jitter.as_nanos() as u64,
            loss: conditions.loss,
            rate_bits: conditions.rate_bits,
            queue_bytes: conditions.queue_bytes(),
            reorder: conditions.reorder,
            random: SplitMix64::new(seed),
            free_at_ps: 0,
            flying: BinaryHeap::new(),
            flying_bytes: 0,
            last_due_ns: 0,
            sequence: 0,
        }
    }

    /// Takes a packet of this size. A packet that is `spared` is queued and delayed like the others
    /// but neither lost nor dropped by the queue.
    pub(crate) fn offer(
        &mut self,
        now_ns: u64,
        packet: P,
        bytes: usize,
        spared: bool,
    ) -> LinkOutcome {
        if self.flying_bytes + bytes + PACKET_OVERHEAD_BYTES > MOST_FLYING_BYTES {
            return LinkOutcome::FlightFull;
        }
        let Some(sent_ns) = self.transmit(now_ns, bytes, spared) else {
            return LinkOutcome::QueueFull;
        };
        if self.loses() && !spared {
            return LinkOutcome::Lost;
        }
        let mut due_ns = sent_ns + self.flight_ns();
        if !self.reorder {
            due_ns = due_ns.max(self.last_due_ns);
            self.last_due_ns = due_ns;
        }
        self.sequence += 1;
        self.flying_bytes += bytes + PACKET_OVERHEAD_BYTES;
        self.flying.push(Flying { due_ns, sequence: self.sequence, bytes, packet });
        LinkOutcome::Delivered
    }

    /// Returns the time at which the next packet arrives.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.flying.peek().map(|flying| flying.due_ns)
    }

    /// Takes the next packet that is due by `now_ns`, with its arrival time.
    pub(crate) fn take(&mut self, now_ns: u64) -> Option<(u64, P)> {
        if self.next_due_ns()? > now_ns {
            return None;
        }
        let Flying { due_ns, bytes, packet, .. } = self.flying.pop()?;
        self.flying_bytes -= bytes + PACKET_OVERHEAD_BYTES;
        Some((due_ns, packet))
    }

    /// Returns the number of packets in flight, in the queue or on the wire.
    pub(crate) fn flying(&self) -> usize {
        self.flying.len()
    }

    /// Returns the time at which the packet leaves the queue; `None` if it does not fit. A packet
    /// always fits into an empty queue.
    fn transmit(&mut self, now_ns: u64, bytes: usize, spared: bool) -> Option<u64> {
        let Some(rate) = self.rate_bits.map(u128::from) else { return Some(now_ns) };
        let now_ps = u128::from(now_ns) * 1_000;
        let waiting_ps = self.free_at_ps.saturating_sub(now_ps);
        let waiting_bytes = (waiting_ps * rate).div_ceil(8 * PICOSECONDS_PER_SECOND);
        let fits = waiting_ps == 0 || waiting_bytes + bytes as u128 <= self.queue_bytes as u128;
        if !fits && !spared {
            return None;
        }
        let transmission_ps = (bytes as u128 * 8 * PICOSECONDS_PER_SECOND).div_ceil(rate);
        self.free_at_ps = now_ps + waiting_ps + transmission_ps;
        Some(self.free_at_ps.div_ceil(1_000) as u64)
    }

    fn loses(&mut self) -> bool {
        // An f64 in [0, 1) has 53 significant bits.
        self.loss > 0.0 && ((self.random.next() >> 11) as f64) < self.loss * (1_u64 << 53) as f64
    }

    /// Returns the packet's delay: delay ± jitter; the jitter never exceeds the delay.
    fn flight_ns(&mut self) -> u64 {
        if self.jitter_ns == 0 {
            return self.delay_ns;
        }
        let span = 2 * self.jitter_ns as usize + 1;
        self.delay_ns - self.jitter_ns + self.random.below(span) as u64
    }
}
