//! Tests of the limits on lingering connections, with peers that do not take what was committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fable::flow::{Timeouts, lingering};
use fable::{Flow, Kind};

use super::closing::{drain, fill, send_unread};
use super::{TIME_LIMIT, open_parts, parts};

/// The most connections that are kept for one user of one host.
const PER_PEER_MAX: usize = 256;

/// More descriptors than all flows of a test need.
const DESCRIPTORS: u64 = 8_192;

/// Opens flows whose drop does not wait, and returns the leader's counter of undelivered messages.
fn open(host: &str, grace: Duration) -> (Flow, Flow, Arc<AtomicU64>) {
    let [mut leader, follower] = parts(Kind::Tcp).map(|(parts, _)| parts);
    leader.peer.host = host.to_owned();
    leader.timeouts = Timeouts { linger: Duration::ZERO, grace, ..leader.timeouts };
    let counter = Arc::clone(&leader.undelivered);
    let (leader, follower) = open_parts([leader, follower]);
    (leader, follower, counter)
}

fn need_descriptors() {
    // SAFETY: the limit is plain data and outlives the system calls.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_cur.max(DESCRIPTORS).min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

#[test]
fn so_many_connections_of_closed_flows_are_kept_for_a_peer() {
    // More messages than the peer's kernel takes of a flow that is not read.
    const MESSAGES: usize = 24;
    need_descriptors();
    let given_up = lingering().given_up;
    let mut peers = Vec::new();
    for _ in 0..PER_PEER_MAX + 4 {
        let (leader, follower, counter) = open("many", TIME_LIMIT);
        send_unread(&follower, &leader);
        fill(&leader, MESSAGES);
        drop(leader);
        peers.push((follower, counter));
    }
    // Another peer's connections have a limit of their own.
    let (leader, other, other_counter) = open("other", TIME_LIMIT);
    send_unread(&other, &leader);
    fill(&leader, MESSAGES);
    drop(leader);
    let now = lingering();
    assert!(now.connections > PER_PEER_MAX as u64 && now.given_up >= given_up + 4, "{now:?}");
    for (number, (follower, counter)) in peers.iter().enumerate() {
        let counted = counter.load(Ordering::Relaxed);
        if number < PER_PEER_MAX {
            assert_eq!(drain(follower), (MESSAGES, true), "number {number}");
            assert_eq!(counted, 0, "number {number}");
        } else {
            // Lost messages are counted.
            let (received, _) = drain(follower);
            assert!(counted > 0 && received + counted as usize >= MESSAGES, "{received} {counted}");
        }
    }
    assert_eq!((drain(&other), other_counter.load(Ordering::Relaxed)), ((MESSAGES, true), 0));
}

#[test]
fn a_peer_that_takes_little_by_little_is_waited_for_only_so_long() {
    const MESSAGES: usize = 200;
    let grace = Duration::from_millis(300);
    let (leader, follower, counter) = open("slow", grace);
    send_unread(&follower, &leader);
    fill(&leader, MESSAGES);
    drop(leader);
    let (begin, mut received) = (Instant::now(), 0);
    while let Ok(Some(_)) = follower.read_timeout(TIME_LIMIT) {
        received += 1;
        // Reads at a third of the speed that would be needed.
        thread::sleep(grace * 18 / MESSAGES as u32);
    }
    let counted = counter.load(Ordering::Relaxed);
    let what = format!("{received} received, {counted} counted after {:?}", begin.elapsed());
    // The kernel may still deliver counted messages, because no further input has arrived.
    assert!(counted > 0 && received + counted as usize >= MESSAGES, "{what}");
}
