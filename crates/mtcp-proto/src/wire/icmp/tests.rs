use super::super::ip::Ecn;
use super::*;

const ECHO_IPV4: [u8; 13] = [8, 0, 0xe5, 0xf3, 0x12, 0x34, 0, 7, b'p', b'i', b'n', b'g', b'!'];
const ECHO_IPV6: [u8; 13] = [128, 0, 0x12, 0x32, 0x12, 0x34, 0, 7, b'p', b'i', b'n', b'g', b'!'];

/// An ICMP message: fragmentation needed, MTU 1300 bytes, about a segment whose sequence number is
/// about to wrap.
const FRAGMENTATION_NEEDED: [u8; 36] = [
    3, 4, 0x87, 0x0f, 0, 0, 0x05, 0x14, 0x45, 0, 0, 60, 0, 0, 0x40, 0, 63, 6, 0, 0, 192, 0, 2, 9,
    198, 51, 100, 7, 0xc0, 1, 0, 80, 0xff, 0xff, 0xff, 0xfe,
];

fn header(ipv6: bool) -> IpHeader {
    let (source, destination, protocol) = if ipv6 {
        ("2001:db8::1", "2001:db8::7", PROTOCOL_ICMPV6)
    } else {
        ("192.0.2.1", "192.0.2.9", PROTOCOL_ICMP)
    };
    IpHeader {
        source: source.parse().expect("valid"),
        destination: destination.parse().expect("valid"),
        protocol,
        ecn: Ecn::NotCapable,
        hop_limit: 64,
    }
}

fn written(header: &IpHeader, message: &IcmpMessage) -> Vec<u8> {
    let mut out = vec![0xee; message.bytes(header)];
    message.write(header, &mut out);
    out
}

#[test]
fn echoes_are_read_and_written_byte_for_byte() {
    let echo = Echo { identifier: 0x1234, sequence: 7, data: b"ping!" };
    for (ipv6, bytes) in [(false, ECHO_IPV4), (true, ECHO_IPV6)] {
        let header = header(ipv6);
        let request = IcmpMessage::EchoRequest(echo);
        assert_eq!(IcmpMessage::parse(&header, &bytes), Ok(request));
        assert_eq!(written(&header, &request), bytes);
        let reply = IcmpMessage::EchoReply(echo);
        assert_eq!(IcmpMessage::parse(&header, &written(&header, &reply)), Ok(reply));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(IcmpMessage::parse(&header, &bytes), Err(WireError::Checksum));
        }
        for length in 0..8 {
            let cut = IcmpMessage::parse(&header, &bytes[..length]);
            assert_eq!(cut, Err(WireError::Truncated));
        }
    }
}

#[test]
fn an_error_tells_whose_segment_it_was() {
    let error = IcmpMessage::parse(&header(false), &FRAGMENTATION_NEEDED).expect("valid");
    let IcmpMessage::Error { cause, quoted } = error else { panic!("{error:?}") };
    assert_eq!(cause, IcmpCause::PacketTooBig { mtu: 1300 });
    assert_eq!(written(&header(false), &error), FRAGMENTATION_NEEDED);
    let segment = QuotedSegment {
        source: "192.0.2.9:49153".parse().expect("valid"),
        destination: "198.51.100.7:80".parse().expect("valid"),
        sequence: Sequence(u32::MAX - 1),
    };
    assert_eq!(QuotedSegment::parse(quoted), Ok(segment));
    for length in 0..quoted.len() {
        assert_eq!(QuotedSegment::parse(&quoted[..length]), Err(WireError::Truncated));
    }
}

#[test]
fn an_error_may_quote_ipv6_but_no_other_protocol_and_no_fragment() {
    let inner = IpHeader { protocol: PROTOCOL_TCP, ..header(true) };
    let mut quoted = [0; 48];
    inner.write(1000, &mut quoted);
    quoted[40..].copy_from_slice(&[0, 80, 0xc0, 1, 0, 0, 0, 5]);
    let segment = QuotedSegment::parse(&quoted).expect("valid");
    assert_eq!(segment.source, "[2001:db8::1]:80".parse().expect("valid"));
    assert_eq!(segment.destination, "[2001:db8::7]:49153".parse().expect("valid"));
    assert_eq!(segment.sequence, Sequence(5));
    quoted[6] = 17;
    assert_eq!(QuotedSegment::parse(&quoted), Err(WireError::Unsupported("protocol")));
    let mut quoted: Vec<u8> = FRAGMENTATION_NEEDED[8..].to_vec();
    quoted[7] = 1;
    assert_eq!(QuotedSegment::parse(&quoted), Err(WireError::Unsupported("fragment")));
}

#[test]
fn every_cause_survives_the_way() {
    let causes = [
        IcmpCause::NetworkUnreachable,
        IcmpCause::HostUnreachable,
        IcmpCause::ProtocolUnreachable,
        IcmpCause::PortUnreachable,
        IcmpCause::Prohibited,
        IcmpCause::PacketTooBig { mtu: 0 },
        IcmpCause::PacketTooBig { mtu: 1280 },
        IcmpCause::TimeExceeded,
        IcmpCause::ParameterProblem,
    ];
    for (ipv6, quoted) in [(false, [0x45; 40]), (true, [0x60; 40])] {
        for cause in causes {
            let message = IcmpMessage::Error { cause, quoted: &quoted };
            let bytes = written(&header(ipv6), &message);
            assert_eq!(IcmpMessage::parse(&header(ipv6), &bytes), Ok(message));
            let crossed = written(&header(!ipv6), &message);
            let crossed = IcmpMessage::parse(&header(!ipv6), &crossed);
            assert_eq!(crossed, Err(WireError::Malformed("quoted version")));
        }
    }
}

#[test]
fn an_error_that_quotes_nothing_is_cut_off() {
    let message = IcmpMessage::Error { cause: IcmpCause::TimeExceeded, quoted: &[] };
    let bytes = written(&header(false), &message);
    assert_eq!(IcmpMessage::parse(&header(false), &bytes), Err(WireError::Truncated));
}

#[test]
fn a_quotation_is_cut_to_what_every_link_takes() {
    let quoted = [7; 2000];
    let error = IcmpMessage::Error { cause: IcmpCause::TimeExceeded, quoted: &quoted };
    assert_eq!(written(&header(false), &error).len() + 20, 576);
    assert_eq!(written(&header(true), &error).len() + 40, 1280);
}

#[test]
fn other_messages_and_protocols_are_unsupported() {
    let message = Err(WireError::Unsupported("an ICMP message"));
    for (ipv6, kind, code) in [
        (false, 5, 0),
        (false, 3, 16),
        (false, 13, 0),
        (false, 8, 1),
        (true, 135, 0),
        (true, 1, 7),
        (true, 4, 9),
        (true, 200, 0),
    ] {
        let mut bytes = vec![kind, code, 0, 0, 0, 0, 0, 0];
        fill(&header(ipv6), &mut bytes);
        assert_eq!(IcmpMessage::parse(&header(ipv6), &bytes), message, "{kind} {code}");
    }
    let crossed = IpHeader { protocol: PROTOCOL_ICMPV6, ..header(false) };
    let protocol = Err(WireError::Unsupported("protocol"));
    assert_eq!(IcmpMessage::parse(&crossed, &ECHO_IPV4), protocol);
    let crossed = IpHeader { protocol: PROTOCOL_ICMP, ..header(true) };
    assert_eq!(IcmpMessage::parse(&crossed, &ECHO_IPV4), protocol);
}
