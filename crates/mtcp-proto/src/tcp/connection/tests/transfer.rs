//! Tests data in both directions, with and without loss.

use super::harness::{Pair, Random, pattern};
use crate::config::{Config, Congestion, Options};
use crate::packet::SinkCapabilities;
use std::time::Duration;

/// Sends in both directions until all data has arrived, with readers that read all; returns the
/// time that this took.
fn exchange(pair: &mut Pair, there: &[u8], back: &[u8]) -> Duration {
    let began = pair.client.now;
    let (mut got_there, mut got_back) = (Vec::new(), Vec::new());
    let (mut sent_there, mut sent_back) = (0, 0);
    let until = began + Duration::from_secs(3600);
    for _ in 0..1_000_000 {
        for (end, data, sent) in
            [(&mut pair.client, there, &mut sent_there), (&mut pair.server, back, &mut sent_back)]
        {
            if *sent < data.len() {
                let rest = &data[*sent..];
                *sent +=
                    end.with(|connection, context| connection.send(rest, context)).unwrap_or(0);
            }
        }
        got_there.extend(pair.server.receive_all());
        got_back.extend(pair.client.receive_all());
        if got_there.len() == there.len() && got_back.len() == back.len() {
            assert!(got_there == there && got_back == back);
            return pair.client.now.since(began);
        }
        assert!(pair.step(until), "it stalls at {} and {}", got_there.len(), got_back.len());
    }
    panic!("it does not end");
}

#[test]
fn bulk_data_flow_both_ways() {
    let mut pair = Pair::new(&Config::default());
    exchange(&mut pair, &pattern(3_000_000), &pattern(500_000));
    assert_eq!(pair.client.counters.retransmissions + pair.server.counters.retransmissions, 0);
    assert_eq!(pair.client.counters.timeouts, 0);
}

#[test]
fn every_kind_of_peer_recovers_from_random_loss() {
    for case in 0..96_u64 {
        let mut config = Config {
            sack: case & 1 == 0,
            timestamps: case & 2 == 0,
            window_scaling: case & 4 == 0,
            ecn: case & 8 == 0,
            ..Config::default()
        };
        config.options = Options {
            congestion: if case & 16 == 0 { Congestion::Cubic } else { Congestion::NewReno },
            no_delay: case & 32 == 0,
            ..config.options
        };
        let mut pair = Pair::new(&config);
        if case % 3 == 0 {
            let capabilities = SinkCapabilities { checksum: true, segmentation_bytes: 65_000 };
            pair.client.shelf.capabilities = capabilities;
        }
        let mut random = Random::new(case);
        let percent = (case % 4) as u32 * 5;
        pair.loses = Box::new(move |_, _, _| random.below(100) < percent);
        exchange(&mut pair, &pattern(120_000), &pattern(40_000));
        if percent == 0 {
            assert_eq!(pair.client.counters.retransmissions, 0, "case {case}");
        }
    }
}
