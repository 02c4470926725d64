//! Checks properties of every parser that hold for all bytes; the fuzz target uses the same checks.

use mtcp_proto::Instant;
use mtcp_proto::neighbour::{Cache, FRAME_BYTES_MAX, Lookup};
use mtcp_proto::wire::WireError;
use mtcp_proto::wire::arp::{ARP_BYTES, ArpPacket};
use mtcp_proto::wire::checksum::{self, Sum};
use mtcp_proto::wire::ethernet::{self, EthernetHeader, KIND_ARP, KIND_IPV4, KIND_IPV6};
use mtcp_proto::wire::icmp::{IcmpMessage, QuotedSegment};
use mtcp_proto::wire::ip::IpHeader;
use mtcp_proto::wire::ndp::{self, NdpMessage};
use mtcp_proto::wire::tcp::{HEADER_BYTES_MAX, TcpHeader};
use mtcp_proto::wire::{PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP};
use std::net::IpAddr;

/// Parses the bytes as every kind of header, unchanged and with correct checksums, and checks that
/// each result is the same after writing and parsing again.
pub(crate) fn check(bytes: &[u8]) {
    let _ = QuotedSegment::parse(bytes);
    check_arp(bytes);
    check_tcp(bytes);
    check_packet(bytes);
    check_packet(&repaired(bytes));
    if let Ok((header, payload)) = EthernetHeader::parse(bytes) {
        let mut written = [0xee; ethernet::HEADER_BYTES];
        header.write(&mut written);
        assert_eq!(written, bytes[..ethernet::HEADER_BYTES]);
        match header.kind {
            KIND_ARP => check_arp(payload),
            KIND_IPV4 | KIND_IPV6 => {
                check_packet(payload);
                check_packet(&repaired(payload));
            }
            _ => {}
        }
    }
}

fn check_arp(bytes: &[u8]) {
    if let Ok(packet) = ArpPacket::parse(bytes) {
        let mut written = [0xee; ARP_BYTES];
        packet.write(&mut written);
        assert_eq!(written, bytes[..ARP_BYTES]);
        check_cache(|cache, now| cache.input_arp(now, bytes));
    }
}

fn check_tcp(bytes: &[u8]) {
    let Ok((first, data)) = TcpHeader::parse(bytes) else { return };
    assert_eq!(data, &bytes[bytes.len() - data.len()..]);
    let second = tcp_again(&first);
    assert_eq!(tcp_again(&second), second);
    // Options without padding leave room for SACK blocks for which our padded ones have none.
    let (read, again) = (first.options.sack_blocks(), second.options.sack_blocks());
    assert!(read.starts_with(again) && read.len() <= again.len() + 1, "{first:?} {second:?}");
    let mut expected = first;
    expected.options.sack = second.options.sack;
    expected.options.sack_count = second.options.sack_count;
    assert_eq!(second, expected);
}

fn tcp_again(header: &TcpHeader) -> TcpHeader {
    let mut written = [0xee; HEADER_BYTES_MAX];
    let written = &mut written[..header.bytes()];
    header.write(written);
    let (again, data) = TcpHeader::parse(written).expect("what was written is valid");
    assert!(data.is_empty());
    again
}

fn check_packet(bytes: &[u8]) {
    let Ok((header, payload)) = IpHeader::parse(bytes) else { return };
    let mut written = vec![0xee; header.bytes()];
    header.write(payload.len(), &mut written);
    written.extend_from_slice(payload);
    assert_eq!(IpHeader::parse(&written), Ok((header, payload)));
    let (source, destination) = (header.source, header.destination);
    match header.protocol {
        PROTOCOL_TCP => {
            check_tcp(payload);
            if payload.len() >= 20 {
                let mut payload = payload.to_vec();
                checksum::fill_tcp(source, destination, &mut payload);
                assert!(checksum::verify_tcp(source, destination, &payload));
            }
        }
        PROTOCOL_ICMP | PROTOCOL_ICMPV6 => check_icmp(&header, payload),
        _ => {}
    }
    if ndp::is_ndp(&written) {
        check_cache(|cache, now| cache.input_ndp(now, &written));
    }
}

