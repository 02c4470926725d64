//! Simulates one direction of a path, with all impairments of packets: times and packets are passed
//! in, and a seed determines all random events.

use crate::random::Random;

/// Loss in bursts (Gilbert 1960, Elliott 1963): two states, of which the bad one loses packets.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    /// The probability per packet that the bad state begins.
    pub enter: f64,
    /// The probability per packet that it ends.
    pub leave: f64,
    /// The probability of a loss in it.
    pub loss: f64,
}

/// A limit of the rate, and the queue before it.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// The rate in bytes per second; not zero.
    pub bytes_per_second: u64,
    /// Queue length beyond which packets are dropped.
    pub queue_bytes: u64,
    /// Queue length beyond which packets of ECN-capable senders are marked instead.
    pub mark_bytes: Option<u64>,
}

/// A hop with a smaller MTU.
#[derive(Clone, Copy, Debug)]
pub struct Narrow {
    /// The longest packet that passes, in bytes.
    pub mtu: u16,
    /// Whether the router sends an ICMP message.
    pub tells: bool,
}

/// The impairments of a link. The default has none and no delay.
#[derive(Clone, Debug, Default)]
pub struct Impairment {
    /// The probability that a packet is lost by itself.
    pub loss: f64,
    /// Loss in bursts; during one its probability replaces `loss`.
    pub burst: Option<Burst>,
    /// The probability that a packet is delayed so that others overtake it.
    pub reorder: f64,
    /// The longest such delay.
    pub reorder_ns: u64,
    /// The probability that a packet arrives twice.
    pub duplicate: f64,
    /// The probability that one bit of a packet is flipped.
    pub corrupt: f64,
    /// The delay of all packets.
    pub delay_ns: u64,
    /// Random delay that does not change the order.
    pub jitter_ns: u64,
    /// A limit of the rate.
    pub rate: Option<Rate>,
    /// A hop with a smaller MTU.
    pub narrow: Option<Narrow>,
    /// Periods in which all packets are lost: start and end.
    pub outages: Vec<(u64, u64)>,
}

/// A packet that will arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time of its arrival.
    pub at_ns: u64,
    /// The packet as it arrives.
    pub bytes: Vec<u8>,
    /// Whether one of its bits was flipped.
    pub corrupt: bool,
}

/// What happened to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It arrives at least once.
    Carried,
    /// It does not arrive.
    Lost,
    /// The packet was too long for a hop that reports it; contains the hop's MTU.
    TooLong(u16),
}

/// A running link.
#[derive(Debug)]
pub struct Link {
    impairment: Impairment,
    /// Bytes of the link-layer header before each packet.
    header_bytes: usize,
    random: Random,
    bad: bool,
    /// The time at which the last bit of the queue has been sent.
    free_at_ns: u64,
    last_arrival_ns: u64,
}

impl Link {
    /// A link that carries IP packets.
    pub fn new(impairment: Impairment, random: Random) -> Link {
        let header_bytes = 0;
        Link { impairment, header_bytes, random, bad: false, free_at_ns: 0, last_arrival_ns: 0 }
    }

    /// A link that carries Ethernet frames. Only those that contain IP packets are corrupted.
    pub fn of_frames(impairment: Impairment, random: Random) -> Link {
        Link { header_bytes: 14, ..Link::new(impairment, random) }
    }

    /// Takes a packet; appends its arrivals, if any.
    pub fn carry(
        &mut self,
        now_ns: u64,
        mut bytes: Vec<u8>,
        arrivals: &mut Vec<Arrival>,
    ) -> Delivery {
        if let Some(narrow) = self
            .impairment
            .narrow
            .filter(|narrow| bytes.len() - self.header_bytes > narrow.mtu.into())
        {
            return if narrow.tells { Delivery::TooLong(narrow.mtu) } else { Delivery::Lost };
        }
        if self.is_out(now_ns) || self.loses() {
            return Delivery::Lost;
        }
        let Some(departure_ns) = self.depart(now_ns, &mut bytes) else { return Delivery::Lost };
        let jitter_ns = self.random.below(self.impairment.jitter_ns + 1);
        let mut at_ns = departure_ns + self.impairment.delay_ns + jitter_ns;
        if self.random.chance(self.impairment.reorder) {
            at_ns += self.random.below(self.impairment.reorder_ns + 1);
        } else {
            at_ns = at_ns.max(self.last_arrival_ns);
            self.last_arrival_ns = at_ns;
        }
        if self.random.chance(self.impairment.duplicate) {
            let later_ns = self.random.below(self.impairment.reorder_ns.max(1));
            let at_ns = at_ns + later_ns;
            arrivals.push(Arrival { at_ns, bytes: bytes.clone(), corrupt: false });
        }
        let corrupt = self.random.chance(self.impairment.corrupt)
            && flip(&mut bytes[self.header_bytes..], &mut self.random);
        arrivals.push(Arrival { at_ns, bytes, corrupt });
        Delivery::Carried
    }

