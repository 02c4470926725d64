//! Messages that show what happened to them, and how to send and receive them.

pub(crate) mod random;

use std::time::{Duration, Instant};

use fable::Kind;
use fable::transport::{self, Direction, Offer, PathOptions, ReadSlot, Record, Transport};
use random::Random;

/// No test decides by this time; it ends what hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A path of this kind, and what its other end needs.
pub(crate) fn create(kind: Kind) -> (Box<dyn Transport>, Offer) {
    transport::create(kind, PathOptions::default())
        .unwrap_or_else(|error| panic!("{kind}: {error}"))
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
