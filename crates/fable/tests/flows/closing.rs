//! Tests of closing: which committed messages are delivered, and which are counted as undelivered.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fable::flow::Timeouts;
use fable::{Endpoint, Error, Flow, Kind};

use super::{RING, TIME_LIMIT, fill_up, kinds, move_both, open, open_parts, parts, send};

/// The length of the tests' messages.
pub(super) const BYTES: usize = 16 << 10;

const NETWORK: [Kind; 4] = [Kind::Tcp, Kind::TcpNodelay, Kind::Tls, Kind::Mptcp];

/// Opens flows with this linger time, and returns the leader's counter of undelivered messages.
fn open_with_linger(kind: Kind, linger: Duration) -> (Flow, Flow, Arc<AtomicU64>) {
    let [leader, follower] = parts(kind).map(|(mut parts, _)| {
        parts.timeouts = Timeouts { linger, ..parts.timeouts };
        parts
    });
    let counter = Arc::clone(&leader.undelivered);
    let (leader, follower) = open_parts([leader, follower]);
    (leader, follower, counter)
}

/// Commits as many messages as sockets take without a reader, but not more.
pub(super) fn fill(flow: &Flow, messages: usize) {
    for number in 0..messages {
        let mut message = flow.write_timeout(BYTES, TIME_LIMIT).unwrap();
        message.fill(number as u8);
        message.commit().unwrap();
    }
    let begin = Instant::now();
    while !flow.flush().unwrap() {
        assert!(begin.elapsed() < TIME_LIMIT, "the kernel takes what was committed");
    }
}

/// Returns how many messages arrive before the end, and whether the flow was ended rather than the
/// peer dead.
pub(super) fn drain(flow: &Flow) -> (usize, bool) {
    let mut received = 0;
    loop {
        match flow.read_timeout(TIME_LIMIT) {
            Ok(Some(message)) => {
                let is_whole = message.iter().all(|byte| *byte == received as u8);
                assert!(message.len() == BYTES && is_whole, "message {received}");
                received += 1;
            }
            Ok(None) => return (received, true),
            Err(Error::PeerDied) => return (received, false),
            Err(error) => panic!("after {received}: {error}"),
        }
    }
}

fn messages_for(kind: Kind) -> usize {
    // The number of messages that a pipe, a ring or a UNIX socket holds without a reader.
    if NETWORK.contains(&kind) { 200 } else { 8 }
}

/// Waits until a message has arrived, and leaves it unread.
pub(super) fn send_unread(from: &Flow, to: &Flow) {
    send(from, "never read");
    from.flush().unwrap();
    assert!(super::is_readable(to, TIME_LIMIT));
}

#[test]
fn a_drop_with_unread_input_loses_nothing() {
    for kind in kinds() {
        let (leader, follower, counter) = open_with_linger(kind, Duration::from_millis(50));
        send_unread(&follower, &leader);
        fill(&leader, messages_for(kind));
        drop(leader);
        assert_eq!(drain(&follower), (messages_for(kind), true), "{kind}");
        assert_eq!(counter.load(Ordering::Relaxed), 0, "{kind}");
    }
}

#[test]
fn input_that_comes_after_the_drop_loses_nothing() {
    for kind in kinds() {
        let (leader, follower, counter) = open_with_linger(kind, Duration::from_millis(50));
        fill(&leader, messages_for(kind));
        drop(leader);
        // The follower may not have noticed the end yet, or still sends what it had begun.
        for _ in 0..50 {
            let Ok(message) = follower.try_write(1000) else { break };
            if message.commit().is_err() {
                break;
            }
        }
        assert_eq!(drain(&follower), (messages_for(kind), true), "{kind}");
        assert_eq!(counter.load(Ordering::Relaxed), 0, "{kind}");
    }
}

#[test]
fn unread_input_on_a_path_that_was_left_loses_nothing() {
    for kind in NETWORK {
        let (leader, follower, _) = open_with_linger(kind, Duration::from_millis(50));
        send_unread(&follower, &leader);
        fill(&leader, 200);
        move_both(&leader, &follower, Kind::Unix);
        drop(leader);
        assert_eq!(drain(&follower), (200, true), "{kind}");
    }
}

#[test]
fn a_close_says_that_the_peer_has_everything() {
    for kind in kinds() {
        let [leader, follower] = parts(kind).map(|(parts, _)| parts);
        let reader = std::thread::spawn(move || drain(&Flow::open(follower).unwrap()));
        let flow = Flow::open(leader).unwrap();
        for number in 0..300 {
            let mut message = flow.write_timeout(BYTES, TIME_LIMIT).unwrap();
            message.fill(number as u8);
            message.commit().unwrap();
        }
        flow.close(TIME_LIMIT).unwrap();
        assert_eq!(reader.join().unwrap(), (300, true), "{kind}");
    }
}

#[test]
fn a_close_says_what_the_peer_does_not_have_and_the_rest_still_arrives() {
    for kind in NETWORK {
        let (leader, follower) = open(kind);
        fill(&leader, 200);
        let shown = leader.statistics().undelivered;
        assert!((1..200).contains(&shown), "{kind}: {shown}");
        match leader.close(Duration::from_millis(20)) {
            Err(Error::Undelivered { messages, bytes }) => {
                assert!((1..200).contains(&messages), "{kind}: {messages}");
                assert_eq!(bytes, messages * BYTES as u64, "{kind}");
            }
            outcome => panic!("{kind}: {outcome:?}"),
        }
        assert_eq!(drain(&follower), (200, true), "{kind}");
    }
}

