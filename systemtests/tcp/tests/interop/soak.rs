//! Tests the same for a long time: growth of memory, descriptors and sockets, and bulk transfers.
//!
//! `cargo xtask soak MINUTES` runs these tests in release mode for this time; otherwise they are
//! short.

use crate::exchange::Plan;
use crate::site::{Kind, Site};
use crate::sockets::OurSockets;
use std::time::{Duration, Instant};
use testkit::process::alone;

/// The environment variable with the seconds of the soak test.
const SECONDS: &str = "MEGAPIPE_SOAK_SECONDS";
/// The most by which memory may grow after the first rounds, for any duration.
const GROWTH_BYTES: u64 = 16 << 20;
const WARM_UP_ROUNDS: u32 = 10;
const AT_ONCE: usize = 50;

fn seconds() -> Option<u64> {
    let value = std::env::var(SECONDS).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{SECONDS}={value} is no number")))
}

/// Resident bytes of this process (proc_pid_status(5)).
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    let kilobytes = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    kilobytes.expect("a number") * 1024
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count()
}

/// Plans of short connections with small and medium sizes.
fn plans(round: u32) -> Vec<Plan> {
    (0..200)
        .map(|number| {
            let seed = u64::from(round) * 1000 + number;
            let bytes = if number % 20 == 0 { 200_000 } else { seed * 7919 % 5000 };
            Plan { up_bytes: bytes, down_bytes: bytes / 2 + 1, seed }
        })
        .collect()
}

/// Repeats rounds for a time; returns their number and the growth of memory since the first.
fn repeat(time: Duration, mut round: impl FnMut(u32)) -> (u32, u64) {
    let (begin, mut rounds, mut first) = (Instant::now(), 0, 0);
    while rounds <= WARM_UP_ROUNDS || begin.elapsed() < time {
        round(rounds);
        rounds += 1;
        if rounds == WARM_UP_ROUNDS {
            first = memory();
        }
    }
    (rounds, memory().saturating_sub(first))
}

fn we_serve(kind: Kind, time: Duration) {
    let site = Site::new(kind);
    let before = descriptors();
    let mtcp = site.start(site.config());
    let mut done = (0, 0);
    let (outcome, counters) = site.while_we_serve(&mtcp, |_| {
        done = repeat(time, |round| {
            let plans = plans(round);
            let asked = site.kernel_asks(round as usize % 2, &plans, AT_ONCE);
            asked.expect(plans.len(), &format!("round {round}"));
        });
    });
    let (rounds, grown) = done;
    let connections = rounds as usize * plans(0).len();
    outcome.expect(connections, "our server");
    println!("{kind:?}, we serve: {connections} connections, {grown} bytes more memory");
    assert_eq!(counters.connections_accepted, connections as u64);
    assert_eq!(counters.connections_closed, connections as u64, "{counters:#?}");
    assert!(grown < GROWTH_BYTES, "memory has grown by {grown} bytes in {rounds} rounds");
    drop(mtcp);
    assert_eq!(descriptors(), before, "descriptors");
}

fn we_ask(kind: Kind, time: Duration) {
    let site = Site::new(kind);
    let before = descriptors();
    let mut config = site.config();
    // The short period makes ports available again in time.
    config.tcp.maximum_segment_lifetime = Duration::from_millis(500);
    let mtcp = site.start(config);
    let mut sockets = OurSockets::new(mtcp.context(0).expect("it is free"));
    let (rounds, grown) = repeat(time, |round| {
        let plans = plans(round);
        let family = round as usize % 2;
        let (ours, theirs) = site.kernel_answers(&mut sockets, family, &plans, AT_ONCE);
        ours.expect(plans.len(), &format!("round {round}"));
        theirs.expect(plans.len(), "the kernel's server");
    });
    let connections = u64::from(rounds) * plans(0).len() as u64;
    println!("{kind:?}, we ask: {connections} connections, {grown} bytes more memory");
    let counters = sockets.context.counters();
    assert_eq!(counters.connections_opened, connections);
    assert_eq!(counters.connections_reset + counters.connections_timed_out, 0);
    assert!(grown < GROWTH_BYTES, "memory has grown by {grown} bytes in {rounds} rounds");
    drop((sockets, mtcp));
    assert_eq!(descriptors(), before, "descriptors");
}

#[test]
fn churn_leaves_nothing_behind() {
    let time = Duration::from_secs(seconds().unwrap_or(4));
    // The other tests use memory and descriptors too.
    alone("soak::churn_leaves_nothing_behind", || {
        for kind in [Kind::Native, Kind::Tap] {
            we_serve(kind, time / 4);
            we_ask(kind, time / 4);
        }
    });
}

#[test]
fn bulk_transfers_are_what_was_sent() {
    let bytes = if seconds().is_some() { 1 << 30 } else { 64 << 20 };
    for (kind, family) in [(Kind::Native, 0), (Kind::Tap, 1)] {
        let site = Site::new(kind);
        let plans = [Plan::both(bytes, 77)];
        let mtcp = site.start(site.config());
        let begin = Instant::now();
        let (outcome, _) = site.while_we_serve(&mtcp, |_| {
            site.kernel_asks(family, &plans, 1).expect(1, &format!("{kind:?}, we serve"));
        });
        outcome.expect(1, "our server");
        println!("{kind:?}, we serve: {bytes} bytes each way in {:?}", begin.elapsed());
        drop(mtcp);
        let mtcp = site.start(site.config());
        let begin = Instant::now();
        let mut sockets = OurSockets::new(mtcp.context(0).expect("it is free"));
        let (asked, _) = site.kernel_answers(&mut sockets, family, &plans, 1);
        asked.expect(1, &format!("{kind:?}, we ask"));
        println!("{kind:?}, we ask: {bytes} bytes each way in {:?}", begin.elapsed());
    }
}
