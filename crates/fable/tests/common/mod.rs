//! Messages with a checkable content, and functions that send and receive them.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::random::Random;
use fable::Kind;
use fable::transport::{self, Direction, Offer, PathOptions, ReadSlot, Record, Transport};

/// Ends a test that hangs; no test's result depends on it.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Makes a path of this kind. Returns one end, and what the other end needs.
pub(crate) fn create(kind: Kind) -> (Box<dyn Transport>, Offer) {
    transport::create(kind, PathOptions::default())
        .unwrap_or_else(|error| panic!("{kind}: {error}"))
}

/// The length of the repeating pattern: a prime number.
const PATTERN_BYTES: usize = 1_048_573;

/// Random bytes, generated once, so that filling and comparing is cheap without optimization too.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random(1);
    let words = PATTERN_BYTES.div_ceil(8);
    let mut pattern: Vec<u8> = (0..words).flat_map(|_| random.next().to_le_bytes()).collect();
    pattern.truncate(PATTERN_BYTES);
    pattern
});

/// Returns the pieces of the pattern that make up message `number`: each message begins at another
/// position, so any gap, repeat or shift shows.
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

/// Fills a message with its pattern.
pub(crate) fn fill(mut bytes: &mut [u8], number: u64) {
    for piece in pieces(number, bytes.len()) {
        let (filled, rest) = bytes.split_at_mut(piece.len());
        filled.copy_from_slice(piece);
        bytes = rest;
    }
}

/// Returns whether a message has its pattern.
pub(crate) fn is_filled(mut bytes: &[u8], number: u64) -> bool {
    pieces(number, bytes.len()).all(|piece| {
        let (filled, rest) = bytes.split_at(piece.len());
        bytes = rest;
        filled == piece
    })
}

/// Commits message `number`, if there is room.
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
        assert!(begin.elapsed() < TIME_LIMIT, "{}: the message does not arrive", reader.kind());
        reader.wait(Direction::Read, Some(TIME_LIMIT)).expect("a reader can wait");
    }
}

/// Commits message `number`; waits for room in the writer's own way.
pub(crate) fn send(writer: &mut dyn Transport, bytes: usize, number: u64) {
    let begin = Instant::now();
    while !try_send(writer, bytes, number) {
        assert!(begin.elapsed() < TIME_LIMIT, "{}: there is no room", writer.kind());
        writer.wait(Direction::Write, Some(TIME_LIMIT)).expect("a writer can wait");
    }
    while !writer.flush().expect("what is committed can be sent") {
        assert!(begin.elapsed() < TIME_LIMIT, "{}: nothing is taken", writer.kind());
        writer.wait(Direction::Write, Some(TIME_LIMIT)).expect("a writer can wait");
    }
}
