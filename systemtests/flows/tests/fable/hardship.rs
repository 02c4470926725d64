//! Tests of flows whose process has run out of descriptors or memory, or whose peer is stopped.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::child::fork;
use fable::flow::{FlowParts, Opening};
use fable::{Error, Flow, FlowEvent, Form, Kind};

/// Ends a test that hangs; no test's result depends on it.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Ends a child that hangs, early enough that it can report what hung.
const CHILD_TIME_LIMIT: Duration = Duration::from_secs(30);

/// How often an experiment is repeated whose peer did not answer in time.
const ATTEMPTS: usize = 5;

/// The exit status of a child that asks for a repetition.
const TOO_SLOW: i32 = 77;

const RING: Kind = Kind::MempipeFutex(Form::Safe);

fn open([leader, follower]: [FlowParts; 2]) -> [Flow; 2] {
    let openings = [Opening::start(leader).unwrap(), Opening::start(follower).unwrap()];
    openings.map(|opening| opening.finish().unwrap())
}

fn send(flow: &Flow, number: u64) {
    let mut buffer = flow.write_timeout(8, CHILD_TIME_LIMIT).unwrap();
    buffer.copy_from_slice(&number.to_le_bytes());
    buffer.commit().unwrap();
}

fn receive(flow: &Flow) -> u64 {
    let buffer = flow.read_timeout(CHILD_TIME_LIMIT).unwrap().expect("a message");
    u64::from_le_bytes((*buffer).try_into().unwrap())
}

