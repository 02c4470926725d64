//! Tracks the records of sent data: when it was sent, what of it was delivered, and what is
//! presumed lost.

use super::super::rack::{Delivery, Rack, RackParameters};
use super::flight::{Flight, Record};
use super::{Acknowledged, Losses, Sacked};
use crate::sequence::Sequence;
use crate::time::Instant;
use crate::wire::tcp::SackBlock;
use std::time::Duration;

/// Number of records from which on newly sent data joins the last record, even if that was sent
/// earlier.
pub(super) const RECORDS: usize = 1024;
/// Number of records from which on SACK blocks that would cut a record are ignored, so that a peer
/// cannot make us keep a record for every byte.
pub(super) const RECORDS_MAX: usize = 4096;

/// The outstanding data of a connection, if it is or was more than one plain range.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Detail {
    pub(super) flight: Flight,
    /// The first number outstanding.
    pub(super) unacknowledged: Sequence,
    /// The end of the numbers sent.
    pub(super) next: Sequence,
    sacked: u32,
    lost: u32,
    /// No data before this number is lost.
    first_lost: Sequence,
    /// Without SACK: bytes that must have arrived, because duplicate acknowledgements were
    /// received.
    assumed: u32,
    /// Bytes for which one duplicate acknowledgement counts.
    assumed_unit: u32,
    duplicates: u32,
    pub(super) rack: Rack,
}

impl Detail {
    /// The records for the data `unacknowledged..next`, which was sent at one time.
    pub(super) fn new(unacknowledged: Sequence, next: Sequence, sent_at: Instant) -> Detail {
        let mut detail = Detail {
            unacknowledged,
            next: unacknowledged,
            first_lost: unacknowledged,
            ..Detail::default()
        };
        detail.sent(unacknowledged, next, sent_at);
        detail
    }

    /// Bytes that are sent and not acknowledged.
    pub(super) fn outstanding(&self) -> u32 {
        self.next.since(self.unacknowledged)
    }

    /// Bytes that are estimated to be in flight (RFC 6675, section 4: the pipe).
    pub(super) fn in_flight(&self) -> u32 {
        let gone = self.sacked.saturating_add(self.lost).saturating_add(self.assumed);
        self.outstanding().saturating_sub(gone)
    }

    /// Bytes that the peer has received behind a gap.
    pub(super) fn sacked_bytes(&self) -> u32 {
        self.sacked
    }

    /// Bytes that are presumed lost and were not sent again.
    pub(super) fn lost_bytes(&self) -> u32 {
        self.lost
    }

    /// Records that `start..end` was sent for the first time; it begins at the end of the data sent
    /// before.
    pub(super) fn sent(&mut self, start: Sequence, end: Sequence, now: Instant) {
        if start >= end {
            return;
        }
        if self.flight.len() == 0 {
            (self.unacknowledged, self.first_lost) = (start, start);
        }
        debug_assert!(self.flight.last().is_none_or(|last| last.end == start));
        self.next = end;
        let crowded = self.flight.len() >= RECORDS;
        let full = self.flight.len() >= RECORDS_MAX;
        match self.flight.last_mut() {
            Some(last) if last.is_plain() && (crowded || last.sent_at == now) => {
                last.end = end;
                last.sent_at = now;
            }
            // If the record forgets that it was sacked, the cost is at most a retransmission.
            Some(last) if full => {
                self.sacked -= if last.sacked { last.bytes() } else { 0 };
                self.lost -= if last.lost { last.bytes() } else { 0 };
                *last = Record { resent: true, ..Record::new(last.start, end, now) };
            }
            _ => self.flight.push(Record::new(start, end, now)),
        }
    }

    /// Records that `start..end`, or the outstanding part of it, was sent again.
    pub(super) fn resent(&mut self, start: Sequence, end: Sequence, now: Instant) {
        let mut index = self.isolate(start);
        while let Some(&record) = self.flight.get(index)
            && record.start < end
        {
            if record.sacked || record.start < start {
                index += 1;
                continue;
            }
            if record.end > end && self.flight.len() < RECORDS_MAX {
                self.flight.split(index, end);
            }
            let Some(record) = self.flight.get_mut(index) else { return };
            if record.lost {
                self.lost -= record.bytes();
            }
            (record.sent_at, record.lost, record.resent) = (now, false, true);
            let record = *record;
            if self.first_lost >= record.start && self.first_lost < record.end {
                self.first_lost = record.end;
            }
            index += 1 - usize::from(self.join_alike(index));
        }
    }