    fn is_out(&self, now_ns: u64) -> bool {
        self.impairment.outages.iter().any(|&(from, until)| (from..until).contains(&now_ns))
    }

    fn loses(&mut self) -> bool {
        let mut loss = self.impairment.loss;
        if let Some(burst) = self.impairment.burst {
            let turn = if self.bad { burst.leave } else { burst.enter };
            self.bad ^= self.random.chance(turn);
            loss = if self.bad { burst.loss } else { loss };
        }
        self.random.chance(loss)
    }

    /// The time at which the packet leaves the queue; `None` if there is no room in it.
    fn depart(&mut self, now_ns: u64, bytes: &mut [u8]) -> Option<u64> {
        let Some(rate) = self.impairment.rate else { return Some(now_ns) };
        let waiting_ns = self.free_at_ns.saturating_sub(now_ns);
        let time_of = |bytes: u64| {
            (u128::from(bytes) * 1_000_000_000 / u128::from(rate.bytes_per_second)) as u64
        };
        if waiting_ns > time_of(rate.queue_bytes) {
            return None;
        }
        if rate.mark_bytes.is_some_and(|mark| waiting_ns > time_of(mark)) {
            mark(&mut bytes[self.header_bytes..]);
        }
        self.free_at_ns = now_ns + waiting_ns + time_of(bytes.len() as u64);
        Some(self.free_at_ns)
    }
}

/// Flips one bit of an IP packet, which the checksums always detect. IPv6 headers have no checksum
/// of their own. False, without a change, for other packets.
fn flip(bytes: &mut [u8], random: &mut Random) -> bool {
    let start = match bytes[0] >> 4 {
        4 => 0,
        6 => 40,
        _ => return false,
    };
    let bit = start * 8 + random.below(((bytes.len() - start) * 8) as u64) as usize;
    bytes[bit / 8] ^= 1 << (bit % 8);
    true
}

/// Sets "congestion experienced" if the sender supports ECN (RFC 3168, section 5).
fn mark(packet: &mut [u8]) {
    match packet[0] >> 4 {
        4 if packet[1] & 3 != 0 => {
            packet[1] |= 3;
            packet[10..12].copy_from_slice(&[0, 0]);
            let total = !header_sum(packet);
            packet[10..12].copy_from_slice(&total.to_be_bytes());
        }
        6 if packet[1] & 0x30 != 0 => packet[1] |= 0x30,
        _ => {}
    }
}

