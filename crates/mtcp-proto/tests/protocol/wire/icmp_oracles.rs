//! Compares the parsers of ICMP, neighbour discovery and ARP with those of smoltcp.

use super::parsers::repaired;
use super::random::{self, Random};
use mtcp_proto::wire::WireError;
use mtcp_proto::wire::arp::{ArpOperation, ArpPacket};
use mtcp_proto::wire::icmp::{Echo, IcmpCause, IcmpMessage, QuotedSegment};
use mtcp_proto::wire::ip::IpHeader;
use mtcp_proto::wire::ndp::NdpMessage;
use mtcp_proto::wire::{PROTOCOL_ICMP, PROTOCOL_ICMPV6};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as smol;
use std::net::IpAddr;

const ROUNDS: u64 = 20_000;

fn payload(seed: u64, make: fn(&mut Random) -> Vec<u8>) -> Option<(IpHeader, Vec<u8>)> {
    let mut random = Random(seed);
    let mut packet = make(&mut random);
    random::mutate(&mut random, &mut packet);
    let packet = if random.one_in(4) { packet } else { repaired(&packet) };
    let (header, payload) = IpHeader::parse(&packet).ok()?;
    Some((header, payload.to_vec()))
}

fn read_echo<'a>(ident: u16, seq_no: u16, data: &'a [u8]) -> Echo<'a> {
    Echo { identifier: ident, sequence: seq_no, data }
}

#[test]
fn icmp_for_ipv4_is_read_alike() {
    let (mut echoes, mut errors) = (0, 0);
    for seed in 0..ROUNDS {
        let Some((header, payload)) = payload(seed, random::icmp_packet) else { continue };
        if header.protocol != PROTOCOL_ICMP || header.destination.is_ipv6() {
            continue;
        }
        let ours = IcmpMessage::parse(&header, &payload);
        let theirs = smol::Icmpv4Packet::new_checked(&payload[..])
            .and_then(|packet| smol::Icmpv4Repr::parse(&packet, &ChecksumCapabilities::default()));
        match theirs {
            Ok(smol::Icmpv4Repr::EchoRequest { ident, seq_no, data }) => {
                let echo = IcmpMessage::EchoRequest(read_echo(ident, seq_no, data));
                assert_eq!(ours, Ok(echo), "seed {seed}");
                echoes += 1;
            }
            Ok(smol::Icmpv4Repr::EchoReply { ident, seq_no, data }) => {
                let echo = IcmpMessage::EchoReply(read_echo(ident, seq_no, data));
                assert_eq!(ours, Ok(echo), "seed {seed}");
                echoes += 1;
            }
            Ok(
                smol::Icmpv4Repr::DstUnreachable { header: quoted, data, .. }
                | smol::Icmpv4Repr::TimeExceeded { header: quoted, data, .. },
            ) => {
                // Our parser refuses codes that were never assigned, and checks the version.
                let refused = [
                    Err(WireError::Unsupported("an ICMP message")),
                    Err(WireError::Malformed("quoted version")),
                ];
                if refused.contains(&ours) {
                    continue;
                }
                let Ok(IcmpMessage::Error { quoted: bytes, .. }) = ours else {
                    panic!("seed {seed}: {ours:?} {payload:02x?}")
                };
                let segment = QuotedSegment::parse(bytes);
                if quoted.next_header != smol::IpProtocol::Tcp {
                    assert!(segment.is_err(), "seed {seed}");
                    continue;
                }
                // Our parser refuses quoted fragments and source routes.
                let Ok(segment) = segment else { continue };
                assert_eq!(segment.source.ip(), IpAddr::from(quoted.src_addr), "seed {seed}");
                assert_eq!(segment.destination.ip(), IpAddr::from(quoted.dst_addr));
                assert_eq!(segment.source.port().to_be_bytes(), data[..2]);
                assert_eq!(segment.sequence.0.to_be_bytes(), data[4..8]);
                errors += 1;
            }
            Ok(_) => assert!(ours.is_err(), "seed {seed}: {ours:?}"),
            // Our parser refuses what smoltcp refuses. Exceptions are errors that smoltcp does not
            // know, or whose quoted packet only our parser accepts, which is parsed in a second
            // step.
            Err(_) => assert!(
                matches!(ours, Err(_) | Ok(IcmpMessage::Error { .. })),
                "seed {seed}: {ours:?}"
            ),
        }
    }
    assert!(echoes > 500 && errors > 500, "{echoes} echoes, {errors} errors");
}

