use super::{Doorbell, EventDescriptor, Sleep, ring};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread;

fn readable(event: &EventDescriptor) -> bool {
    let mut entry =
        libc::pollfd { fd: event.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one valid entry.
    unsafe { libc::poll(&mut entry, 1, 0) == 1 }
}

#[test]
fn a_full_ring_takes_no_more_until_slots_are_given_back() {
    let (mut producer, mut consumer) = ring::<u32>(4);
    for value in 0..4 {
        assert!(producer.write(|slot| *slot = value));
    }
    assert!(!producer.write(|slot| *slot = 9));
    assert!(consumer.is_empty(), "nothing is published yet");
    assert!(producer.publish());
    assert!(!producer.publish(), "nothing new");
    assert_eq!(consumer.read(|slot| *slot), Some(0));
    assert!(!producer.write(|slot| *slot = 9), "read, but not given back");
    assert!(consumer.release());
    assert!(producer.write(|slot| *slot = 4));
    producer.publish();
    for value in 1..5 {
        assert_eq!(consumer.read(|slot| *slot), Some(value));
    }
    assert_eq!(consumer.read(|slot| *slot), None);
}

#[test]
fn slots_keep_their_memory() {
    let (mut producer, mut consumer) = ring::<Vec<u8>>(2);
    let mut addresses = std::collections::HashSet::new();
    for round in 0..100u8 {
        assert!(producer.write(|slot| {
            slot.clear();
            slot.extend_from_slice(&[round; 64]);
        }));
        producer.publish();
        let seen = consumer.read(|slot| (slot[63], slot.as_ptr() as usize)).expect("a message");
        consumer.release();
        assert_eq!(seen.0, round);
        addresses.insert(seen.1);
    }
    assert_eq!(addresses.len(), 2, "two slots, two allocations");
}

#[test]
fn each_released_slot_that_was_not_written_again_is_reclaimed_once() {
    let (mut producer, mut consumer) = ring::<u32>(4);
    let mut reclaimed = Vec::new();
    let mut exchange = |values: std::ops::Range<u32>, taken: usize, reclaims: bool| {
        for value in values {
            assert!(producer.write(|slot| *slot = value));
        }
        producer.publish();
        for _ in 0..taken {
            consumer.read(|_| ()).expect("a message");
        }
        consumer.release();
        if reclaims {
            producer.reclaim(|slot| reclaimed.push(*slot));
        }
    };
    exchange(0..3, 2, true);
    exchange(3..5, 3, true);
    exchange(5..8, 3, false);
    exchange(8..11, 1, true);
    exchange(11..11, 0, true);
    assert_eq!(reclaimed, [0, 1, 2, 3, 4, 7, 8]);
}

#[test]
fn two_threads_exchange_a_million_messages_asleep_and_awake() {
    const MESSAGES: u64 = 1_000_000;
    let (mut producer, mut consumer) = ring::<u64>(64);
    let doorbell = Arc::new(Doorbell::new(EventDescriptor::new().expect("an eventfd")));
    let bell = Arc::clone(&doorbell);
    let writer = thread::spawn(move || {
        let mut next = 0;
        while next < MESSAGES {
            while next < MESSAGES && producer.write(|slot| *slot = next) {
                next += 1;
            }
            if producer.publish() {
                bell.ring();
            } else {
                thread::yield_now();
            }
        }
    });
    let mut expected = 0;
    while expected < MESSAGES {
        while let Some(value) = consumer.read(|slot| *slot) {
            assert_eq!(value, expected);
            expected += 1;
        }
        consumer.release();
        doorbell.lie_down(Sleep::Long);
        if expected < MESSAGES && consumer.is_empty() {
            let descriptor = doorbell.signal().as_fd().as_raw_fd();
            let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
            // SAFETY: the pointer is to one valid entry; the time limit only ends a hanging test.
            let woken = unsafe { libc::poll(&mut entry, 1, 20_000) };
            assert_eq!(woken, 1, "no wake-up beside a message");
            doorbell.signal().clear();
        }
        doorbell.get_up();
    }
    writer.join().expect("the writer");
}

#[test]
fn a_ring_nobody_sleeps_beside_costs_no_system_call() {
    let doorbell = Doorbell::new(EventDescriptor::new().expect("an eventfd"));
    doorbell.ring();
    assert!(!readable(doorbell.signal()));
    doorbell.lie_down(Sleep::Long);
    doorbell.ring();
    assert!(readable(doorbell.signal()));
    doorbell.signal().clear();
    doorbell.ring();
    assert!(!readable(doorbell.signal()), "it was woken already");
}

#[test]
fn a_short_sleep_goes_on_beside_a_message_that_can_wait() {
    let doorbell = Doorbell::new(EventDescriptor::new().expect("an eventfd"));
    doorbell.lie_down(Sleep::Short);
    doorbell.ring_lazily();
    assert!(!readable(doorbell.signal()));
    doorbell.ring();
    assert!(readable(doorbell.signal()), "what cannot wait ends it");
    doorbell.signal().clear();
    doorbell.lie_down(Sleep::Long);
    doorbell.ring_lazily();
    assert!(readable(doorbell.signal()), "a long sleep is ended by each message");
}
