//! Parses and builds packets independently of the stack's own parser, which is under test here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const CWR: u8 = 0x80;

/// Protocol numbers.
pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const ICMP_V6: u8 = 58;

/// The options of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OptionsView {
    pub(crate) maximum_segment: Option<u16>,
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    pub(crate) timestamps: Option<(u32, u32)>,
    pub(crate) sack: [(u32, u32); 4],
    pub(crate) sack_count: usize,
}

/// A TCP segment that was found valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) option_bytes: usize,
    pub(crate) options: OptionsView,
    /// The ECN field of the IP header.
    pub(crate) ecn: u8,
    /// The offset of the data, which extends to the packet's end.
    pub(crate) data_at: usize,
    pub(crate) data_bytes: usize,
}

impl Segment {
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The ones' complement sum (RFC 1071) of 16-bit words; odd lengths are padded.
pub(crate) fn sum(bytes: &[u8], start: u64) -> u64 {
    let mut total = start;
    let mut words = bytes.chunks_exact(4);
    for four in &mut words {
        total += u64::from(u32::from_be_bytes([four[0], four[1], four[2], four[3]]));
    }
    let mut rest = [0_u8; 4];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    total + u64::from(u32::from_be_bytes(rest))
}

pub(crate) fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

pub(crate) fn pseudo_sum(source: IpAddr, destination: IpAddr, protocol: u8, bytes: usize) -> u64 {
    let addresses = match (source, destination) {
        (IpAddr::V4(one), IpAddr::V4(other)) => sum(&other.octets(), sum(&one.octets(), 0)),
        (IpAddr::V6(one), IpAddr::V6(other)) => sum(&other.octets(), sum(&one.octets(), 0)),
        _ => unreachable!("both ends are of one family"),
    };
    addresses + u64::from(protocol) + bytes as u64
}

/// Bytes of the IP header; this simulator has none with options.
pub(crate) fn ip_header_bytes(packet: &[u8]) -> usize {
    if packet[0] >> 4 == 4 { 20 } else { 40 }
}

/// Parses source, destination, protocol and ECN field, and checks every field.
pub(crate) fn parse_ip(packet: &[u8]) -> Result<(IpAddr, IpAddr, u8, u8), String> {
    match packet.first().map(|first| first >> 4) {
        Some(4) if packet.len() >= 20 => {
            if packet[0] != 0x45 || usize::from(word(packet, 2)) != packet.len() {
                return Err("IPv4: header length or total length is wrong".into());
            }
            if fold(sum(&packet[..20], 0)) != 0xffff {
                return Err("IPv4: header checksum is wrong".into());
            }
            if word(packet, 6) != 0x4000 || packet[8] == 0 {
                return Err("IPv4: not DF, a fragment, or no hops left".into());
            }
            let address = |at: usize| IpAddr::V4(Ipv4Addr::from(long(packet, at)));
            Ok((address(12), address(16), packet[9], packet[1] & 3))
        }
        Some(6) if packet.len() >= 40 => {
            if usize::from(word(packet, 4)) + 40 != packet.len() || packet[7] == 0 {
                return Err("IPv6: payload length or hop limit is wrong".into());
            }
            let address = |at: usize| {
                let octets: [u8; 16] = packet[at..at + 16].try_into().expect("16 bytes");
                IpAddr::V6(Ipv6Addr::from(octets))
            };
            Ok((address(8), address(24), packet[6], (packet[1] >> 4) & 3))
        }
        _ => Err("neither IPv4 nor IPv6".into()),
    }
}

/// Parses a packet that a stack has sent; every deviation is an error.
pub(crate) fn parse(packet: &[u8]) -> Result<Segment, String> {
    let (source, destination, protocol, ecn) = parse_ip(packet)?;
    if protocol != TCP {
        return Err(format!("protocol {protocol} is not TCP"));
    }
    let start = ip_header_bytes(packet);
    let tcp = &packet[start..];
    if tcp.len() < 20 || tcp.len() < usize::from(tcp[12] >> 4) * 4 || tcp[12] >> 4 < 5 {
        return Err("TCP: cut off or a wrong data offset".into());
    }
    if fold(sum(tcp, pseudo_sum(source, destination, TCP, tcp.len()))) != 0xffff {
        return Err("TCP: checksum is wrong".into());
    }
    let header_bytes = usize::from(tcp[12] >> 4) * 4;
    Ok(Segment {
        source: SocketAddr::new(source, word(tcp, 0)),
        destination: SocketAddr::new(destination, word(tcp, 2)),
        sequence: long(tcp, 4),
        acknowledgement: long(tcp, 8),
        flags: tcp[13],
        window: word(tcp, 14),
        option_bytes: header_bytes - 20,
        options: parse_options(&tcp[20..header_bytes])?,
        ecn,
        data_at: start + header_bytes,
        data_bytes: tcp.len() - header_bytes,
    })
}

fn parse_options(mut rest: &[u8]) -> Result<OptionsView, String> {
    let mut options = OptionsView::default();
    while let Some(&kind) = rest.first() {
        if kind == 0 {
            break;
        }
        if kind == 1 {
            rest = &rest[1..];
            continue;
        }
        let length = usize::from(*rest.get(1).ok_or("TCP: an option is cut off")?);
        if length < 2 || length > rest.len() {
            return Err("TCP: an option has a wrong length".into());
        }
        match (kind, length) {
            (2, 4) => options.maximum_segment = Some(word(rest, 2)),
            (3, 3) => options.window_scale = Some(rest[2]),
            (4, 2) => options.sack_permitted = true,
            (5, 10 | 18 | 26 | 34) => {
                options.sack_count = (length - 2) / 8;
                for (at, block) in options.sack.iter_mut().enumerate().take(options.sack_count) {
                    *block = (long(rest, 2 + 8 * at), long(rest, 6 + 8 * at));
                }
            }
            (8, 10) => options.timestamps = Some((long(rest, 2), long(rest, 6))),
            _ => return Err(format!("TCP: option {kind} with {length} bytes")),
        }
        rest = &rest[length..];
    }
    Ok(options)
}

/// The fields of a segment to build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    /// The options; a multiple of four bytes.
    pub(crate) options: &'a [u8],
    pub(crate) data: &'a [u8],
}

