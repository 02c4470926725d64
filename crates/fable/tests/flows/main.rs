//! Tests of the public interface of flows. Both ends are in one process, on one thread.

mod closing;
#[path = "../flow_rig/mod.rs"]
mod flow_rig;
mod forwarding;
mod held;
#[path = "../common/keys.rs"]
mod keys;
mod lingering;
#[path = "../common/missing.rs"]
mod missing;
mod readiness;
mod refusals;
mod sandbox;

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::flow_rig::{Reports, kinds, parts, parts_over};
use fable::flow::{FlowParts, Opening};
use fable::protocol::{Role, Trust};
use fable::{Error, Flow, FlowEvent, Form, Kind, packet, page};

/// Ends a test that hangs; no test's result depends on it.
const TIME_LIMIT: Duration = Duration::from_secs(30);

const RING: Kind = Kind::MempipeFutex(Form::Safe);

fn open_parts([leader, follower]: [FlowParts; 2]) -> (Flow, Flow) {
    let (leader, follower) = (Opening::start(leader).unwrap(), Opening::start(follower).unwrap());
    (leader.finish().unwrap(), follower.finish().unwrap())
}

fn open(first: Kind) -> (Flow, Flow) {
    open_parts(parts(first).map(|(parts, _)| parts))
}

fn send(flow: &Flow, text: &str) {
    let mut buffer = flow.write_timeout(text.len(), TIME_LIMIT).unwrap();
    buffer.copy_from_slice(text.as_bytes());
    buffer.commit().unwrap();
}

/// Sends messages of this length until there is no room; returns how many.
fn fill_up(flow: &Flow, bytes: usize) -> usize {
    let mut sent = 0;
    while let Ok(room) = flow.try_write(bytes) {
        room.commit().unwrap();
        sent += 1;
    }
    sent
}

fn receive(flow: &Flow) -> String {
    let buffer = flow.read_timeout(TIME_LIMIT).unwrap().expect("a message");
    String::from_utf8(buffer.to_vec()).unwrap()
}

