//! Tests windows, small segments, delayed acknowledgements and probes.

use super::by_hand::ByHand;
use super::harness::{Pair, Seen, pattern};
use crate::config::{Config, Keepalive, Options};
use crate::error::Error;
use crate::socket::{Readiness, State};
use crate::wire::ip::Ecn;
use crate::wire::tcp::Flags;
use std::time::Duration;

fn with(options: Options) -> Config {
    Config { options, ..Config::default() }
}

#[test]
fn small_segments_wait_for_an_acknowledgement_unless_told_not_to() {
    let mut peer = ByHand::new(Config::default());
    assert_eq!(peer.expect(&[1; 10]).len(), 1);
    assert!(peer.expect(&[2; 10]).is_empty() && peer.expect(&[3; 10]).is_empty());
    let together = peer.acknowledge();
    assert_eq!(together[0].data, [vec![2; 10], vec![3; 10]].concat());

    let mut peer = ByHand::new(with(Options { no_delay: true, ..Options::default() }));
    assert_eq!(peer.expect(&[1; 10]).len(), 1);
    assert_eq!(peer.expect(&[2; 10]).len(), 1);
}

fn lengths(sent: &[Seen]) -> Vec<usize> {
    sent.iter().map(|seen| seen.data.len()).collect()
}

#[test]
fn a_full_segment_goes_and_its_rest_waits() {
    let mut peer = ByHand::new(Config::default());
    peer.expect(&[0; 1]);
    assert_eq!(lengths(&peer.expect(&[1; 1448 + 100])), [1448]);
}

#[test]
fn the_end_of_a_message_does_not_wait_for_the_full_segments_before_it() {
    let mut peer = ByHand::new(Config::default());
    assert_eq!(lengths(&peer.expect(&[1; 1448 + 100])), [1448, 100]);
    assert!(peer.expect(&[2; 10]).is_empty(), "a small one is on its way");
    assert_eq!(lengths(&peer.acknowledge()), [10]);
    peer.expected += 10;
    peer.acknowledge();
    assert_eq!(lengths(&peer.expect(&[3; 2 * 1448])), [1448, 1448]);
    assert_eq!(lengths(&peer.expect(&[4; 10])), [10], "behind full ones only");
    peer.acknowledge();
    peer.expect(&[5; 1448]);
    // State as if the last small segment had been sent two gibibytes ago.
    let send = &mut peer.end.connection.send;
    send.small_end = send.next + 1;
    assert_eq!(lengths(&peer.expect(&[6; 10])), [10]);
}

#[test]
fn every_second_full_segment_is_acknowledged_and_a_small_one_late() {
    let mut peer = ByHand::new(Config::default());
    // The first segments are acknowledged at once.
    for _ in 0..16 {
        assert_eq!(peer.data(&[0; 1448]).len(), 1);
    }
    assert!(peer.data(&[0; 1448]).is_empty());
    assert_eq!(peer.data(&[0; 1448]).len(), 1);
    assert!(peer.data(&[0; 10]).is_empty());
    let before = peer.end.now;
    peer.end.wait();
    assert_eq!(peer.end.now.since(before), Duration::from_millis(40));
    assert_eq!(peer.end.put()[0].header.acknowledgement, peer.next);
}

#[test]
fn a_byte_that_a_probe_held_is_not_sent_as_new() {
    let mut peer = ByHand::new(Config { ecn: true, ..Config::default() });
    peer.expect(&[1; 10]);
    peer.window = 0;
    peer.acknowledge();
    assert!(peer.expect(&[2; 1]).is_empty());
    peer.end.wait();
    assert_eq!(peer.end.put()[0].ecn, Ecn::NotCapable, "the probe");
    peer.window = 1000;
    let sent = peer.acknowledge();
    assert_eq!((sent[0].data.len(), sent[0].ecn), (1, Ecn::NotCapable));
    peer.expected += 1;
    peer.acknowledge();
    assert_eq!(peer.expect(&[3; 1])[0].ecn, Ecn::Capable0);
}

#[test]
fn an_acknowledgement_rides_on_data() {
    let mut peer = ByHand::new(Config::default());
    let request = peer.segment(Flags::ACK, &[7; 64]);
    peer.next += 64;
    peer.end.take(&request);
    peer.end.send(&[8; 64]);
    let sent = peer.end.put();
    assert_eq!((sent.len(), sent[0].header.acknowledgement), (1, peer.next));
    assert!(peer.end.connection.timers.acknowledgement == crate::tcp::timers::NEVER);
}

