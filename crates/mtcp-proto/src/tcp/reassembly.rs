//! Which bytes have come out of order, and what the peer is told of them.

use crate::sequence::Sequence;
use crate::wire::tcp::SackBlock;
use std::cmp::Reverse;

/// Ranges that are remembered. Beyond, what lies farthest ahead is forgotten, because it is needed
/// last; the peer sends it again (RFC 2018, section 8, allows that).
const RANGES: usize = 32;

/// The ranges of bytes that lie ahead of the next one expected. It has no memory while there are
/// none.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    ranges: Option<Box<Ranges>>,
}

#[derive(Debug, Default)]
struct Ranges {
    /// Disjoint, not adjacent, and in order; the first `count` are valid.
    list: [Range; RANGES],
    count: usize,
    /// Counts insertions, for the order in which ranges are reported.
    clock: u32,
    /// The clock of the newest range that was reported; those touched later were not.
    told: u32,
    /// What came twice and was not yet reported (RFC 2883).
    duplicate: Option<SackBlock>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Range {
    start: Sequence,
    end: Sequence,
    /// The clock at the last insertion.
    touched: u32,
}

impl Reassembly {
    /// Nothing out of order.
    pub(crate) fn new() -> Reassembly {
        Reassembly::default()
    }

    /// Whether nothing is out of order.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.as_ref().is_none_or(|ranges| ranges.count == 0)
    }

