//! Tests that header prediction has the same effects as the full processing of a segment.

use super::by_hand::ByHand;
use super::harness::{Random, Seen, pattern};
use crate::config::Config;
use crate::socket::State;
use crate::tcp::Connection;
use crate::wire::tcp::Flags;
use std::time::Duration;

/// The state of a connection except for the bytes of its data.
fn fingerprint(connection: &Connection) -> String {
    let (send, receive) = (&connection.send, &connection.receive);
    let machine = (
        connection.state,
        &connection.due,
        &connection.acks,
        &connection.ecn,
        &connection.timers,
        &connection.stamps,
        &connection.recovery,
        &connection.alive,
        &connection.path,
    );
    let sender = (
        (send.unacknowledged, send.next, send.window, send.window_max, send.fin, send.probed),
        (&send.scoreboard, &send.congestion, &send.rtt, send.bytes_acknowledged),
        (send.ring.len(), send.scoreboard.sent_at(), send.sendable_end(), connection.plan()),
    );
    let receiver = (
        (receive.next, receive.edge, receive.acknowledged, receive.ended, receive.arrivals),
        (receive.ring.len(), &receive.reassembly, receive.bytes),
    );
    format!("{machine:?} {sender:?} {receiver:?}")
}

/// The segment that a peer without losses would send next.
fn friendly(random: &mut Random, peer: &ByHand) -> Seen {
    let connection = &peer.end.connection;
    let bytes = [0, 1, 700, 1448][random.below(4) as usize];
    let mut seen = peer.segment(Flags::ACK, &vec![random.next() as u8; bytes]);
    seen.header.sequence = connection.receive.next;
    let outstanding = connection.send.outstanding();
    let acknowledged = random.below(2) * random.below(outstanding + 1);
    seen.header.acknowledgement = connection.send.unacknowledged + acknowledged;
    seen.header.window = 60_000 + random.below(3) as u16;
    seen
}

/// Returns how many segments header prediction handled, and the number of all segments.
fn compare(seed: u64) -> (u32, u32) {
    let (mut short, mut steps) = (0, 0);
    let mut random = Random::new(seed);
    let (sack, timestamps) = (random.below(2) == 0, random.below(3) > 0);
    let config = Config { sack, timestamps, ..Config::default() };
    let (mut one, mut other) = (ByHand::new(config.clone()), ByHand::new(config));
    for _ in 0..100 {
        let bytes = random.below(3000) as usize;
        let odd = random.below(30) == 0;
        let choice = random.below(3);
        for end in [&mut one.end, &mut other.end] {
            let _ = end.with(|connection, context| match choice {
                0 => connection.send(&pattern(bytes + 1), context),
                1 => connection.receive(&mut vec![0; bytes], context),
                _ => Ok(0),
            });
        }
        let segment = if odd {
            super::random::segment(&mut random, &one.end)
        } else {
            friendly(&mut random, &one)
        };
        let before = one.end.state();
        short += u32::from(one.end.with(|connection, context| {
            let Seen { header, ecn, data, .. } = &segment;
            let short = connection.predicted(header, *ecn, data, context);
            if !short {
                connection.process(header, *ecn, data, context);
            }
            short
        }));
        other.end.with(|connection, context| {
            connection.process(&segment.header, segment.ecn, &segment.data, context);
        });
        steps += 1;
        let (first, second) = (&one.end.connection, &other.end.connection);
        assert_eq!(fingerprint(first), fingerprint(second), "{before:?} {segment:?}");
        assert_eq!(one.end.counters, other.end.counters);
        assert_eq!(one.end.put(), other.end.put());
        let time = Duration::from_millis(u64::from(random.below(30)));
        one.end.pass(time);
        other.end.pass(time);
        assert_eq!(one.end.receive_all(), other.end.receive_all());
        if one.end.state() == State::Closed {
            break;
        }
    }
    (short, steps)
}

#[test]
fn the_short_way_ends_where_the_long_one_does() {
    let (mut short, mut steps) = (0, 0);
    for seed in 0..200 {
        let (taken, of) = Random::announced(seed, compare);
        short += taken;
        steps += of;
    }
    assert!(short > steps / 4, "{short} of {steps}");
}