#[test]
fn gaps_are_acknowledged_at_once_with_blocks() {
    let mut peer = ByHand::new(Config::default());
    let hole = peer.next;
    let answers = peer.odd(|seen| {
        seen.header.sequence = hole + 100;
        seen.data = vec![2; 50];
    });
    let options = answers[0].header.options;
    assert_eq!(answers[0].header.acknowledgement, hole);
    assert_eq!(options.sack_blocks().len(), 1);
    assert_eq!((options.sack[0].start, options.sack[0].end), (hole + 100, hole + 150));
    let answers = peer.odd(|seen| seen.data = vec![1; 100]);
    assert_eq!(answers[0].header.acknowledgement, hole + 150);
    assert_eq!(answers[0].header.options.sack_blocks().len(), 0);
    assert_eq!(peer.end.receive_all(), [vec![1; 100], vec![2; 50]].concat());
    // A duplicate is reported (RFC 2883).
    let answers = peer.odd(|seen| seen.data = vec![1; 100]);
    let options = answers[0].header.options;
    assert_eq!((options.sack[0].start, options.sack[0].end), (hole, hole + 100));
}

#[test]
fn a_closed_window_is_probed_as_long_as_the_peer_answers() {
    let mut peer = ByHand::new(Config::default());
    peer.window = 0;
    peer.acknowledge();
    assert_eq!(peer.end.send(&pattern(500)), 500);
    assert!(peer.end.put().is_empty());
    let began = peer.end.now;
    let mut gaps = Vec::new();
    for _ in 0..40 {
        let before = peer.end.now;
        peer.end.wait();
        gaps.push(peer.end.now.since(before));
        let probe = peer.end.put();
        assert_eq!(probe.len(), 1);
        assert_eq!((probe[0].header.sequence, &probe[0].data[..]), (peer.expected, &[0][..]));
        assert!(peer.acknowledge().is_empty());
    }
    assert!(gaps[1] == 2 * gaps[0] && gaps[2] == 4 * gaps[0], "they back off");
    assert_eq!(gaps[39], Duration::from_secs(120));
    assert!(peer.end.now.since(began) > peer.end.config.give_up);
    assert_eq!(peer.end.state(), State::Established);
    // The window opens, and the peer has accepted the byte of the probe.
    peer.window = 5000;
    peer.expected += 1;
    let sent = peer.acknowledge();
    assert_eq!(sent[0].data, pattern(500)[1..]);
    // The connection to a silent peer fails.
    peer.expected += 499;
    peer.window = 0;
    peer.acknowledge();
    peer.end.send(&[1]);
    for _ in 0..30 {
        if peer.end.state() == State::Closed {
            break;
        }
        peer.end.wait();
        peer.end.put();
    }
    assert_eq!(peer.end.connection.take_error(), Some(Error::TimedOut));
}

#[test]
fn a_tiny_window_is_used_only_after_waiting() {
    let mut peer = ByHand::new(Config::default());
    peer.window = 10;
    peer.acknowledge();
    peer.end.send(&pattern(500));
    assert!(peer.end.put().is_empty(), "ten bytes are no segment");
    peer.end.wait();
    assert_eq!(peer.end.put()[0].data, pattern(10));
}

#[test]
fn a_window_that_opens_a_little_does_not_wait_for_the_probe_of_a_closed_one() {
    let mut peer = ByHand::new(Config::default());
    peer.window = 0;
    peer.acknowledge();
    peer.end.send(&pattern(500));
    for _ in 0..12 {
        peer.end.wait();
        assert_eq!(peer.end.put().len(), 1);
        peer.acknowledge();
    }
    let wait = |peer: &ByHand| peer.end.connection.deadline().unwrap().since(peer.end.now);
    assert_eq!(wait(&peer), Duration::from_secs(120));
    // The window opens by less than a segment, twice; this does not postpone the pending probe.
    let opened = peer.end.now;
    for window in [10, 11, 12] {
        peer.window = window;
        assert!(peer.acknowledge().is_empty());
        peer.end.pass(Duration::from_millis(20));
    }
    peer.end.wait();
    let waited = peer.end.now.since(opened);
    assert!(waited >= Duration::from_millis(100) && waited <= Duration::from_secs(1), "{waited:?}");
    assert_eq!(peer.end.put()[0].data, pattern(12));
    // The wait for the next small window is as long again.
    peer.expected += 12;
    assert!(peer.acknowledge().is_empty());
    assert!(wait(&peer) >= Duration::from_millis(100) && wait(&peer) <= Duration::from_secs(1));
}

#[test]
fn a_reader_that_stops_closes_the_window_and_reopens_it() {
    let config = with(Options { receive_buffer_bytes: 8192, ..Options::default() });
    let mut pair = Pair::new(&config);
    assert_eq!(pair.client.send(&pattern(20_000)), 20_000);
    pair.run();
    let last = pair.seen.iter().rev().find(|(from_client, _)| !from_client);
    assert_eq!(last.map(|(_, seen)| seen.header.window), Some(0));
    assert_eq!(pair.server.connection.receive.ring.len(), 8192);
    let mut got = Vec::new();
    for _ in 0..20 {
        got.extend(pair.server.receive_all());
        pair.run();
    }
    assert_eq!(got, pattern(20_000));
}