    /// Records that all numbers before `acknowledged` have arrived. `minimum` is the least
    /// round-trip time. An acknowledgement of data that was not sent, or is acknowledged already,
    /// has no effect.
    pub(super) fn acknowledge(
        &mut self,
        acknowledged: Sequence,
        now: Instant,
        minimum: Option<Duration>,
    ) -> Acknowledged {
        let mut told = Acknowledged::default();
        if acknowledged <= self.unacknowledged || acknowledged > self.next {
            return told;
        }
        told.bytes = acknowledged.since(self.unacknowledged);
        while let Some(record) = self.flight.first_mut()
            && record.start < acknowledged
        {
            let part = Record { end: record.end.min(acknowledged), ..*record };
            record.start = part.end;
            if record.start == record.end {
                self.flight.pop_front();
            }
            if part.sacked {
                self.sacked -= part.bytes();
                continue;
            }
            if part.lost {
                self.lost -= part.bytes();
            }
            told.delivered += part.bytes();
            told.original |= !part.resent;
            told.round_trip = Some(now.since(part.sent_at));
            if part.resent {
                told.resent_for = told.resent_for.max(told.round_trip);
            }
            self.rack.deliver(Delivery::of(&part), now, minimum);
        }
        if told.resent_for.is_some() {
            told.round_trip = None;
        }
        self.unacknowledged = acknowledged;
        self.first_lost = self.first_lost.max(acknowledged);
        self.rack.on_acknowledged(acknowledged);
        self.acknowledge_assumed(&mut told);
        told
    }

    /// Applies the SACK blocks of a segment that acknowledges `acknowledged`. Blocks of data that
    /// is not outstanding are ignored, except for a report of duplicates (RFC 2883, section 4).
    pub(super) fn sack(
        &mut self,
        blocks: &[SackBlock],
        acknowledged: Sequence,
        now: Instant,
        minimum: Option<Duration>,
    ) -> Sacked {
        let mut told = Sacked::default();
        let mut blocks = blocks;
        if let Some(&first) = blocks.first()
            && is_duplicate_report(blocks, acknowledged)
        {
            told.duplicate = Some(first);
            self.rack.on_duplicate(self.next);
            blocks = &blocks[1..];
        }
        let mut newest = None;
        for block in blocks {
            let start = block.start.max(self.unacknowledged);
            if start < block.end && block.end <= self.next {
                self.sack_range(start, block.end, now, minimum, &mut told, &mut newest);
            }
        }
        told.round_trip = newest.map(|sent_at| now.since(sent_at));
        told
    }

    /// Without SACK: handles a duplicate acknowledgement, by which one more segment must have
    /// arrived behind the gap (RFC 5681, section 3.2). Returns the number of consecutive ones.
    pub(super) fn duplicate_ack(&mut self, maximum_segment: u32) -> u32 {
        self.assumed_unit = maximum_segment;
        let most = self.outstanding().saturating_sub(self.lost).saturating_sub(maximum_segment);
        self.assumed = self.assumed.saturating_add(maximum_segment).min(most);
        self.duplicates = self.duplicates.saturating_add(1);
        self.duplicates
    }

    /// Without SACK: ignores duplicate acknowledgements until new data is acknowledged.
    pub(super) fn disregard_duplicates(&mut self) {
        self.duplicates = u32::MAX;
    }

    /// With SACK: declares lost the data that should have arrived before data that was sent later
    /// and has arrived (RFC 8985, section 6.2, step 5).
    pub(super) fn detect_losses(&mut self, now: Instant, parameters: &RackParameters) -> Losses {
        let window = self.rack.reordering_window(parameters, self.sacked);
        let mut losses = Losses::default();
        for record in self.flight.iter_mut() {
            if record.sacked || record.lost {
                continue;
            }
            match self.rack.lost_at(record.sent_at, record.end, window) {
                Some(at) if at <= now => {
                    record.lost = true;
                    losses.bytes += record.bytes();
                    self.first_lost = self.first_lost.min(record.start);
                }
                Some(at) => losses.deadline = losses.deadline.max(Some(at)),
                // All records behind this one were sent even later, for the first time or again.
                None if !record.resent => break,
                None => {}
            }
        }
        self.lost += losses.bytes;
        losses
    }

    /// Declares the first outstanding bytes lost, at most one segment: after the third duplicate
    /// acknowledgement, and on a partial acknowledgement in recovery (RFC 6582, section 3.2).
    pub(super) fn mark_first_lost(&mut self, maximum_segment: u32) -> u32 {
        let Some(&first) = self.flight.first() else { return 0 };
        if first.sacked || first.lost {
            return 0;
        }
        if first.bytes() > maximum_segment && maximum_segment > 0 {
            self.flight.split(0, first.start + maximum_segment);
        }
        let Some(first) = self.flight.first_mut() else { return 0 };
        first.lost = true;
        let bytes = first.bytes();
        self.lost += bytes;
        self.first_lost = self.unacknowledged;
        self.assumed = self.assumed.min(self.outstanding() - self.sacked - self.lost);
        bytes
    }

    /// Handles the retransmission time-out: declares lost all data that the peer does not have. If
    /// the peer has reported the very first bytes and yet does not acknowledge them, it has
    /// discarded them. Then none of its reports count (RFC 2018, section 8).
    pub(super) fn mark_all_lost(&mut self) -> u32 {
        let before = self.lost;
        let reneged = self.flight.first().is_some_and(|first| first.sacked);
        for record in self.flight.iter_mut() {
            record.sacked &= !reneged;
            record.lost = !record.sacked;
        }
        self.sacked = if reneged { 0 } else { self.sacked };
        self.lost = self.outstanding() - self.sacked;
        self.first_lost = self.unacknowledged;
        (self.assumed, self.duplicates) = (0, 0);
        self.lost - before
    }

