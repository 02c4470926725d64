//! One direction of a path, and all that can happen to a packet on it.

use super::random::Random;

/// Loss that comes in bursts (Gilbert 1960, Elliott 1963): two states, the bad one loses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    pub(crate) enter: f64,
    pub(crate) leave: f64,
    pub(crate) loss: f64,
}

/// A bound on the rate, and the queue before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) bytes_per_second: u64,
    /// Beyond, packets are dropped.
    pub(crate) queue_bytes: u64,
    /// Beyond, packets of senders that understand it are marked instead.
    pub(crate) mark_bytes: Option<u64>,
}

/// A hop that takes smaller packets only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Narrow {
    pub(crate) mtu: u16,
    /// Whether the router says so.
    pub(crate) tells: bool,
}

/// The laws of a link; the default is perfect and takes no time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Law {
    pub(crate) loss: f64,
    pub(crate) burst: Option<Burst>,
    /// How probably a packet is held back.
    pub(crate) reorder: f64,
    /// How long at most.
    pub(crate) reorder_ns: u64,
    pub(crate) duplicate: f64,
    pub(crate) corrupt: f64,
    pub(crate) delay_ns: u64,
    /// Added at random, without changing the order.
    pub(crate) jitter_ns: u64,
    pub(crate) rate: Option<Rate>,
    pub(crate) narrow: Option<Narrow>,
    /// When nothing passes: from and until.
    pub(crate) outages: Vec<(u64, u64)>,
}

/// A packet that will arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) at_ns: u64,
    pub(crate) bytes: Vec<u8>,
    /// Whether it was flipped on the way.
    pub(crate) corrupt: bool,
}

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Carried,
    Lost,
    /// Too long for a hop that says so; the MTU that it has.
    TooLong(u16),
}

/// A link at work.
#[derive(Debug)]
pub(crate) struct Link {
    law: Law,
    random: Random,
    bad: bool,
    /// When the last bit of what waits will have left.
    free_at_ns: u64,
    last_arrival_ns: u64,
}

impl Link {
    pub(crate) fn new(law: Law, random: Random) -> Link {
        Link { law, random, bad: false, free_at_ns: 0, last_arrival_ns: 0 }
    }

    /// Takes a packet; what will come of it is appended.
    pub(crate) fn carry(
        &mut self,
        now_ns: u64,
        mut bytes: Vec<u8>,
        arrivals: &mut Vec<Arrival>,
    ) -> Fate {
        if let Some(narrow) = self.law.narrow.filter(|narrow| bytes.len() > narrow.mtu.into()) {
            return if narrow.tells { Fate::TooLong(narrow.mtu) } else { Fate::Lost };
        }
        if self.is_out(now_ns) || self.loses() {
            return Fate::Lost;
        }
        let Some(departure_ns) = self.depart(now_ns, &mut bytes) else { return Fate::Lost };
        let jitter_ns = self.random.below(self.law.jitter_ns + 1);
        let mut at_ns = departure_ns + self.law.delay_ns + jitter_ns;
        if self.random.chance(self.law.reorder) {
            at_ns += self.random.below(self.law.reorder_ns + 1);
        } else {
            at_ns = at_ns.max(self.last_arrival_ns);
            self.last_arrival_ns = at_ns;
        }
        if self.random.chance(self.law.duplicate) {
            let later_ns = self.random.below(self.law.reorder_ns.max(1));
            let at_ns = at_ns + later_ns;
            arrivals.push(Arrival { at_ns, bytes: bytes.clone(), corrupt: false });
        }
        let corrupt = self.random.chance(self.law.corrupt);
        if corrupt {
            self.flip(&mut bytes);
        }
        arrivals.push(Arrival { at_ns, bytes, corrupt });
        Fate::Carried
    }

    fn is_out(&self, now_ns: u64) -> bool {
        self.law.outages.iter().any(|&(from, until)| (from..until).contains(&now_ns))
    }

    fn loses(&mut self) -> bool {
        let mut loss = self.law.loss;
        if let Some(burst) = self.law.burst {
            let turn = if self.bad { burst.leave } else { burst.enter };
            self.bad ^= self.random.chance(turn);
            loss = if self.bad { burst.loss } else { loss };
        }
        self.random.chance(loss)
    }

    /// When the packet has left the queue, unless there is no room in it.
    fn depart(&mut self, now_ns: u64, bytes: &mut [u8]) -> Option<u64> {
        let Some(rate) = self.law.rate else { return Some(now_ns) };
        let waiting_ns = self.free_at_ns.saturating_sub(now_ns);
        let time_of = |bytes: u64| {
            (u128::from(bytes) * 1_000_000_000 / u128::from(rate.bytes_per_second)) as u64
        };
        if waiting_ns > time_of(rate.queue_bytes) {
            return None;
        }
        if rate.mark_bytes.is_some_and(|mark| waiting_ns > time_of(mark)) {
            mark(bytes);
        }
        self.free_at_ns = now_ns + waiting_ns + time_of(bytes.len() as u64);
        Some(self.free_at_ns)
    }

