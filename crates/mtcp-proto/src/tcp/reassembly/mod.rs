//! Stores the bytes received out of order, and tracks their ranges for the SACK blocks that report
//! them.

mod pieces;

use self::pieces::Pieces;
use crate::memory::{BufferPool, Ring};
use crate::sequence::Sequence;
use crate::wire::tcp::SackBlock;
use std::cmp::Reverse;

/// Most ranges that are stored. Beyond this number, the range farthest ahead is dropped, because it
/// is needed last; the peer retransmits it (RFC 2018, section 8, allows that).
const RANGES: usize = 32;

/// The bytes that lie ahead of the next one expected, and their ranges. It has no memory while
/// there are none.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    ranges: Option<Box<Ranges>>,
}

#[derive(Debug, Default)]
struct Ranges {
    /// Disjoint, not adjacent, and in order; the first `count` are valid.
    list: [Range; RANGES],
    count: usize,
    /// Counts insertions; determines the order in which ranges are reported.
    clock: u32,
    /// The clock of the newest range that was reported; ranges that changed later were not
    /// reported.
    told: u32,
    /// A range that was received twice and is not reported yet (RFC 2883).
    duplicate: Option<SackBlock>,
    /// The bytes of the ranges.
    pieces: Pieces,
}

/// What became of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noted {
    /// It is among the ranges.
    Kept,
    /// It is, and the farthest range, which begins here, is not any more.
    KeptInsteadOf(Sequence),
    /// There are too many ranges nearer than this one.
    Dropped,
}

#[derive(Clone, Copy, Debug, Default)]
struct Range {
    start: Sequence,
    end: Sequence,
    /// The clock at the last insertion into this range.
    touched: u32,
}

impl Reassembly {
    /// An empty queue without memory.
    pub(crate) fn new() -> Reassembly {
        Reassembly::default()
    }

