//! Runs two stacks on an impaired network, hundreds of times. Each seed has another network, other
//! settings and other applications. `MTCP_SEEDS=FIRST..LAST` (or one number) chooses the seeds;
//! with `MTCP_SEEDS=all` there are ten thousand, as in `cargo xtask test --all`.
//!
//! The other tests force rare events, or events that revealed errors.

use crate::simulator::application::{Finish, Round};
use crate::simulator::attack::{Attack, KINDS};
use crate::simulator::link::{Impairment, Narrow, Rate};
use crate::simulator::report;
use crate::simulator::scenario::{ConnectionPlan, Opening, SECOND, Scenario};
use mtcp_proto::{Keepalive, SynCookies};
use std::ops::Range;
use std::time::Duration;

/// Number of seeds of [`seeds_run`]: by default, and with `MTCP_SEEDS=all`, when every counter must
/// have moved.
const SEEDS: [u64; 2] = [500, 10_000];

/// Number of seeds for each test that forces an event.
const FORCED_SEEDS: [u64; 2] = [50, 200];

/// Bytes of a message in [`crowd_a_short_queue`].
const MESSAGE_BYTES: u64 = 64 << 10;
const MESSAGES: u64 = 20;

/// Counters that these networks never increase.
const NEVER: &[&str] = &["drop_not_ours", "drop_other_core", "drop_table_full"];

/// Returns the seeds that `MTCP_SEEDS` names, or these numbers of seeds.
fn chosen([few, all]: [u64; 2]) -> Range<u64> {
    let Ok(words) = std::env::var("MTCP_SEEDS") else { return 0..few };
    let number = |word: &str| {
        word.parse::<u64>().unwrap_or_else(|_| panic!("MTCP_SEEDS={words}: {word} is no number"))
    };
    match words.split_once("..") {
        Some((first, last)) => number(first)..number(last),
        None if words == "all" => 0..all,
        None => number(&words)..number(&words) + 1,
    }
}

#[test]
fn seeds_run() {
    let seeds = chosen(SEEDS);
    let counters = report::run_all("seeds_run", seeds.clone(), |_| ());
    for (name, count) in counters.entries() {
        println!("{name}: {count}");
    }
    if seeds.end - seeds.start >= SEEDS[1] {
        let silent: Vec<_> = counters
            .entries()
            .filter(|&(name, count)| count == 0 && !NEVER.contains(&name))
            .collect();
        assert!(silent.is_empty(), "in all these runs there was no {silent:?}");
    }
}

/// Runs seeds whose scenarios are modified by `change`; returns their number, too.
fn force(test: &str, change: fn(&mut Scenario)) -> (u64, mtcp_proto::Counters) {
    let seeds = chosen(FORCED_SEEDS);
    (seeds.end - seeds.start, report::run_all(test, seeds, change))
}

/// Removes the impairments that may end a connection, so that it must succeed.
fn calm(scenario: &mut Scenario) {
    let impairment = Impairment { delay_ns: 100_000, ..Impairment::default() };
    scenario.links = [impairment.clone(), impairment];
    scenario.attacks.clear();
    scenario.backlog = 128;
    scenario.accept_pause_ns = 0;
    scenario.defer_accept = None;
    for host in &mut scenario.hosts {
        host.config.max_buffer_bytes = 1 << 30;
    }
}

/// Lets the first end send this number of bytes and the second receive them.
fn send_only(connection: &mut ConnectionPlan, bytes: u64) {
    connection.opening = Opening::Ordinary;
    connection.client_port = 0;
    for plan in &mut connection.plans {
        plan.finish = Finish::AfterEnd;
        plan.rounds.clear();
        plan.stall = None;
        plan.deaf_after = None;
        plan.options.keepalive = None;
        plan.options.user_timeout = None;
    }
    connection.plans[0].rounds.push(Round { after_received: 0, pause_ns: 0, bytes });
    connection.plans[0].half_close = true;
    connection.plans[1].half_close = false;
}

#[test]
fn a_reader_that_stops_for_an_hour_is_probed_and_then_served() {
    let (seeds, counters) = force("a_reader_that_stops_for_an_hour", |scenario| {
        calm(scenario);
        scenario.connections.truncate(2);
        for connection in &mut scenario.connections {
            send_only(connection, 20_000);
            connection.plans[1].stall = Some((0, 3600 * SECOND));
            connection.plans[1].options.receive_buffer_bytes = 4096;
        }
    });
    assert!(counters.window_probes > seeds, "{counters:?}");
}

