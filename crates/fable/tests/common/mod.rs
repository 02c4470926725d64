//! Paths to test, and how to use one from a single thread.

use std::time::{Duration, Instant};

use fable::Kind;
use fable::transport::{self, Direction, Offer, PathOptions, ReadSlot, Record, Transport};

/// No test decides by this time; it ends what hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Two ends of a path.
pub(crate) type Pair = (Box<dyn Transport>, Box<dyn Transport>);

/// Every kind that `create` makes.
pub(crate) fn kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|&kind| kind != Kind::Tls)
}

pub(crate) fn create(kind: Kind) -> (Box<dyn Transport>, Offer) {
    transport::create(kind, PathOptions::default())
        .unwrap_or_else(|error| panic!("{kind}: {error}"))
}

pub(crate) fn pair(kind: Kind) -> Pair {
    let (own, offer) = create(kind);
    (own, transport::open(offer).unwrap_or_else(|error| panic!("{kind}: {error}")))
}

/// The bytes of message `number`: any gap, repeat or shift shows.
pub(crate) fn fill(bytes: &mut [u8], number: u64) {
    let mut random = Random(number);
    for chunk in bytes.chunks_mut(8) {
        let word = random.next().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

pub(crate) fn is_filled(bytes: &[u8], number: u64) -> bool {
    let mut expected = vec![0; bytes.len()];
    fill(&mut expected, number);
    bytes == expected
}

/// Commits message `number` if there is room.
pub(crate) fn try_send(end: &mut dyn Transport, bytes: usize, number: u64) -> bool {
    let Some(mut slot) = end.acquire_write(bytes).expect("room can be asked for") else {
        return false;
    };
    assert_eq!(slot.len(), bytes);
    fill(&mut slot, number);
    end.commit(slot, bytes, Record::Data).expect("a message can be committed");
    true
}

/// The next message, with the writer's help if it has some of it still to send.
pub(crate) fn receive(writer: &mut dyn Transport, reader: &mut dyn Transport) -> ReadSlot {
    let begin = Instant::now();
    loop {
        writer.flush().expect("what is committed can be sent");
        if let Some(slot) = reader.acquire_read().expect("a message can be read") {
            return slot;
        }
        assert!(begin.elapsed() < PATIENCE, "{}: the message does not arrive", reader.kind());
        std::thread::yield_now();
    }
}

/// Waits for a message, in the reader's own way.
pub(crate) fn await_message(reader: &mut dyn Transport) -> ReadSlot {
    let begin = Instant::now();
    loop {
        if let Some(slot) = reader.acquire_read().expect("a message can be read") {
            return slot;
        }
        assert!(begin.elapsed() < PATIENCE, "{}: the message does not arrive", reader.kind());
        reader.wait(Direction::Read, Some(PATIENCE)).expect("a reader can wait");
    }
}

/// Commits message `number`, waiting for room in the writer's own way.
pub(crate) fn send(writer: &mut dyn Transport, bytes: usize, number: u64) {
    let begin = Instant::now();
    while !try_send(writer, bytes, number) {
        assert!(begin.elapsed() < PATIENCE, "{}: there is no room", writer.kind());
        writer.wait(Direction::Write, Some(PATIENCE)).expect("a writer can wait");
    }
    while !writer.flush().expect("what is committed can be sent") {
        assert!(begin.elapsed() < PATIENCE, "{}: nothing is taken", writer.kind());
        writer.wait(Direction::Write, Some(PATIENCE)).expect("a writer can wait");
    }
}

/// Numbers from a seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
