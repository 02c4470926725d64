use super::*;
use crate::wire::PROTOCOL_TCP;

/// A TCP packet of 24 bytes from 192.0.2.1 to 198.51.100.7, followed by two bytes of padding.
const IPV4: [u8; 26] = [
    0x45, 0x02, 0, 24, 0, 0, 0x40, 0, 64, 6, 0x4e, 0xa2, 192, 0, 2, 1, 198, 51, 100, 7, b'd', b'a',
    b't', b'a', 0xff, 0xff,
];

fn ipv4_header() -> IpHeader {
    IpHeader {
        source: [192, 0, 2, 1].into(),
        destination: [198, 51, 100, 7].into(),
        protocol: PROTOCOL_TCP,
        ecn: Ecn::Capable0,
        hop_limit: 64,
    }
}

fn ipv6_header() -> IpHeader {
    IpHeader {
        source: "2001:db8::1".parse().expect("valid"),
        destination: "2001:db8::7".parse().expect("valid"),
        protocol: PROTOCOL_TCP,
        ecn: Ecn::Experienced,
        hop_limit: 63,
    }
}

/// An IPv6 packet with the next header `next`, followed by the bytes `behind` and by `data`.
fn ipv6(next: u8, behind: &[u8]) -> Vec<u8> {
    let header = IpHeader { protocol: next, ..ipv6_header() };
    let mut packet = vec![0xee; 40];
    header.write(behind.len() + 4, &mut packet);
    packet.extend_from_slice(behind);
    packet.extend_from_slice(b"data");
    packet
}

fn ipv4(options: &[u8]) -> Vec<u8> {
    let mut packet = IPV4[..20].to_vec();
    packet[0] = 0x45 + (options.len() / 4) as u8;
    packet.extend_from_slice(options);
    packet.extend_from_slice(b"data");
    packet[3] = packet.len() as u8;
    refill(&mut packet);
    packet
}

fn refill(packet: &mut [u8]) {
    let header_bytes = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let checksum = checksum::of(&packet[..header_bytes]);
    packet[10..12].copy_from_slice(&checksum);
}

#[test]
fn ipv4_is_read_and_written_byte_for_byte() {
    assert_eq!(IpHeader::parse(&IPV4), Ok((ipv4_header(), &b"data"[..])));
    let mut out = [0xee; 20];
    ipv4_header().write(4, &mut out);
    assert_eq!(out, IPV4[..20]);
    assert_eq!(ipv4_header().bytes(), 20);
}

