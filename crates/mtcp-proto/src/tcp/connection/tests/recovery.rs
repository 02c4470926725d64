//! Tests losses: detection, repair, and reverting a spurious recovery.

use super::by_hand::ByHand;
use super::harness::{Pair, Seen, pattern};
use crate::config::{Config, Options};
use crate::sequence::Sequence;
use crate::wire::ip::Ecn;
use crate::wire::tcp::{Flags, Timestamps};
use std::time::Duration;

const FULL: u32 = 1448;

/// A connection with ten full segments outstanding, sent a millisecond apart; returns their first
/// number.
fn ten_outstanding(config: Config) -> (ByHand, Sequence) {
    let mut peer = ByHand::new(config);
    // The round trip of 20 ms is measured.
    peer.expect(&[0; 10]);
    peer.end.pass(Duration::from_millis(20));
    peer.acknowledge();
    let start = peer.expected;
    for _ in 0..10 {
        let full = peer.end.connection.send.full;
        assert_eq!(peer.expect(&vec![9; usize::from(full)]).len(), 1);
        peer.end.now = peer.end.now + Duration::from_millis(1);
    }
    (peer, start)
}

fn sequences(sent: &[Seen]) -> Vec<Sequence> {
    sent.iter().map(|seen| seen.header.sequence).collect()
}

#[test]
fn what_sack_shows_as_lost_is_sent_again_at_once() {
    let (mut peer, start) = ten_outstanding(Config::default());
    peer.end.pass(Duration::from_millis(12));
    peer.expected = start;
    let mut repaired = Vec::new();
    for count in 2..=4 {
        let block = (start + FULL, start + count * FULL);
        repaired.extend(sequences(&peer.acknowledge_with(&[block])));
    }
    assert_eq!(repaired[0], start);
    assert_eq!(repaired.iter().filter(|&&sequence| sequence == start).count(), 1);
    assert_eq!(peer.end.counters.fast_recoveries, 1);
    let window = peer.end.connection.send.congestion.threshold();
    assert_eq!(window, 10 * FULL * 70 / 100, "CUBIC leaves 70 percent");
    // All segments arrive, and recovery ends.
    peer.expected = start + 10 * FULL;
    peer.acknowledge();
    assert_eq!(peer.end.connection.recovery.phase, crate::tcp::recovery::Phase::Open);
    assert_eq!(peer.end.connection.send.congestion.window(), window);
}

#[test]
fn without_sack_three_duplicates_repair_and_partial_ones_go_on() {
    let config = Config { sack: false, ..Config::default() };
    let (mut peer, start) = ten_outstanding(config);
    peer.expected = start;
    assert!(peer.acknowledge().is_empty() && peer.acknowledge().is_empty());
    assert_eq!(sequences(&peer.acknowledge()), [start]);
    for _ in 0..4 {
        peer.acknowledge();
    }
    peer.end.pass(Duration::from_millis(15));
    peer.expected = start + 5 * FULL;
    let partial = sequences(&peer.acknowledge());
    assert_eq!(partial[0], start + 5 * FULL);
    peer.expected = start + 10 * FULL;
    peer.acknowledge();
    assert_eq!(peer.end.counters.fast_recoveries, 1);
    assert_eq!(peer.end.counters.timeouts, 0);
}

#[test]
fn without_sack_duplicates_repair_wherever_numbers_begin() {
    // The server's numbers are in the other half of the number space from the client's.
    for from_client in [true, false] {
        let Pair { client, server, .. } = Pair::new(&Config { sack: false, ..Config::default() });
        let (mut from, mut to) = if from_client { (client, server) } else { (server, client) };
        from.send(&pattern(1448 * 6));
        let sent = from.put();
        let mut again = Vec::new();
        for packet in &sent[1..] {
            to.take(packet);
            for answer in to.put() {
                from.take(&answer);
                again.extend(sequences(&from.put()));
            }
        }
        assert_eq!(again, [sent[0].header.sequence]);
        assert_eq!((from.counters.timeouts, from.counters.fast_recoveries), (0, 1));
    }
}

#[test]
fn a_lost_tail_is_probed_before_the_timer_expires() {
    let (mut peer, start) = ten_outstanding(Config::default());
    peer.expected = start + 9 * FULL;
    peer.end.pass(Duration::from_millis(10));
    peer.acknowledge();
    peer.end.wait();
    let probe = peer.end.put();
    assert_eq!(sequences(&probe), [start + 9 * FULL]);
    assert_eq!((peer.end.counters.tail_loss_probes, peer.end.counters.timeouts), (1, 0));
    peer.expected = start + 10 * FULL;
    peer.acknowledge();
    assert!(peer.end.connection.deadline().is_none());
}

