//! Stores the bytes received out of order, in blocks whose size follows that of the data.

use crate::memory::{BufferPool, Purpose, Ring};
use crate::sequence::Sequence;

/// Largest block that a piece asks for beyond its first bytes.
const GROWN_BYTES_MAX: usize = 64 << 10;

/// The bytes out of order, disjoint and in order of their numbers.
///
/// A byte costs about a byte: a piece has a block for its own data, however far ahead it lies. A
/// piece that follows another without a gap first fills the other's block, and then takes one twice
/// as large, so that the blocks of a long range are at most half empty.
#[derive(Debug, Default)]
pub(super) struct Pieces(Vec<Piece>);

#[derive(Debug)]
struct Piece {
    start: Sequence,
    bytes: u32,
    block: Box<[u8]>,
}

impl Piece {
    fn end(&self) -> Sequence {
        self.start + self.bytes
    }

    /// Appends what fits into the block; returns the number of bytes.
    fn append(&mut self, data: &[u8]) -> usize {
        let room = &mut self.block[self.bytes as usize..];
        let taken = data.len().min(room.len());
        room[..taken].copy_from_slice(&data[..taken]);
        self.bytes += taken as u32;
        taken
    }
}

impl Pieces {
    /// Stores data from `start` on, except what is there already. Returns where what is stored
    /// without a gap ends: before the end of the data if memory is short.
    pub(super) fn insert(
        &mut self,
        pool: &mut BufferPool,
        start: Sequence,
        data: &[u8],
    ) -> Sequence {
        let (mut at, end) = (start, start + data.len() as u32);
        let mut next = self.0.partition_point(|piece| piece.end() <= at);
        while at < end {
            let behind = match self.0.get(next) {
                Some(piece) if piece.start <= at => {
                    at = piece.end();
                    next += 1;
                    continue;
                }
                Some(piece) => piece.start.min(end),
                None => end,
            };
            let missing = &data[at.since(start) as usize..behind.since(start) as usize];
            let previous = next.checked_sub(1).map(|before| &mut self.0[before]);
            let previous = previous.filter(|piece| piece.end() == at);
            let grown = previous.as_ref().map_or(0, |piece| 2 * piece.block.len());
            let mut taken = previous.map_or(0, |piece| piece.append(missing));
            if taken == 0 {
                let wanted = grown.min(GROWN_BYTES_MAX).max(missing.len());
                let block = pool.take(Purpose::OutOfOrder, wanted);
                let block = block.or_else(|| pool.take(Purpose::OutOfOrder, missing.len()));
                let Some(block) = block else { return at };
                let mut piece = Piece { start: at, bytes: 0, block };
                taken = piece.append(missing);
                self.0.insert(next, piece);
                next += 1;
            }
            at += taken as u32;
        }
        end
    }

    /// Moves the bytes that follow without a gap from `next` on into the ring, and drops those
    /// before `next`. Returns the number of bytes moved; the rest of them stays if the ring has no
    /// room.
    pub(super) fn deliver(
        &mut self,
        pool: &mut BufferPool,
        next: Sequence,
        ring: &mut Ring,
        limit_bytes: usize,
    ) -> u32 {
        let mut at = next;
        let mut done = 0;
        for piece in &self.0 {
            if piece.start > at {
                break;
            }
            if piece.end() > at {
                let rest = &piece.block[at.since(piece.start) as usize..piece.bytes as usize];
                let moved = ring.push(pool, Purpose::Receive, rest, limit_bytes);
                at += moved as u32;
                if moved < rest.len() {
                    break;
                }
            }
            done += 1;
        }
        self.0.drain(..done).for_each(|piece| pool.release(piece.block));
        at.since(next)
    }

    /// Drops the bytes from here on. No piece lies on both sides.
    pub(super) fn truncate(&mut self, pool: &mut BufferPool, from: Sequence) {
        let kept = self.0.partition_point(|piece| piece.start < from);
        self.0.drain(kept..).for_each(|piece| pool.release(piece.block));
    }

