//! Simulates an attacker who knows the addresses of a connection, but not its sequence numbers, and
//! who forges messages of a router (RFC 5961, RFC 5927, RFC 4987).

use super::packet::{self, ACK, Draft, FIN, PSH, RST, SYN};
use super::random::Random;
use super::scenario::SECOND;
use super::watch::Flow;
use std::net::{IpAddr, SocketAddr};

/// The kind of forged packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A reset within the window, but not at its beginning.
    ResetInWindow,
    ResetOutside,
    Syn,
    /// Data within the window with an acknowledgement that cannot be valid.
    DataInWindow,
    DataOutside,
    /// A FIN, like [`Kind::DataInWindow`].
    EndInWindow,
    /// A segment that acknowledges data that was never sent.
    AcknowledgementAhead,
    /// Data without an acknowledgement.
    Bare,
    /// An ICMP message of a router: the port is unreachable, about a segment that is not in flight.
    Unreachable,
    /// An ICMP message of a router: the packet is too long, about a segment that is not in flight.
    TooLong,
    /// SYNs of this number of senders that do not exist.
    Flood(u16),
    /// Bytes without meaning.
    Noise,
}

/// All kinds except the flood.
pub(crate) const KINDS: [Kind; 11] = [
    Kind::ResetInWindow,
    Kind::ResetOutside,
    Kind::Syn,
    Kind::DataInWindow,
    Kind::DataOutside,
    Kind::EndInWindow,
    Kind::AcknowledgementAhead,
    Kind::Bare,
    Kind::Unreachable,
    Kind::TooLong,
    Kind::Noise,
];

/// One attack: its time, and the end of the connection that it targets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attack {
    pub(crate) at_ns: u64,
    pub(crate) kind: Kind,
    pub(crate) victim: usize,
}

impl Attack {
    pub(crate) fn draw(random: &mut Random, ipv6: bool) -> Vec<Attack> {
        let count = random.spread(1, 40);
        let flood = Kind::Flood(random.spread(1, 300) as u16);
        let horizon_ns = random.spread(SECOND / 1000, 60 * SECOND);
        let mut attacks: Vec<Attack> = (0..count)
            .map(|_| Attack {
                at_ns: random.below(horizon_ns),
                kind: random.pick(&KINDS),
                victim: random.below(2) as usize,
            })
            .collect();
        if random.chance(0.2) && !ipv6 {
            attacks.push(Attack { at_ns: random.below(horizon_ns), kind: flood, victim: 1 });
        }
        attacks
    }

    /// The packets against an established connection. `expected` is the number that the victim
    /// expects, which the attacker must not use.
    pub(crate) fn packets(
        &self,
        flow: &Flow,
        side: usize,
        expected: u32,
        random: &mut Random,
    ) -> Vec<Vec<u8>> {
        const FAR: u32 = 1 << 30;
        let within = expected.wrapping_add(random.between(1, 1000) as u32);
        let (own, peer) = (flow.addresses[side], flow.addresses[1 - side]);
        let sent = flow.ends[side].initial().unwrap_or(0).wrapping_add(flow.ends[side].sent as u32);
        let draft = |sequence: u32, acknowledgement: u32, flags: u8, data: &'static [u8]| {
            let draft = Draft {
                source: peer,
                destination: own,
                sequence,
                acknowledgement,
                flags,
                window: 500,
                options: &[],
                data,
            };
            vec![draft.build()]
        };
        let old = sent.wrapping_sub(FAR);
        match self.kind {
            Kind::ResetInWindow => draft(within, old, RST, &[]),
            Kind::ResetOutside => draft(expected.wrapping_add(FAR), old, RST | ACK, &[]),
            Kind::Syn => draft(within.wrapping_sub(500), 0, SYN, &[]),
            Kind::DataInWindow => draft(within, old, ACK | PSH, b"forged"),
            Kind::DataOutside => draft(expected.wrapping_add(FAR), sent, ACK | PSH, b"forged"),
            Kind::EndInWindow => draft(expected, old, ACK | FIN, &[]),
            Kind::AcknowledgementAhead => draft(expected, sent.wrapping_add(FAR), ACK, &[]),
            Kind::Bare => draft(expected, 0, PSH, b"forged"),
            Kind::Unreachable | Kind::TooLong => forged_icmp(self.kind, own, peer, old),
            Kind::Flood(count) => flood(own, count, random),
            Kind::Noise => vec![noise(own, peer, random)],
        }
    }
}

/// An ICMP message of a router about a segment that `own` never sent.
fn forged_icmp(kind: Kind, own: SocketAddr, peer: SocketAddr, sequence: u32) -> Vec<Vec<u8>> {
    let quoted = Draft {
        source: own,
        destination: peer,
        sequence,
        acknowledgement: 0,
        flags: ACK,
        window: 1,
        options: &[],
        data: b"quoted",
    };
    let (kind, code, detail) = match (kind == Kind::Unreachable, own.is_ipv4()) {
        (true, true) => (3, 3, 0),
        (true, false) => (1, 4, 0),
        (false, true) => (3, 4, 600),
        (false, false) => (2, 0, 1280),
    };
    packet::icmp_error(peer.ip(), kind, code, detail, &quoted.build()).into_iter().collect()
}

fn flood(own: SocketAddr, count: u16, random: &mut Random) -> Vec<Vec<u8>> {
    (0..count)
        .map(|number| {
            let source = IpAddr::from([10, 9, (number >> 8) as u8, number as u8]);
            Draft {
                source: SocketAddr::new(source, 1024 + number),
                destination: own,
                sequence: random.next_u64() as u32,
                acknowledgement: 0,
                flags: SYN,
                window: 1000,
                options: &[2, 4, 5, 180],
                data: &[],
            }
            .build()
        })
        .collect()
}

/// A packet with a valid IP header and arbitrary bytes after it.
fn noise(own: SocketAddr, peer: SocketAddr, random: &mut Random) -> Vec<u8> {
    let bytes: Vec<u8> = (0..random.below(100)).map(|_| random.next_u64() as u8).collect();
    let protocol = random.pick(&[packet::TCP, packet::ICMP, packet::ICMP_V6, 0, 43, 44, 60]);
    let mut bytes = packet::with_ip(peer.ip(), own.ip(), protocol, &bytes);
    if random.chance(0.5) {
        let at = random.below(bytes.len() as u64) as usize;
        bytes.truncate(at);
    }
    bytes
}