fn next_event(flow: &Flow) -> FlowEvent {
    let begin = Instant::now();
    loop {
        if let Some(event) = flow.take_event() {
            return event;
        }
        assert!(begin.elapsed() < TIME_LIMIT, "no event comes");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Moves both ends, and checks that both report it.
fn move_both(by: &Flow, other: &Flow, kind: Kind) {
    by.move_to(kind).unwrap();
    for flow in [by, other] {
        match next_event(flow) {
            FlowEvent::Moved { epoch, transport, .. } => {
                assert_eq!((epoch, transport), (flow.epoch(), kind));
                assert_eq!(flow.transport(), kind);
            }
            other => panic!("{kind}: {other:?}"),
        }
    }
}

fn is_readable(flow: &Flow, timeout: Duration) -> bool {
    let fd = flow.descriptor().unwrap().as_raw_fd();
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the entry outlives the call.
    let count =
        unsafe { libc::poll(&raw mut entry, 1, i32::try_from(timeout.as_millis()).unwrap()) };
    count == 1
}

#[test]
fn messages_go_both_ways_over_every_transport_and_every_move() {
    let (leader, follower) = open(RING);
    assert_eq!((leader.role(), follower.role()), (Role::Leader, Role::Follower));
    for (number, kind) in kinds().into_iter().enumerate() {
        if kind != leader.transport() {
            let (by, other) =
                if number % 2 == 0 { (&leader, &follower) } else { (&follower, &leader) };
            move_both(by, other, kind);
        }
        for (from, to) in [(&leader, &follower), (&follower, &leader)] {
            send(from, &format!("over {kind}"));
            assert_eq!(receive(to), format!("over {kind}"));
            let mut long = from.write_timeout(from.message_bytes_max(), TIME_LIMIT).unwrap();
            long.fill(77);
            long.commit().unwrap();
            let begin = Instant::now();
            let long = loop {
                from.flush().unwrap();
                match to.try_read() {
                    Ok(message) => break message.unwrap(),
                    Err(Error::WouldBlock) => assert!(begin.elapsed() < TIME_LIMIT),
                    Err(error) => panic!("{kind}: {error}"),
                }
            };
            assert!(long.len() == from.message_bytes_max() && long.iter().all(|byte| *byte == 77));
        }
    }
    let too_long = leader.write(leader.message_bytes_max() + 1).unwrap_err();
    assert!(matches!(too_long, Error::TooLong { .. }), "{too_long}");
}

#[test]
fn each_direction_ends_for_itself() {
    let (leader, follower) = open(RING);
    send(&leader, "last words");
    leader.finish().unwrap();
    assert!(matches!(leader.write(1), Err(Error::Ended)));
    assert_eq!(receive(&follower), "last words");
    assert!(follower.read().unwrap().is_none());
    assert!(follower.read().unwrap().is_none(), "the end stays");
    leader.move_to(Kind::Unix).unwrap();
    for flow in [&leader, &follower] {
        assert!(matches!(next_event(flow), FlowEvent::Moved { epoch: 2, .. }));
    }
    assert_eq!((leader.epoch(), follower.epoch()), (1, 2), "what has ended does not move");
    send(&follower, "still here");
    drop(follower);
    assert_eq!(receive(&leader), "still here");
    assert!(leader.read().unwrap().is_none(), "a drop is an end in good order");
}

#[test]
fn a_peer_that_is_gone_without_an_end_has_died() {
    for kind in kinds() {
        let (leader, follower) = open(kind);
        send(&follower, "before");
        follower.flush().unwrap();
        let gone = std::thread::scope(|scope| {
            // A flow of a panicking thread does not end its direction properly.
            let parts = parts(kind).map(|(parts, _)| parts);
            let [left, right] = parts;
            let left = scope.spawn(move || {
                let flow = Flow::open(left).unwrap();
                send(&flow, "before");
                flow.flush().unwrap();
                std::panic::resume_unwind(Box::new("dies"));
            });
            let right = Flow::open(right).unwrap();
            assert_eq!(receive(&right), "before", "{kind}");
            let gone = right.read_timeout(TIME_LIMIT).map(|_| ());
            assert!(left.join().is_err());
            (gone, right.write_timeout(1, TIME_LIMIT).map(|_| ()))
        });
        assert!(matches!(gone.0, Err(Error::PeerDied)), "{kind}: {gone:?}");
        assert!(matches!(gone.1, Err(Error::PeerDied)), "{kind}: {gone:?}");
        assert_eq!(receive(&leader), "before");
    }
}

#[test]
fn buffers_keep_their_epoch_and_old_ones_go_the_new_way() {
    for kind in kinds() {
        let (leader, follower) = open(RING);
        send(&leader, "zero");
        let zero = follower.read().unwrap().unwrap();
        let mut one = leader.write(3).unwrap();
        if kind == RING {
            continue;
        }
        move_both(&leader, &follower, kind);
        let mut two = leader.write_timeout(3, TIME_LIMIT).unwrap();
        assert_eq!((one.epoch(), two.epoch()), (1, 2));
        one.copy_from_slice(b"one");
        two.copy_from_slice(b"two");
        one.commit().unwrap();
        two.commit().unwrap();
        let one = follower.read_timeout(TIME_LIMIT).unwrap().unwrap();
        let two = follower.read_timeout(TIME_LIMIT).unwrap().unwrap();
        assert_eq!((&*zero, &*one, &*two), (&b"zero"[..], &b"one"[..], &b"two"[..]), "{kind}");
        assert_eq!((zero.epoch(), one.epoch(), two.epoch()), (1, 2, 2), "{kind}");
    }
}

#[test]
fn a_buffer_that_is_committed_behind_a_newer_one_is_copied() {
    for kind in kinds() {
        let (leader, follower) = open(RING);
        let mut old = leader.write(3).unwrap();
        old.copy_from_slice(b"old");
        if kind == RING {
            continue;
        }
        move_both(&follower, &leader, kind);
        send(&leader, "new");
        assert_eq!(receive(&follower), "new", "{kind}: it does not wait for the old one");
        old.commit().unwrap();
        send(&leader, "newest");
        assert_eq!(receive(&follower), "old", "{kind}");
        assert_eq!(receive(&follower), "newest", "{kind}");
    }
}

#[test]
fn order_is_kept_by_copies() {
    for kind in kinds().into_iter().filter(|kind| *kind != RING) {
        let (leader, follower) = open(RING);
        let mut first = leader.write(5).unwrap();
        let dropped = leader.write(500).unwrap();
        first.copy_from_slice(b"first");
        move_both(&leader, &follower, kind);
        let mut second = leader.write_timeout(6, TIME_LIMIT).unwrap();
        second.copy_from_slice(b"second");
        first.commit().unwrap();
        drop(dropped);
        second.commit().unwrap();
        let messages = [receive(&follower), receive(&follower)];
        assert_eq!(messages, ["first", "second"], "{kind}");
        move_both(&leader, &follower, RING);
        send(&leader, "third");
        assert_eq!(receive(&follower), "third");
    }
}

#[test]
fn calls_that_must_not_wait_say_so_and_the_descriptor_tells_when_to_try_again() {
    for kind in kinds() {
        let (leader, follower) = open(kind);
        assert!(is_readable(&leader, TIME_LIMIT), "at first, one has to look");
        assert!(matches!(leader.try_read(), Err(Error::WouldBlock)));
        assert!(!is_readable(&leader, Duration::ZERO), "{kind}: nothing is there");
        send(&follower, "one");
        send(&follower, "two");
        for expected in ["one", "two"] {
            // Nagle's algorithm may delay the second one, and readiness may be reported too early.
            let message = loop {
                assert!(is_readable(&leader, TIME_LIMIT), "{kind}: `{expected}` is there");
                match leader.try_read() {
                    Ok(message) => break message.unwrap(),
                    Err(error) => assert!(matches!(error, Error::WouldBlock), "{kind}: {error}"),
                }
            };
            assert_eq!(&*message, expected.as_bytes());
        }

        let mut sent = 0;
        loop {
            match leader.try_write(leader.message_bytes_max()) {
                Ok(buffer) => buffer.commit().unwrap(),
                Err(Error::WouldBlock) => break,
                Err(error) => panic!("{kind}: {error}"),
            }
            sent += 1;
            assert!(sent < 10_000, "{kind}: there is back-pressure");
        }
        assert!(matches!(leader.try_read(), Err(Error::WouldBlock)));
        let mut received = 0;
        let begin = Instant::now();
        while received < sent {
            assert!(begin.elapsed() < TIME_LIMIT, "{kind}: {received} of {sent}");
            leader.flush().unwrap();
            match follower.try_read() {
                Ok(_) => received += 1,
                Err(Error::WouldBlock) => {}
                Err(error) => panic!("{kind}: {error}"),
            }
        }
        // The reader sends the releases that it held back when it finds no further message.
        assert!(matches!(follower.try_read(), Err(Error::WouldBlock)), "{kind}");
        loop {
            assert!(is_readable(&leader, TIME_LIMIT), "{kind}: there is room again");
            match leader.try_write(1) {
                Ok(_) => break,
                Err(error) => assert!(matches!(error, Error::WouldBlock), "{kind}: {error}"),
            }
        }
        assert!(matches!(leader.read_timeout(Duration::from_millis(1)), Err(Error::TimedOut)));
    }
}

#[test]
fn an_event_makes_the_descriptor_readable() {
    let (leader, follower) = open(RING);
    assert!(matches!(leader.try_read(), Err(Error::WouldBlock)));
    let _ = is_readable(&leader, Duration::ZERO);
    assert!(matches!(leader.try_read(), Err(Error::WouldBlock)));
    assert!(!is_readable(&leader, Duration::ZERO));
    follower.move_to(Kind::Unix).unwrap();
    assert!(is_readable(&leader, TIME_LIMIT));
    assert!(matches!(next_event(&leader), FlowEvent::Moved { transport: Kind::Unix, .. }));
}

#[test]
fn a_reader_that_sleeps_follows_a_move() {
    for kind in kinds().into_iter().filter(|kind| *kind != RING) {
        let [leader, follower] = parts(RING).map(|(parts, _)| parts);
        let thread = std::thread::spawn(move || {
            let flow = Flow::open(follower).unwrap();
            receive(&flow)
        });
        let leader = Flow::open(leader).unwrap();
        leader.move_to(kind).unwrap();
        assert!(matches!(next_event(&leader), FlowEvent::Moved { .. }));
        send(&leader, "found you");
        let begin = Instant::now();
        while !leader.flush().unwrap() {
            assert!(begin.elapsed() < TIME_LIMIT);
        }
        assert_eq!(thread.join().unwrap(), "found you", "{kind}");
    }
}

#[test]
fn an_application_that_holds_everything_is_told() {
    let (leader, follower) = open(RING);
    let held: Vec<_> = (0..128).map(|_| leader.try_write(1).unwrap()).collect();
    assert!(matches!(leader.try_write(1), Err(Error::TooManyBuffers { held: 128 })));
    held.into_iter().for_each(|buffer| buffer.commit().unwrap());
    let mut held = Vec::new();
    for _ in 0..128 {
        held.push(follower.try_read().unwrap().unwrap());
    }
    drop(leader.try_write(1).unwrap());
    assert!(matches!(follower.try_read(), Err(Error::WouldBlock)), "abandoned, not sent");
}

#[test]
fn a_move_that_the_peer_does_not_live_to_see_has_failed() {
    for says_nothing in [false, true] {
        let (leader, follower) = open(RING);
        if says_nothing {
            drop(follower);
            leader.move_to(Kind::Unix).unwrap();
        } else {
            follower.move_to(Kind::TcpNodelay).unwrap();
            drop(follower);
            leader.move_to(Kind::Unix).unwrap();
        }
        // An agreed move may still complete; the last event is a failure.
        let mut events = [next_event(&leader)].to_vec();
        while !matches!(events.last(), Some(FlowEvent::MoveFailed { .. })) {
            events.push(next_event(&leader));
        }
    }
}

#[test]
fn a_child_of_fork_cannot_use_the_flow_and_does_not_disturb_it() {
    let (leader, follower) = open(RING);
    send(&leader, "one");
    let message = follower.read().unwrap().unwrap();
    let buffer = leader.write(3).unwrap();
    // SAFETY: the child makes only calls that fail, drops, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(follower.read(), Err(Error::Forked))
            && matches!(leader.write(1), Err(Error::Forked))
            && matches!(buffer.commit(), Err(Error::Forked))
            && matches!(leader.finish(), Err(Error::Forked));
        drop((message, leader, follower));
        // SAFETY: ends the child without running destructors that belong to the parent.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) }
    }
    let mut status = -1;
    // SAFETY: a child of this process; the status outlives the call.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(&*message, b"one");
    drop((message, buffer));
    send(&leader, "two");
    assert_eq!(receive(&follower), "two");
}

#[test]
fn a_child_of_fork_that_lives_on_does_not_hide_the_end() {
    let (leader, follower) = open(RING);
    // SAFETY: the child only holds copies of all descriptors until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: plain system calls.
        unsafe {
            libc::alarm(60);
            libc::pause();
            libc::_exit(0)
        }
    }
    drop(leader);
    let begin = Instant::now();
    let is_told = loop {
        match follower.try_write(1) {
            Err(Error::PeerDied) => break true,
            _ if begin.elapsed() > TIME_LIMIT => break false,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    // SAFETY: a child of this process that was not waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert!(is_told, "nobody is left who would read");
}

#[test]
fn moves_that_must_not_be_are_refused_with_a_reason() {
    let [(mut leader, reports), (follower, _)] = parts(RING);
    leader.peer_trust = Trust::Untrusted;
    let (leader, follower) = open_parts([leader, follower]);
    let expect = |flow: &Flow, kind: Kind, word: &str| {
        flow.move_to(kind).unwrap();
        match next_event(flow) {
            FlowEvent::MoveFailed { transport, reason } => {
                assert_eq!(transport, kind);
                assert!(reason.contains(word), "{reason}");
            }
            other => panic!("{kind}: {other:?}"),
        }
    };
    expect(&leader, RING, "already");
    expect(&leader, Kind::MempipeFutex(Form::Unsafe), "safe form");
    expect(&follower, Kind::MempipeFutex(Form::Unsafe), "safe form");
    send(&leader, "unharmed");
    assert_eq!(receive(&follower), "unharmed");
    let reports: Reports = reports;
    let told = reports.lock().unwrap().join("\n");
    assert!(told.contains("moved 1 mempipe-futex-safe"), "{told}");
    assert!(told.contains("failed mempipe-futex-unsafe"), "{told}");
}

/// Returns control links as between hosts: connected TCP sockets.
fn far_links() -> [OwnedFd; 2] {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    [one.into(), other.into()]
}

#[test]
fn flows_between_hosts_move_among_what_reaches_there() {
    let first = Kind::Tcp;
    let parts = parts_over(first, far_links(), false).map(|(parts, _)| parts);
    let (leader, follower) = open_parts(parts);
    for kind in [Kind::Tls, Kind::TcpNodelay, Kind::Mptcp, Kind::Tcp] {
        move_both(&follower, &leader, kind);
        for (from, to) in [(&leader, &follower), (&follower, &leader)] {
            send(from, "far away");
            let begin = Instant::now();
            let message = loop {
                from.flush().unwrap();
                match to.try_read() {
                    Ok(message) => break message.unwrap(),
                    Err(Error::WouldBlock) => assert!(begin.elapsed() < TIME_LIMIT),
                    Err(error) => panic!("{kind}: {error}"),
                }
            };
            assert_eq!(&*message, b"far away");
        }
    }
    leader.move_to(RING).unwrap();
    match next_event(&leader) {
        FlowEvent::MoveFailed { reason, .. } => assert!(reason.contains("host"), "{reason}"),
        other => panic!("{other:?}"),
    }
    leader.handle().unwrap().set_protected(true);
    leader.move_to(Kind::TcpNodelay).unwrap();
    match next_event(&leader) {
        FlowEvent::MoveFailed { reason, .. } => assert!(reason.contains("tls"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flow_describes_itself_to_a_restarted_daemon() {
    let (leader, follower) = open(RING);
    let handle = leader.handle().unwrap();
    move_both(&leader, &follower, Kind::Unix);
    send(&leader, "counted");
    assert_eq!(receive(&follower), "counted");
    let (said, page) = handle.describe().unwrap().expect("the flow lives");
    assert_eq!((said.epoch, said.transport.as_str()), (2, "unix"));
    let page = page::Page::open(std::os::fd::AsFd::as_fd(&page)).unwrap();
    assert_eq!(page.read(Role::Leader, page::Counter::MessagesSent), 1);
    assert_eq!(page.read(Role::Follower, page::Counter::MessagesReceived), 1);
    assert_eq!(page.read(Role::Leader, page::Counter::EpochWritten), 2);
    assert_eq!(leader.statistics().moves, 1);
    drop(leader);
    assert!(handle.describe().unwrap().is_none());
    handle.request_move(RING, "nobody is there").unwrap();
}