#[test]
fn both_ends_open_at_once() {
    force("both_ends_open_at_once", |scenario| {
        for connection in &mut scenario.connections {
            connection.client_port = 0;
            connection.opening = Opening::Simultaneous;
        }
    });
}

#[test]
fn numbers_wrap() {
    force("numbers_wrap", |scenario| {
        scenario.before_wrap = Some(1 + (scenario.seed * 37 % 3000) as u32);
    });
}

#[test]
fn every_connection_is_attacked() {
    let (seeds, counters) = force("every_connection_is_attacked", |scenario| {
        calm(scenario);
        let attack = |number: u64| Attack {
            at_ns: number * number * 20_000,
            kind: KINDS[number as usize % KINDS.len()],
            victim: number as usize % 2,
        };
        scenario.attacks = (0..200).map(attack).collect();
    });
    assert!(counters.challenge_acks_sent > seeds, "{counters:?}");
}

#[test]
fn a_silent_narrow_hop_is_found_out_even_by_a_short_segment() {
    force("a_silent_narrow_hop", |scenario| {
        calm(scenario);
        let mtu = if scenario.ipv6 { 1280 } else { 600 };
        for impairment in &mut scenario.links {
            impairment.narrow = Some(Narrow { mtu, tells: false });
        }
        for connection in &mut scenario.connections {
            send_only(connection, 675);
        }
    });
}

#[test]
fn memory_is_short_on_both_sides() {
    let (_, counters) = force("memory_is_short", |scenario| {
        for host in &mut scenario.hosts {
            host.config.max_buffer_bytes = 64 << 10;
        }
        for plan in scenario.connections.iter_mut().flat_map(|one| &mut one.plans) {
            plan.stall = None;
            plan.rounds.iter_mut().for_each(|round| round.bytes += 20_000);
            if let Finish::AfterBytes(_) = plan.finish {
                plan.finish = Finish::AfterEnd;
            }
            plan.half_close = true;
        }
    });
    assert!(counters.drop_no_memory > 0, "{counters:?}");
    assert!(counters.reset_for_memory < counters.connections_opened / 10, "{counters:?}");
}

#[test]
fn cookies_come_back_late_twice_or_behind_data() {
    let (seeds, counters) = force("cookies_come_back", |scenario| {
        for host in &mut scenario.hosts {
            host.config.syn_cookies = SynCookies::Always;
        }
        for impairment in &mut scenario.links {
            impairment.reorder = 0.3;
            impairment.duplicate = 0.1;
            impairment.reorder_ns = 3 * impairment.delay_ns;
        }
        for connection in &mut scenario.connections {
            connection.plans[0].options.maximum_segment = Some(169);
        }
    });
    assert!(counters.cookies_accepted > seeds / 2, "{counters:?}");
}

#[test]
fn small_windows_meet_reordering() {
    force("small_windows_meet_reordering", |scenario| {
        for impairment in &mut scenario.links {
            impairment.reorder = 0.2;
            impairment.reorder_ns = impairment.delay_ns + 1_000_000;
            impairment.loss = 0.02;
        }
        for plan in scenario.connections.iter_mut().flat_map(|one| &mut one.plans) {
            plan.options.receive_buffer_bytes = 8192;
        }
    });
}

/// Drops all packets from this moment on.
fn cut(scenario: &mut Scenario, from_ns: u64) {
    for impairment in &mut scenario.links {
        impairment.outages.push((from_ns, u64::MAX));
    }
}

#[test]
fn a_peer_that_is_gone_is_noticed_by_keepalive_at_both_ends() {
    let (seeds, counters) = force("a_peer_that_is_gone", |scenario| {
        calm(scenario);
        cut(scenario, 60 * SECOND);
        scenario.connections.truncate(1);
        let connection = &mut scenario.connections[0];
        send_only(connection, 100);
        connection.plans[0].half_close = false;
        for plan in &mut connection.plans {
            plan.options.keepalive = Some(Keepalive {
                idle: Duration::from_secs(10),
                interval: Duration::from_secs(5),
                probes: 6,
            });
        }
    });
    assert_eq!(counters.connections_timed_out, 2 * seeds, "{counters:?}");
    assert!(counters.keepalive_probes >= 12 * seeds, "{counters:?}");
}