    /// One bit, which the checksums always find; IPv6 headers have none of their own.
    fn flip(&mut self, bytes: &mut [u8]) {
        let start = if bytes[0] >> 4 == 4 { 0 } else { 40 };
        let bit = start * 8 + self.random.below(((bytes.len() - start) * 8) as u64) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Congestion experienced, if the sender takes part (RFC 3168, section 5).
fn mark(packet: &mut [u8]) {
    if packet[0] >> 4 == 4 {
        if packet[1] & 3 != 0 {
            packet[1] |= 3;
            super::packet::finish_ip(packet);
        }
    } else if packet[1] & 0x30 != 0 {
        packet[1] |= 0x30;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(bytes: usize) -> Vec<u8> {
        let ends = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        super::super::packet::with_ip(ends.0, ends.1, 6, &vec![7; bytes - 20])
    }

    /// Sends packets a millisecond apart.
    fn send(law: Law, count: u64) -> (Vec<Arrival>, usize) {
        let mut link = Link::new(law, Random::new(3));
        let (mut arrivals, mut lost) = (Vec::new(), 0);
        for number in 0..count {
            let fate = link.carry(number * 1_000_000, packet(100), &mut arrivals);
            lost += usize::from(fate != Fate::Carried);
        }
        (arrivals, lost)
    }

    #[test]
    fn a_perfect_link_changes_nothing() {
        let (arrivals, lost) =
            send(Law { delay_ns: 5, jitter_ns: 3_000_000, ..Law::default() }, 99);
        assert_eq!((arrivals.len(), lost), (99, 0));
        assert!(arrivals.iter().all(|arrival| arrival.bytes == packet(100)));
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at_ns), "jitter keeps the order");
    }

    #[test]
    fn losses_come_alone_and_in_bursts() {
        let (_, lost) = send(Law { loss: 0.2, ..Law::default() }, 10_000);
        assert!((1800..2200).contains(&lost), "{lost}");
        let burst = Burst { enter: 0.01, leave: 0.1, loss: 1.0 };
        let (_, lost) = send(Law { burst: Some(burst), ..Law::default() }, 10_000);
        assert!((600..1300).contains(&lost), "{lost}: a tenth is in the bad state");
        let (_, lost) = send(Law { outages: vec![(0, 50_000_000)], ..Law::default() }, 100);
        assert_eq!(lost, 50);
    }

    #[test]
    fn packets_are_doubled_flipped_and_overtaken() {
        let law = Law {
            duplicate: 0.1,
            corrupt: 0.1,
            reorder: 0.1,
            reorder_ns: 10_000_000,
            ..Law::default()
        };
        let (arrivals, _) = send(law, 1000);
        assert!((1050..1150).contains(&arrivals.len()));
        let corrupt = arrivals.iter().filter(|arrival| arrival.corrupt);
        assert!(corrupt.clone().all(|arrival| arrival.bytes != packet(100)));
        assert!((60..140).contains(&corrupt.count()));
        assert!(!arrivals.is_sorted_by_key(|arrival| arrival.at_ns));
    }

    #[test]
    fn a_queue_delays_marks_and_drops() {
        let rate = Rate { bytes_per_second: 1_000_000, queue_bytes: 1000, mark_bytes: Some(500) };
        let mut link = Link::new(Law { rate: Some(rate), ..Law::default() }, Random::new(3));
        let mut arrivals = Vec::new();
        let mut bytes = packet(100);
        bytes[1] = 2;
        super::super::packet::finish_ip(&mut bytes);
        let fates: Vec<_> = (0..20).map(|_| link.carry(0, bytes.clone(), &mut arrivals)).collect();
        assert_eq!(fates.iter().filter(|fate| **fate == Fate::Carried).count(), 11);
        let times: Vec<_> = arrivals.iter().map(|arrival| arrival.at_ns).collect();
        assert_eq!(times[..3], [100_000, 200_000, 300_000]);
        let marked: Vec<_> = arrivals.iter().map(|arrival| arrival.bytes[1]).collect();
        assert_eq!(marked, [2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3]);
    }

    #[test]
    fn a_narrow_hop_tells_or_does_not() {
        for (tells, fate) in [(true, Fate::TooLong(60)), (false, Fate::Lost)] {
            let law = Law { narrow: Some(Narrow { mtu: 60, tells }), ..Law::default() };
            let mut link = Link::new(law, Random::new(3));
            assert_eq!(link.carry(0, packet(61), &mut Vec::new()), fate);
            assert_eq!(link.carry(0, packet(60), &mut Vec::new()), Fate::Carried);
        }
    }
}
