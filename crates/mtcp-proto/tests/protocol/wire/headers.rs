//! Tests that every header is the same after writing and parsing, with numbers from both ends of
//! their ranges.

use super::random::{self, Random};
use mtcp_proto::wire::checksum;
use mtcp_proto::wire::ethernet::EthernetHeader;
use mtcp_proto::wire::icmp::IcmpMessage;
use mtcp_proto::wire::ip::IpHeader;
use mtcp_proto::wire::ndp::NdpMessage;
use mtcp_proto::wire::tcp::TcpHeader;
use proptest::prelude::*;

proptest! {
    #[test]
    fn tcp(seed: u64, data in proptest::collection::vec(any::<u8>(), 0..100)) {
        let mut random = Random(seed);
        let header = random::tcp_header(&mut random);
        let mut segment = vec![0xee; header.bytes()];
        header.write(&mut segment);
        prop_assert_eq!(&segment[16..18], &[0, 0], "the checksum is left to be filled in");
        segment.extend_from_slice(&data);
        let ip = random::ip_header(&mut random, seed % 2 == 0, 6);
        checksum::fill_tcp(ip.source, ip.destination, &mut segment);
        prop_assert!(checksum::verify_tcp(ip.source, ip.destination, &segment));
        prop_assert_eq!(TcpHeader::parse(&segment), Ok((header, &data[..])));
    }

    #[test]
    fn ip(seed: u64, protocol: u8, padding in 0..64usize, bytes in 0..2000usize) {
        // Our senders do not write the kinds of extension headers here.
        prop_assume!(![0, 43, 44, 60].contains(&protocol));
        let mut random = Random(seed);
        let header = random::ip_header(&mut random, seed % 2 == 0, protocol);
        let payload = random.bytes(bytes);
        let mut packet = vec![0xee; header.bytes()];
        header.write(bytes, &mut packet);
        packet.extend_from_slice(&payload);
        packet.resize(packet.len() + padding, 0xee);
        prop_assert_eq!(IpHeader::parse(&packet), Ok((header, &payload[..])));
    }

    #[test]
    fn ethernet(destination: [u8; 6], source: [u8; 6], kind in 0x0600..=u16::MAX) {
        let header = EthernetHeader { destination, source, kind };
        let mut frame = [0xee; 15];
        header.write(&mut frame);
        prop_assert_eq!(EthernetHeader::parse(&frame), Ok((header, &[0xee][..])));
    }

    #[test]
    fn a_changed_word_updates_a_checksum(
        bytes in proptest::collection::vec(any::<u8>(), 2..200),
        place: prop::sample::Index,
        new: u16,
    ) {
        let mut bytes = bytes;
        let place = place.index(bytes.len() / 2) * 2;
        let before = u16::from_be_bytes(checksum::of(&bytes));
        let old = u16::from_be_bytes([bytes[place], bytes[place + 1]]);
        bytes[place..place + 2].copy_from_slice(&new.to_be_bytes());
        let after = u16::from_be_bytes(checksum::of(&bytes));
        let updated = checksum::update(before, old, new);
        // Only a sum of zeros has two representations (RFC 1624, section 3).
        let zeros = |checksum: u16| checksum == 0 || checksum == 0xffff;
        prop_assert!(updated == after || (zeros(updated) && zeros(after)));
    }
}

/// Unchanged packets of the generator are valid, so tests that change packets start from valid
/// ones.
#[test]
fn random_packets_are_valid_unless_they_are_routed() {
    let mut valid = 0;
    for seed in 0..4000 {
        let mut random = Random(seed);
        let packet = match seed % 3 {
            0 => random::tcp_packet(&mut random),
            1 => random::icmp_packet(&mut random),
            _ => random::ndp_packet(&mut random),
        };
        let Ok((header, payload)) = IpHeader::parse(&packet) else { continue };
        valid += 1;
        match seed % 3 {
            0 => {
                assert!(checksum::verify_tcp(header.source, header.destination, payload));
                TcpHeader::parse(payload).expect("valid");
            }
            1 => drop(IcmpMessage::parse(&header, payload).expect("valid")),
            _ if header.hop_limit != 255 || header.destination.is_multicast() => {}
            _ => drop(NdpMessage::parse(&header, payload)),
        }
    }
    assert!(valid > 3000, "{valid} of 4000");
}
