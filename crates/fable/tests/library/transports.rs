//! Conformance suite of the transports: every guarantee of the trait, on every kind that can be
//! made.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::common::{await_message, fill, is_filled, send, try_send};
use crate::missing::is_missing;
use crate::pairs::{Pair, below, pair, receive};
use crate::random::Random;
use fable::transport::{Direction, ReadSlot, Record, Transport, Wait, WaitMethod};
use fable::{Form, Kind, TransportError};
use testkit::skip;

/// The number of slots that a test uses of a path.
const SLOTS: usize = 8;

/// Runs `check` on every kind that this kernel supports; `every_kind_can_be_made` reports the
/// others.
fn on_every_path(check: impl Fn(Pair)) {
    for kind in Kind::ALL.into_iter().filter(|&kind| !is_missing(kind)) {
        eprintln!("{kind}");
        check(pair(kind));
    }
}

#[test]
fn every_kind_can_be_made() {
    for kind in Kind::ALL {
        if is_missing(kind) {
            skip("every_kind_can_be_made", &format!("this kernel is built without {kind}"));
            continue;
        }
        let (writer, reader) = pair(kind);
        assert_eq!((writer.kind(), reader.kind()), (kind, kind));
    }
}

#[test]
fn messages_of_every_size_arrive_as_they_are() {
    on_every_path(|(mut writer, mut reader)| {
        let max = writer.message_bytes_max();
        assert_eq!(max, reader.message_bytes_max());
        let sizes = [0, 1, 8, 56, 57, 4096, 16384, 65528, 65536, 65537, max - 1, max, 0, max, 3];
        for (number, bytes) in sizes.into_iter().filter(|&bytes| bytes <= max).enumerate() {
            assert!(try_send(&mut *writer, bytes, number as u64), "{bytes} bytes find room");
            let slot = receive(&mut *writer, &mut *reader);
            assert_eq!(slot.len(), bytes);
            assert!(is_filled(&slot, number as u64), "{bytes} bytes");
            reader.release(slot);
            assert!(reader.acquire_read().unwrap().is_none(), "there is one message");
        }
        let error = writer.acquire_write(max + 1).unwrap_err();
        assert!(matches!(error, TransportError::TooLong { .. }), "{error}");
    });
}

#[test]
fn a_slot_may_be_committed_in_part_and_with_any_record() {
    on_every_path(|(mut writer, mut reader)| {
        for round in 0..500_u64 {
            let record = [Record::Data, Record::EndOfEpoch, Record::EndOfFlow][round as usize % 3];
            let mut slot = writer.acquire_write(48).unwrap().expect("there is room");
            let used = round as usize % 49;
            fill(&mut slot[..used], round);
            writer.commit(slot, used, record).unwrap();
            let slot = receive(&mut *writer, &mut *reader);
            assert!(slot.len() == used && is_filled(&slot, round) && slot.record() == record);
            reader.release(slot);
        }
    });
}

#[test]
fn order_is_kept_and_slots_return_in_any_order() {
    on_every_path(|(mut writer, mut reader)| {
        let (mut random, seed) = (Random(7), 7);
        let bytes_max = writer.message_bytes_max().min(5000);
        let (mut sent, mut received) = (VecDeque::new(), 0_u64);
        let mut held: Vec<(u64, ReadSlot)> = Vec::new();
        let mut number = 0;
        while received < 3000 {
            let bytes = below(&mut random, bytes_max + 1);
            if sent.len() < 50 && number < 3000 && try_send(&mut *writer, bytes, number) {
                sent.push_back(bytes);
                number += 1;
                continue;
            }
            while held.len() >= SLOTS {
                let (number, slot) = held.swap_remove(below(&mut random, SLOTS));
                assert!(is_filled(&slot, number), "seed {seed}: {number} changed while held");
                reader.release(slot);
            }
            if let Some(bytes) = sent.pop_front() {
                let slot = receive(&mut *writer, &mut *reader);
                assert!(slot.len() == bytes && is_filled(&slot, received), "message {received}");
                held.push((received, slot));
                received += 1;
            }
        }
    });
}

#[test]
fn slots_that_are_abandoned_never_arrive() {
    on_every_path(|(mut writer, mut reader)| {
        for round in 0..2000_u64 {
            let mut acquired: Vec<_> =
                (0..SLOTS).map(|_| writer.acquire_write(40).unwrap().expect("room")).collect();
            let kept = acquired.remove(round as usize % SLOTS);
            let late = (round % 2 == 0).then(|| acquired.pop()).flatten();
            acquired.into_iter().for_each(|slot| writer.abandon(slot));
            let mut kept = kept;
            fill(&mut kept, round);
            if let Some(late) = late {
                writer.abandon(late);
            }
            writer.commit(kept, 40, Record::Data).unwrap();
            let slot = receive(&mut *writer, &mut *reader);
            assert!(is_filled(&slot, round), "round {round}");
            reader.release(slot);
            assert!(reader.acquire_read().unwrap().is_none());
        }
    });
}

