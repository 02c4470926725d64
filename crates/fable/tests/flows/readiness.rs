//! Tests of the flow's descriptor beside calls that wait.

use std::time::{Duration, Instant};

use fable::{Error, FlowEvent};

use super::{RING, TIME_LIMIT, fill_up, is_readable, kinds, next_event, open, receive, send};

/// The longest time until a message is reported.
const TOLD: Duration = Duration::from_secs(5);

#[test]
fn one_read_that_may_wait_for_each_event_leaves_nothing_behind() {
    for kind in kinds() {
        let (leader, follower) = open(kind);
        is_readable(&leader, Duration::ZERO);
        assert!(matches!(leader.try_read(), Err(Error::WouldBlock)));
        (0..5).for_each(|number| send(&follower, &format!("{number}")));
        for number in 0..5 {
            assert!(is_readable(&leader, TOLD), "{kind}: `{number}` is there and not told of");
            assert_eq!(receive(&leader), format!("{number}"), "{kind}");
        }
    }
}

#[test]
fn reads_with_and_without_waiting_take_turns() {
    for kind in kinds() {
        let (leader, follower) = open(kind);
        for round in 0..20 {
            is_readable(&leader, Duration::ZERO);
            assert!(matches!(leader.try_read(), Err(Error::WouldBlock)), "{kind}");
            let burst = 1 + round % 7;
            (0..burst).for_each(|number| send(&follower, &format!("{number}")));
            for number in 0..burst {
                assert!(is_readable(&leader, TOLD), "{kind}: {number} of {burst} is not told of");
                let message = match (round + number) % 3 {
                    0 => leader.read(),
                    1 => leader.read_timeout(TOLD),
                    // Readiness may be reported too early.
                    _ => match leader.try_read() {
                        Err(Error::WouldBlock) => leader.read_timeout(TOLD),
                        outcome => outcome,
                    },
                };
                let message = message.unwrap().expect("a message");
                assert_eq!(&*message, format!("{number}").as_bytes(), "{kind}");
            }
        }
    }
}

#[test]
fn the_descriptor_tells_of_an_event_that_another_call_has_found() {
    let (leader, follower) = open(RING);
    is_readable(&leader, Duration::ZERO);
    assert!(matches!(leader.try_read(), Err(Error::WouldBlock)));
    leader.move_to(RING).unwrap();
    assert!(is_readable(&leader, TOLD), "the failure is there");
    // This read takes the move from the agent's mailbox, and finds no message.
    assert!(matches!(leader.try_read(), Err(Error::WouldBlock)));
    assert!(is_readable(&leader, TOLD), "an event is there to be taken");
    assert!(matches!(next_event(&leader), FlowEvent::MoveFailed { .. }));
    // An application that takes no events must not be woken for them again and again.
    assert!(matches!(leader.try_read(), Err(Error::WouldBlock)));
    assert!(!is_readable(&leader, Duration::ZERO), "the event was taken");
    leader.move_to(RING).unwrap();
    assert!(is_readable(&leader, TOLD));
    assert!(matches!(leader.try_read(), Err(Error::WouldBlock)));
    assert!(is_readable(&leader, TOLD), "told once more");
    assert!(matches!(leader.try_read(), Err(Error::WouldBlock)));
    assert!(!is_readable(&leader, Duration::ZERO), "and then it is silent");
    send(&follower, "one");
    assert!(is_readable(&leader, TOLD));
    assert_eq!(receive(&leader), "one");
}

#[test]
fn a_write_that_waits_and_gets_room_settles_what_an_earlier_one_wanted() {
    for kind in kinds() {
        let (leader, follower) = open(kind);
        is_readable(&leader, Duration::ZERO);
        let sent = fill_up(&leader, 100_000);
        let mut received = 0;
        let begin = Instant::now();
        while received < sent {
            assert!(begin.elapsed() < TIME_LIMIT, "{kind}: {received} of {sent}");
            leader.flush().unwrap();
            if follower.try_read().is_ok() {
                received += 1;
            }
        }
        assert!(matches!(follower.try_read(), Err(Error::WouldBlock)), "{kind}");
        drop(leader.write_timeout(100_000, TIME_LIMIT).unwrap());
        assert!(matches!(leader.try_read(), Err(Error::WouldBlock)), "{kind}");
        assert!(!is_readable(&leader, Duration::ZERO), "{kind}: nothing is wanted");
    }
}

#[test]
fn a_write_that_times_out_leaves_what_an_earlier_one_wanted() {
    for kind in kinds() {
        let (leader, follower) = open(kind);
        is_readable(&leader, Duration::ZERO);
        let sent = fill_up(&leader, 100_000);
        let late = leader.write_timeout(100_000, Duration::from_millis(1));
        assert!(matches!(late, Err(Error::TimedOut)), "{kind}");
        assert!(matches!(leader.try_read(), Err(Error::WouldBlock)), "{kind}");
        let (mut received, begin) = (0, Instant::now());
        while received < sent {
            assert!(begin.elapsed() < TIME_LIMIT, "{kind}: {received} of {sent}");
            // As an event loop does, which calls only when the descriptor is readable.
            if is_readable(&leader, Duration::ZERO) {
                let _ = leader.try_read();
            }
            if follower.try_read().is_ok() {
                received += 1;
            }
        }
        assert!(matches!(follower.try_read(), Err(Error::WouldBlock)), "{kind}");
        assert!(is_readable(&leader, TOLD), "{kind}: there is room, and the earlier call is told");
    }
}