#[test]
fn ipv6_is_read_and_written_byte_for_byte() {
    let mut expected = vec![0x60, 0x30, 0, 0, 0, 4, 6, 63];
    expected.extend_from_slice(&[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    expected.extend_from_slice(&[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    expected.extend_from_slice(b"data");
    let packet = ipv6(PROTOCOL_TCP, &[]);
    assert_eq!(packet, expected);
    assert_eq!(ipv6_header().bytes(), 40);
    let padded = [&packet[..], &[1, 2, 3]].concat();
    assert_eq!(IpHeader::parse(&padded), Ok((ipv6_header(), &b"data"[..])));
}

#[test]
fn every_cut_is_noticed() {
    for length in 0..24 {
        assert_eq!(IpHeader::parse(&IPV4[..length]), Err(WireError::Truncated), "{length}");
    }
    let options = ipv6(DESTINATION_OPTIONS, &[6, 0, 1, 4, 0, 0, 0, 0]);
    for packet in [ipv6(PROTOCOL_TCP, &[]), options] {
        for length in 0..packet.len() {
            assert_eq!(IpHeader::parse(&packet[..length]), Err(WireError::Truncated), "{length}");
        }
    }
}

#[test]
fn every_bit_of_an_ipv4_header_is_covered() {
    for bit in 0..160 {
        let mut packet = IPV4;
        packet[bit / 8] ^= 1 << (bit % 8);
        assert!(IpHeader::parse(&packet).is_err(), "bit {bit}");
    }
}

#[test]
fn lengths_and_versions_that_cannot_be() {
    let mut packet = IPV4;
    packet[0] = 0x44;
    assert_eq!(IpHeader::parse(&packet), Err(WireError::Malformed("header length")));
    packet[0] = 0x55;
    assert_eq!(IpHeader::parse(&packet), Err(WireError::Malformed("version")));
    let mut packet = IPV4;
    packet[3] = 19;
    assert_eq!(IpHeader::parse(&packet), Err(WireError::Malformed("total length")));
}

#[test]
fn fragments_of_ipv4_are_unsupported_and_other_bits_do_not_matter() {
    for (high, low, fragment) in
        [(0x20, 0, true), (0, 1, true), (0x1f, 0xff, true), (0x80, 0, false), (0, 0, false)]
    {
        let mut packet = IPV4;
        (packet[6], packet[7]) = (high, low);
        refill(&mut packet);
        let expected = if fragment {
            Err(WireError::Unsupported("fragment"))
        } else {
            Ok((ipv4_header(), &b"data"[..]))
        };
        assert_eq!(IpHeader::parse(&packet), expected);
    }
}

#[test]
fn options_of_ipv4_are_skipped_but_for_source_routes() {
    let router_alert = [148, 4, 0, 0];
    assert_eq!(IpHeader::parse(&ipv4(&router_alert)), Ok((ipv4_header(), &b"data"[..])));
    let ended = [1, 0, 131, 255];
    assert_eq!(IpHeader::parse(&ipv4(&ended)), Ok((ipv4_header(), &b"data"[..])));
    for kind in [131, 137] {
        let routed = ipv4(&[1, kind, 7, 4, 10, 0, 0, 1]);
        assert_eq!(IpHeader::parse(&routed), Err(WireError::Unsupported("source route")));
    }
    for bad in [[7, 0, 1, 1], [7, 1, 1, 1], [7, 5, 1, 1], [1, 1, 1, 7]] {
        let malformed = Err(WireError::Malformed("option length"));
        assert_eq!(IpHeader::parse(&ipv4(&bad)), malformed, "{bad:?}");
    }
}

#[test]
fn extension_headers_are_skipped() {
    let hop_by_hop = [DESTINATION_OPTIONS, 0, 5, 2, 0, 0, 1, 0];
    let destination = [ROUTING, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let routing = [PROTOCOL_TCP, 0, 4, 0, 0, 0, 0, 0];
    let packet = ipv6(HOP_BY_HOP, &[&hop_by_hop[..], &destination, &routing].concat());
    assert_eq!(IpHeader::parse(&packet), Ok((ipv6_header(), &b"data"[..])));
}

#[test]
fn extension_headers_that_are_not_read() {
    let cases: [(u8, [u8; 8], WireError); 7] = [
        (ROUTING, [6, 0, 0, 1, 0, 0, 0, 0], WireError::Unsupported("source route")),
        (FRAGMENT, [6, 0, 0, 1, 0, 0, 0, 0], WireError::Unsupported("fragment")),
        (DESTINATION_OPTIONS, [6, 0, 0xc2, 4, 0, 0, 0, 0], WireError::Unsupported("IPv6 option")),
        (DESTINATION_OPTIONS, [6, 0, 0x42, 4, 0, 0, 0, 0], WireError::Unsupported("IPv6 option")),
        (DESTINATION_OPTIONS, [6, 0, 1, 5, 0, 0, 0, 0], WireError::Malformed("option length")),
        (DESTINATION_OPTIONS, [6, 0, 0, 0, 0, 0, 0, 1], WireError::Malformed("option length")),
        (DESTINATION_OPTIONS, [0, 0, 1, 4, 0, 0, 0, 0], WireError::Malformed("next header")),
    ];
    for (next, extension, error) in cases {
        assert_eq!(IpHeader::parse(&ipv6(next, &extension)), Err(error), "{extension:?}");
    }
}

#[test]
fn the_number_of_extension_headers_is_bounded() {
    let chain = |headers: usize| {
        let mut chain = [DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0].repeat(headers);
        chain[(headers - 1) * 8] = PROTOCOL_TCP;
        ipv6(DESTINATION_OPTIONS, &chain)
    };
    assert_eq!(IpHeader::parse(&chain(8)), Ok((ipv6_header(), &b"data"[..])));
    let many = Err(WireError::Unsupported("so many extension headers"));
    assert_eq!(IpHeader::parse(&chain(9)), many);
    assert_eq!(IpHeader::parse(&chain(1000)), many);
}

#[test]
fn addresses_of_two_families_become_ipv6() {
    let mixed = IpHeader { source: [192, 0, 2, 1].into(), ..ipv6_header() };
    let mut out = [0; 40];
    mixed.write(0, &mut out);
    let (read, _) = IpHeader::parse(&out).expect("valid");
    assert_eq!(read.source, "::ffff:192.0.2.1".parse::<IpAddr>().expect("valid"));
}