#[test]
fn a_full_path_has_no_room_until_the_reader_has_read() {
    on_every_path(|(mut writer, mut reader)| {
        let bytes = writer.message_bytes_max().min(8000);
        let (mut sent, mut received) = (0_u64, 0);
        for _ in 0..3 {
            // The kernel moves sent bytes to the reader's queue at its own pace, which makes room
            // again: a path is full if it has no room and reports none.
            let begin = Instant::now();
            loop {
                if try_send(&mut *writer, bytes, sent) {
                    sent += 1;
                    assert!(sent < 1 << 20, "{}: memory without bound", writer.kind());
                } else if !writer.wait(Direction::Write, Some(Duration::ZERO)).unwrap() {
                    break;
                }
                assert!(
                    begin.elapsed() < crate::common::TIME_LIMIT,
                    "{}: never full",
                    writer.kind()
                );
            }
            assert!(sent > received);
            while received < sent {
                let slot = receive(&mut *writer, &mut *reader);
                assert!(slot.len() == bytes && is_filled(&slot, received));
                reader.release(slot);
                received += 1;
            }
            assert!(reader.acquire_read().unwrap().is_none(), "what was sent has been read");
            assert!(writer.wait(Direction::Write, Some(crate::common::TIME_LIMIT)).unwrap());
        }
    });
}

#[test]
fn a_batch_is_seen_when_it_is_full_or_flushed() {
    on_every_path(|(mut writer, mut reader)| {
        writer.set_batch(4);
        let mut number = 0;
        for round in 0..400 {
            let commits = 1 + round % 4;
            for _ in 0..commits {
                assert!(reader.acquire_read().unwrap().is_none(), "seen too early");
                assert!(try_send(&mut *writer, 100, number));
                number += 1;
            }
            if commits < 4 {
                assert!(reader.acquire_read().unwrap().is_none(), "seen too early");
                writer.flush().unwrap();
            }
            for expected in number - commits..number {
                let slot = await_message(&mut *reader);
                assert!(is_filled(&slot, expected));
                reader.release(slot);
            }
        }
    });
}

#[test]
fn too_many_slots_are_refused_and_none_is_lost() {
    on_every_path(|(mut writer, mut reader)| {
        let mut slots = Vec::new();
        let error = loop {
            match writer.acquire_write(0) {
                Ok(Some(slot)) => slots.push(slot),
                Ok(None) => panic!("{}: no room for nothing", writer.kind()),
                Err(error) => break error,
            }
            assert!(slots.len() <= fable::transport::SLOTS_MAX);
        };
        assert!(matches!(error, TransportError::TooManySlots { .. }), "{error}");
        let count = slots.len();
        slots.into_iter().for_each(|slot| writer.commit(slot, 0, Record::Data).unwrap());
        let held: Vec<_> = (0..count).map(|_| receive(&mut *writer, &mut *reader)).collect();
        assert!(held.iter().all(|slot| slot.is_empty() && slot.record() == Record::Data));
        assert!(try_send(&mut *writer, 8, 5) || count == 1);
        if count > 1 {
            writer.flush().unwrap();
            let begin = Instant::now();
            let error = loop {
                match reader.acquire_read() {
                    Ok(None) => assert!(begin.elapsed() < crate::common::TIME_LIMIT),
                    Ok(Some(_)) => panic!("{}: a slot too many", reader.kind()),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, TransportError::TooManySlots { .. }), "{error}");
        }
        held.into_iter().for_each(|slot| reader.release(slot));
        if count > 1 {
            let slot = receive(&mut *writer, &mut *reader);
            assert!(is_filled(&slot, 5));
        }
    });
}

#[test]
fn slots_of_another_path_are_refused() {
    on_every_path(|(mut one, mut other)| {
        let slot = one.acquire_write(8).unwrap().unwrap();
        assert!(matches!(other.commit(slot, 8, Record::Data), Err(TransportError::Foreign)));
        let (mut third, mut fourth) = pair(one.kind());
        assert!(try_send(&mut *third, 8, 1));
        let slot = receive(&mut *third, &mut *fourth);
        other.release(slot);
        let slot = third.acquire_write(8).unwrap();
        slot.into_iter().for_each(|slot| other.abandon(slot));
        assert!(try_send(&mut *other, 8, 2), "the path itself still works");
        let slot = receive(&mut *other, &mut *one);
        assert!(is_filled(&slot, 2));
    });
}

