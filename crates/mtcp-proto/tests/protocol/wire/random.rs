//! Generates random valid packets, and damages them.

use mtcp_proto::Sequence;
use mtcp_proto::wire::arp::{ARP_BYTES, ArpOperation, ArpPacket};
use mtcp_proto::wire::checksum;
use mtcp_proto::wire::icmp::{Echo, IcmpCause, IcmpMessage};
use mtcp_proto::wire::ip::{Ecn, IpHeader};
use mtcp_proto::wire::ndp::{NDP_HOP_LIMIT, NdpMessage, solicited_node};
use mtcp_proto::wire::tcp::{Flags, Options, SackBlock, TcpHeader, Timestamps};
use mtcp_proto::wire::{PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP};
use std::net::IpAddr;

/// SplitMix64, which is small, seeded and good enough.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    pub(crate) fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }

    /// A sequence number; half of them are near the wrap.
    pub(crate) fn sequence(&mut self) -> Sequence {
        if self.one_in(2) {
            Sequence((self.next() as u32 % 4096).wrapping_sub(2048))
        } else {
            Sequence(self.next() as u32)
        }
    }

    fn some<T>(&mut self, make: impl FnOnce(&mut Random) -> T) -> Option<T> {
        if self.one_in(2) { Some(make(self)) } else { None }
    }
}

pub(crate) fn tcp_header(random: &mut Random) -> TcpHeader {
    let flags = Flags(random.byte());
    let synchronise = flags.contains(Flags::SYN);
    let mut options = Options {
        timestamps: random
            .some(|random| Timestamps { value: random.sequence().0, echo: random.sequence().0 }),
        ..Options::default()
    };
    if synchronise {
        options.maximum_segment = random.some(|random| random.next() as u16);
        options.window_scale = random.some(|random| random.byte() % 15);
        options.sack_permitted = random.one_in(2);
    } else {
        let most = if options.timestamps.is_some() { 3 } else { 4 };
        options.sack_count = random.below(most + 1) as u8;
        for block in &mut options.sack[..usize::from(options.sack_count)] {
            *block = SackBlock { start: random.sequence(), end: random.sequence() };
        }
    }
    TcpHeader {
        source_port: random.next() as u16,
        destination_port: random.next() as u16,
        sequence: random.sequence(),
        acknowledgement: random.sequence(),
        flags,
        window: random.next() as u16,
        urgent: random.next() as u16,
        options,
    }
}

pub(crate) fn ip_header(random: &mut Random, ipv6: bool, protocol: u8) -> IpHeader {
    let mut address = |last: u8| -> IpAddr {
        if random.one_in(4) {
            let known = if ipv6 { "2001:db8::" } else { "192.0.2." };
            format!("{known}{last}").parse().expect("valid")
        } else if ipv6 {
            IpAddr::from(std::array::from_fn::<u8, 16, _>(|_| random.byte()))
        } else {
            IpAddr::from(std::array::from_fn::<u8, 4, _>(|_| random.byte()))
        }
    };
    let (source, destination) = (address(9), address(1));
    let ecn = [Ecn::NotCapable, Ecn::Capable1, Ecn::Capable0, Ecn::Experienced][random.below(4)];
    IpHeader { source, destination, protocol, ecn, hop_limit: random.byte() }
}

/// Builds an IP packet around a payload, sometimes with IPv4 options or IPv6 extension headers.
pub(crate) fn packet(random: &mut Random, header: &IpHeader, payload: &[u8]) -> Vec<u8> {
    let mut behind = Vec::new();
    let mut header = *header;
    let ipv6 = header.destination.is_ipv6();
    if ipv6 && random.one_in(4) {
        for _ in 0..=random.below(3) {
            let words = random.below(3);
            let padding = (words * 8 + 4) as u8;
            let kind = [0, 43, 60, 60, 60][random.below(5)];
            let mut extension = vec![header.protocol, words as u8, 1, padding];
            if kind == 43 {
                extension[3] = random.one_in(4).into();
            }
            extension.resize(words * 8 + 8, 0);
            header.protocol = kind;
            behind.splice(0..0, extension);
        }
    }
    behind.extend_from_slice(payload);
    let mut packet = vec![0xee; header.bytes()];
    header.write(behind.len(), &mut packet);
    if !ipv6 && random.one_in(4) {
        let words = 1 + random.below(10);
        let mut options = vec![1; words * 4];
        options[0] = [1, 0, 7, 68, 131, 137, 148][random.below(7)];
        options[1] = if random.one_in(8) { random.byte() } else { 4 };
        packet.extend_from_slice(&options);
        packet[0] += words as u8;
        let total = (20 + options.len() + behind.len()) as u16;
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[10..12].fill(0);
        let checksum = checksum::of(&packet);
        packet[10..12].copy_from_slice(&checksum);
    }
    packet.extend_from_slice(&behind);
    packet
}