    /// Handles a spurious time-out or recovery: data that was declared lost and not sent again is
    /// in flight after all.
    pub(super) fn mark_none_lost(&mut self) {
        for record in self.flight.iter_mut() {
            record.lost = false;
        }
        self.lost = 0;
    }

    /// The start and number of the first bytes that are presumed lost.
    pub(super) fn next_lost(&mut self) -> Option<(Sequence, u32)> {
        if self.lost == 0 {
            return None;
        }
        let mut index = self.flight.find(self.first_lost);
        while let Some(record) = self.flight.get(index) {
            if record.lost {
                self.first_lost = record.start;
                return Some((record.start, record.bytes()));
            }
            index += 1;
        }
        None
    }

    /// The last segment that was sent, for a tail loss probe to repeat (RFC 8985, section 7.3).
    pub(super) fn last_segment(&self, maximum_segment: u32) -> Option<(Sequence, u32)> {
        let last = self.flight.last()?;
        let bytes = last.bytes().min(maximum_segment);
        Some((last.end - bytes, bytes))
    }

    /// Resets the state of a recovery at its end.
    pub(super) fn on_recovery_end(&mut self) {
        (self.assumed, self.duplicates) = (0, 0);
        self.rack.on_recovery_end();
    }

    /// Splits the record that contains this number, so that one begins there. Returns the index of
    /// the first record that ends after the number.
    fn isolate(&mut self, start: Sequence) -> usize {
        let index = self.flight.find(start);
        match self.flight.get(index) {
            Some(record)
                if record.start < start && !record.sacked && self.flight.len() < RECORDS_MAX =>
            {
                self.flight.split(index, start);
                index + 1
            }
            _ => index,
        }
    }

    /// Joins the record with the previous one if both have the same time and state.
    fn join_alike(&mut self, index: usize) -> bool {
        let Some(before) = index.checked_sub(1) else { return false };
        let (Some(one), Some(other)) = (self.flight.get(before), self.flight.get(index)) else {
            return false;
        };
        let alike = if one.sacked {
            other.sacked
        } else {
            !other.sacked
                && one.sent_at == other.sent_at
                && one.lost == other.lost
                && one.resent == other.resent
        };
        if alike {
            self.flight.join(before);
        }
        alike
    }

    fn sack_range(
        &mut self,
        start: Sequence,
        end: Sequence,
        now: Instant,
        minimum: Option<Duration>,
        told: &mut Sacked,
        newest: &mut Option<Instant>,
    ) {
        let mut index = self.isolate(start);
        while let Some(&record) = self.flight.get(index)
            && record.start < end
        {
            if record.sacked || record.start < start {
                index += 1;
                continue;
            }
            if record.end > end {
                if self.flight.len() >= RECORDS_MAX {
                    return;
                }
                self.flight.split(index, end);
            }
            let Some(record) = self.flight.get_mut(index) else { return };
            record.sacked = true;
            let lost = std::mem::take(&mut record.lost);
            let record = *record;
            self.lost -= if lost { record.bytes() } else { 0 };
            self.sacked += record.bytes();
            told.bytes += record.bytes();
            if !record.resent {
                told.original = true;
                *newest = (*newest).max(Some(record.sent_at));
            }
            self.rack.deliver(Delivery::of(&record), now, minimum);
            index += 1 - usize::from(self.join_alike(index));
        }
        self.join_alike(index);
    }

    /// Handles the acknowledgement of the bytes that duplicate acknowledgements counted, except the
    /// gap before them (RFC 6582, section 3.2: partial acknowledgements deflate the window).
    fn acknowledge_assumed(&mut self, told: &mut Acknowledged) {
        self.duplicates = 0;
        if self.assumed == 0 {
            return;
        }
        let covered = told.delivered.saturating_sub(self.assumed_unit).min(self.assumed);
        told.delivered -= covered;
        self.assumed -= covered;
        let most = self.outstanding().saturating_sub(self.lost);
        self.assumed = self.assumed.min(most.saturating_sub(self.assumed_unit));
    }
}

impl Delivery {
    fn of(record: &Record) -> Delivery {
        Delivery { sent_at: record.sent_at, end: record.end, resent: record.resent }
    }
}

/// Whether the first block reports a duplicate: it is before the acknowledgement, or within the
/// second block (RFC 2883, section 4).
pub(super) fn is_duplicate_report(blocks: &[SackBlock], acknowledged: Sequence) -> bool {
    match blocks {
        [first, ..] if first.start >= first.end => false,
        [first, ..] if first.end <= acknowledged => true,
        [first, second, ..] => first.start >= second.start && first.end <= second.end,
        _ => false,
    }
}
