//! Compares the parsers and writers of TCP headers and checksums with those of etherparse and
//! smoltcp.

use super::random::{self, Random};
use etherparse::{TcpOptionElement, TcpOptionReadError};
use mtcp_proto::Sequence;
use mtcp_proto::wire::checksum;
use mtcp_proto::wire::tcp::{Flags, Options, SackBlock, TcpHeader, Timestamps};
use smoltcp::wire as smol;
use std::net::IpAddr;

const ROUNDS: u64 = 20_000;

fn block((start, end): (u32, u32)) -> SackBlock {
    SackBlock { start: Sequence(start), end: Sequence(end) }
}

fn set_blocks(options: &mut Options, blocks: impl Iterator<Item = (u32, u32)>) {
    options.sack = Default::default();
    options.sack_count = 0;
    for (place, found) in options.sack.iter_mut().zip(blocks) {
        *place = block(found);
        options.sack_count += 1;
    }
}

/// Applies the rules of our parser: some options count only in a SYN, and shifts are at most 14.
fn as_ours(mut options: Options, synchronise: bool) -> Options {
    if !synchronise {
        options.maximum_segment = None;
        options.window_scale = None;
        options.sack_permitted = false;
    }
    options.window_scale = options.window_scale.map(|shift| shift.min(14));
    options
}

/// Parses the options with etherparse; `None` if it stops at an unknown option, where our parser
/// continues.
fn by_etherparse(header: &etherparse::TcpHeader) -> Option<Options> {
    let mut options = Options::default();
    for element in header.options_iterator() {
        match element {
            Ok(TcpOptionElement::Noop) => {}
            Ok(TcpOptionElement::MaximumSegmentSize(bytes)) => {
                options.maximum_segment = Some(bytes);
            }
            Ok(TcpOptionElement::WindowScale(shift)) => options.window_scale = Some(shift),
            Ok(TcpOptionElement::SelectiveAcknowledgementPermitted) => {
                options.sack_permitted = true;
            }
            Ok(TcpOptionElement::SelectiveAcknowledgement(first, rest)) => {
                let rest = rest.into_iter().flatten();
                set_blocks(&mut options, std::iter::once(first).chain(rest));
            }
            Ok(TcpOptionElement::Timestamp(value, echo)) => {
                options.timestamps = Some(Timestamps { value, echo });
            }
            Err(TcpOptionReadError::UnknownId(_)) => return None,
            Err(_) => break,
        }
    }
    Some(options)
}

/// Parses the options with smoltcp; `None` with a fourth block, which it omits, or with more than
/// four, which our parser treats as an invalid length.
fn by_smoltcp(mut bytes: &[u8]) -> Option<Options> {
    let mut options = Options::default();
    while !bytes.is_empty() {
        let Ok((rest, option)) = smol::TcpOption::parse(bytes) else { break };
        match option {
            // Timestamps of another length are unknown to smoltcp, and invalid for our parser.
            smol::TcpOption::EndOfList | smol::TcpOption::Unknown { kind: 8, .. } => break,
            smol::TcpOption::NoOperation | smol::TcpOption::Unknown { .. } => {}
            smol::TcpOption::MaxSegmentSize(bytes) => options.maximum_segment = Some(bytes),
            smol::TcpOption::WindowScale(shift) => options.window_scale = Some(shift),
            smol::TcpOption::SackPermitted => options.sack_permitted = true,
            smol::TcpOption::SackRange(_) if bytes[1] > 26 => return None,
            smol::TcpOption::SackRange(blocks) => {
                set_blocks(&mut options, blocks.into_iter().flatten());
            }
            smol::TcpOption::TimeStamp { tsval, tsecr } => {
                options.timestamps = Some(Timestamps { value: tsval, echo: tsecr });
            }
        }
        bytes = rest;
    }
    Some(options)
}

fn flags(header: &etherparse::TcpHeader) -> Flags {
    let bits = [
        (header.fin, Flags::FIN),
        (header.syn, Flags::SYN),
        (header.rst, Flags::RST),
        (header.psh, Flags::PSH),
        (header.ack, Flags::ACK),
        (header.urg, Flags::URG),
        (header.ece, Flags::ECE),
        (header.cwr, Flags::CWR),
    ];
    bits.iter().filter(|(set, _)| *set).fold(Flags::default(), |flags, (_, bit)| flags.with(*bit))
}

/// A segment with options in more variants than our writer produces.
fn segment(random: &mut Random) -> Vec<u8> {
    let header = random::tcp_header(random);
    let mut segment = vec![0xee; header.bytes()];
    header.write(&mut segment);
    if random.one_in(2) {
        let words = random.below(11);
        let mut options = Vec::new();
        while options.len() < words * 4 {
            let kind = [0, 1, 1, 2, 3, 4, 5, 5, 8, 30][random.below(10)];
            options.push(kind);
            let length = match kind {
                0 | 1 => continue,
                2 => 4,
                3 => 3,
                4 => 2,
                5 => 2 + 8 * random.below(5),
                8 => 10,
                _ => 2 + random.below(6),
            };
            let length = if random.one_in(8) { random.below(12) } else { length };
            options.push(length as u8);
            options.extend(random.bytes(length.saturating_sub(2)));
        }
        options.truncate(words * 4);
        segment.truncate(20);
        segment[12] = ((5 + words) as u8) << 4;
        segment.extend_from_slice(&options);
    }
    let data = random.below(20);
    segment.extend(random.bytes(data));
    random::mutate(random, &mut segment);
    segment
}

