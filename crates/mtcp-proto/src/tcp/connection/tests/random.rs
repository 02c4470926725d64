//! Tests random segments, calls and times: no panic, and the invariants always hold.

use super::harness::{End, Random, Seen};
use crate::config::{Config, Keepalive, Options};
use crate::packet::SinkCapabilities;
use crate::sequence::Sequence;
use crate::socket::{Shutdown, State};
use crate::tcp::Failure;
use crate::wire::ip::Ecn;
use crate::wire::tcp::{Flags, SackBlock, TcpHeader, Timestamps};
use std::time::Duration;

/// A number near one of the given ones.
fn near(random: &mut Random, places: &[Sequence]) -> Sequence {
    let place = places[random.below(places.len() as u32) as usize];
    match random.below(8) {
        0..=3 => place,
        4 => place + random.below(3000),
        5 => place - random.below(3000),
        6 => place + 1,
        _ => Sequence(random.next()),
    }
}

/// A segment that may or may not belong to the connection.
pub(super) fn segment(random: &mut Random, end: &End) -> Seen {
    let connection = &end.connection;
    let ours = [connection.send.unacknowledged, connection.send.next, connection.send.initial];
    let receive = &connection.receive;
    let theirs = [receive.next, receive.next, receive.next, receive.edge];
    let mut header = TcpHeader {
        sequence: near(random, &theirs),
        acknowledgement: near(random, &ours),
        window: [0, 1, 100, 1000, 65_535, random.next() as u16][random.below(6) as usize],
        ..TcpHeader::default()
    };
    header.flags = match random.below(80) {
        0 => Flags(random.next() as u8),
        1 => Flags::ACK.with(Flags::FIN),
        2 => Flags::SYN.with(Flags::ACK),
        3 => Flags::SYN,
        4 => Flags::RST.with(Flags::ACK),
        5..=9 => Flags::ACK.with(Flags::ECE),
        _ => Flags::ACK,
    };
    if random.below(10) > 0 {
        let clock = connection.stamps.clock(end.now);
        let value = connection.stamps.recent.wrapping_add(random.below(5)).wrapping_sub(1);
        let echo = clock.wrapping_sub(random.below(300));
        header.options.timestamps = Some(Timestamps { value, echo });
    }
    if random.below(3) == 0 {
        let count = random.below(4) as usize;
        for block in &mut header.options.sack[..count] {
            let start = near(random, &ours);
            *block = SackBlock { start, end: start + random.below(4000) };
        }
        header.options.sack_count = count as u8;
    }
    if header.flags.contains(Flags::SYN) {
        header.options.maximum_segment = Some(random.next() as u16);
        header.options.window_scale = Some(random.below(15) as u8);
        header.options.sack_permitted = random.below(2) == 0;
    }
    let bytes = if random.below(2) == 0 { 0 } else { random.below(3000) as usize };
    let ecn = if random.below(8) == 0 { Ecn::Experienced } else { Ecn::Capable0 };
    Seen { header, ecn, data: vec![7; bytes], segment_bytes: None }
}

fn call(random: &mut Random, end: &mut End) {
    let bytes = random.below(6000) as usize;
    let choice = random.below(140);
    let mut options = end.config.options;
    options.no_delay = random.below(2) == 0;
    options.keepalive = (random.below(2) == 0).then_some(Keepalive {
        idle: Duration::from_secs(5),
        interval: Duration::from_secs(1),
        probes: 3,
    });
    let near_sent = end.connection.send.unacknowledged + random.below(2);
    let mtu = random.next() as u16;
    end.with(|connection, context| match choice {
        0..=24 => {
            let _ = connection.send(&vec![3; bytes], context);
        }
        25..=44 => {
            let _ = connection.receive(&mut vec![0; bytes], context);
        }
        45 => {
            let _ = connection.shut_down(Shutdown::Send, context);
        }
        46 => {
            let _ = connection.shut_down(Shutdown::Receive, context);
        }
        47 => connection.close(context),
        48 if bytes > 4000 => connection.abort(Failure::Aborted, context),
        49..=50 => connection.set_options(&options, context),
        51..=53 => connection.path_mtu(mtu, near_sent, context),
        54 => connection.unreachable(Failure::Unreachable, near_sent, context),
        55 => {
            connection.take_error();
        }
        _ => {
            let _ = connection.peek(bytes / 2, &mut vec![0; bytes]);
        }
    });
}

