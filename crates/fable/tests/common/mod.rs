//! Messages that show what happened to them, and how to send and receive them.

pub(crate) mod random;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fable::Kind;
use fable::transport::{self, Direction, Offer, PathOptions, ReadSlot, Record, Transport};
use random::Random;

/// No test decides by this time; it ends what hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// A path of this kind, and what its other end needs.
pub(crate) fn create(kind: Kind) -> (Box<dyn Transport>, Offer) {
    transport::create(kind, PathOptions::default())
        .unwrap_or_else(|error| panic!("{kind}: {error}"))
}

/// Bytes of the pattern, which then begins anew: no multiple of anything.
const PATTERN_BYTES: usize = 1_048_573;

/// Random bytes, made once: copying and comparing them is cheap without optimization, too.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random(1);
    let words = PATTERN_BYTES.div_ceil(8);
    let mut pattern: Vec<u8> = (0..words).flat_map(|_| random.next().to_le_bytes()).collect();
    pattern.truncate(PATTERN_BYTES);
    pattern
});

/// The pieces of the pattern that so many bytes of message `number` are: each message begins at
/// another place, so any gap, repeat or shift shows.
fn pieces(number: u64, bytes: usize) -> impl Iterator<Item = &'static [u8]> {
    let mut from = (number % PATTERN_BYTES as u64) as usize;
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let piece = rest.min(PATTERN_BYTES - from);
        let bytes = &PATTERN[from..from + piece];
        (from, rest) = (0, rest - piece);
        (piece > 0).then_some(bytes)
    })
}

pub(crate) fn fill(mut bytes: &mut [u8], number: u64) {
    for piece in pieces(number, bytes.len()) {
        let (filled, rest) = bytes.split_at_mut(piece.len());
        filled.copy_from_slice(piece);
        bytes = rest;
    }
}

pub(crate) fn is_filled(mut bytes: &[u8], number: u64) -> bool {
    pieces(number, bytes.len()).all(|piece| {
        let (filled, rest) = bytes.split_at(piece.len());
        bytes = rest;
        filled == piece
    })
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