#[test]
fn headers_are_read_alike() {
    let (mut valid, mut options_compared) = (0, 0);
    for seed in 0..ROUNDS {
        let mut random = Random(seed);
        let segment = segment(&mut random);
        let ours = TcpHeader::parse(&segment);
        let theirs = etherparse::TcpHeader::from_slice(&segment);
        assert_eq!(ours.is_ok(), theirs.is_ok(), "seed {seed}: {ours:?}, {theirs:?}");
        let smoltcp = smol::TcpPacket::new_checked(&segment[..]);
        assert_eq!(ours.is_ok(), smoltcp.is_ok(), "seed {seed}: {ours:?}");
        let (Ok((ours, data)), Ok((theirs, their_data)), Ok(smoltcp)) = (ours, theirs, smoltcp)
        else {
            continue;
        };
        valid += 1;
        let expected = TcpHeader {
            source_port: theirs.source_port,
            destination_port: theirs.destination_port,
            sequence: Sequence(theirs.sequence_number),
            acknowledgement: Sequence(theirs.acknowledgment_number),
            flags: flags(&theirs),
            window: theirs.window_size,
            urgent: theirs.urgent_pointer,
            options: ours.options,
        };
        assert_eq!((ours, data), (expected, their_data), "seed {seed}");
        assert_eq!(data, smoltcp.payload(), "seed {seed}");
        let synchronise = ours.flags.contains(Flags::SYN);
        let readings = [by_etherparse(&theirs), by_smoltcp(smoltcp.options())];
        for (reader, options) in ["etherparse", "smoltcp"].iter().zip(readings) {
            if let Some(options) = options {
                let options = as_ours(options, synchronise);
                assert_eq!(ours.options, options, "seed {seed}, {reader}: {segment:02x?}");
                options_compared += 1;
            }
        }
    }
    assert!(valid > ROUNDS / 2 && options_compared > ROUNDS / 2, "{valid}, {options_compared}");
}

#[test]
fn checksums_are_computed_alike() {
    for seed in 0..ROUNDS / 4 {
        let mut random = Random(seed);
        let ip = random::ip_header(&mut random, seed % 2 == 0, 6);
        let header = random::tcp_header(&mut random);
        let mut segment = vec![0xee; header.bytes()];
        header.write(&mut segment);
        let data = random.below(300);
        segment.extend(random.bytes(data));
        checksum::fill_tcp(ip.source, ip.destination, &mut segment);
        let ours = u16::from_be_bytes([segment[16], segment[17]]);
        let (theirs, data) = etherparse::TcpHeader::from_slice(&segment).expect("valid");
        let theirs = match (ip.source, ip.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                theirs.calc_checksum_ipv4_raw(source.octets(), destination.octets(), data)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                theirs.calc_checksum_ipv6_raw(source.octets(), destination.octets(), data)
            }
            _ => unreachable!("both addresses are of one family"),
        };
        assert_eq!(Ok(ours), theirs, "seed {seed}");
        let smoltcp = smol::TcpPacket::new_checked(&segment[..]).expect("valid");
        let (source, destination) = (ip.source.into(), ip.destination.into());
        assert!(smoltcp.verify_checksum(&source, &destination), "seed {seed}");
    }
}

#[test]
fn what_etherparse_builds_is_read() {
    for seed in 0..ROUNDS / 4 {
        let mut random = Random(seed);
        let (sequence, acknowledgement) = (random.sequence(), random.sequence());
        let (source, destination) = ([192, 0, 2, random.byte()], [198, 51, 100, random.byte()]);
        let elements = [
            TcpOptionElement::MaximumSegmentSize(random.next() as u16),
            TcpOptionElement::SelectiveAcknowledgementPermitted,
            TcpOptionElement::Timestamp(random.next() as u32, random.next() as u32),
            TcpOptionElement::Noop,
            TcpOptionElement::WindowScale(random.byte() % 15),
        ];
        let length = random.below(100);
        let data = random.bytes(length);
        let builder = etherparse::PacketBuilder::ipv4(source, destination, random.byte())
            .tcp(random.next() as u16, 80, sequence.0, random.next() as u16)
            .syn()
            .ack(acknowledgement.0)
            .options(&elements)
            .expect("the options fit");
        let mut packet = Vec::new();
        builder.write(&mut packet, &data).expect("a vector takes everything");
        let (ip, segment) = mtcp_proto::wire::ip::IpHeader::parse(&packet)
            .expect("etherparse writes valid packets");
        assert!(checksum::verify_tcp(ip.source, ip.destination, segment), "seed {seed}");
        let (header, read) = TcpHeader::parse(segment).expect("valid");
        assert_eq!((ip.source, ip.destination), (source.into(), destination.into()));
        assert_eq!(read, data);
        assert_eq!((header.sequence, header.acknowledgement), (sequence, acknowledgement));
        assert_eq!(header.flags, Flags::SYN.with(Flags::ACK));
        let [
            TcpOptionElement::MaximumSegmentSize(segment_bytes),
            _,
            TcpOptionElement::Timestamp(value, echo),
            _,
            TcpOptionElement::WindowScale(shift),
        ] = elements
        else {
            unreachable!("these are the elements")
        };
        let expected = Options {
            maximum_segment: Some(segment_bytes),
            window_scale: Some(shift),
            sack_permitted: true,
            timestamps: Some(Timestamps { value, echo }),
            ..Options::default()
        };
        assert_eq!(header.options, expected, "seed {seed}");
        let mut written = vec![0xee; header.bytes()];
        header.write(&mut written);
        let again = etherparse::TcpHeader::from_slice(&written).expect("valid").0;
        assert_eq!(by_etherparse(&again), Some(expected), "seed {seed}: ours is read by theirs");
    }
}
