//! Tests of buffers that the application holds: across moves, and while its peer waits for room.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fable::{Error, Flow, Form, Kind, WriteBuffer};

use super::{RING, TIME_LIMIT, fill_up, is_readable, kinds, move_both, open, parts, receive, send};

fn buffer(flow: &Flow, text: &str) -> WriteBuffer {
    let mut buffer = flow.write_timeout(text.len(), TIME_LIMIT).unwrap();
    buffer.copy_from_slice(text.as_bytes());
    buffer
}

#[test]
fn a_message_acquired_last_does_not_overtake_one_that_waits_to_be_copied() {
    for kind in kinds().into_iter().filter(|kind| *kind != RING) {
        let (leader, follower) = open(RING);
        let first = buffer(&leader, "first");
        move_both(&leader, &follower, kind);
        let second = buffer(&leader, "second");
        first.commit().unwrap();
        let third = buffer(&leader, "third");
        second.commit().unwrap();
        third.commit().unwrap();
        let messages = [(); 3].map(|()| receive(&follower));
        assert_eq!(messages, ["first", "second", "third"], "{kind}");
    }
}

#[test]
fn buffers_held_over_several_moves_keep_their_order() {
    for kind in kinds().into_iter().filter(|kind| *kind != RING) {
        let (leader, follower) = open(RING);
        let mut held = VecDeque::new();
        let mut expected = Vec::new();
        for round in 0..12 {
            let text = format!("message {round}");
            held.push_back(buffer(&leader, &text));
            expected.push(text);
            if round % 3 == 0 {
                let target = if leader.transport() == RING { kind } else { RING };
                move_both(&leader, &follower, target);
            }
            // There are always between one and three held buffers.
            if held.len() == 3 {
                for _ in 0..2 {
                    held.pop_front().unwrap().commit().unwrap();
                }
            }
        }
        // A buffer in the middle is dropped unused.
        drop(buffer(&leader, "unwanted"));
        held.into_iter().for_each(|buffer| buffer.commit().unwrap());
        for text in expected {
            assert_eq!(receive(&follower), text, "{kind}");
        }
        assert!(matches!(follower.try_read(), Err(Error::WouldBlock)), "{kind}: nothing more");
    }
}

/// When no buffer needs a copy any more, messages are written in place again.
#[test]
fn copying_ends_although_a_buffer_is_always_held() {
    let (leader, follower) = open(Kind::Unix);
    let late = buffer(&leader, "late");
    move_both(&leader, &follower, RING);
    let mut held = VecDeque::from([buffer(&leader, "copy")]);
    late.commit().unwrap();
    for round in 0..100 {
        held.push_back(buffer(&leader, &format!("{round}")));
        held.pop_front().unwrap().commit().unwrap();
    }
    assert_eq!((receive(&follower), receive(&follower)), ("late".to_owned(), "copy".to_owned()));
    for round in 0..99 {
        assert_eq!(receive(&follower), format!("{round}"));
    }
    held.clear();
    send(&leader, "end");
    assert_eq!(receive(&follower), "end");
}

/// The most wake-ups during `IDLE` of a flow that has nothing to do.
const WAKEUPS_MAX: u64 = 64;
const IDLE: Duration = Duration::from_millis(300);

#[test]
fn a_flow_that_waits_with_buffers_of_two_epochs_sleeps() {
    for kind in [Kind::Unix, Kind::Tcp] {
        let (leader, follower) = open(RING);
        let old = buffer(&leader, "old");
        move_both(&leader, &follower, kind);
        let new = buffer(&leader, "new");
        let before = leader.statistics().sleeps;
        assert!(matches!(leader.read_timeout(IDLE), Err(Error::TimedOut)));
        let wakeups = leader.statistics().sleeps - before;
        assert!(wakeups <= WAKEUPS_MAX, "{kind}: {wakeups} wake-ups in {IDLE:?}");

        let (begin, mut looks) = (Instant::now(), 0);
        while begin.elapsed() < IDLE {
            assert!(matches!(leader.try_read(), Err(Error::WouldBlock)), "{kind}");
            is_readable(&leader, IDLE);
            looks += 1;
        }
        assert!(looks <= WAKEUPS_MAX, "{kind}: readable {looks} times in {IDLE:?}");
        old.commit().unwrap();
        new.commit().unwrap();
        assert_eq!((receive(&follower), receive(&follower)), ("old".into(), "new".into()));
    }
}

/// The reader holds so many messages in place that the longest message never has room, while the
/// messages that are written always get room.
#[test]
fn a_write_waits_for_the_room_that_it_needs_and_not_for_more() {
    const BYTES: usize = 60_000;
    const KEPT: usize = 14;
    const MESSAGES: usize = 2_000;
    for kind in kinds() {
        let [leader, follower] = parts(kind).map(|(parts, _)| parts);
        let reader = std::thread::spawn(move || {
            let flow = Flow::open(follower).unwrap();
            let mut kept = VecDeque::new();
            while let Some(message) = flow.read_timeout(TIME_LIMIT).unwrap() {
                assert_eq!(message.len(), BYTES);
                kept.push_back(message);
                if kept.len() > KEPT {
                    kept.pop_front();
                }
            }
        });
        let flow = Flow::open(leader).unwrap();
        for number in 0..MESSAGES {
            let begin = Instant::now();
            flow.write_timeout(BYTES, TIME_LIMIT / 2).unwrap().commit().unwrap();
            // A call that returns at its time-out found room of which it was not notified.
            assert!(
                begin.elapsed() < TIME_LIMIT / 2,
                "{kind}: message {number} had room long before"
            );
        }
        drop(flow);
        reader.join().unwrap();
    }
}

/// The same situation without a race, for a writer that waits by the flow's descriptor.
#[test]
fn a_full_ring_with_room_for_the_message_is_writable() {
    let (leader, follower) = open(Kind::MempipeFutex(Form::Unsafe));
    let sent = fill_up(&leader, 60_000);
    let mut kept = VecDeque::new();
    while let Ok(Some(message)) = follower.try_read() {
        kept.push_back(message);
    }
    assert_eq!(kept.len(), sent);
    is_readable(&leader, Duration::ZERO);
    assert!(matches!(leader.try_write(60_000), Err(Error::WouldBlock)));
    kept.pop_front();
    assert!(matches!(follower.try_read(), Err(Error::WouldBlock)), "it is told now");
    assert!(is_readable(&leader, TIME_LIMIT), "there is room");
    assert!(leader.try_write(60_000).is_ok());
}
