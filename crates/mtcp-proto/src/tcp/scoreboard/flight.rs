//! Stores the records of data in flight: an ordered queue whose first record needs no memory of its
//! own.

use crate::sequence::Sequence;
use crate::time::Instant;
use std::collections::VecDeque;

/// Records for which an empty queue keeps memory.
const KEPT_RECORDS: usize = 8;

/// A range of sequence numbers that was sent at one time and has one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) start: Sequence,
    pub(super) end: Sequence,
    /// When it was last sent.
    pub(super) sent_at: Instant,
    /// Whether the peer has reported it by SACK, which it may revoke (RFC 2018, section 8).
    pub(super) sacked: bool,
    /// Whether it is presumed lost, and was not sent again since.
    pub(super) lost: bool,
    /// Whether it was sent more than once.
    pub(super) resent: bool,
}

impl Record {
    /// A record of data that was sent for the first time.
    pub(super) fn new(start: Sequence, end: Sequence, sent_at: Instant) -> Record {
        Record { start, end, sent_at, sacked: false, lost: false, resent: false }
    }

    pub(super) fn bytes(&self) -> u32 {
        self.end.since(self.start)
    }

    /// Whether it was sent once, and neither sacked nor lost.
    pub(super) fn is_plain(&self) -> bool {
        !self.sacked && !self.lost && !self.resent
    }
}

/// Records in the order of their sequence numbers, without gaps between them.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Flight {
    first: Option<Record>,
    rest: VecDeque<Record>,
}

impl Flight {
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&Record> {
        match index.checked_sub(1) {
            None => self.first.as_ref(),
            Some(index) => self.rest.get(index),
        }
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Record> {
        match index.checked_sub(1) {
            None => self.first.as_mut(),
            Some(index) => self.rest.get_mut(index),
        }
    }

    pub(super) fn first(&self) -> Option<&Record> {
        self.first.as_ref()
    }

    pub(super) fn first_mut(&mut self) -> Option<&mut Record> {
        self.first.as_mut()
    }

    pub(super) fn last(&self) -> Option<&Record> {
        self.rest.back().or(self.first.as_ref())
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut Record> {
        self.rest.back_mut().or(self.first.as_mut())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.first.iter_mut().chain(self.rest.iter_mut())
    }

    pub(super) fn push(&mut self, record: Record) {
        if self.first.is_none() {
            self.first = Some(record);
        } else {
            self.rest.push_back(record);
        }
    }

    pub(super) fn pop_front(&mut self) {
        self.first = self.rest.pop_front();
        if self.first.is_none() && self.rest.capacity() > KEPT_RECORDS {
            self.rest = VecDeque::new();
        }
    }

    /// The index of the first record that ends after this number; the length if there is none.
    pub(super) fn find(&self, sequence: Sequence) -> usize {
        match &self.first {
            Some(first) if first.end <= sequence => {
                1 + self.rest.partition_point(|record| record.end <= sequence)
            }
            _ => 0,
        }
    }

    /// Splits the record, so that the later one begins at `at`, which is within it.
    pub(super) fn split(&mut self, index: usize, at: Sequence) {
        let Some(record) = self.get_mut(index) else { return };
        let later = Record { start: at, ..*record };
        record.end = at;
        self.rest.insert(index, later);
    }

    /// Joins the record with the next one into one that has the later of both times.
    pub(super) fn join(&mut self, index: usize) {
        if index >= self.rest.len() {
            return;
        }
        let Some(later) = self.rest.remove(index) else { return };
        if let Some(record) = self.get_mut(index) {
            record.end = later.end;
            record.sent_at = record.sent_at.max(later.sent_at);
            record.resent |= later.resent;
        }
    }
}
