//! Checks every interleaving of threads that contend for a lock, with loom.

pub(super) mod owner;
pub(super) mod primitives;

use loom::sync::Arc;
use loom::thread;

use super::*;
use owner::{become_thread, die};
use primitives::{AtomicU64, UnsafeCell};

impl<T> Locked<T> {
    fn new(value: T) -> Self {
        Locked { lock: Lock(AtomicU64::new(0)), value: UnsafeCell::new(value) }
    }
}

/// A value that is whole only between two changes.
#[derive(Debug, Default)]
struct Pair {
    first: u32,
    second: u32,
}

impl Pair {
    fn add(&mut self) {
        self.first += 1;
        self.second += 1;
    }
}

/// Starts a thread with this number.
fn start(number: u64, work: impl FnOnce() + 'static) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        become_thread(number);
        work();
    })
}

// Each model has one waiting thread at a time that waits without bound: loom could run two of them
// in turn for ever, and never the thread that they wait for.

#[test]
fn loom_one_thread_at_a_time_has_the_value() {
    loom::model(|| {
        let shared = Arc::new(Locked::new(Pair::default()));
        become_thread(1);
        let theirs = Arc::clone(&shared);
        let other = start(2, move || theirs.take().expect("it does not hold it").add());
        shared.take().expect("it does not hold it").add();
        other.join().unwrap();
        let value = shared.take().expect("it does not hold it");
        assert_eq!((value.first, value.second), (2, 2));
    });
}

/// Takes the lock, changes half of the value, and dies.
fn die_with(shared: &Locked<Pair>, number: u64) {
    let mut value = shared.take().expect("it does not hold it");
    value.first += 1;
    core::mem::forget(value);
    die(number);
}

#[test]
fn loom_what_a_dying_thread_holds_is_taken_over() {
    loom::model(|| {
        let shared = Arc::new(Locked::new(Pair::default()));
        become_thread(1);
        let held = Arc::clone(&shared);
        let owner = start(2, move || die_with(&held, 2));
        let value = shared.take().expect("it does not hold it");
        assert_eq!(value.second, 0);
        drop(value);
        owner.join().unwrap();
        assert_eq!(shared.take().expect("it does not hold it").first, 1);
    });
}

#[test]
fn loom_one_thread_takes_over_what_a_dead_one_held() {
    loom::model(|| {
        let shared = Arc::new(Locked::new(Pair::default()));
        become_thread(1);
        die_with(&shared, 1);
        become_thread(2);
        let theirs = Arc::clone(&shared);
        let heir = start(3, move || theirs.take().expect("it does not hold it").second += 1);
        shared.take().expect("it does not hold it").second += 1;
        heir.join().unwrap();
        let value = shared.take().expect("it does not hold it");
        assert_eq!((value.first, value.second), (1, 2));
    });
}

#[test]
fn loom_a_bounded_wait_ends_beside_an_owner_that_lives() {
    loom::model(|| {
        let shared = Arc::new(Locked::new(Pair::default()));
        become_thread(1);
        let guard = shared.take().expect("it is free");
        let waiting = Arc::clone(&shared);
        let other = start(2, move || {
            assert_eq!(waiting.lock.take_within(2).unwrap_err(), NotTaken::Busy);
        });
        other.join().unwrap();
        assert_eq!(shared.lock.take_within(2).unwrap_err(), NotTaken::Interrupted);
        drop(guard);
        assert!(shared.lock.take_within(0).is_ok());
    });
}

#[test]
fn loom_a_bounded_wait_never_gives_a_value_that_another_changes() {
    loom::model(|| {
        let shared = Arc::new(Locked::new(Pair::default()));
        become_thread(1);
        let waiting = Arc::clone(&shared);
        let other = start(2, move || {
            if let Ok(guard) = waiting.lock.take_within(1) {
                // SAFETY: the lock is held.
                let value = waiting.value.with(|value| unsafe { &*value });
                assert_eq!(value.first, value.second);
                drop(guard);
            }
        });
        shared.take().expect("it does not hold it").add();
        other.join().unwrap();
    });
}