impl Draft<'_> {
    pub(crate) fn build(&self) -> Vec<u8> {
        let mut tcp = Vec::with_capacity(20 + self.options.len() + self.data.len());
        tcp.extend_from_slice(&self.source.port().to_be_bytes());
        tcp.extend_from_slice(&self.destination.port().to_be_bytes());
        tcp.extend_from_slice(&self.sequence.to_be_bytes());
        tcp.extend_from_slice(&self.acknowledgement.to_be_bytes());
        tcp.extend_from_slice(&[((5 + self.options.len() / 4) << 4) as u8, self.flags]);
        tcp.extend_from_slice(&self.window.to_be_bytes());
        tcp.extend_from_slice(&[0; 4]);
        tcp.extend_from_slice(self.options);
        tcp.extend_from_slice(self.data);
        let (source, destination) = (self.source.ip(), self.destination.ip());
        let total = !fold(sum(&tcp, pseudo_sum(source, destination, TCP, tcp.len())));
        tcp[16..18].copy_from_slice(&total.to_be_bytes());
        with_ip(source, destination, TCP, &tcp)
    }
}

/// Puts an IP header before a payload.
pub(crate) fn with_ip(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut packet = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
            header.extend_from_slice(&source.octets());
            header.extend_from_slice(&destination.octets());
            header
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            header.extend_from_slice(&source.octets());
            header.extend_from_slice(&destination.octets());
            header
        }
        _ => unreachable!("both ends are of one family"),
    };
    packet.extend_from_slice(payload);
    finish_ip(&mut packet);
    packet
}

/// Sets lengths and the header's checksum after a change of the packet.
pub(crate) fn finish_ip(packet: &mut [u8]) {
    let bytes = packet.len();
    if packet[0] >> 4 == 4 {
        packet[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
        packet[10..12].copy_from_slice(&[0, 0]);
        let total = !fold(sum(&packet[..20], 0));
        packet[10..12].copy_from_slice(&total.to_be_bytes());
    } else {
        packet[4..6].copy_from_slice(&((bytes - 40) as u16).to_be_bytes());
    }
}

/// Builds an ICMP error about `original` from the type, the code and the second word of its family.
pub(crate) fn icmp_error(
    router: IpAddr,
    kind: u8,
    code: u8,
    detail: u32,
    original: &[u8],
) -> Option<Vec<u8>> {
    let (source, ..) = parse_ip(original).ok()?;
    let quoted = original.len().min(if source.is_ipv4() { 28 } else { 1232 });
    let mut message = vec![kind, code, 0, 0];
    message.extend_from_slice(&detail.to_be_bytes());
    message.extend_from_slice(&original[..quoted]);
    let (protocol, start) = if source.is_ipv4() {
        (ICMP, 0)
    } else {
        (ICMP_V6, pseudo_sum(router, source, ICMP_V6, message.len()))
    };
    let total = !fold(sum(&message, start));
    message[2..4].copy_from_slice(&total.to_be_bytes());
    Some(with_ip(router, source, protocol, &message))
}

#[test]
fn what_is_made_is_read_back() {
    for (one, other) in [("10.0.0.1:5", "10.0.0.2:6"), ("[fd00::1]:5", "[fd00::2]:6")] {
        let draft = Draft {
            source: one.parse().unwrap(),
            destination: other.parse().unwrap(),
            sequence: u32::MAX,
            acknowledgement: 7,
            flags: SYN | ACK,
            window: 9,
            options: &[2, 4, 5, 180, 1, 3, 3, 7],
            data: b"odd",
        };
        let mut packet = draft.build();
        let segment = parse(&packet).unwrap();
        assert_eq!((segment.source, segment.destination), (draft.source, draft.destination));
        assert_eq!((segment.sequence, segment.acknowledgement), (u32::MAX, 7));
        assert_eq!(segment.options.maximum_segment, Some(1460));
        assert_eq!(segment.options.window_scale, Some(7));
        assert_eq!(&packet[segment.data_at..], b"odd");
        let bits = ip_header_bytes(&packet) * 8..packet.len() * 8;
        for bit in bits {
            packet[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&packet).is_err(), "bit {bit} is flipped and nobody sees it");
            packet[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