#[test]
fn what_shared_memory_and_pipes_hold_is_delivered() {
    for kind in kinds().into_iter().filter(|kind| !NETWORK.contains(kind)) {
        let (leader, follower) = open(kind);
        fill(&leader, 8);
        assert_eq!(leader.statistics().undelivered, 0, "{kind}");
        leader.close(Duration::ZERO).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(drain(&follower), (8, true), "{kind}");
    }
}

/// At the time-out, messages that the kernel did not take are lost, and the count is exact.
#[test]
fn what_has_no_room_is_counted() {
    for (kind, closes) in [(Kind::Unix, true), (Kind::Unix, false)] {
        let (leader, follower, counter) = open_with_linger(kind, Duration::from_millis(20));
        let mut sent = 0;
        while let Ok(mut message) = leader.try_write(BYTES) {
            message.fill(sent as u8);
            message.commit().unwrap();
            sent += 1;
        }
        let shown = leader.statistics().undelivered;
        assert!((1..=sent as u64).contains(&shown), "{kind}: {shown} of {sent}");
        if closes {
            match leader.close(Duration::from_millis(20)) {
                Err(Error::Undelivered { messages, .. }) => assert_eq!(messages, shown, "{kind}"),
                outcome => panic!("{kind}: {outcome:?}"),
            }
        } else {
            drop(leader);
        }
        let (received, is_whole) = drain(&follower);
        assert!(!is_whole, "{kind}: the end has no room either");
        assert_eq!(counter.load(Ordering::Relaxed), (sent - received) as u64, "{kind}");
    }
}

#[test]
fn what_a_dead_peer_has_not_read_is_not_delivered() {
    for kind in [RING, Kind::Unix] {
        let [(leader, reports), (follower, _)] = parts(kind);
        let (leader, follower) = open_parts([leader, follower]);
        fill(&leader, 5);
        drop(follower.read_timeout(TIME_LIMIT).unwrap());
        drop(follower);
        // Wait until the control link has reported the end.
        let begin = Instant::now();
        while !matches!(leader.try_write(1), Err(Error::PeerDied)) {
            assert!(begin.elapsed() < TIME_LIMIT, "{kind}");
        }
        match leader.close(TIME_LIMIT) {
            Err(Error::Undelivered { messages, bytes }) => {
                assert_eq!((messages, bytes), (4, 4 * BYTES as u64), "{kind}");
            }
            outcome => panic!("{kind}: {outcome:?}"),
        }
        let told = reports.lock().unwrap().join("\n");
        assert!(told.contains("4 messages (65536 bytes) were not delivered"), "{told}");
    }
}

#[test]
fn two_ends_that_close_with_full_queues_do_not_wait_for_each_other() {
    for kind in kinds() {
        let ends = parts(kind).map(|(mut parts, _)| {
            parts.timeouts = Timeouts { linger: TIME_LIMIT, ..parts.timeouts };
            std::thread::spawn(move || {
                let flow = Flow::open(parts).unwrap();
                while let Ok(message) = flow.try_write(100_000) {
                    message.commit().unwrap();
                }
                let begin = Instant::now();
                drop(flow);
                begin.elapsed()
            })
        });
        for end in ends {
            assert!(end.join().unwrap() < TIME_LIMIT / 2, "{kind}");
        }
    }
}

#[test]
fn endpoints_have_a_linger_and_a_count() {
    let server = Endpoint::register("unix://@fable-closing").unwrap();
    let listener = server.listen().unwrap();
    let client = Endpoint::options().linger(Duration::ZERO).anonymous();
    let flow = client.connect("unix://@fable-closing").unwrap();
    let accepted = listener.accept_timeout(TIME_LIMIT).unwrap();
    let sent = fill_up(&flow, BYTES) as u64;
    assert_eq!(client.undelivered(), 0);
    drop(flow);
    let lost = client.undelivered();
    assert!((1..=sent).contains(&lost), "{lost} of {sent}");
    assert_eq!((server.undelivered(), Endpoint::anonymous().undelivered()), (0, 0));
    drop(accepted);
}

/// A `tcp://` flow whose peer does not read its input.
#[test]
fn a_foreign_connection_with_unread_input_loses_nothing() {
    let server = Endpoint::register("tcp://127.0.0.1:0").unwrap();
    let listener = server.listen().unwrap();
    let name = server.name().unwrap().to_string();
    let client = Endpoint::options().linger(Duration::from_millis(50)).anonymous();
    let flow = client.connect(&name).unwrap();
    let accepted = listener.accept_timeout(TIME_LIMIT).unwrap();
    send_unread(&accepted, &flow);
    fill(&flow, 100);
    drop(flow);
    let mut received = 0;
    while let Some(bytes) = accepted.read_timeout(TIME_LIMIT).unwrap() {
        received += bytes.len();
    }
    assert_eq!(received, 100 * BYTES);
    assert_eq!(client.undelivered(), 0);
}

#[test]
fn a_peer_that_has_ended_its_own_direction_gets_everything() {
    let server = Endpoint::register("tcp://127.0.0.1:0").unwrap();
    let listener = server.listen().unwrap();
    let name = server.name().unwrap().to_string();
    let mut client = TcpStream::connect(name.strip_prefix("tcp://").unwrap()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let flow = listener.accept_timeout(TIME_LIMIT).unwrap();
    fill(&flow, 200);
    let reader = thread::spawn(move || {
        // In most runs the flow is being closed by then.
        thread::sleep(Duration::from_millis(50));
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).unwrap();
        bytes.len()
    });
    let closed = flow.close(TIME_LIMIT);
    assert_eq!(reader.join().unwrap(), 200 * BYTES);
    assert!(closed.is_ok(), "{closed:?}");
    assert_eq!(server.undelivered(), 0);
}
