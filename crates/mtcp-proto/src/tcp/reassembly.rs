//! Which bytes have come out of order, and what the peer is told of them.

use crate::sequence::Sequence;
use crate::wire::tcp::SackBlock;

/// Ranges that are remembered. Beyond, what lies farthest ahead is forgotten, because it is needed
/// last; the peer sends it again (RFC 2018, section 8, allows that).
const RANGES: usize = 32;

/// The ranges of bytes that lie ahead of the next one expected. It has no memory while there are
/// none.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    ranges: Option<Box<Ranges>>,
    /// What came twice and was not yet reported (RFC 2883).
    duplicate: Option<SackBlock>,
}

#[derive(Debug)]
struct Ranges {
    /// Disjoint, not adjacent, and in order; the first `count` are valid.
    list: [Range; RANGES],
    count: usize,
    /// Counts insertions, for the order in which ranges are reported.
    clock: u32,
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
        self.ranges.is_none()
    }

    /// Bytes that are out of order.
    pub(crate) fn bytes(&self) -> u32 {
        self.list().iter().map(|range| range.end.since(range.start)).sum()
    }

    /// Behind the last byte out of order.
    pub(crate) fn end(&self) -> Option<Sequence> {
        self.list().last().map(|range| range.end)
    }

    /// Enters `start..end`, which lies ahead of the next byte expected and within the window. False
    /// if there are too many ranges nearer than this one, so that its bytes must be dropped.
    pub(crate) fn insert(&mut self, start: Sequence, end: Sequence) -> bool {
        if start >= end {
            return true;
        }
        let ranges = self.ranges.get_or_insert_with(|| {
            Box::new(Ranges { list: [Range::default(); RANGES], count: 0, clock: 0 })
        });
        let list = &ranges.list[..ranges.count];
        // Those from `first` up to `behind` overlap the new range or touch it.
        let first = list.partition_point(|range| range.end < start);
        let behind = list.partition_point(|range| range.start <= end);
        let overlap = list[first..behind].iter().find_map(|range| {
            let (start, end) = (range.start.max(start), range.end.min(end));
            (start < end).then_some(SackBlock { start, end })
        });
        if let Some(block) = overlap {
            self.duplicate = Some(block);
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
        if ranges.count == 0 {
            self.ranges = None;
        }
        bytes
    }

    /// Notes that these bytes came though they were there before, for the next report (RFC 2883).
    /// What lies ahead of the next byte expected is noted by [`Reassembly::insert`] itself.
    pub(crate) fn note_duplicate(&mut self, start: Sequence, end: Sequence) {
        if start < end {
            self.duplicate = Some(SackBlock { start, end });
        }
    }

    /// Whether [`Reassembly::blocks`] has anything to report.
    pub(crate) fn has_blocks(&self) -> bool {
        self.duplicate.is_some() || self.ranges.is_some()
    }

    /// Writes what an acknowledgement reports, at most `limit` blocks, and gives their number: first
    /// what came twice, once (RFC 2883, section 4), then the ranges, that of the newest segment
    /// first (RFC 2018, section 4).
    pub(crate) fn blocks(&mut self, blocks: &mut [SackBlock; 4], limit: usize) -> usize {
        let limit = limit.min(blocks.len());
        let mut count = 0;
        if limit == 0 {
            return 0;
        }
        if let Some(duplicate) = self.duplicate.take() {
            blocks[0] = duplicate;
            count = 1;
        }
        // Insertion into the few best found so far: there are at most four.
        let mut newest = [Range::default(); 4];
        let mut found = 0;
        for range in self.list() {
            let place = newest[..found].partition_point(|other| other.touched > range.touched);
            if place < limit - count {
                found = (found + 1).min(limit - count);
                newest[place..found].rotate_right(1);
                newest[place] = *range;
            }
        }
        for range in &newest[..found] {
            blocks[count] = SackBlock { start: range.start, end: range.end };
            count += 1;
        }
        count
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Reassembly::new();
    }

    fn list(&self) -> &[Range] {
        self.ranges.as_ref().map_or(&[], |ranges| &ranges.list[..ranges.count])
    }
}

impl Ranges {
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
