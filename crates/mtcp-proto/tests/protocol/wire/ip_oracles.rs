//! Compares the parser of IP headers with those of etherparse and smoltcp.

use super::parsers::repaired;
use super::random::{self, Random};
use etherparse::{IpNumber, Ipv4Header, Ipv6ExtensionsSlice, Ipv6Header};
use mtcp_proto::wire::WireError;
use mtcp_proto::wire::ip::{Ecn, IpHeader};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as smol;

const ROUNDS: u64 = 30_000;

fn packet(random: &mut Random) -> Vec<u8> {
    let mut packet =
        if random.one_in(4) { random::icmp_packet(random) } else { random::tcp_packet(random) };
    random::mutate(random, &mut packet);
    // Otherwise a wrong checksum would hide every other fault.
    if random.one_in(4) { packet } else { repaired(&packet) }
}

fn ecn(bits: u8) -> Ecn {
    [Ecn::NotCapable, Ecn::Capable1, Ecn::Capable0, Ecn::Experienced][usize::from(bits & 3)]
}

/// Parses an IPv4 packet with etherparse and checks its checksum. etherparse does not compare the
/// total length with the header's, and ignores options.
fn ipv4_by_etherparse(packet: &[u8]) -> Option<(IpHeader, &[u8])> {
    let (header, _) = Ipv4Header::from_slice(packet).ok()?;
    let payload = packet.get(header.header_len()..usize::from(header.total_len))?;
    // etherparse drops the reserved bit, which the sum includes.
    let reserved = packet[6] & 0x80 != 0;
    let sum_is_right = if reserved {
        smol::Ipv4Packet::new_unchecked(packet).verify_checksum()
    } else {
        header.calc_header_checksum() == header.header_checksum
    };
    if !sum_is_right || header.is_fragmenting_payload() {
        return None;
    }
    let parsed = IpHeader {
        source: header.source.into(),
        destination: header.destination.into(),
        protocol: header.protocol.0,
        ecn: ecn(header.ecn.value()),
        hop_limit: header.time_to_live,
    };
    Some((parsed, payload))
}

#[test]
fn ipv4_is_read_alike() {
    let mut valid = 0;
    for seed in 0..ROUNDS {
        let packet = packet(&mut Random(seed));
        if packet.first().is_none_or(|first| first >> 4 != 4) {
            continue;
        }
        let ours = IpHeader::parse(&packet);
        let theirs = ipv4_by_etherparse(&packet);
        let smoltcp = smol::Ipv4Packet::new_checked(&packet[..])
            .and_then(|packet| smol::Ipv4Repr::parse(&packet, &ChecksumCapabilities::default()));
        if let Err(WireError::Unsupported("source route") | WireError::Malformed("option length")) =
            ours
        {
            assert!(theirs.is_some(), "seed {seed}: only ours looks at options");
            continue;
        }
        assert_eq!(ours.as_ref().ok(), theirs.as_ref(), "seed {seed}: {ours:?}, {packet:02x?}");
        // smoltcp does not refuse a header length below five words.
        if ours != Err(WireError::Malformed("header length")) {
            assert_eq!(ours.is_ok(), smoltcp.is_ok(), "seed {seed}: {ours:?}, {smoltcp:?}");
        }
        let (Ok((ours, payload)), Ok(smoltcp)) = (ours, smoltcp) else { continue };
        valid += 1;
        assert_eq!(ours.source, smoltcp.src_addr);
        assert_eq!(ours.destination, smoltcp.dst_addr);
        assert_eq!(ours.protocol, u8::from(smoltcp.next_header));
        assert_eq!((ours.hop_limit, payload.len()), (smoltcp.hop_limit, smoltcp.payload_len));
    }
    assert!(valid > ROUNDS / 8, "{valid}");
}

/// Parses the extension headers with etherparse. It also parses fragment and authentication
/// headers, which our parser leaves to the upper layer, and ignores options and routes.
fn ipv6_by_etherparse(packet: &[u8]) -> Option<(IpHeader, &[u8])> {
    let (header, rest) = Ipv6Header::from_slice(packet).ok()?;
    let payload = rest.get(..usize::from(header.payload_length))?;
    let (_, protocol, payload) =
        Ipv6ExtensionsSlice::from_slice(header.next_header, payload).ok()?;
    let parsed = IpHeader {
        source: header.source.into(),
        destination: header.destination.into(),
        protocol: protocol.0,
        ecn: ecn(header.traffic_class & 3),
        hop_limit: header.hop_limit,
    };
    Some((parsed, payload))
}

fn has_authentication(packet: &[u8]) -> bool {
    IpHeader::parse(packet)
        .is_ok_and(|(header, _)| header.protocol == IpNumber::AUTHENTICATION_HEADER.0)
}

#[test]
fn ipv6_is_read_alike() {
    let (mut valid, mut extended) = (0, 0);
    for seed in 0..ROUNDS {
        let packet = packet(&mut Random(seed));
        if packet.first().is_none_or(|first| first >> 4 != 6) || has_authentication(&packet) {
            continue;
        }
        let ours = IpHeader::parse(&packet);
        let theirs = ipv6_by_etherparse(&packet);
        match ours {
            // Only our parser checks these.
            Err(WireError::Unsupported(_) | WireError::Malformed("option length")) => {}
            _ => assert_eq!(ours.as_ref().ok(), theirs.as_ref(), "seed {seed}: {ours:?}"),
        }
        let smoltcp = smol::Ipv6Packet::new_checked(&packet[..])
            .and_then(|packet| smol::Ipv6Repr::parse(&packet));
        let Ok((ours, _)) = ours else { continue };
        valid += 1;
        let smoltcp = smoltcp.expect("what ours takes, smoltcp takes");
        assert_eq!(
            (ours.source, ours.destination),
            (smoltcp.src_addr.into(), smoltcp.dst_addr.into())
        );
        assert_eq!(ours.hop_limit, smoltcp.hop_limit);
        if ours.protocol == u8::from(smoltcp.next_header) {
            continue;
        }
        extended += 1;
    }
    assert!(valid > ROUNDS / 8 && extended > ROUNDS / 100, "{valid}, {extended} extended");
}