    /// Whether no byte is out of order.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.as_ref().is_none_or(|ranges| ranges.count == 0)
    }

    /// Number of bytes that are out of order.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u32 {
        self.list().iter().map(|range| range.end.since(range.start)).sum()
    }

    /// The end of the last range out of order.
    #[cfg(test)]
    pub(crate) fn end(&self) -> Option<Sequence> {
        self.list().last().map(|range| range.end)
    }

    /// Stores data that is ahead of the next byte expected and within the window. False if all of
    /// it is dropped, because there is no memory, or there are too many ranges nearer than it.
    pub(crate) fn insert(&mut self, pool: &mut BufferPool, start: Sequence, data: &[u8]) -> bool {
        let Some(end) = self.store(pool, start, data) else {
            self.shrink();
            return false;
        };
        let noted = self.note(start, end);
        match noted {
            Noted::Kept => {}
            Noted::KeptInsteadOf(from) => self.truncate(pool, from),
            Noted::Dropped => self.truncate(pool, start),
        }
        noted != Noted::Dropped
    }

    /// Stores the bytes; gives where they end, if there are any.
    fn store(&mut self, pool: &mut BufferPool, start: Sequence, data: &[u8]) -> Option<Sequence> {
        let end = self.ranges.get_or_insert_default().pieces.insert(pool, start, data);
        (end > start).then_some(end)
    }

    fn truncate(&mut self, pool: &mut BufferPool, from: Sequence) {
        if let Some(ranges) = &mut self.ranges {
            ranges.pieces.truncate(pool, from);
        }
    }

    /// Adds `start..end` to the ranges.
    fn note(&mut self, start: Sequence, end: Sequence) -> Noted {
        let ranges = self.ranges.get_or_insert_default();
        let list = &ranges.list[..ranges.count];
        // The ranges from `first` up to `behind` overlap the new range or are adjacent to it.
        let first = list.partition_point(|range| range.end < start);
        let behind = list.partition_point(|range| range.start <= end);
        let overlap = list[first..behind].iter().find_map(|range| {
            let (start, end) = (range.start.max(start), range.end.min(end));
            (start < end).then_some(SackBlock { start, end })
        });
        if let Some(block) = overlap {
            ranges.duplicate = Some(block);
        }
        let mut noted = Noted::Kept;
        if first == behind && ranges.count == RANGES {
            if first == RANGES {
                return Noted::Dropped;
            }
            ranges.count -= 1;
            noted = Noted::KeptInsteadOf(ranges.list[RANGES - 1].start);
        }
        ranges.replace(first, behind, start, end);
        noted
    }

    /// All bytes before `next` have come in order. Moves those that follow without a gap into the
    /// ring, and gives their number. If the ring has no memory for all of them, everything out of
    /// order is dropped: what was reported and not acknowledged may be (RFC 2018, section 8).
    pub(crate) fn deliver(
        &mut self,
        pool: &mut BufferPool,
        next: Sequence,
        ring: &mut Ring,
        limit_bytes: usize,
    ) -> u32 {
        let Some(ranges) = &mut self.ranges else { return 0 };
        let moved = ranges.pieces.deliver(pool, next, ring, limit_bytes);
        if ranges.advance(next) > moved {
            self.release(pool);
        } else {
            self.shrink();
        }
        moved
    }

    /// Drops everything out of order, and gives the memory back.
    pub(crate) fn release(&mut self, pool: &mut BufferPool) {
        if let Some(mut ranges) = self.ranges.take() {
            ranges.pieces.release(pool);
        }
    }

    /// Records received duplicates for the next report (RFC 2883). [`Reassembly::insert`] itself
    /// records those that are ahead of the next byte expected.
    pub(crate) fn note_duplicate(&mut self, start: Sequence, end: Sequence) {
        if start < end {
            let ranges = self.ranges.get_or_insert_default();
            ranges.duplicate = Some(SackBlock { start, end });
        }
    }

    /// Whether [`Reassembly::blocks`] has blocks to report.
    pub(crate) fn has_blocks(&self) -> bool {
        self.ranges.is_some()
    }

    /// How many blocks [`Reassembly::blocks`] would write.
    pub(crate) fn block_count(&self, limit: usize) -> usize {
        let count = self
            .ranges
            .as_ref()
            .map_or(0, |ranges| ranges.count + usize::from(ranges.duplicate.is_some()));
        count.min(limit).min(4)
    }

    /// Writes the blocks of an acknowledgement, at most `limit`, and returns their number. First,
    /// once, the range received twice (RFC 2883, section 4), then the other ranges, that of the
    /// newest segment first (RFC 2018, section 4). If several segments arrived together, there may
    /// be more new ranges than room. Then those that arrived first are reported, as if they had
    /// arrived alone, and the next acknowledgements report the others ([`Reassembly::has_untold`]).
    pub(crate) fn blocks(&mut self, blocks: &mut [SackBlock; 4], limit: usize) -> usize {
        let total = self.block_count(limit);
        let Some(ranges) = self.ranges.as_mut().filter(|_| total > 0) else { return 0 };
        let mut count = 0;
        if let Some(duplicate) = ranges.duplicate.take() {
            blocks[0] = duplicate;
            count = 1;
        }
        let room = total - count;
        let mut order = ranges.list;
        let order = &mut order[..ranges.count];
        order.sort_unstable_by_key(|range| Reverse(range.touched));
        let surplus = ranges.untold().saturating_sub(room);
        let chosen = order.iter().skip(surplus).take(room);
        for (block, range) in blocks[count..].iter_mut().zip(chosen.clone()) {
            *block = SackBlock { start: range.start, end: range.end };
        }
        if let Some(newest) = chosen.clone().next() {
            ranges.told = ranges.told.max(newest.touched);
        }
        self.shrink();
        total
    }

    /// Whether ranges were added or have grown since the last acknowledgement that reported them.
    pub(crate) fn has_untold(&self) -> bool {
        self.ranges.as_ref().is_some_and(|ranges| ranges.untold() > 0)
    }

    /// Frees the memory if the queue is empty.
    fn shrink(&mut self) {
        if let Some(ranges) = &self.ranges
            && ranges.count == 0
            && ranges.duplicate.is_none()
        {
            self.ranges = None;
        }
    }

    #[cfg(test)]
    fn list(&self) -> &[Range] {
        self.ranges.as_ref().map_or(&[], |ranges| &ranges.list[..ranges.count])
    }
}

impl Ranges {
    /// Forgets the ranges that begin at `next` or before. Gives the number of bytes from there on
    /// that are in them.
    fn advance(&mut self, next: Sequence) -> u32 {
        let list = &self.list[..self.count];
        let passed = list.partition_point(|range| range.start <= next);
        let mut bytes = 0;
        if let Some(last) = passed.checked_sub(1).map(|last| list[last])
            && last.end > next
        {
            bytes = last.end.since(next);
        }
        self.list.copy_within(passed..self.count, 0);
        self.count -= passed;
        bytes
    }

