//! Checks every interleaving of both ends of a path with loom.
//!
//! The ends are those of the transport. Only their memory is another one: loom's atomics, and for
//! each word of a payload a cell in which loom sees who accesses it.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32 as Cpu;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::layout::{AtomicU32, AtomicU64, Ring, UNIT_BYTES};
use super::*;

/// Room for three messages of a word and the zero word behind them.
const RING_BYTES: usize = 64;
/// A header and a word.
const EXTENT_BYTES: u64 = 16;

/// How often a running thread is interrupted at most, in the longest model.
const PREEMPTIONS_MAX: usize = 3;

/// The memory of one direction.
struct Shared {
    consumed: AtomicU64,
    data_sleeper: AtomicU32,
    room_sleeper: AtomicU32,
    headers: Vec<AtomicU64>,
    data: Vec<UnsafeCell<u64>>,
}

// SAFETY: loom checks each access to the cells.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Shared> {
        let words = RING_BYTES / UNIT_BYTES;
        Arc::new(Shared {
            consumed: AtomicU64::new(0),
            data_sleeper: AtomicU32::new(0),
            room_sleeper: AtomicU32::new(0),
            headers: (0..words).map(|_| AtomicU64::new(0)).collect(),
            // The second mapping is not modelled: messages of one word do not wrap.
            data: (0..words).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn ring(&self) -> Ring {
        let data = NonNull::from(self.data.as_slice()).cast();
        let headers = NonNull::from(self.headers.as_slice()).cast();
        let words = [&self.data_sleeper, &self.room_sleeper].map(NonNull::from);
        Ring::of_model(NonNull::from(&self.consumed), words, data, headers, RING_BYTES)
    }

    /// Returns the cell of the payload of the message that begins here.
    fn payload(&self, position: u64) -> &UnsafeCell<u64> {
        &self.data[(position as usize + UNIT_BYTES) % RING_BYTES / UNIT_BYTES]
    }
}

/// One end, and the memory of both directions.
struct End {
    transport: Mempipe,
    outgoing: Arc<Shared>,
    incoming: Arc<Shared>,
}

// SAFETY: the pointers lead into memory that the end keeps.
unsafe impl Send for End {}

fn ends() -> [End; 2] {
    let directions = [Shared::new(), Shared::new()];
    let (bell, peer_bell) = UnixDatagram::pair().unwrap();
    let mut side = 0;
    [bell, peer_bell].map(|bell| {
        let (outgoing, incoming) = (&directions[side], &directions[1 - side]);
        side += 1;
        End::new(bell, Arc::clone(outgoing), Arc::clone(incoming))
    })
}

impl End {
    fn new(bell: UnixDatagram, outgoing: Arc<Shared>, incoming: Arc<Shared>) -> End {
        let owner = Owner::new();
        // Neither end spins, so these are not used.
        let cpus = [Cpu::new(0), Cpu::new(0)].map(|cpu| NonNull::from(Box::leak(Box::new(cpu))));
        // SAFETY: the end keeps the memory.
        let transport = unsafe {
            Mempipe {
                producer: Producer::new(outgoing.ring(), owner),
                consumer: Consumer::new(incoming.ring(), owner, false),
                placement: Placement::new(cpus[0], cpus[1]),
                kind: Kind::MempipeFutex(Form::Unsafe),
                spin: Duration::ZERO,
                bell: OwnedFd::from(bell).into(),
                mapping: None,
            }
        };
        End { transport, outgoing, incoming }
    }

    /// Writes a message of one word. Returns whether there was room.
    fn write(&mut self, word: u64) -> bool {
        let Some(slot) = self.transport.acquire_write(UNIT_BYTES).unwrap() else { return false };
        // SAFETY: loom checks that no other thread accesses the cell.
        self.outgoing.payload(slot.token).with_mut(|payload| unsafe { *payload = word });
        self.transport.commit(slot, UNIT_BYTES, Record::Data).unwrap();
        true
    }

    /// Reads a message of one word, and returns it to the writer.
    fn read(&mut self) -> Option<u64> {
        let (slot, word) = self.acquire()?;
        self.transport.release(slot);
        Some(word)
    }

    /// Reads a message of one word, and holds it.
    fn acquire(&mut self) -> Option<(ReadSlot, u64)> {
        let slot = self.transport.acquire_read().unwrap()?;
        assert_eq!((slot.len(), slot.record()), (UNIT_BYTES, Record::Data));
        let payload = self.incoming.payload(slot.token - EXTENT_BYTES);
        // SAFETY: loom checks that no other thread writes to the cell.
        let word = payload.with(|payload| unsafe { *payload });
        Some((slot, word))
    }

    /// Prepares to sleep. Returns whether this end would sleep.
    fn falls_asleep(&mut self, direction: Direction, method: WaitMethod) -> bool {
        !matches!(self.transport.prepare_wait(direction, method).unwrap(), Wait::Ready)
    }

    /// Returns whether the peer has woken this end.
    fn was_woken(&self, direction: Direction, method: WaitMethod) -> bool {
        let word = match direction {
            Direction::Read => &self.incoming.data_sleeper,
            Direction::Write => &self.outgoing.room_sleeper,
        };
        let is_announced = word.load(super::layout::Ordering::SeqCst) != 0;
        let has_sound = socket::receive(&self.transport.bell, &mut [0]).is_ok();
        !is_announced && (method == WaitMethod::Futex || has_sound)
    }
}

#[test]
fn loom_messages_arrive_whole_and_in_order() {
    let mut model = loom::model::Builder::new();
    // Without a bound the model takes minutes.
    model.preemption_bound = Some(PREEMPTIONS_MAX);
    model.check(|| {
        let [mut writer, mut reader] = ends();
        assert!(writer.write(1) && writer.write(2) && writer.write(3));
        let writing = thread::spawn(move || {
            // The fifth message lies where the first one was.
            for word in 4..=5 {
                while !writer.write(word) {
                    thread::yield_now();
                }
            }
            writer
        });
        for expected in 1..=5 {
            let word = loop {
                match reader.read() {
                    Some(word) => break word,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(word, expected);
        }
        drop(writing.join().unwrap());
        assert_eq!(reader.read(), None);
    });
}

/// The writer has a batch, and the reader returns two messages at once, because the fence of
/// another publication would hide their order.
#[test]
fn loom_memory_is_written_again_after_its_return() {
    loom::model(|| {
        let [mut writer, mut reader] = ends();
        assert!(writer.write(1) && writer.write(2) && writer.write(3));
        writer.transport.set_batch(2);
        let writing = thread::spawn(move || {
            for word in 4..=5 {
                while !writer.write(word) {
                    thread::yield_now();
                }
            }
            assert!(writer.transport.flush().unwrap());
            writer
        });
        let ((first, one), (second, two)) = (reader.acquire().unwrap(), reader.acquire().unwrap());
        assert_eq!((one, two), (1, 2));
        reader.transport.release(second);
        reader.transport.release(first);
        drop(writing.join().unwrap());
        assert_eq!([reader.read(), reader.read(), reader.read()], [Some(3), Some(4), Some(5)]);
    });
}

#[test]
fn loom_a_batch_is_seen_at_once() {
    loom::model(|| {
        let [mut writer, mut reader] = ends();
        writer.transport.set_batch(2);
        let writing = thread::spawn(move || {
            assert!(writer.write(1) && writer.write(2));
            writer
        });
        if let Some(first) = reader.read() {
            assert_eq!((first, reader.read()), (1, Some(2)));
        }
        drop(writing.join().unwrap());
    });
}

#[test]
fn loom_no_reader_sleeps_beside_a_message() {
    for method in [WaitMethod::Futex, WaitMethod::Descriptor] {
        loom::model(move || {
            let [mut writer, mut reader] = ends();
            let writing = thread::spawn(move || {
                assert!(writer.write(7));
                writer
            });
            let asleep = reader.falls_asleep(Direction::Read, method);
            let writer = writing.join().unwrap();
            assert!(!asleep || reader.was_woken(Direction::Read, method), "{method:?}");
            reader.transport.end_wait(Direction::Read);
            assert_eq!(reader.read(), Some(7));
            drop(writer);
        });
    }
}

#[test]
fn loom_no_writer_sleeps_beside_room() {
    for method in [WaitMethod::Futex, WaitMethod::Descriptor] {
        loom::model(move || {
            let [mut writer, mut reader] = ends();
            assert!(writer.write(1) && writer.write(2) && writer.write(3));
            assert!(!writer.write(4), "the ring is full");
            let reading = thread::spawn(move || {
                assert_eq!(reader.read(), Some(1));
                reader
            });
            let asleep = writer.falls_asleep(Direction::Write, method);
            let reader = reading.join().unwrap();
            assert!(!asleep || writer.was_woken(Direction::Write, method), "{method:?}");
            writer.transport.end_wait(Direction::Write);
            assert!(writer.write(4));
            drop(reader);
        });
    }
}

#[test]
fn loom_the_last_message_of_a_flow_wakes_a_reader_that_sleeps() {
    loom::model(|| {
        let [mut writer, mut reader] = ends();
        let writing = thread::spawn(move || {
            // A slot that is held is passed over when the flow ends.
            let slot = writer.transport.acquire_write(UNIT_BYTES).unwrap().unwrap();
            let last = writer.transport.acquire_write(0).unwrap().unwrap();
            writer.transport.pass_over(slot.place());
            writer.transport.commit(last, 0, Record::EndOfFlow).unwrap();
            writer.transport.abandon(slot);
            writer
        });
        let asleep = reader.falls_asleep(Direction::Read, WaitMethod::Descriptor);
        let writer = writing.join().unwrap();
        assert!(!asleep || reader.was_woken(Direction::Read, WaitMethod::Descriptor));
        let last = reader.transport.acquire_read().unwrap().expect("it was committed");
        assert_eq!((last.len(), last.record()), (0, Record::EndOfFlow));
        reader.transport.release(last);
        drop(writer);
    });
}