#[test]
fn time_outs_back_off_and_send_one_segment() {
    let config = Config { sack: false, ..Config::default() };
    let (mut peer, start) = ten_outstanding(config);
    peer.expected = start;
    let timeout = peer.end.connection.send.rtt.timeout();
    for factor in [2, 4] {
        peer.end.wait();
        assert_eq!(sequences(&peer.end.put()), [start]);
        assert_eq!(peer.end.connection.send.rtt.timeout(), factor * timeout);
    }
    assert_eq!(peer.end.connection.send.congestion.window(), FULL);
    // The acknowledgement of the first segment permits two retransmissions, and no new data.
    peer.end.pass(Duration::from_millis(20));
    peer.expected = start + FULL;
    let more = sequences(&peer.acknowledge());
    assert_eq!(more, [start + FULL, start + 2 * FULL]);
}

#[test]
fn a_time_out_stays_long_until_something_is_measured() {
    for timestamps in [false, true] {
        let config = Config { timestamps, sack: false, ..Config::default() };
        let (mut peer, start) = ten_outstanding(config);
        let full = u32::from(peer.end.connection.send.full);
        peer.expected = start;
        peer.end.wait();
        assert_eq!(sequences(&peer.end.put()), [start]);
        peer.end.pass(Duration::from_millis(20));
        // The acknowledgement may be for either copy.
        peer.expected = start + full;
        assert_eq!(peer.acknowledge().len(), 2);
        assert_eq!(peer.end.connection.send.rtt.back_offs(), u8::from(!timestamps));
        peer.expected = start + 10 * full;
        peer.acknowledge();
        assert_eq!(peer.end.connection.send.rtt.back_offs(), u8::from(!timestamps));
        peer.expect(&[1; 10]);
        peer.end.pass(Duration::from_millis(20));
        peer.acknowledge();
        assert_eq!(peer.end.connection.send.rtt.back_offs(), 0);
    }
}

#[test]
fn duplicates_of_what_was_repeated_needlessly_tell_of_no_loss() {
    let (mut peer, start) = ten_outstanding(Config { sack: false, ..Config::default() });
    peer.expected = start;
    peer.end.wait();
    assert_eq!(sequences(&peer.end.put()), [start]);
    // Only the first segment was missing, but this is known only after two more were sent again.
    peer.end.pass(Duration::from_millis(20));
    peer.expected = start + FULL;
    assert_eq!(peer.acknowledge().len(), 2);
    peer.expected = start + 10 * FULL;
    peer.acknowledge();
    assert_eq!(peer.expect(&vec![9; 2 * FULL as usize]).len(), 2);
    peer.expected = start + 10 * FULL;
    for _ in 0..5 {
        assert!(peer.acknowledge().is_empty());
    }
    assert_eq!((peer.end.counters.timeouts, peer.end.counters.fast_recoveries), (1, 0));
    // Once new data is acknowledged, duplicates count again.
    peer.expected += FULL;
    peer.end.send(&vec![9; 6 * FULL as usize]);
    peer.acknowledge();
    for count in 1..=3 {
        let again = sequences(&peer.acknowledge());
        assert_eq!(again.contains(&(start + 11 * FULL)), count == 3, "{count}: {again:?}");
    }
    assert_eq!(peer.end.counters.fast_recoveries, 1);
}

#[test]
fn a_needless_time_out_is_known_by_the_timestamp_and_taken_back() {
    let (mut peer, start) = ten_outstanding(Config::default());
    peer.expected = start;
    let window = peer.end.connection.send.congestion.window();
    let original = peer.end.connection.stamps.clock(peer.end.now);
    while peer.end.counters.timeouts == 0 {
        peer.end.wait();
        peer.end.put();
    }
    assert_eq!(peer.end.connection.send.congestion.window(), FULL);
    peer.expected = start + 2 * FULL;
    peer.odd(|seen| {
        let stamps = seen.header.options.timestamps;
        let value = stamps.map_or(0, |stamps| stamps.value);
        seen.header.options.timestamps = Some(Timestamps { value, echo: original });
    });
    assert!(peer.end.connection.send.congestion.window() >= window);
    assert_eq!(peer.end.connection.send.scoreboard.lost_bytes(), 0);
}

/// Sends one segment twice, the second time because the timer has expired. The acknowledgement of
/// the first copy arrives this much later, with its echo.
fn answered_late(after_the_second: Duration) -> ByHand {
    let mut peer = ByHand::new(Config { sack: false, ..Config::default() });
    peer.expect(&[1; 100]);
    let first = peer.end.connection.stamps.clock(peer.end.now);
    peer.end.wait();
    assert_eq!(peer.end.put().len(), 1);
    peer.end.pass(after_the_second);
    peer.odd(|seen| {
        let stamps = seen.header.options.timestamps.expect("they are on");
        seen.header.options.timestamps = Some(Timestamps { echo: first, ..stamps });
    });
    peer
}

#[test]
fn the_echo_of_an_older_copy_measures_the_wait_and_not_the_path() {
    // The first acknowledgement was lost. The second copy is old for the peer, which therefore
    // echoes the first.
    let mut peer = answered_late(Duration::from_millis(20));
    let rtt = &peer.end.connection.send.rtt;
    assert_eq!((rtt.smoothed(), rtt.back_offs()), (Some(Duration::from_millis(20)), 1));
    // Data that is sent once ends the back-off (RFC 6298, section 5).
    peer.expect(&[2; 100]);
    peer.end.pass(Duration::from_millis(20));
    peer.acknowledge();
    let rtt = &peer.end.connection.send.rtt;
    assert_eq!((rtt.timeout(), rtt.back_offs()), (Duration::from_millis(220), 0));
}

