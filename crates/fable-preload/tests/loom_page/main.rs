//! Checks every interleaving of both ends of a connection on their shared page, with loom.
//!
//! The library interposes the C library, so it cannot be linked with a test. This program contains
//! the file with all accesses to the page; what `Connection` does with it is repeated here in its
//! order. `cargo xtask loom` runs it.

#![cfg(loom)]
// Parts of the page that no model uses.
#![allow(dead_code)]

mod model;
#[path = "../../src/page/words.rs"]
mod words;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use words::{Filled, Leaving, Mine, Side, Standing, Theirs};

const RING_BYTES: u64 = 2;
/// How often a running thread is interrupted at most, in the longest model.
const PREEMPTIONS_MAX: usize = 3;

/// The sides of the page: data go from the first to the second.
const WRITER: usize = 0;
const READER: usize = 1;

/// A page with the ring from the first side to the second, whose every byte is one cell.
#[derive(Default)]
struct Page {
    standing: Standing,
    sides: [Side; 2],
    ring: [UnsafeCell<u64>; RING_BYTES as usize],
    /// Doorbells that were sent. A socket orders them, as these read-modify-writes do.
    doorbells: AtomicU64,
}

// SAFETY: loom checks each access to the cells.
unsafe impl Sync for Page {}
// SAFETY: as above.
unsafe impl Send for Page {}

impl Page {
    fn new() -> Arc<Page> {
        Arc::new(Page::default())
    }

    fn mine(&self, side: usize) -> Mine<'_> {
        Mine(&self.sides[side])
    }

    fn theirs(&self, side: usize) -> Theirs<'_> {
        Theirs(&self.sides[1 - side])
    }

    fn cell(&self, position: u64) -> &UnsafeCell<u64> {
        &self.ring[(position % RING_BYTES) as usize]
    }

    /// Returns how many doorbells were sent.
    fn sent_doorbells(&self) -> u64 {
        self.doorbells.fetch_add(0, Ordering::AcqRel)
    }

    /// Writes the byte of a position, and wakes the reader if it asked. Returns whether there was
    /// room.
    fn write(&self, position: u64) -> bool {
        let untaken = self.theirs(WRITER).untaken(position, RING_BYTES).expect("an honest peer");
        if untaken == RING_BYTES {
            return false;
        }
        // SAFETY: loom checks that no other thread accesses the cell.
        self.cell(position).with_mut(|byte| unsafe { *byte = position + 100 });
        self.mine(WRITER).set_written(position + 1);
        let asked = self.theirs(WRITER).sleeping();
        if asked.check() && asked.take() {
            self.ring();
        }
        true
    }

    fn ring(&self) {
        self.doorbells.fetch_add(1, Ordering::AcqRel);
    }

    fn filled(&self, read: u64) -> u64 {
        match self.theirs(READER).filled(read, RING_BYTES) {
            Filled::Bytes(bytes) => bytes,
            Filled::Impossible => panic!("an honest peer"),
        }
    }

    /// Checks the byte of a position that the reader may read.
    fn check(&self, position: u64) {
        // SAFETY: loom checks that no other thread writes to the cell.
        let byte = self.cell(position).with(|byte| unsafe { *byte });
        assert_eq!(byte, position + 100);
    }

    /// Takes so many bytes from a position. Returns the position behind them, which is the same if
    /// the writer takes them back.
    fn take(&self, read: u64, bytes: u64) -> u64 {
        let mine = self.mine(READER);
        mine.begin_taking();
        if self.theirs(READER).is_recalling() {
            mine.end_taking();
            return read;
        }
        for position in read..read + bytes {
            self.check(position);
        }
        mine.set_read(read + bytes);
        mine.end_taking();
        read + bytes
    }
}

#[test]
fn loom_bytes_arrive_whole_and_in_order() {
    let mut model = loom::model::Builder::new();
    // Without a bound the model takes ten times as long.
    model.preemption_bound = Some(PREEMPTIONS_MAX);
    model.check(|| {
        let page = Page::new();
        let writers = Arc::clone(&page);
        let writer = thread::spawn(move || {
            for position in 0..3 {
                while !writers.write(position) {
                    thread::yield_now();
                }
            }
        });
        let mut read = 0;
        while read < 3 {
            match page.filled(read) {
                0 => thread::yield_now(),
                bytes => read = page.take(read, bytes),
            }
        }
        writer.join().unwrap();
        assert_eq!(page.filled(read), 0);
    });
}

/// Without the announcement that it takes bytes, whose order could hide that of the others.
#[test]
fn loom_a_byte_is_whole_when_it_is_counted() {
    loom::model(|| {
        let page = Page::new();
        let writers = Arc::clone(&page);
        let writer = thread::spawn(move || assert!(writers.write(0)));
        if page.filled(0) > 0 {
            page.check(0);
        }
        writer.join().unwrap();
    });
}