#[test]
fn slots_outlive_their_transport() {
    on_every_path(|(mut writer, mut reader)| {
        assert!(try_send(&mut *writer, 50, 9));
        let read = receive(&mut *writer, &mut *reader);
        let mut written = writer.acquire_write(50).unwrap();
        drop(writer);
        drop(reader);
        assert!(is_filled(&read, 9));
        if let Some(written) = &mut written {
            fill(written, 10);
            assert!(is_filled(written, 10));
        }
    });
}

#[test]
fn what_was_committed_is_read_before_the_end() {
    on_every_path(|(mut writer, mut reader)| {
        let count = SLOTS as u64;
        (0..count).for_each(|number| assert!(try_send(&mut *writer, 30, number)));
        let shares_memory_only = matches!(writer.kind(), Kind::MempipeFutex(_));
        drop(writer);
        for number in 0..count {
            let slot = await_message(&mut *reader);
            assert!(is_filled(&slot, number));
            reader.release(slot);
        }
        if shares_memory_only {
            assert!(reader.acquire_read().unwrap().is_none(), "a ring cannot know");
            return;
        }
        assert!(reader.wait(Direction::Read, Some(crate::common::TIME_LIMIT)).unwrap());
        let error = reader.acquire_read().unwrap_err();
        assert!(matches!(error, TransportError::Closed), "{error}");
        // TCP learns from an answer of the peer's kernel that the peer is gone.
        let begin = Instant::now();
        let refused = loop {
            assert!(
                begin.elapsed() < crate::common::TIME_LIMIT,
                "{}: sends for nobody",
                reader.kind()
            );
            match reader.acquire_write(8) {
                Ok(Some(slot)) => match reader.commit(slot, 8, Record::Data) {
                    Ok(()) => std::thread::sleep(Duration::from_micros(100)),
                    Err(error) => break error,
                },
                Ok(None) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, TransportError::Closed), "{}: {refused:?}", reader.kind());
    });
}

#[test]
fn a_descriptor_says_when_to_go_on() {
    on_every_path(|(mut writer, mut reader)| {
        for round in 0..50 {
            let wait = reader.prepare_wait(Direction::Read, WaitMethod::Descriptor).unwrap();
            match wait {
                Wait::Descriptor { descriptor, events } => {
                    assert!(!is_ready(descriptor, events, 0), "nothing was sent");
                    assert!(try_send(&mut *writer, 20, round));
                    assert!(is_ready(descriptor, events, 60_000), "something was sent");
                }
                other => panic!("{}: {other:?} is no descriptor", reader.kind()),
            }
            reader.end_wait(Direction::Read);
            let slot = receive(&mut *writer, &mut *reader);
            assert!(is_filled(&slot, round));
            reader.release(slot);
        }
    });
}

fn is_ready(descriptor: i32, events: i16, timeout_ms: i32) -> bool {
    let mut entry = libc::pollfd { fd: descriptor, events, revents: 0 };
    // SAFETY: one entry, which outlives the call.
    unsafe { libc::poll(&raw mut entry, 1, timeout_ms) == 1 }
}

/// Both ends sleep after each message: a missing wake-up hangs the test.
#[test]
fn who_waits_is_woken() {
    on_every_path(|(mut one, mut other)| {
        const ROUNDS: u64 = 2000;
        let echo = std::thread::spawn(move || {
            for round in 0..ROUNDS {
                let slot = await_message(&mut *other);
                assert!(is_filled(&slot, round));
                other.release(slot);
                send(&mut *other, 24, round + 1);
            }
        });
        for round in 0..ROUNDS {
            send(&mut *one, 16, round);
            let slot = await_message(&mut *one);
            assert!(slot.len() == 24 && is_filled(&slot, round + 1));
            one.release(slot);
        }
        echo.join().unwrap();
    });
}

#[test]
fn both_directions_carry_random_messages_at_once() {
    on_every_path(|(mut one, mut other)| {
        let seed = u64::from(std::process::id());
        eprintln!("seed {seed}");
        let thread = std::thread::spawn(move || {
            converse(&mut *other, seed, seed + 1);
            other
        });
        converse(&mut *one, seed + 1, seed);
        thread.join().unwrap();
    });
}

