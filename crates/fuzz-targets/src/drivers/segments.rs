//! Drives one stack with a peer whose segments the bytes choose. Many are derived from what the
//! stack has sent, so that they reach connections in every state.

use super::{MOVES_MAX, PORT, Player, Script, small_config};
use mtcp_proto::wire::PROTOCOL_TCP;
use mtcp_proto::wire::checksum;
use mtcp_proto::wire::ip::{Ecn, IpHeader};
use mtcp_proto::wire::tcp::{Flags, Options, SackBlock, TcpHeader, Timestamps};
use mtcp_proto::{Checksum, Instant, Sequence};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// What the peer knows of the connection whose segment arrived last.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    own_port: u16,
    stack_port: u16,
    /// The number that the stack expects, and the end of what it has sent.
    expected: Sequence,
    sent: Sequence,
    /// The stack's last timestamp.
    timestamp: Option<u32>,
}

impl Known {
    /// Updates the state from a packet of the stack, which must be valid.
    fn learn(&mut self, packet: &[u8]) {
        let (ip, payload) = IpHeader::parse(packet).expect("the stack writes IP");
        if ip.protocol != PROTOCOL_TCP {
            return;
        }
        assert!(checksum::verify_tcp(ip.source, ip.destination, payload), "a wrong checksum");
        let (header, data) = TcpHeader::parse(payload).expect("the stack writes TCP");
        if header.flags.contains(Flags::RST) {
            return;
        }
        self.own_port = header.destination_port;
        self.stack_port = header.source_port;
        let control = Flags(header.flags.0 & (Flags::SYN.0 | Flags::FIN.0)).0.count_ones();
        self.sent = header.sequence + data.len() as u32 + control;
        if header.flags.contains(Flags::ACK) {
            self.expected = header.acknowledgement;
        }
        self.timestamp = header.options.timestamps.map(|stamps| stamps.value);
    }
}

/// Runs one game.
pub(super) fn play(script: &mut Script<'_>) {
    let mut now = Instant::from_nanos(1_000_000_000_000);
    let mut player = Player::new(1, small_config(script), now);
    let mut known = Known { own_port: 7000, stack_port: PORT, ..Known::default() };
    for _ in 0..MOVES_MAX {
        if script.is_over() {
            break;
        }
        match script.below(8) {
            0..=3 => {
                let packet = segment(&mut known, player.address, script);
                player.stack.input(now, &packet, Checksum::Unverified);
            }
            4 | 5 => player.call(now, PEER, script),
            6 => {
                now = now + script.duration();
                player.output(now, script.below(4)).iter().for_each(|one| known.learn(one));
            }
            _ => player.output(now, 10_000).iter().for_each(|one| known.learn(one)),
        }
    }
    player.leave(now + Duration::from_millis(1));
}

/// Control bits that peers really send, or arbitrary ones.
fn flags(script: &mut Script<'_>) -> Flags {
    match script.below(10) {
        0 => Flags::SYN,
        1 => Flags::SYN.with(Flags::ACK),
        2..=5 => Flags::ACK,
        6 => Flags::ACK.with(Flags::FIN),
        7 => Flags::RST,
        8 => Flags::ACK.with(Flags::PSH),
        _ => Flags(script.byte()),
    }
}

/// A number equal to, near, or far from the right one.
fn near(right: Sequence, script: &mut Script<'_>) -> Sequence {
    match script.below(8) {
        0..=4 => right,
        5 => right + script.small() as u32,
        6 => right - script.small() as u32,
        _ => Sequence(script.long()),
    }
}

fn segment(known: &mut Known, destination: IpAddr, script: &mut Script<'_>) -> Vec<u8> {
    let flags = flags(script);
    if flags == Flags::SYN && script.below(2) == 0 {
        // A different connection.
        known.own_port = 7000 + u16::from(script.byte() % 8);
        known.stack_port = PORT;
        known.expected = Sequence(script.long());
    }
    let mut header = TcpHeader {
        source_port: known.own_port,
        destination_port: known.stack_port,
        sequence: near(known.expected, script),
        acknowledgement: near(known.sent, script),
        flags,
        window: [65_535, 1000, 0, 1][script.below(4)],
        urgent: 0,
        options: Options::default(),
    };
    if script.below(3) == 0 {
        options(&mut header, known, script);
    } else if let Some(echo) = known.timestamp {
        header.options.timestamps = Some(Timestamps { value: 1, echo });
    }
    let data = if script.below(2) == 0 { script.small().min(1400) } else { 0 };
    let ip = IpHeader {
        source: PEER,
        destination,
        protocol: PROTOCOL_TCP,
        ecn: [Ecn::NotCapable, Ecn::Capable0, Ecn::Experienced][script.below(3)],
        hop_limit: 64,
    };
    let (start, bytes) = (ip.bytes(), header.bytes() + data);
    let mut packet = vec![0; start + bytes];
    ip.write(bytes, &mut packet);
    header.write(&mut packet[start..]);
    if script.below(16) == 0 {
        // Options without meaning, or invalid lengths.
        let at = start + 12 + script.below(bytes.min(60) - 12);
        packet[at] = script.byte();
    }
    checksum::fill_tcp(PEER, destination, &mut packet[start..]);
    packet
}

fn options(header: &mut TcpHeader, known: &Known, script: &mut Script<'_>) {
    let bits = script.byte();
    let options = &mut header.options;
    if bits & 1 != 0 {
        options.maximum_segment = Some([1460, 0, 1, 88, 65_535][script.below(5)]);
    }
    if bits & 2 != 0 {
        options.window_scale = Some(script.byte() % 16);
    }
    options.sack_permitted = bits & 4 != 0;
    if bits & 8 != 0 {
        let echo = known.timestamp.unwrap_or_else(|| script.long());
        options.timestamps = Some(Timestamps { value: script.long(), echo });
    }
    if bits & 16 != 0 {
        options.sack_count = 1 + script.byte() % 3;
        for block in options.sack.iter_mut().take(3) {
            let start = near(known.sent, script);
            *block = SackBlock { start, end: start + script.small() as u32 };
        }
    }
}