/// Waits for the result of a move: the reason of its failure, or `None`.
fn outcome(flow: &Flow, kind: Kind) -> Option<String> {
    flow.move_to(kind).unwrap();
    let begin = Instant::now();
    loop {
        match flow.take_event() {
            Some(FlowEvent::MoveFailed { transport, reason }) if transport == kind => {
                return Some(reason);
            }
            Some(FlowEvent::Moved { transport, .. }) if transport == kind => return None,
            _ => assert!(begin.elapsed() < CHILD_TIME_LIMIT, "nobody says what became of {kind}"),
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Exchanges messages in both directions, and reads everything that was sent.
fn exchange(flows: &[Flow; 2], number: &mut u64) {
    for (from, to) in [(&flows[0], &flows[1]), (&flows[1], &flows[0])] {
        send(from, *number);
        from.flush().unwrap();
        assert_eq!(receive(to), *number);
        *number += 1;
    }
}

fn set_limit(resource: libc::__rlimit_resource_t, value: u64) {
    // SAFETY: the limit is plain data and outlives the system calls.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(resource, &raw mut limit);
        limit.rlim_cur = value.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(resource, &raw const limit), 0);
    }
}

fn run_without_descriptors() {
    let flows = open(crate::flow_rig::parts(RING).map(|(parts, _)| parts));
    let (mut number, mut failures) = (0, 0);
    for kind in crate::flow_rig::kinds() {
        for spare in 0..14 {
            let unused = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
            set_limit(libc::RLIMIT_NOFILE, unused as u64 + spare);
            // The follower may or may not be notified; only the leader's result counts.
            failures += usize::from(outcome(&flows[0], kind).is_some());
            exchange(&flows, &mut number);
            set_limit(libc::RLIMIT_NOFILE, u64::MAX);
            exchange(&flows, &mut number);
        }
    }
    assert!(failures > 50, "there were too many descriptors: {failures} moves failed");
    assert_ne!(flows[0].transport(), Kind::Unix);
    assert_eq!(outcome(&flows[0], Kind::Unix), None);
    exchange(&flows, &mut number);
}

fn run_without_memory() {
    let flows = open(crate::flow_rig::parts(Kind::Unix).map(|(mut parts, _)| {
        parts.path.ring_bytes = 64 << 20;
        parts
    }));
    let mut number = 0;
    exchange(&flows, &mut number);
    let used = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = used.split(' ').next().unwrap().parse().unwrap();
    set_limit(libc::RLIMIT_AS, pages * 4096 + (16 << 20));
    for kind in [RING, Kind::MempipeFutex(Form::Unsafe)] {
        let reason = outcome(&flows[0], kind).expect("there is no memory for this");
        assert!(reason.contains("memory"), "{reason}");
        exchange(&flows, &mut number);
    }
    set_limit(libc::RLIMIT_AS, u64::MAX);
    assert_eq!(outcome(&flows[0], RING), None);
    exchange(&flows, &mut number);
}

/// Closes a flow with unread input while there is no descriptor for keeping its connection.
fn close_without_descriptors(first: Kind) {
    const MESSAGES: u64 = 200;
    let [leader, follower] = open(crate::flow_rig::parts(first).map(|(parts, _)| parts));
    send(&follower, 7);
    follower.flush().unwrap();
    let begin = Instant::now();
    for number in 0..MESSAGES {
        let mut buffer = leader.write_timeout(16 << 10, CHILD_TIME_LIMIT).unwrap();
        buffer[..8].copy_from_slice(&number.to_le_bytes());
        buffer.commit().unwrap();
    }
    while !leader.flush().unwrap() {
        assert!(begin.elapsed() < CHILD_TIME_LIMIT, "the kernel takes what was committed");
    }
    let unused = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    set_limit(libc::RLIMIT_NOFILE, unused as u64);
    let undelivered = match leader.close(Duration::from_millis(100)) {
        Ok(()) => 0,
        Err(Error::Undelivered { messages, .. }) => messages,
        Err(error) => panic!("{error}"),
    };
    set_limit(libc::RLIMIT_NOFILE, u64::MAX);
    let mut received = 0;
    while let Ok(Some(_)) = follower.read_timeout(CHILD_TIME_LIMIT) {
        received += 1;
    }
    assert!(received + undelivered >= MESSAGES, "{first}: {received}, {undelivered} are told");
}

/// Sends until there is no room; returns how many messages that were.
fn fill(flow: &Flow) -> u64 {
    for number in 0_u64.. {
        match flow.write_timeout(8, Duration::from_millis(50)) {
            Ok(mut buffer) => {
                buffer.copy_from_slice(&number.to_le_bytes());
                buffer.commit().unwrap();
            }
            Err(Error::TimedOut) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

/// Returns whether a flow did not open because the other process had no CPU time for it.
fn is_late(error: &Error) -> bool {
    let late = |reason: &String| reason.contains("in time");
    matches!(error, Error::TimedOut) || matches!(error, Error::Refused { reason } if late(reason))
}

fn stop_a_peer(first: Kind) {
    let [(leader, _), (follower, _)] = crate::flow_rig::parts(first);
    let mut parts = [Some(leader), Some(follower)];
    let mut child = fork(|| {
        parts[0] = None;
        let flow = Flow::open(parts[1].take().unwrap()).unwrap();
        send(&flow, 7);
        let mut next = 0;
        while let Some(buffer) = flow.read_timeout(CHILD_TIME_LIMIT).unwrap() {
            assert_eq!(*buffer, u64::to_le_bytes(next));
            next += 1;
        }
        send(&flow, next);
    });
    parts[1] = None;
    let mut leader = parts[0].take().unwrap();
    // Two offers must time out, and the first path has the same time-out.
    leader.timeouts.offer = Duration::from_secs(3);
    let flow = match Flow::open(leader) {
        Ok(flow) => flow,
        Err(error) if is_late(&error) => {
            drop(child);
            // SAFETY: ends the child without running destructors that belong to the parent.
            unsafe { libc::_exit(TOO_SLOW) }
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(receive(&flow), 7);
    child.signal(libc::SIGSTOP);
    let sent = fill(&flow);
    assert!(sent > 100);
    for kind in [Kind::Tcp, Kind::MempipeFutex(Form::Unsafe)] {
        let reason = outcome(&flow, kind).expect("nobody is there to agree");
        assert!(reason.contains("in time"), "{reason}");
    }
    assert!(matches!(flow.try_write(8), Err(Error::WouldBlock)));
    child.signal(libc::SIGCONT);
    // Everything works as before as soon as the peer answers in time again.
    let begin = Instant::now();
    while let Some(reason) = outcome(&flow, Kind::TcpNodelay) {
        assert!(reason.contains("in time"), "{reason}");
        assert!(begin.elapsed() < CHILD_TIME_LIMIT, "{reason}");
    }
    send(&flow, sent);
    flow.finish().unwrap();
    assert_eq!(receive(&flow), sent + 1);
    assert_eq!(child.wait(TIME_LIMIT), Some(0));
}

// Each test runs in a child: limits apply to a process, and the parent of a fork must have no agent
// thread.

#[test]
fn a_flow_goes_on_when_a_move_finds_no_descriptors() {
    let _alone = crate::child::alone();
    assert_eq!(fork(run_without_descriptors).wait(TIME_LIMIT), Some(0));
}

#[test]
fn a_close_that_finds_no_descriptors_tells_what_is_lost() {
    let _alone = crate::child::alone();
    for kind in [Kind::Tcp, Kind::Tls, Kind::Mptcp] {
        if crate::flow_rig::kinds().contains(&kind) {
            assert_eq!(
                fork(|| close_without_descriptors(kind)).wait(TIME_LIMIT),
                Some(0),
                "{kind}"
            );
        }
    }
}

#[test]
fn a_flow_goes_on_when_a_move_finds_no_memory() {
    let _alone = crate::child::alone();
    assert_eq!(fork(run_without_memory).wait(TIME_LIMIT), Some(0));
}

#[test]
fn a_flow_goes_on_when_a_peer_stands_still() {
    let _alone = crate::child::alone();
    for kind in [RING, Kind::Unix] {
        let mut attempts = (0..ATTEMPTS).map(|_| fork(|| stop_a_peer(kind)).wait(TIME_LIMIT));
        let status = attempts.find(|status| *status != Some(TOO_SLOW << 8));
        assert_eq!(status, Some(Some(0)), "{kind}");
    }
}