/// Sends the messages of one seed and receives those of the other, in the order in which they are
/// possible.
fn converse(end: &mut dyn Transport, own_seed: u64, peer_seed: u64) {
    const MESSAGES: u64 = 1500;
    let bytes_max = end.message_bytes_max().min(70_000);
    let (mut own, mut peer) = (Random(own_seed), Random(peer_seed));
    let size = |random: &mut Random| below(random, bytes_max + 1) >> below(random, 16);
    let (mut sent, mut received) = (0, 0);
    let mut next = size(&mut own);
    let mut held: Vec<(u64, ReadSlot)> = Vec::new();
    let mut last = Instant::now();
    while sent < MESSAGES || received < MESSAGES {
        assert!(
            last.elapsed() < crate::common::TIME_LIMIT,
            "seeds {own_seed}, {peer_seed}: no progress"
        );
        let mut did_something = false;
        if sent < MESSAGES && try_send(end, next, sent ^ own_seed) {
            sent += 1;
            next = size(&mut own);
            did_something = true;
        }
        end.flush().unwrap();
        if held.len() == SLOTS || received == MESSAGES {
            held.drain(..).for_each(|(number, slot)| {
                assert!(is_filled(&slot, number), "changed while held");
                end.release(slot);
            });
        }
        if received < MESSAGES
            && let Some(slot) = end.acquire_read().unwrap()
        {
            assert_eq!(slot.len(), size(&mut peer), "seeds {own_seed}, {peer_seed}");
            assert!(is_filled(&slot, received ^ peer_seed));
            held.push((received ^ peer_seed, slot));
            received += 1;
            did_something = true;
        }
        if did_something {
            last = Instant::now();
        } else {
            held.drain(..).for_each(|(_, slot)| end.release(slot));
            end.wait(Direction::Read, Some(Duration::from_millis(1))).unwrap();
        }
    }
    held.drain(..).for_each(|(_, slot)| end.release(slot));
    while !end.flush().unwrap() {
        end.wait(Direction::Write, Some(crate::common::TIME_LIMIT)).unwrap();
    }
}

/// Races the announcement of a sleep against the commit that should end it: both ends sleep as soon
/// as they find nothing, without a second check, hundreds of times.
#[test]
fn who_sleeps_at_once_is_woken() {
    const ROUNDS: u64 = 300;
    for method in [WaitMethod::Futex, WaitMethod::Descriptor] {
        on_every_path(|(mut one, mut other)| {
            let echo = std::thread::spawn(move || {
                for round in 0..ROUNDS {
                    let slot = sleep_for_message(&mut *other, method);
                    assert!(is_filled(&slot, round));
                    other.release(slot);
                    send(&mut *other, 8, round);
                }
                other
            });
            for round in 0..ROUNDS {
                send(&mut *one, 8, round);
                let slot = sleep_for_message(&mut *one, method);
                assert!(is_filled(&slot, round));
                one.release(slot);
            }
            echo.join().unwrap();
        });
    }
}

fn sleep_for_message(end: &mut dyn Transport, method: WaitMethod) -> ReadSlot {
    loop {
        if let Some(slot) = end.acquire_read().unwrap() {
            return slot;
        }
        match end.prepare_wait(Direction::Read, method).unwrap() {
            Wait::Ready => std::thread::yield_now(),
            Wait::Descriptor { descriptor, events } => {
                assert!(is_ready(descriptor, events, 30_000), "{}: nobody woke it", end.kind());
            }
            Wait::Futex { word, expected } => {
                let timeout = libc::timespec { tv_sec: 30, tv_nsec: 0 };
                // SAFETY: the word lives as long as the transport, the time as long as the call.
                let result = unsafe {
                    libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, expected, &timeout)
                };
                let error = std::io::Error::last_os_error().raw_os_error();
                let is_late = result < 0 && error == Some(libc::ETIMEDOUT);
                assert!(!is_late, "{}: nobody woke it", end.kind());
            }
        }
        end.end_wait(Direction::Read);
    }
}

/// The longest message of the largest ring, whose extent a header must be able to say. Nothing is
/// written to it, so most of the memory is never there.
#[test]
fn the_longest_message_of_the_largest_ring_arrives() {
    use fable::transport::{self, PathOptions};
    for kind in Kind::ALL.into_iter().filter(|kind| kind.form() == Some(Form::Unsafe)) {
        let (mut writer, offer) =
            transport::create(kind, PathOptions { ring_bytes: 1 << 30, ..PathOptions::default() })
                .unwrap();
        let mut reader = transport::open(offer).unwrap();
        let max = writer.message_bytes_max();
        assert!(max > 100 << 20, "{kind}: {max}");
        let error = writer.acquire_write(max + 1).unwrap_err();
        assert!(matches!(error, TransportError::TooLong { .. }), "{kind}: {error}");
        for bytes in [max, 1] {
            let slot = writer.acquire_write(bytes).unwrap().unwrap();
            writer.commit(slot, bytes, Record::Data).unwrap();
            writer.flush().unwrap();
            let slot = reader.acquire_read().unwrap().expect("a message");
            assert_eq!((slot.len(), slot.record()), (bytes, Record::Data), "{kind}");
            reader.release(slot);
        }
    }
}