/// Checks the invariants of a connection.
fn check(end: &End, edge_before: Option<Sequence>) {
    let connection = &end.connection;
    let (send, receive) = (&connection.send, &connection.receive);
    let state = connection.state();
    if state == State::Closed {
        assert!(connection.deadline().is_none());
        return;
    }
    assert!(send.unacknowledged <= send.next && receive.next <= receive.edge);
    if let Some(before) = edge_before {
        assert!(receive.edge >= before, "the right edge moved left");
    }
    let outstanding = send.next.since(send.unacknowledged);
    if connection.is_synchronized() && state != State::TimeWait {
        assert!(outstanding <= send.ring.len() as u32 + 1);
        assert!(send.scoreboard.in_flight() <= outstanding);
        if outstanding > 0 {
            assert_eq!(send.scoreboard.outstanding(), outstanding);
        }
        if outstanding > 0 || connection.has_unsent() {
            let served = connection.deadline().is_some() || connection.wants_output().is_some();
            assert!(served, "data waits for nothing: {connection:#?}");
        }
    }
    let limit = end.config.options.receive_buffer_bytes as usize;
    assert!(receive.ring.len() <= limit + limit / 8 + (1 << 14));
}

/// Checks that sent segments are in the peer's window, except for a probe.
fn check_sent(end: &End, sent: &[Seen]) {
    let send = &end.connection.send;
    let edge = send.unacknowledged + send.window_max;
    for seen in sent.iter().filter(|seen| !seen.data.is_empty()) {
        let last = seen.header.sequence + seen.data.len() as u32;
        assert!(last <= edge || seen.data.len() == 1, "data beyond every window");
    }
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let mut config = Config {
        sack: random.below(3) > 0,
        timestamps: random.below(3) > 0,
        window_scaling: random.below(3) > 0,
        ecn: random.below(2) == 0,
        max_buffer_bytes: if random.below(4) == 0 { 16 << 10 } else { 1 << 24 },
        ..Config::default()
    };
    config.options = Options {
        receive_buffer_bytes: 4096 << random.below(9),
        send_buffer_bytes: 4096 << random.below(6),
        ..config.options
    };
    let mut end = if random.below(2) == 0 {
        End::client(config)
    } else {
        let mut client = End::client(config.clone());
        let syn = client.put().remove(0);
        End::server(config, &syn, client.now)
    };
    for _ in 0..200 {
        let synchronized = end.connection.is_synchronized();
        let edge = synchronized.then_some(end.connection.receive.edge);
        match random.below(10) {
            0..=4 => {
                let segment = segment(&mut random, &end);
                end.take(&segment);
            }
            5..=6 => call(&mut random, &mut end),
            7 => end.pass(Duration::from_millis(u64::from(random.below(400)))),
            8 if end.connection.deadline().is_some() => end.wait(),
            _ => {
                end.shelf.room = random.below(6) as usize;
                end.shelf.capabilities = SinkCapabilities {
                    checksum: random.below(2) == 0,
                    segmentation_bytes: [0, 9000, 65_535][random.below(3) as usize],
                };
                let sent = end.put();
                check_sent(&end, &sent);
            }
        }
        check(&end, edge.filter(|_| end.connection.is_synchronized()));
    }
    end.with(|connection, context| connection.release(context.pool));
    assert_eq!(end.pool.used_bytes(), 0);
}

#[test]
fn random_segments_and_calls_never_break_what_must_hold() {
    for seed in 0..4000 {
        Random::announced(seed, run);
    }
}
