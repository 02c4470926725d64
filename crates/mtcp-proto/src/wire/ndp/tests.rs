use super::super::ip::Ecn;
use super::*;

/// A solicitation of fe80::1 for fe80::9.
const SOLICITATION_BYTES: [u8; 32] = [
    135, 0, 0x7a, 0x89, 0, 0, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 1, 1, 2,
    0, 0, 0, 0, 1,
];
/// An advertisement of fe80::9 to fe80::1.
const ADVERTISEMENT_BYTES: [u8; 32] = [
    136, 0, 0x18, 0x05, 0x60, 0, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 2, 1,
    2, 0, 0, 0, 0, 9,
];

fn ip(text: &str) -> Ipv6Addr {
    text.parse().expect("valid")
}

fn header(source: &str, destination: &str) -> IpHeader {
    IpHeader {
        source: ip(source).into(),
        destination: ip(destination).into(),
        protocol: PROTOCOL_ICMPV6,
        ecn: Ecn::NotCapable,
        hop_limit: 255,
    }
}

fn solicitation() -> (IpHeader, NdpMessage) {
    let message =
        NdpMessage::Solicitation { target: ip("fe80::9"), link: Some([2, 0, 0, 0, 0, 1]) };
    (header("fe80::1", "ff02::1:ff00:9"), message)
}

fn advertisement() -> (IpHeader, NdpMessage) {
    let message = NdpMessage::Advertisement {
        target: ip("fe80::9"),
        link: Some([2, 0, 0, 0, 0, 9]),
        router: false,
        solicited: true,
        replaces: true,
    };
    (header("fe80::9", "fe80::1"), message)
}

/// Applies `change` to a message, computes the checksum again, and parses the result.
fn changed(
    (header, message): (IpHeader, NdpMessage),
    change: impl FnOnce(&mut Vec<u8>),
) -> Result<NdpMessage, WireError> {
    let mut bytes = vec![0xee; message.bytes()];
    message.write(&header, &mut bytes);
    bytes[2..4].fill(0);
    change(&mut bytes);
    fill(&header, &mut bytes);
    NdpMessage::parse(&header, &bytes)
}

#[test]
fn messages_are_read_and_written_byte_for_byte() {
    for ((header, message), bytes) in
        [(solicitation(), SOLICITATION_BYTES), (advertisement(), ADVERTISEMENT_BYTES)]
    {
        assert_eq!(NdpMessage::parse(&header, &bytes), Ok(message));
        let mut out = [0xee; NDP_BYTES_MAX];
        message.write(&header, &mut out);
        assert_eq!(out, bytes);
        for bit in 8..256 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(NdpMessage::parse(&header, &bytes), Err(WireError::Checksum), "{bit}");
        }
        let behind_router = IpHeader { hop_limit: 254, ..header };
        let error = Err(WireError::Malformed("hop limit"));
        assert_eq!(NdpMessage::parse(&behind_router, &bytes), error);
    }
}

#[test]
fn what_rfc_4861_forbids_is_malformed() {
    let malformed = |what| Err(WireError::Malformed(what));
    assert_eq!(changed(solicitation(), |bytes| bytes[1] = 1), malformed("code"));
    assert_eq!(changed(solicitation(), |bytes| bytes[8] = 0xff), malformed("target"));
    assert_eq!(changed(solicitation(), |bytes| bytes[25] = 0), malformed("option length"));
    assert_eq!(changed(solicitation(), |bytes| bytes[26] = 3), malformed("link-layer address"));
    assert_eq!(changed(solicitation(), |bytes| bytes[25] = 2), Err(WireError::Truncated));
    assert_eq!(changed(solicitation(), |bytes| bytes.truncate(25)), Err(WireError::Truncated));
    assert_eq!(changed(solicitation(), |bytes| bytes.truncate(23)), Err(WireError::Truncated));
    let probe = (header("::", "ff02::1:ff00:9"), solicitation().1);
    assert_eq!(changed(probe, |_| ()), malformed("source"));
    let probe =
        (header("::", "fe80::9"), NdpMessage::Solicitation { target: ip("fe80::9"), link: None });
    assert_eq!(changed(probe, |_| ()), malformed("source"));
    let to_all = (header("fe80::9", "ff02::1"), advertisement().1);
    assert_eq!(changed(to_all, |_| ()), malformed("flags"));
}

#[test]
fn unknown_options_are_skipped_and_the_first_address_counts() {
    let more = changed(solicitation(), |bytes| {
        bytes.splice(24..24, [14, 1, 9, 9, 9, 9, 9, 9]);
        bytes.extend_from_slice(&[1, 1, 2, 0, 0, 0, 0, 7]);
        bytes.extend_from_slice(&[1, 2].into_iter().chain([0; 14]).collect::<Vec<_>>());
    });
    assert_eq!(more, Ok(solicitation().1));
    let probe = NdpMessage::Solicitation { target: ip("fe80::9"), link: None };
    assert_eq!(changed((header("::", "ff02::1:ff00:9"), probe), |_| ()), Ok(probe));
}

#[test]
fn other_messages_are_unsupported() {
    let unsupported = Err(WireError::Unsupported("an ICMP message"));
    assert_eq!(changed(solicitation(), |bytes| bytes[0] = 137), unsupported);
    let (header, _) = solicitation();
    let header = IpHeader { protocol: 6, ..header };
    let error = Err(WireError::Unsupported("protocol"));
    assert_eq!(NdpMessage::parse(&header, &SOLICITATION_BYTES), error);
}

#[test]
fn groups_of_addresses() {
    let group = solicited_node(ip("2001:db8::12:3456"));
    assert_eq!(group, ip("ff02::1:ff12:3456"));
    assert_eq!(group_hardware_address(group), [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
}

#[test]
fn packets_of_neighbour_discovery_are_told_from_others() {
    let (header, message) = solicitation();
    let mut packet = [0; 72];
    header.write(32, &mut packet);
    message.write(&header, &mut packet[40..]);
    assert!(is_ndp(&packet));
    assert!(!is_ndp(&packet[..40]));
    packet[40] = 128;
    assert!(!is_ndp(&packet));
    packet[40] = 135;
    packet[6] = 6;
    assert!(!is_ndp(&packet));
}