#[test]
fn icmp_for_ipv6_is_read_alike() {
    let (mut echoes, mut errors) = (0, 0);
    for seed in 0..ROUNDS {
        let Some((header, payload)) = payload(seed, random::icmp_packet) else { continue };
        let (IpAddr::V6(source), IpAddr::V6(destination), PROTOCOL_ICMPV6) =
            (header.source, header.destination, header.protocol)
        else {
            continue;
        };
        let ours = IcmpMessage::parse(&header, &payload);
        let theirs = smol::Icmpv6Packet::new_checked(&payload[..]).and_then(|packet| {
            let capabilities = ChecksumCapabilities::default();
            smol::Icmpv6Repr::parse(&source, &destination, &packet, &capabilities)
        });
        let quoted = match theirs {
            Ok(smol::Icmpv6Repr::EchoRequest { ident, seq_no, data }) => {
                let echo = IcmpMessage::EchoRequest(read_echo(ident, seq_no, data));
                assert_eq!(ours, Ok(echo), "seed {seed}");
                echoes += 1;
                continue;
            }
            Ok(smol::Icmpv6Repr::EchoReply { ident, seq_no, data }) => {
                let echo = IcmpMessage::EchoReply(read_echo(ident, seq_no, data));
                assert_eq!(ours, Ok(echo), "seed {seed}");
                echoes += 1;
                continue;
            }
            Ok(smol::Icmpv6Repr::PktTooBig { mtu, header, .. }) => {
                match ours {
                    Ok(IcmpMessage::Error { cause, .. }) => {
                        assert_eq!(cause, IcmpCause::PacketTooBig { mtu }, "seed {seed}");
                    }
                    other => assert_eq!(other, Err(WireError::Malformed("quoted version"))),
                }
                header
            }
            Ok(
                smol::Icmpv6Repr::DstUnreachable { header, .. }
                | smol::Icmpv6Repr::TimeExceeded { header, .. }
                | smol::Icmpv6Repr::ParamProblem { header, .. },
            ) => header,
            Ok(_) => {
                assert!(ours.is_err(), "seed {seed}: {ours:?}");
                continue;
            }
            Err(_) => {
                let known = matches!(ours, Err(_) | Ok(IcmpMessage::Error { .. }));
                assert!(known, "seed {seed}: {ours:?}");
                continue;
            }
        };
        let Ok(IcmpMessage::Error { quoted: bytes, .. }) = ours else { continue };
        let Ok(segment) = QuotedSegment::parse(bytes) else { continue };
        assert_eq!(quoted.next_header, smol::IpProtocol::Tcp, "seed {seed}");
        assert_eq!(segment.source.ip(), IpAddr::from(quoted.src_addr), "seed {seed}");
        assert_eq!(segment.destination.ip(), IpAddr::from(quoted.dst_addr));
        errors += 1;
    }
    assert!(echoes > 500 && errors > 500, "{echoes} echoes, {errors} errors");
}

#[test]
fn neighbour_discovery_is_read_alike() {
    let (mut read, mut refused) = (0, 0);
    for seed in 0..ROUNDS {
        let Some((header, payload)) = payload(seed, random::ndp_packet) else { continue };
        let (IpAddr::V6(source), IpAddr::V6(destination), PROTOCOL_ICMPV6) =
            (header.source, header.destination, header.protocol)
        else {
            continue;
        };
        let ours = NdpMessage::parse(&header, &payload);
        let theirs = smol::Icmpv6Packet::new_checked(&payload[..]).and_then(|packet| {
            let capabilities = ChecksumCapabilities::default();
            smol::Icmpv6Repr::parse(&source, &destination, &packet, &capabilities)
        });
        // smoltcp does not check hop limit, targets and the rules for groups.
        let Ok(ours) = ours else {
            refused += 1;
            continue;
        };
        let Ok(smol::Icmpv6Repr::Ndisc(theirs)) = theirs else {
            // It also checks the lengths of options that have no meaning here.
            let others = payload[24..].chunks(8).any(|option| (3..=5).contains(&option[0]));
            assert!(others, "seed {seed}: {theirs:?} {payload:02x?}");
            continue;
        };
        read += 1;
        let hardware = |link: Option<smol::RawHardwareAddress>| -> Option<[u8; 6]> {
            link.and_then(|link| link.as_bytes().try_into().ok())
        };
        let expected = match theirs {
            smol::NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
                NdpMessage::Solicitation { target: target_addr, link: hardware(lladdr) }
            }
            smol::NdiscRepr::NeighborAdvert { flags, target_addr, lladdr } => {
                NdpMessage::Advertisement {
                    target: target_addr,
                    link: hardware(lladdr),
                    router: flags.contains(smol::NdiscNeighborFlags::ROUTER),
                    solicited: flags.contains(smol::NdiscNeighborFlags::SOLICITED),
                    replaces: flags.contains(smol::NdiscNeighborFlags::OVERRIDE),
                }
            }
            other => panic!("seed {seed}: {other:?}"),
        };
        assert_eq!(ours, expected, "seed {seed}: {payload:02x?}");
    }
    assert!(read > ROUNDS / 4 && refused > 100, "{read} read, {refused} refused");
}

#[test]
fn arp_is_read_alike() {
    let mut read = 0;
    for seed in 0..ROUNDS {
        let mut random = Random(seed);
        let mut packet = random::arp_packet(&mut random);
        random::mutate(&mut random, &mut packet);
        let ours = ArpPacket::parse(&packet);
        let theirs = smol::ArpPacket::new_checked(&packet[..])
            .and_then(|packet| smol::ArpRepr::parse(&packet));
        let Ok(smol::ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_hardware_addr,
            target_protocol_addr,
        }) = theirs
        else {
            assert!(ours.is_err(), "seed {seed}: {ours:?}");
            continue;
        };
        let operation = match operation {
            smol::ArpOperation::Request => ArpOperation::Request,
            smol::ArpOperation::Reply => ArpOperation::Reply,
            _ => {
                assert!(ours.is_err(), "seed {seed}: {ours:?}");
                continue;
            }
        };
        read += 1;
        let expected = ArpPacket {
            operation,
            sender_hardware: source_hardware_addr.0,
            sender: source_protocol_addr,
            target_hardware: target_hardware_addr.0,
            target: target_protocol_addr,
        };
        assert_eq!(ours, Ok(expected), "seed {seed}");
    }
    assert!(read > ROUNDS / 3, "{read}");
}