#[test]
fn the_right_edge_does_not_move_left_for_a_shifted_window() {
    let config = with(Options { receive_buffer_bytes: 1 << 20, ..Options::default() });
    let mut pair = Pair::new(&config);
    let scale = pair.server.connection.receive.scale;
    assert_eq!(scale, 5);
    pair.client.with(|connection, context| {
        let options = Options { no_delay: true, ..connection.options() };
        connection.set_options(&options, context);
    });
    let mut edge = pair.server.connection.receive.next;
    for _ in 0..200 {
        pair.client.send(&pattern(33));
        pair.run();
        for (_, seen) in pair.seen.drain(..).filter(|(from_client, _)| !from_client) {
            let next = seen.header.acknowledgement + (u32::from(seen.header.window) << scale);
            assert!(next >= edge);
            edge = next;
        }
    }
}

#[test]
fn keepalive_probes_and_gives_up() {
    let keepalive =
        Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(2), probes: 3 };
    let mut peer = ByHand::new(with(Options { keepalive: Some(keepalive), ..Options::default() }));
    let before = peer.end.now;
    peer.end.wait();
    assert_eq!(peer.end.now.since(before), Duration::from_secs(10));
    let probe = peer.end.put();
    assert_eq!((probe.len(), probe[0].header.sequence), (1, peer.expected - 1));
    peer.acknowledge();
    let before = peer.end.now;
    peer.end.wait();
    assert!(peer.end.put().is_empty(), "the probe was answered");
    peer.end.wait();
    assert_eq!(peer.end.now.since(before), Duration::from_secs(10));
    for _ in 0..3 {
        assert_eq!(peer.end.put().len(), 1);
        peer.end.wait();
    }
    assert_eq!(peer.end.state(), State::Closed);
    assert_eq!(peer.end.connection.take_error(), Some(Error::TimedOut));
    assert!(peer.end.put()[0].has(Flags::RST));
    assert_eq!(peer.end.counters.keepalive_probes, 4);
}

#[test]
fn a_user_time_out_ends_a_connection_whose_data_stay_unanswered() {
    let timeout = Duration::from_secs(7);
    let mut peer = ByHand::new(with(Options { user_timeout: Some(timeout), ..Options::default() }));
    let began = peer.end.now;
    peer.expect(&[1; 100]);
    while peer.end.state() != State::Closed {
        peer.end.wait();
        peer.end.put();
    }
    assert_eq!(peer.end.now.since(began), timeout);
    assert!(peer.end.is(Readiness::ERROR));
}

#[test]
fn what_overlaps_the_edges_of_the_window_is_cut() {
    let options = Options { receive_buffer_bytes: 4096, ..Options::default() };
    let mut peer = ByHand::new(with(options));
    peer.data(&[1; 100]);
    // Half of the segment is old.
    peer.odd(|seen| {
        seen.header.sequence = seen.header.sequence - 50;
        seen.data = vec![2; 100];
    });
    assert_eq!(peer.end.receive_all(), [vec![1; 100], vec![2; 50]].concat());
    peer.next += 50;
    // The segment extends beyond the right edge, and so does its FIN.
    let edge = peer.end.connection.receive.edge;
    let answers = peer.odd(|seen| {
        seen.data = vec![3; 5000];
        seen.header.flags = Flags::ACK.with(Flags::FIN);
    });
    assert_eq!((answers[0].header.acknowledgement, answers[0].header.window), (edge, 0));
    assert_eq!(peer.end.state(), State::Established);
    // In a closed window an acknowledgement still counts, and data does not.
    peer.next = edge;
    peer.expect(&[4; 10]);
    let answers = peer.odd(|seen| seen.data = vec![5; 10]);
    assert_eq!(answers[0].header.acknowledgement, edge);
    assert_eq!(peer.end.connection.send.outstanding(), 0);
    assert!(peer.end.receive_all().iter().all(|&byte| byte == 3));
    // A window update is sent without a request.
    assert_eq!(peer.end.put()[0].header.window, 4096);
}

#[test]
fn options_that_change_hold_for_what_is_under_way() {
    let mut peer = ByHand::new(Config::default());
    peer.expect(&[1; 10]);
    assert!(peer.expect(&[2; 10]).is_empty());
    let mut options = Options { no_delay: true, ..Options::default() };
    let set = |peer: &mut ByHand, options: &Options| {
        peer.end.with(|connection, context| connection.set_options(options, context));
    };
    set(&mut peer, &options);
    assert_eq!(peer.end.put()[0].data, [2; 10]);
    let began = peer.end.now;
    while peer.end.counters.timeouts < 8 {
        peer.end.wait();
        peer.end.put();
    }
    let timeout = peer.end.now.since(began) + Duration::from_millis(1);
    options.user_timeout = Some(timeout);
    options.maximum_segment = Some(300);
    let segment = peer.end.connection.send.segment;
    set(&mut peer, &options);
    assert_eq!(peer.end.connection.send.segment, segment, "it was agreed on");
    assert_eq!(peer.end.connection.options().maximum_segment, None);
    peer.end.wait();
    assert_eq!(peer.end.now.since(began), timeout);
    assert_eq!(peer.end.state(), State::Closed);
}