pub(crate) fn tcp_packet(random: &mut Random) -> Vec<u8> {
    let ipv6 = random.one_in(2);
    tcp_packet_of(random, ipv6)
}

fn tcp_packet_of(random: &mut Random, ipv6: bool) -> Vec<u8> {
    let header = ip_header(random, ipv6, PROTOCOL_TCP);
    let tcp = tcp_header(random);
    let mut segment = vec![0xee; tcp.bytes()];
    tcp.write(&mut segment);
    let data = random.below(64);
    segment.extend(random.bytes(data));
    checksum::fill_tcp(header.source, header.destination, &mut segment);
    packet(random, &header, &segment)
}

pub(crate) fn icmp_packet(random: &mut Random) -> Vec<u8> {
    let ipv6 = random.one_in(2);
    let protocol = if ipv6 { PROTOCOL_ICMPV6 } else { PROTOCOL_ICMP };
    let header = ip_header(random, ipv6, protocol);
    let data = tcp_packet_of(random, ipv6);
    let echo =
        Echo { identifier: random.next() as u16, sequence: random.next() as u16, data: &data };
    let message = match random.below(10) {
        0 => IcmpMessage::EchoRequest(echo),
        1 => IcmpMessage::EchoReply(echo),
        cause => {
            let causes = [
                IcmpCause::NetworkUnreachable,
                IcmpCause::HostUnreachable,
                IcmpCause::ProtocolUnreachable,
                IcmpCause::PortUnreachable,
                IcmpCause::Prohibited,
                IcmpCause::PacketTooBig { mtu: random.next() as u32 },
                IcmpCause::TimeExceeded,
                IcmpCause::ParameterProblem,
            ];
            IcmpMessage::Error { cause: causes[cause - 2], quoted: &data }
        }
    };
    let mut payload = vec![0xee; message.bytes(&header)];
    message.write(&header, &mut payload);
    packet(random, &header, &payload)
}

pub(crate) fn ndp_packet(random: &mut Random) -> Vec<u8> {
    let mut header = ip_header(random, true, PROTOCOL_ICMPV6);
    if !random.one_in(8) {
        header.hop_limit = NDP_HOP_LIMIT;
    }
    let (IpAddr::V6(own), IpAddr::V6(other)) = (header.destination, header.source) else {
        unreachable!("an IPv6 header was asked for")
    };
    let link = random
        .some(|random| std::array::from_fn(|place| random.byte() & [0xfe, 255][place.min(1)]));
    let message = if random.one_in(2) {
        header.destination = solicited_node(own).into();
        NdpMessage::Solicitation { target: own, link }
    } else {
        NdpMessage::Advertisement {
            target: other,
            link,
            router: random.one_in(2),
            solicited: random.one_in(2),
            replaces: random.one_in(2),
        }
    };
    let mut payload = vec![0xee; message.bytes()];
    message.write(&header, &mut payload);
    packet(random, &header, &payload)
}

pub(crate) fn arp_packet(random: &mut Random) -> Vec<u8> {
    let mut ip = || match ip_header(random, false, 0).source {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => unreachable!("an IPv4 header was asked for"),
    };
    let (sender, target) = (ip(), ip());
    let arp = ArpPacket {
        operation: if random.one_in(2) { ArpOperation::Request } else { ArpOperation::Reply },
        sender_hardware: std::array::from_fn(|_| random.byte()),
        sender,
        target_hardware: std::array::from_fn(|_| random.byte()),
        target,
    };
    let mut bytes = vec![0xee; ARP_BYTES];
    arp.write(&mut bytes);
    bytes
}

/// Changes, cuts or lengthens bytes at up to four places, sometimes at none.
pub(crate) fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..random.below(5) {
        if bytes.is_empty() {
            return;
        }
        let place = random.below(bytes.len());
        match random.below(8) {
            0 => bytes.truncate(place),
            1 => bytes.insert(place, random.byte()),
            2 => drop(bytes.remove(place)),
            3 => bytes[place] = [0, 1, 4, 0x7f, 0x80, 0xff][random.below(6)],
            4 => bytes[place] = random.byte(),
            // Changes in the headers matter most.
            _ => {
                let place = place % 64.min(bytes.len());
                bytes[place] ^= 1 << random.below(8);
            }
        }
    }
}