/// The ones' complement sum (RFC 1071) of an IPv4 header without options.
fn header_sum(packet: &[u8]) -> u16 {
    let words = packet[..20].chunks_exact(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
    let total: u32 = words.sum();
    let folded = (total & 0xffff) + (total >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(bytes: usize) -> Vec<u8> {
        let mut packet = vec![7; bytes];
        packet[..2].copy_from_slice(&[0x45, 0]);
        packet
    }

    /// Sends packets a millisecond apart.
    fn send(impairment: Impairment, count: u64) -> (Vec<Arrival>, usize) {
        let mut link = Link::new(impairment, Random::new(3));
        let (mut arrivals, mut lost) = (Vec::new(), 0);
        for number in 0..count {
            let delivery = link.carry(number * 1_000_000, packet(100), &mut arrivals);
            lost += usize::from(delivery != Delivery::Carried);
        }
        (arrivals, lost)
    }

    #[test]
    fn a_perfect_link_changes_nothing() {
        let (arrivals, lost) =
            send(Impairment { delay_ns: 5, jitter_ns: 3_000_000, ..Impairment::default() }, 99);
        assert_eq!((arrivals.len(), lost), (99, 0));
        assert!(arrivals.iter().all(|arrival| arrival.bytes == packet(100)));
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at_ns), "jitter keeps the order");
    }

    #[test]
    fn losses_come_alone_and_in_bursts() {
        let (_, lost) = send(Impairment { loss: 0.2, ..Impairment::default() }, 10_000);
        assert!((1800..2200).contains(&lost), "{lost}");
        let burst = Burst { enter: 0.01, leave: 0.1, loss: 1.0 };
        let (_, lost) = send(Impairment { burst: Some(burst), ..Impairment::default() }, 10_000);
        assert!((600..1300).contains(&lost), "{lost}: a tenth is in the bad state");
        let (_, lost) =
            send(Impairment { outages: vec![(0, 50_000_000)], ..Impairment::default() }, 100);
        assert_eq!(lost, 50);
    }

    #[test]
    fn packets_are_doubled_flipped_and_overtaken() {
        let impairment = Impairment {
            duplicate: 0.1,
            corrupt: 0.1,
            reorder: 0.1,
            reorder_ns: 10_000_000,
            ..Impairment::default()
        };
        let (arrivals, _) = send(impairment, 1000);
        assert!((1050..1150).contains(&arrivals.len()));
        let corrupt = arrivals.iter().filter(|arrival| arrival.corrupt);
        assert!(corrupt.clone().all(|arrival| arrival.bytes != packet(100)));
        assert!((60..140).contains(&corrupt.count()));
        assert!(!arrivals.is_sorted_by_key(|arrival| arrival.at_ns));
    }

    #[test]
    fn a_queue_delays_marks_and_drops() {
        let rate = Rate { bytes_per_second: 1_000_000, queue_bytes: 1000, mark_bytes: Some(500) };
        let mut link =
            Link::new(Impairment { rate: Some(rate), ..Impairment::default() }, Random::new(3));
        let mut arrivals = Vec::new();
        let mut bytes = packet(100);
        bytes[1] = 2;
        let fates: Vec<_> = (0..20).map(|_| link.carry(0, bytes.clone(), &mut arrivals)).collect();
        assert_eq!(fates.iter().filter(|delivery| **delivery == Delivery::Carried).count(), 11);
        let times: Vec<_> = arrivals.iter().map(|arrival| arrival.at_ns).collect();
        assert_eq!(times[..3], [100_000, 200_000, 300_000]);
        let marked: Vec<_> = arrivals.iter().map(|arrival| arrival.bytes[1]).collect();
        assert_eq!(marked, [2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3]);
        assert_eq!(header_sum(&arrivals[10].bytes), 0xffff, "the checksum fits again");
    }

    #[test]
    fn a_narrow_hop_tells_or_does_not() {
        for (tells, delivery) in [(true, Delivery::TooLong(60)), (false, Delivery::Lost)] {
            let impairment =
                Impairment { narrow: Some(Narrow { mtu: 60, tells }), ..Impairment::default() };
            let mut link = Link::new(impairment, Random::new(3));
            assert_eq!(link.carry(0, packet(61), &mut Vec::new()), delivery);
            assert_eq!(link.carry(0, packet(60), &mut Vec::new()), Delivery::Carried);
        }
    }

    #[test]
    fn of_frames_only_packets_are_corrupted() {
        let all = Impairment { corrupt: 1.0, ..Impairment::default() };
        let mut link = Link::of_frames(all, Random::new(3));
        let (mut arrivals, header) = (Vec::new(), [9; 14]);
        let request = [&header[..], &[0, 1, 8, 0], &[0; 24]].concat();
        link.carry(0, request.clone(), &mut arrivals);
        assert_eq!((&arrivals[0].bytes, arrivals[0].corrupt), (&request, false), "ARP");
        for _ in 0..100 {
            arrivals.clear();
            link.carry(0, [&header[..], &packet(21)].concat(), &mut arrivals);
            assert!(arrivals[0].corrupt && arrivals[0].bytes[..14] == header);
            assert_ne!(arrivals[0].bytes[14..], packet(21));
        }
    }
}