    fn untold(&self) -> usize {
        self.list[..self.count].iter().filter(|range| range.touched > self.told).count()
    }

    /// Replaces the ranges from `first` up to `behind` by their union with `start..end`.
    fn replace(&mut self, first: usize, behind: usize, start: Sequence, end: Sequence) {
        self.clock = self.clock.saturating_add(1);
        let mut range = Range { start, end, touched: self.clock };
        if first == behind {
            self.list.copy_within(first..self.count, first + 1);
            self.count += 1;
        } else {
            range.start = start.min(self.list[first].start);
            range.end = end.max(self.list[behind - 1].end);
            self.list.copy_within(behind..self.count, first + 1);
            self.count -= behind - first - 1;
        }
        self.list[first] = range;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of the window that the model stores.
    const WINDOW: usize = 4096;

    /// A bit for each byte from `next` on, and the order in which bytes last arrived.
    struct Model {
        next: Sequence,
        there: Vec<bool>,
        touched: Vec<u64>,
    }

    impl Model {
        fn runs(&self) -> Vec<(usize, usize)> {
            let mut runs = Vec::new();
            let mut at = 0;
            while at < WINDOW {
                let run = self.there[at..].iter().take_while(|there| **there).count();
                if run > 0 {
                    runs.push((at, at + run));
                }
                at += run + 1;
            }
            runs
        }

        fn block(&self, run: (usize, usize)) -> SackBlock {
            SackBlock { start: self.next + run.0 as u32, end: self.next + run.1 as u32 }
        }

        /// The expected blocks for the model's runs.
        fn blocks(&self) -> Vec<SackBlock> {
            let mut runs = self.runs();
            runs.sort_by_key(|run| {
                std::cmp::Reverse(self.touched[run.0..run.1].iter().max().copied())
            });
            runs.into_iter().map(|run| self.block(run)).collect()
        }
    }

    /// As [`Reassembly::deliver`] does, without the bytes.
    fn advance(queue: &mut Reassembly, next: Sequence) -> u32 {
        let bytes = queue.ranges.as_mut().map_or(0, |ranges| ranges.advance(next));
        queue.shrink();
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(100)
        })]

        #[test]
        fn ranges_are_what_a_bitmap_says(
            steps in prop::collection::vec((any::<bool>(), 1usize..WINDOW, 1usize..300), 1..150),
            initial in prop_oneof![any::<u32>(), (u32::MAX - 5000)..=u32::MAX],
        ) {
            let mut queue = Reassembly::new();
            let mut model = Model {
                next: Sequence(initial), there: vec![false; WINDOW], touched: vec![0; WINDOW],
            };
            for (clock, (insert, at, bytes)) in (1..).zip(steps) {
                if insert {
                    let end = (at + bytes).min(WINDOW);
                    let (start, behind) = (model.next + at as u32, model.next + end as u32);
                    let repeated = model.there[at..end].iter().any(|there| *there);
                    if queue.note(start, behind) != Noted::Dropped {
                        model.there[at..end].fill(true);
                        model.touched[at..end].fill(clock);
                        // The farthest range is dropped if there are too many.
                        let runs = model.runs();
                        if runs.len() > RANGES {
                            let last = runs[RANGES];
                            model.there[last.0..last.1].fill(false);
                        }
                    } else {
                        let runs = model.runs();
                        prop_assert!(runs.len() == RANGES && runs[RANGES - 1].1 < at);
                    }
                    let mut blocks = [SackBlock::default(); 4];
                    let limit = clock as usize % 5;
                    let count = queue.blocks(&mut blocks, limit);
                    let mut reported = &blocks[..count];
                    if repeated && limit > 0 {
                        let duplicate = reported[0];
                        prop_assert!(duplicate.start >= start && duplicate.end <= behind);
                        reported = &reported[1..];
                    }
                    let expected = model.blocks();
                    let most = expected.len().min(limit - usize::from(repeated && limit > 0));
                    prop_assert_eq!(reported, &expected[..most]);
                    queue.blocks(&mut blocks, 4);
                } else {
                    // Some bytes arrive in order.
                    let arrived = bytes.min(WINDOW);
                    let more = model.there[arrived..].iter().take_while(|there| **there).count();
                    model.next += arrived as u32;
                    prop_assert_eq!(advance(&mut queue, model.next), more as u32);
                    model.next += more as u32;
                    model.there.drain(..arrived + more);
                    model.there.resize(WINDOW, false);
                    model.touched.drain(..arrived + more);
                    model.touched.resize(WINDOW, 0);
                }
                let there = model.there.iter().filter(|there| **there).count();
                prop_assert_eq!(queue.bytes() as usize, there);
                prop_assert_eq!(queue.is_empty(), there == 0);
                let end = model.runs().last().map(|run| model.block(*run).end);
                prop_assert_eq!(queue.end(), end);
            }
        }
    }

    #[test]
    fn the_newest_segment_is_reported_first() {
        // The example of RFC 2018, section 4, case 2 and later: every second segment of 500 bytes
        // is lost.
        let mut queue = Reassembly::new();
        let mut blocks = [SackBlock::default(); 4];
        let block = |start: u32, end: u32| SackBlock { start: Sequence(start), end: Sequence(end) };
        for (count, start) in (1..).zip([5500, 6500, 7500, 8500]) {
            assert_eq!(queue.note(Sequence(start), Sequence(start + 500)), Noted::Kept);
            assert_eq!(queue.blocks(&mut blocks, 3), count.min(3));
        }
        assert_eq!(blocks[..3], [block(8500, 9000), block(7500, 8000), block(6500, 7000)]);
        // The fourth segment comes: 6500 to 8000 is whole.
        assert_eq!(queue.note(Sequence(7000), Sequence(7500)), Noted::Kept);
        assert_eq!(queue.blocks(&mut blocks, 4), 3);
        assert_eq!(blocks[..3], [block(6500, 8000), block(8500, 9000), block(5500, 6000)]);
        // The second: all up to 5500 is in order, and 5500 to 6000 with it.
        assert_eq!(advance(&mut queue, Sequence(5500)), 500);
        assert_eq!(queue.blocks(&mut blocks, 4), 2);
        assert_eq!(blocks[..2], [block(6500, 8000), block(8500, 9000)]);
    }

    #[test]
    fn what_comes_together_is_told_in_turn() {
        let mut queue = Reassembly::new();
        let mut blocks = [SackBlock::default(); 4];
        let mut reported = Vec::new();
        for start in (0..7000).step_by(1000) {
            assert_eq!(queue.note(Sequence(start), Sequence(start + 500)), Noted::Kept);
        }
        queue.note_duplicate(Sequence(100), Sequence(200));
        while queue.has_untold() {
            let count = queue.blocks(&mut blocks, 3);
            assert_eq!(count, 3, "there is always something to repeat");
            reported.push(blocks[..3].iter().map(|block| block.start.0).collect::<Vec<_>>());
        }
        assert_eq!(reported, [[100, 1000, 0], [4000, 3000, 2000], [6000, 5000, 4000]]);
        // A range that grows is news again.
        assert!(queue.note(Sequence(2500), Sequence(2600)) == Noted::Kept && queue.has_untold());
        assert_eq!((queue.blocks(&mut blocks, 1), blocks[0].start), (1, Sequence(2000)));
        assert!(!queue.has_untold());
    }

    #[test]
    fn duplicates_are_reported_once_and_first() {
        let mut queue = Reassembly::new();
        let mut blocks = [SackBlock::default(); 4];
        let block = |start: u32, end: u32| SackBlock { start: Sequence(start), end: Sequence(end) };
        // RFC 2883, section 4.1: a duplicate below the acknowledgement, and no other block.
        queue.note_duplicate(Sequence(3000), Sequence(3500));
        assert!(queue.has_blocks() && queue.is_empty());
        assert_eq!(queue.blocks(&mut blocks, 0), 0, "there was no room, so it waits");
        assert_eq!((queue.blocks(&mut blocks, 4), blocks[0]), (1, block(3000, 3500)));
        assert!(!queue.has_blocks());
        // Section 4.2: a duplicate within a larger block, which is reported second.
        assert_eq!(queue.note(Sequence(4500), Sequence(5000)), Noted::Kept);
        assert_eq!(queue.note(Sequence(6000), Sequence(7500)), Noted::Kept);
        assert_eq!(queue.note(Sequence(4500), Sequence(5000)), Noted::Kept);
        assert_eq!(queue.blocks(&mut blocks, 3), 3);
        assert_eq!(blocks[..3], [block(4500, 5000), block(4500, 5000), block(6000, 7500)]);
        queue = Reassembly::new();
        assert!(queue.is_empty() && !queue.has_blocks() && queue.end().is_none());
    }

    #[test]
    fn an_empty_queue_is_small() {
        assert!(size_of::<Reassembly>() <= 8);
    }
}