#[test]
fn loom_no_reader_sleeps_beside_a_byte() {
    loom::model(|| {
        let page = Page::new();
        let writers = Arc::clone(&page);
        let writer = thread::spawn(move || assert!(writers.write(0)));
        page.mine(READER).sleeping().make();
        let asleep = page.filled(0) == 0;
        writer.join().unwrap();
        assert!(!asleep || page.sent_doorbells() == 1, "the reader sleeps beside a byte");
        assert_eq!(page.take(0, page.filled(0)), 1);
    });
}

#[test]
fn loom_no_writer_sleeps_beside_room() {
    loom::model(|| {
        let page = Page::new();
        assert!(page.write(0) && page.write(1) && !page.write(2));
        let readers = Arc::clone(&page);
        let reader = thread::spawn(move || {
            assert_eq!(readers.take(0, readers.filled(0)), 2);
            let starved = readers.theirs(READER).starved();
            if starved.check() && starved.take() {
                readers.ring();
            }
        });
        page.mine(WRITER).starved().make();
        let asleep = page.theirs(WRITER).untaken(2, RING_BYTES) == Some(RING_BYTES);
        reader.join().unwrap();
        assert!(!asleep || page.sent_doorbells() == 1, "the writer sleeps beside room");
        assert!(page.write(2));
    });
}

#[test]
fn loom_each_doorbell_answers_one_request() {
    loom::model(|| {
        let page = Page::new();
        let writers = Arc::clone(&page);
        let writer = thread::spawn(move || assert!(writers.write(0)));
        let asked = page.mine(READER).sleeping();
        assert!(asked.make());
        // Withdraws the request: a doorbell is on its way, or none will come.
        let withdrawn = asked.take();
        writer.join().unwrap();
        assert_eq!(page.sent_doorbells(), u64::from(!withdrawn));
    });
}

/// A leaving end that sees nothing unread does not warn its peer, which then has to see by itself
/// that it must send its last byte through TCP.
#[test]
fn loom_no_byte_stays_in_the_ring_of_an_end_that_leaves() {
    for how in [Leaving::Leaves, Leaving::Closed] {
        loom::model(move || {
            let page = Page::new();
            let writers = Arc::clone(&page);
            let writer = thread::spawn(move || {
                assert!(writers.write(0));
                writers.theirs(WRITER).leaving() == how
            });
            page.mine(READER).set_leaving(how);
            let is_warned = page.filled(0) > 0;
            let has_seen = writer.join().unwrap();
            assert!(is_warned || has_seen, "{how:?}");
        });
    }
}

/// A writer takes back what its reader has not taken: each byte goes one way.
#[test]
fn loom_a_recalled_byte_is_not_taken_too() {
    loom::model(|| {
        let page = Page::new();
        assert!(page.write(0));
        let readers = Arc::clone(&page);
        let reader = thread::spawn(move || readers.take(0, readers.filled(0)));
        page.mine(WRITER).set_recalled(true);
        while page.theirs(WRITER).is_taking() {
            thread::yield_now();
        }
        let untaken = page.theirs(WRITER).untaken(1, 1).expect("an honest peer");
        let position = 1 - untaken;
        page.mine(WRITER).set_returned_at(position);
        let read = reader.join().unwrap();
        assert_eq!(read, position);
        // Afterwards the ring has nothing more for the reader.
        assert_eq!(page.filled(read), 0);
        assert!(page.theirs(READER).has_returned_at(read));
    });
}

/// An end forbids its peer to switch while the peer switches: one of the two holds, and an end that
/// could not forbid it knows where the ring begins.
#[test]
fn loom_a_direction_is_in_its_ring_or_forbidden() {
    loom::model(|| {
        let page = Page::new();
        let writers = Arc::clone(&page);
        let writer = thread::spawn(move || writers.mine(WRITER).enter_ring(7));
        let forbidden = page.theirs(READER).forbid();
        let switch_at = page.theirs(READER).switch_at();
        assert!(forbidden || switch_at == Some(7), "no position where the ring begins");
        assert_eq!(writer.join().unwrap(), !forbidden);
        assert_eq!(page.theirs(READER).is_forbidden(), forbidden);
    });
}

/// A client revokes its offer while a server accepts it: one of the two holds.
#[test]
fn loom_an_offer_is_accepted_or_revoked() {
    loom::model(|| {
        let page = Page::new();
        let servers = Arc::clone(&page);
        let server = thread::spawn(move || servers.standing.accept());
        let revoked = page.standing.revoke();
        assert_eq!(server.join().unwrap(), !revoked);
        assert_eq!(page.standing.is_accepted(), !revoked);
    });
}
