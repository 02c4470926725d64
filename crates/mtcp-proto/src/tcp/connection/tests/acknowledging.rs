//! Tests the acknowledgements of a batch of segments out of order (RFC 5681, section 4.2).

use super::by_hand::ByHand;
use super::harness::{Pair, Seen, pattern};
use crate::config::Config;
use crate::sequence::Sequence;
use crate::wire::tcp::Flags;

const BYTES: u32 = 1000;

fn without_sack() -> Config {
    Config { sack: false, ..Config::default() }
}

/// Delivers a segment that is this many segments beyond the expected one; sends no answer yet.
fn come_ahead(peer: &mut ByHand, segments: u32) {
    let mut segment = peer.segment(Flags::ACK, &[7; BYTES as usize]);
    segment.header.sequence += segments * BYTES;
    peer.end.take(&segment);
}

fn is_duplicate(answer: &Seen, of: &Seen) -> bool {
    answer.data.is_empty()
        && answer.header.acknowledgement == of.header.acknowledgement
        && answer.header.window == of.header.window
}

#[test]
fn a_peer_that_counts_gets_one_for_each_segment() {
    for (config, count) in [(without_sack(), 5), (Config::default(), 1)] {
        let mut peer = ByHand::new(config);
        for segments in 1..=5 {
            come_ahead(&mut peer, segments);
        }
        let answers = peer.end.put();
        assert_eq!(answers.len(), count);
        assert_eq!(answers[0].header.acknowledgement, peer.next);
        assert!(answers.iter().all(|answer| is_duplicate(answer, &answers[0])));
    }
}

#[test]
fn data_on_the_way_out_do_not_count_and_a_full_device_loses_none() {
    let mut peer = ByHand::new(without_sack());
    for segments in 1..=4 {
        come_ahead(&mut peer, segments);
    }
    peer.end.send(&[1; 10]);
    peer.end.shelf.room = 3;
    let first = peer.end.put();
    peer.end.shelf.room = 10;
    let sent = [first, peer.end.put()].concat();
    assert_eq!(sent.iter().filter(|seen| !seen.data.is_empty()).count(), 1);
    assert_eq!(sent.iter().filter(|seen| seen.data.is_empty()).count(), 4);
    assert!(peer.end.connection.wants_output().is_none());
}

#[test]
fn a_gap_that_is_filled_at_once_is_not_told_of() {
    let mut peer = ByHand::new(without_sack());
    for segments in [1, 2, 3, 0, 5] {
        come_ahead(&mut peer, segments);
    }
    let answers = peer.end.put();
    let numbers: Vec<Sequence> =
        answers.iter().map(|answer| answer.header.acknowledgement).collect();
    assert_eq!(numbers, [peer.next + 4 * BYTES], "once for the segment behind the second gap");
}

#[test]
fn all_that_has_come_together_is_named_in_blocks() {
    let mut peer = ByHand::new(Config::default());
    let hole = peer.next;
    for segments in (1..20).step_by(2) {
        come_ahead(&mut peer, segments);
    }
    peer.end.shelf.room = 1;
    let first = peer.end.put();
    assert_eq!(first.len(), 1);
    peer.end.shelf.room = 100;
    let answers = [first, peer.end.put()].concat();
    assert_eq!(answers.len(), 4, "three blocks fit beside timestamps");
    let mut named: Vec<u32> = answers
        .iter()
        .flat_map(|answer| answer.header.options.sack_blocks())
        .map(|block| block.start.since(hole) / BYTES)
        .collect();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, (1..20).step_by(2).collect::<Vec<_>>());
    assert!(peer.end.connection.wants_output().is_none());
}

#[test]
fn a_loss_in_a_batch_is_repaired_without_a_time_out() {
    for config in [without_sack(), Config::default()] {
        let mut pair = Pair::new(&config);
        pair.loses = Box::new(|number, from_client, _| from_client && number == 2);
        let data = pattern(8 * 1448);
        pair.client.send(&data);
        pair.run();
        assert_eq!(pair.server.receive_all(), data);
        let counters = &pair.client.counters;
        assert_eq!((counters.timeouts, counters.fast_recoveries), (0, 1), "{config:?}");
    }
}