fn check_icmp(header: &IpHeader, payload: &[u8]) {
    if let Ok(message) = NdpMessage::parse(header, payload) {
        let mut written = vec![0xee; message.bytes()];
        message.write(header, &mut written);
        assert_eq!(NdpMessage::parse(header, &written), Ok(message));
    }
    let Ok(message) = IcmpMessage::parse(header, payload) else { return };
    let mut written = vec![0xee; message.bytes(header)];
    message.write(header, &mut written);
    let again = IcmpMessage::parse(header, &written).expect("what was written is valid");
    match (message, again) {
        (
            IcmpMessage::Error { cause, quoted },
            IcmpMessage::Error { cause: cause_again, quoted: quoted_again },
        ) => {
            assert_eq!(cause, cause_again);
            assert!(quoted.starts_with(quoted_again));
            let _ = QuotedSegment::parse(quoted);
        }
        (message, again) => assert_eq!(message, again),
    }
}

/// Checks a cache that knows one neighbour and resolves others with a packet.
fn check_cache(input: impl FnOnce(&mut Cache, Instant) -> Result<(), WireError>) {
    let own = [2, 0, 0, 0, 0, 1];
    let now = Instant::from_nanos(1_000_000_000);
    let mut cache = Cache::new(own, 4);
    let address = |text: &str| text.parse::<IpAddr>().expect("valid");
    cache.set_addresses(&[address("192.0.2.1"), address("2001:db8::1")]);
    cache.set(address("192.0.2.8"), [2, 0, 0, 0, 0, 8]);
    let _ = cache.lookup(now, address("192.0.2.9"));
    let _ = cache.lookup(now, address("2001:db8::9"));
    let _ = input(&mut cache, now);
    assert_eq!(cache.lookup(now, address("192.0.2.8")), Lookup::Known([2, 0, 0, 0, 0, 8]));
    for asked in ["192.0.2.9", "2001:db8::9"] {
        if let Lookup::Known(hardware) = cache.lookup(now, address(asked)) {
            assert!(ethernet::is_unicast(hardware) && hardware != own);
        }
    }
    assert_eq!(cache.lookup(now, address("192.0.2.1")), Lookup::Unreachable);
    let mut frame = [0; FRAME_BYTES_MAX];
    let mut frames = 0;
    while let Some(bytes) = cache.output(now, &mut frame) {
        let (header, payload) = EthernetHeader::parse(&frame[..bytes]).expect("valid");
        assert_eq!(header.source, own);
        match header.kind {
            KIND_ARP => drop(ArpPacket::parse(payload).expect("valid")),
            _ => {
                let (ip, message) = IpHeader::parse(payload).expect("valid");
                NdpMessage::parse(&ip, message).expect("valid");
            }
        }
        frames += 1;
        assert!(frames <= 8, "a packet causes a bounded number of frames");
    }
}

/// The packet with correct checksums, as far as it has fields for them. Otherwise nearly all random
/// packets would fail at the first checksum.
pub(crate) fn repaired(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet.len() >= 20 && packet[0] >> 4 == 4 {
        let header_bytes = (usize::from(packet[0] & 15) * 4).clamp(20, packet.len());
        packet[10..12].fill(0);
        let checksum = checksum::of(&packet[..header_bytes]);
        packet[10..12].copy_from_slice(&checksum);
    }
    let Ok((header, payload)) = IpHeader::parse(&packet) else { return packet };
    let place = match header.protocol {
        PROTOCOL_ICMP | PROTOCOL_ICMPV6 => 2,
        PROTOCOL_TCP => checksum::TCP_CHECKSUM_OFFSET,
        _ => return packet,
    };
    if payload.len() < place + 2 {
        return packet;
    }
    let mut payload_copy = payload.to_vec();
    payload_copy[place..place + 2].fill(0);
    let mut sum = match header.protocol {
        PROTOCOL_ICMP => Sum::default(),
        protocol => Sum::pseudo_header(header.source, header.destination, protocol, payload.len()),
    };
    sum.add(&payload_copy);
    // The payload is a part of the packet, so its start gives its offset.
    let start = payload.as_ptr() as usize - packet.as_ptr() as usize + place;
    packet[start..start + 2].copy_from_slice(&sum.finish());
    packet
}