    /// Drops all bytes, and the memory of the list.
    pub(super) fn release(&mut self, pool: &mut BufferPool) {
        std::mem::take(&mut self.0).into_iter().for_each(|piece| pool.release(piece.block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const LIMIT: usize = 1 << 20;

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(100)
        })]

        #[test]
        fn pieces_hold_what_a_map_holds(
            steps in prop::collection::vec((0u8..4, 1usize..40_000, 1usize..3000), 1..100),
            initial in prop_oneof![any::<u32>(), (u32::MAX - 50_000)..=u32::MAX],
        ) {
            let (mut pool, mut pieces) = (BufferPool::new(LIMIT), Pieces::default());
            let (mut next, mut model) = (Sequence(initial), BTreeMap::<u32, u8>::new());
            let mut stream = Vec::new();
            let byte = |number: u32| (number.wrapping_mul(2_654_435_761) >> 24) as u8;
            for (kind, at, bytes) in steps {
                let start = next + at as u32;
                let data: Vec<u8> = (0..bytes as u32).map(|n| byte((start + n).0)).collect();
                match kind {
                    0 | 1 => {
                        let end = pieces.insert(&mut pool, start, &data);
                        prop_assert_eq!(end, start + bytes as u32);
                        model.extend((0..bytes as u32).map(|n| (at as u32 + n, data[n as usize])));
                    }
                    2 => {
                        // The next bytes come in order.
                        let mut ring = Ring::new();
                        let passed = bytes as u32;
                        next += passed;
                        let moved = pieces.deliver(&mut pool, next, &mut ring, LIMIT);
                        let expected: Vec<u8> =
                            (passed..).map_while(|n| model.get(&n).copied()).collect();
                        stream.resize(ring.len(), 0);
                        ring.read(&mut stream);
                        ring.release(&mut pool);
                        prop_assert_eq!(&stream, &expected);
                        prop_assert_eq!(moved as usize, expected.len());
                        next += moved;
                        let model_before = std::mem::take(&mut model);
                        model = model_before.into_iter()
                            .filter_map(|(n, byte)| Some((n.checked_sub(passed + moved)?, byte)))
                            .collect();
                    }
                    _ => {
                        // A gap from which on all is dropped.
                        let Some(gap) = (at as u32..).find(|n| !model.contains_key(n)) else {
                            continue;
                        };
                        pieces.truncate(&mut pool, next + gap);
                        model.retain(|n, _| *n < gap);
                    }
                }
                let held: u32 = pieces.0.iter().map(|piece| piece.bytes).sum();
                prop_assert_eq!(held as usize, model.len());
                let blocks: usize = pieces.0.iter().map(|piece| piece.block.len()).sum();
                prop_assert_eq!(blocks, pool.used_bytes());
            }
            pieces.release(&mut pool);
            prop_assert_eq!(pool.used_bytes(), 0);
        }
    }

    #[test]
    fn memory_follows_the_bytes_and_not_their_distance() {
        let (mut pool, mut pieces) = (BufferPool::new(LIMIT), Pieces::default());
        assert_eq!(pieces.insert(&mut pool, Sequence(1 << 20), b"x"), Sequence((1 << 20) + 1));
        assert_eq!(pool.used_bytes(), 2048);
        // A long range in small segments.
        let mut at = Sequence(0);
        for _ in 0..200 {
            at = pieces.insert(&mut pool, at, &[7; 1000]);
        }
        assert!(at == Sequence(200_000) && pool.used_bytes() <= 2048 + 2 * 200_000);
        assert!(pieces.0.len() < 12, "{}", pieces.0.len());
    }

    #[test]
    fn a_pool_without_memory_stores_a_part_or_nothing() {
        let (mut pool, mut pieces) = (BufferPool::new(16 << 10), Pieces::default());
        assert_eq!(pieces.insert(&mut pool, Sequence(5), &[1; 9000]), Sequence(5));
        assert_eq!(pieces.insert(&mut pool, Sequence(5), &[1; 4000]), Sequence(4005));
        assert_eq!(pieces.insert(&mut pool, Sequence(5), &[1; 9000]), Sequence(5 + 4096));
        assert_eq!(pool.used_bytes(), 4096);
    }
}
