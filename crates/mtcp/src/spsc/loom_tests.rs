//! Checks every interleaving of small programs with loom.

use super::{Doorbell, Signal, Sleep, ring};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

#[test]
fn loom_messages_arrive_whole_and_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring::<Box<u32>>(2);
        let writer = thread::spawn(move || {
            let mut next = 1;
            while next <= 3 {
                if producer.write(|slot| *slot = Box::new(next)) {
                    next += 1;
                } else {
                    thread::yield_now();
                }
                producer.publish();
                producer.reclaim(|slot| **slot = 0);
            }
        });
        let mut expected = 1;
        while expected <= 3 {
            match consumer.read(|slot| **slot) {
                Some(value) => {
                    assert_eq!(value, expected);
                    expected += 1;
                }
                None => thread::yield_now(),
            }
            consumer.release();
        }
        writer.join().unwrap();
        assert!(consumer.is_empty());
    });
}

#[test]
fn loom_a_batch_is_seen_at_once() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring::<u32>(4);
        let writer = thread::spawn(move || {
            assert!(producer.write(|slot| *slot = 1));
            assert!(producer.write(|slot| *slot = 2));
            assert!(producer.publish());
        });
        if consumer.read(|slot| *slot) == Some(1) {
            assert_eq!(consumer.read(|slot| *slot), Some(2));
        }
        writer.join().unwrap();
    });
}

/// Stores whether it was woken.
struct Flag(AtomicBool);

impl Signal for Flag {
    fn wake(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn loom_nobody_sleeps_beside_a_message() {
    sleeps_beside_no_message(Doorbell::ring);
}

#[test]
fn loom_nobody_sleeps_long_beside_a_message_that_can_wait() {
    sleeps_beside_no_message(Doorbell::ring_lazily);
}

/// The owner first sleeps for a short time, checks, and then sleeps for a long time.
fn sleeps_beside_no_message(ring_it: fn(&Doorbell<Flag>)) {
    loom::model(move || {
        let (mut producer, mut consumer) = ring::<u32>(2);
        let doorbell = Arc::new(Doorbell::new(Flag(AtomicBool::new(false))));
        let bell = Arc::clone(&doorbell);
        let writer = thread::spawn(move || {
            assert!(producer.write(|slot| *slot = 7));
            producer.publish();
            ring_it(&bell);
        });
        doorbell.lie_down(Sleep::Short);
        doorbell.get_up();
        doorbell.lie_down(Sleep::Long);
        let asleep = consumer.is_empty();
        if !asleep {
            doorbell.get_up();
        }
        writer.join().unwrap();
        let woken = doorbell.signal().0.load(Ordering::SeqCst);
        assert!(!asleep || woken, "the owner sleeps and the message waits");
        assert_eq!(consumer.read(|slot| *slot), Some(7));
    });
}