#[test]
fn an_answer_too_early_for_the_newer_copy_measures_a_slow_path() {
    let peer = answered_late(Duration::from_millis(5));
    let rtt = &peer.end.connection.send.rtt;
    // 20 ms were measured; 220 ms of waiting and 5 ms more have the weight of an eighth.
    let smoothed = rtt.smoothed().expect("measured");
    assert_eq!((smoothed.as_millis(), rtt.back_offs()), (45, 0));
}

#[test]
fn without_timestamps_a_needless_time_out_is_known_by_what_was_sent_once() {
    let config = Config { timestamps: false, ..Config::default() };
    let (mut peer, start) = ten_outstanding(config);
    let full = u32::from(peer.end.connection.send.full);
    peer.expected = start;
    let window = peer.end.connection.send.congestion.window();
    while peer.end.counters.timeouts == 0 {
        peer.end.wait();
        peer.end.put();
    }
    peer.expected = start + 3 * full;
    peer.acknowledge();
    assert!(peer.end.connection.send.congestion.window() >= window);
}

#[test]
fn reordering_is_not_loss() {
    let config = Config::default();
    let mut pair = Pair::new(&config);
    let data = pattern(1448 * 8);
    pair.client.send(&data);
    let mut packets = pair.client.put();
    packets.swap(2, 3);
    pair.client.now = pair.client.now + Duration::from_millis(10);
    for packet in packets {
        pair.server.take(&packet);
        for answer in pair.server.put() {
            pair.client.take(&answer);
            assert!(pair.client.put().is_empty(), "nothing is sent again");
        }
    }
    assert_eq!(pair.server.receive_all(), data);
    assert_eq!(pair.client.counters.retransmissions, 0);
}

#[test]
fn a_mark_halves_the_window_once_in_a_round_trip() {
    let config = Config {
        ecn: true,
        options: Options { no_delay: true, ..Options::default() },
        ..Config::default()
    };
    let (mut peer, start) = ten_outstanding(config);
    assert!(peer.end.connection.send.congestion.window() >= 10 * FULL);
    peer.expected = start + FULL;
    peer.odd(|seen| seen.header.flags = Flags::ACK.with(Flags::ECE));
    let window = peer.end.connection.send.congestion.window();
    assert!(window <= 10 * FULL * 70 / 100);
    peer.expected = start + 2 * FULL;
    peer.odd(|seen| seen.header.flags = Flags::ACK.with(Flags::ECE));
    assert!(peer.end.connection.send.congestion.window() >= window);
    peer.expected = start + 10 * FULL;
    peer.acknowledge();
    let sent = peer.expect(&[1; 10]);
    assert!(sent[0].has(Flags::CWR) && sent[0].ecn == Ecn::Capable0);
    assert!(!peer.expect(&[1; 10])[0].has(Flags::CWR), "it is said once");
    // The other direction: the receiver echoes marks until the peer has reacted.
    let echo = peer.odd(|seen| {
        seen.ecn = Ecn::Experienced;
        seen.data = vec![1; 10];
    });
    assert!(echo[0].has(Flags::ECE) && echo[0].ecn == Ecn::NotCapable);
    peer.next += 10;
    assert!(peer.expect(&[1; 10])[0].has(Flags::ECE));
    let reacted = peer.odd(|seen| {
        seen.header.flags = Flags::ACK.with(Flags::CWR);
        seen.data = vec![1; 3000];
    });
    assert!(!reacted[0].has(Flags::ECE));
}

#[test]
fn a_router_that_wants_smaller_packets_gets_them() {
    let (mut peer, start) = ten_outstanding(Config::default());
    let narrow = |peer: &mut ByHand, mtu, sequence| {
        peer.end.with(|connection, context| connection.path_mtu(mtu, sequence, context));
    };
    narrow(&mut peer, 1000, start - 1);
    assert_eq!(peer.end.counters.drop_icmp, 1, "it quotes nothing that is under way");
    narrow(&mut peer, 1000, start);
    let sent = peer.end.put();
    assert_eq!(sent[0].header.sequence, start);
    assert!(sent.iter().all(|seen| seen.data.len() <= 1000 - 52));
    narrow(&mut peer, 68, start);
    assert_eq!(peer.end.connection.path.mtu, 552, "no router goes below");
}

#[test]
fn a_black_hole_is_passed_by_smaller_segments() {
    let config = Config::default();
    let mut pair = Pair::new(&config);
    pair.loses = Box::new(|_, _, seen| seen.data.len() > 1300);
    let data = pattern(20_000);
    pair.client.send(&data);
    pair.run();
    assert_eq!(pair.server.receive_all(), data);
    assert_eq!(pair.client.connection.send.segment, 1220);
}