#[test]
fn a_user_time_out_ends_what_the_network_no_longer_carries() {
    let (seeds, counters) = force("a_user_time_out", |scenario| {
        calm(scenario);
        cut(scenario, SECOND);
        scenario.connections.truncate(1);
        let connection = &mut scenario.connections[0];
        connection.start_ns = 0;
        send_only(connection, 100_000);
        let plan = &mut connection.plans[0];
        plan.rounds[0].pause_ns = 2 * SECOND;
        plan.options.user_timeout = Some(Duration::from_secs(30));
        plan.time_limit_ns = 40 * SECOND;
    });
    assert_eq!(counters.connections_timed_out, seeds, "{counters:?}");
}

#[test]
fn connections_without_data_are_kept_back_for_a_while() {
    force("connections_without_data", |scenario| {
        calm(scenario);
        scenario.defer_accept = Some(Duration::from_secs(30));
        for connection in &mut scenario.connections {
            send_only(connection, 1000);
            let pause_ns = if scenario.seed % 2 == 0 { 5 * SECOND } else { 90 * SECOND };
            connection.plans[0].rounds[0].pause_ns = pause_ns;
        }
    });
}

#[test]
fn what_nobody_wants_to_receive_is_taken_all_the_same() {
    let (seeds, counters) = force("what_nobody_wants", |scenario| {
        calm(scenario);
        for connection in &mut scenario.connections {
            send_only(connection, 50_000);
            let deaf = &mut connection.plans[1];
            deaf.deaf_after = Some(scenario.seed * 37 % 5_000);
            deaf.half_close = false;
            deaf.finish = Finish::CloseAt(600 * SECOND);
        }
    });
    assert_eq!(
        (counters.connections_timed_out, counters.connections_reset),
        (0, 0),
        "{counters:?}"
    );
    assert!(counters.data_segments_received > 30 * seeds, "{counters:?}");
}

/// Sends requests and replies of 64 KiB between hosts that are so close that a burst overflows the
/// queue between them.
fn crowd_a_short_queue(scenario: &mut Scenario) {
    calm(scenario);
    let queue_bytes = 5_000 + scenario.seed * 317 % 60_000;
    let rate = Rate { bytes_per_second: 1_000_000_000, queue_bytes, mark_bytes: None };
    for impairment in &mut scenario.links {
        (impairment.delay_ns, impairment.rate) = (10_000, Some(rate));
    }
    for host in &mut scenario.hosts {
        (host.full, host.late_ns) = (0.0, 0);
        let config = &mut host.config;
        (config.sack, config.mtu, config.minimum_rto) = (true, 1500, Duration::from_millis(200));
        (config.max_buffer_bytes, config.initial_window) = (1 << 30, 10);
        // Without timestamps, a cookie would not preserve SACK, and a tail loss probe that allows
        // for later acknowledgements would not be sent before the time-out.
        config.syn_cookies = SynCookies::Never;
        config.delayed_ack = Duration::from_millis(40);
    }
    scenario.connections.truncate(1);
    let connection = &mut scenario.connections[0];
    send_only(connection, 0);
    let rounds = |ahead: u64| {
        let round = |number: u64| Round {
            after_received: (number + ahead) * MESSAGE_BYTES,
            pause_ns: 0,
            bytes: MESSAGE_BYTES,
        };
        (0..MESSAGES).map(round).collect::<Vec<_>>()
    };
    for (plan, ahead) in connection.plans.iter_mut().zip([0, 1]) {
        plan.rounds = rounds(ahead);
        plan.read_pause = (0.0, 0);
        plan.chunk_max = MESSAGE_BYTES as usize;
        plan.options.maximum_segment = None;
        plan.options.no_delay = true;
        plan.options.send_buffer_bytes = 1 << 20;
        plan.options.receive_buffer_bytes = 1 << 20;
    }
}

#[test]
fn a_short_queue_that_overflows_costs_no_time_out() {
    let (seeds, counters) = force("a_short_queue_that_overflows", crowd_a_short_queue);
    assert!(counters.fast_recoveries > 10 * seeds, "{counters:?}");
    assert_eq!(counters.timeouts, 0, "{counters:?}");
}