    /// Bytes that are out of order.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u32 {
        self.list().iter().map(|range| range.end.since(range.start)).sum()
    }

    /// Behind the last byte out of order.
    #[cfg(test)]
    pub(crate) fn end(&self) -> Option<Sequence> {
        self.list().last().map(|range| range.end)
    }

    /// Enters `start..end`, which lies ahead of the next byte expected and within the window. False
    /// if there are too many ranges nearer than this one, so that its bytes must be dropped.
    pub(crate) fn insert(&mut self, start: Sequence, end: Sequence) -> bool {
        if start >= end {
            return true;
        }
        let ranges = self.ranges.get_or_insert_default();
        let list = &ranges.list[..ranges.count];
        // Those from `first` up to `behind` overlap the new range or touch it.
        let first = list.partition_point(|range| range.end < start);
        let behind = list.partition_point(|range| range.start <= end);
        let overlap = list[first..behind].iter().find_map(|range| {
            let (start, end) = (range.start.max(start), range.end.min(end));
            (start < end).then_some(SackBlock { start, end })
        });
        if let Some(block) = overlap {
            ranges.duplicate = Some(block);
        }
        if first == behind && ranges.count == RANGES {
            if first == RANGES {
                return false;
            }
            ranges.count -= 1;
        }
        ranges.replace(first, behind, start, end);
        true
    }

    /// All bytes before `next` have come in order. Gives the number of bytes from there on that are
    /// in order too, and forgets their range.
    pub(crate) fn advance(&mut self, next: Sequence) -> u32 {
        let Some(ranges) = &mut self.ranges else { return 0 };
        let list = &ranges.list[..ranges.count];
        let passed = list.partition_point(|range| range.start <= next);
        let mut bytes = 0;
        if let Some(last) = passed.checked_sub(1).map(|last| list[last])
            && last.end > next
        {
            bytes = last.end.since(next);
        }
        ranges.list.copy_within(passed..ranges.count, 0);
        ranges.count -= passed;
        self.shrink();
        bytes
    }

    /// Notes that these bytes came though they were there before, for the next report (RFC 2883).
    /// What lies ahead of the next byte expected is noted by [`Reassembly::insert`] itself.
    pub(crate) fn note_duplicate(&mut self, start: Sequence, end: Sequence) {
        if start < end {
            let ranges = self.ranges.get_or_insert_default();
            ranges.duplicate = Some(SackBlock { start, end });
        }
    }

    /// Whether [`Reassembly::blocks`] has anything to report.
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

    /// Writes what an acknowledgement reports, at most `limit` blocks, and gives their number:
    /// first what came twice, once (RFC 2883, section 4), then the ranges, that of the newest
    /// segment first (RFC 2018, section 4). If more ranges are new than there is room for, because
    /// their segments have come together, those that came first are reported, as if they had come
    /// alone; the next acknowledgements are to report the others ([`Reassembly::has_untold`]).
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

    /// Whether ranges have come, or have grown, of which no acknowledgement has told.
    pub(crate) fn has_untold(&self) -> bool {
        self.ranges.as_ref().is_some_and(|ranges| ranges.untold() > 0)
    }

    /// Gives the memory back if nothing is in it.
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
    fn untold(&self) -> usize {
        self.list[..self.count].iter().filter(|range| range.touched > self.told).count()
    }

    /// Puts `start..end`, joined with the ranges from `first` up to `behind`, in their place.
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

    /// Bytes of the window that the model keeps.
    const WINDOW: usize = 4096;

    /// A bit for each byte from `next` on, and the order in which bytes last came.
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

        /// The runs as they are to be reported.
        fn blocks(&self) -> Vec<SackBlock> {
            let mut runs = self.runs();
            runs.sort_by_key(|run| {
                std::cmp::Reverse(self.touched[run.0..run.1].iter().max().copied())
            });
            runs.into_iter().map(|run| self.block(run)).collect()
        }
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
                    if queue.insert(start, behind) {
                        model.there[at..end].fill(true);
                        model.touched[at..end].fill(clock);
                        // Dropped: the farthest, if there are too many.
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
                    // Some bytes come in order.
                    let arrived = bytes.min(WINDOW);
                    let more = model.there[arrived..].iter().take_while(|there| **there).count();
                    model.next += arrived as u32;
                    prop_assert_eq!(queue.advance(model.next), more as u32);
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
        // The example of RFC 2018, section 4, case 2 and on: every second segment of 500 is lost.
        let mut queue = Reassembly::new();
        let mut blocks = [SackBlock::default(); 4];
        let block = |start: u32, end: u32| SackBlock { start: Sequence(start), end: Sequence(end) };
        for (count, start) in (1..).zip([5500, 6500, 7500, 8500]) {
            assert!(queue.insert(Sequence(start), Sequence(start + 500)));
            assert_eq!(queue.blocks(&mut blocks, 3), count.min(3));
        }
        assert_eq!(blocks[..3], [block(8500, 9000), block(7500, 8000), block(6500, 7000)]);
        // The fourth segment comes: 6500 to 8000 is whole.
        assert!(queue.insert(Sequence(7000), Sequence(7500)));
        assert_eq!(queue.blocks(&mut blocks, 4), 3);
        assert_eq!(blocks[..3], [block(6500, 8000), block(8500, 9000), block(5500, 6000)]);
        // The second: all up to 5500 is in order, and 5500 to 6000 with it.
        assert_eq!(queue.advance(Sequence(5500)), 500);
        assert_eq!(queue.blocks(&mut blocks, 4), 2);
        assert_eq!(blocks[..2], [block(6500, 8000), block(8500, 9000)]);
    }

    #[test]
    fn what_comes_together_is_told_in_turn() {
        let mut queue = Reassembly::new();
        let mut blocks = [SackBlock::default(); 4];
        let mut reported = Vec::new();
        for start in (0..7000).step_by(1000) {
            assert!(queue.insert(Sequence(start), Sequence(start + 500)));
        }
        queue.note_duplicate(Sequence(100), Sequence(200));
        while queue.has_untold() {
            let count = queue.blocks(&mut blocks, 3);
            assert_eq!(count, 3, "there is always something to repeat");
            reported.push(blocks[..3].iter().map(|block| block.start.0).collect::<Vec<_>>());
        }
        assert_eq!(reported, [[100, 1000, 0], [4000, 3000, 2000], [6000, 5000, 4000]]);
        // A range that grows is news again.
        assert!(queue.insert(Sequence(2500), Sequence(2600)) && queue.has_untold());
        assert_eq!((queue.blocks(&mut blocks, 1), blocks[0].start), (1, Sequence(2000)));
        assert!(!queue.has_untold());
    }

    #[test]
    fn duplicates_are_reported_once_and_first() {
        let mut queue = Reassembly::new();
        let mut blocks = [SackBlock::default(); 4];
        let block = |start: u32, end: u32| SackBlock { start: Sequence(start), end: Sequence(end) };
        // RFC 2883, section 4.1: a duplicate below the acknowledgement, without anything else.
        queue.note_duplicate(Sequence(3000), Sequence(3500));
        assert!(queue.has_blocks() && queue.is_empty());
        assert_eq!(queue.blocks(&mut blocks, 0), 0, "there was no room, so it waits");
        assert_eq!((queue.blocks(&mut blocks, 4), blocks[0]), (1, block(3000, 3500)));
        assert!(!queue.has_blocks());
        // Section 4.2: a duplicate within a larger block, which is reported second.
        assert!(queue.insert(Sequence(4500), Sequence(5000)));
        assert!(queue.insert(Sequence(6000), Sequence(7500)));
        assert!(queue.insert(Sequence(4500), Sequence(5000)));
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
