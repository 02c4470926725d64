//! What was sent and when, what has arrived of it, and what is taken for lost, record by record.

use super::super::rack::{Delivery, Rack, RackParameters};
use super::flight::{Flight, Record};
use super::{Acknowledged, Losses, Sacked};
use crate::sequence::Sequence;
use crate::time::Instant;
use crate::wire::tcp::SackBlock;
use std::time::Duration;

/// Records beyond which what is sent joins the record before, even if that was sent earlier.
pub(super) const RECORDS: usize = 1024;
/// Records beyond which a peer's blocks are not followed where they would cut a record, so that it
/// cannot make us remember every byte.
pub(super) const RECORDS_MAX: usize = 4096;

/// The outstanding data of a connection that is more than one plain stretch, or was once.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Detail {
    pub(super) flight: Flight,
    /// The first number outstanding.
    pub(super) unacknowledged: Sequence,
    /// Behind the last number sent.
    pub(super) next: Sequence,
    sacked: u32,
    lost: u32,
    /// Nothing before this is lost.
    first_lost: Sequence,
    /// Without SACK: what must have arrived, because duplicate acknowledgements came.
    assumed: u32,
    /// What one duplicate acknowledgement stands for.
    assumed_unit: u32,
    duplicates: u32,
    pub(super) rack: Rack,
}

impl Detail {
    /// What `unacknowledged..next`, sent at one time, is in detail.
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

    /// Bytes that are estimated to be on the way (RFC 6675, section 4: the pipe).
    pub(super) fn in_flight(&self) -> u32 {
        let gone = self.sacked.saturating_add(self.lost).saturating_add(self.assumed);
        self.outstanding().saturating_sub(gone)
    }

    /// Bytes that the peer has behind a gap.
    pub(super) fn sacked_bytes(&self) -> u32 {
        self.sacked
    }

    /// Bytes that are taken for lost and were not sent again.
    pub(super) fn lost_bytes(&self) -> u32 {
        self.lost
    }

    /// `start..end` was sent for the first time; it begins where what was sent before ended.
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
            // Forgetting that a record was sacked costs a retransmission at worst.
            Some(last) if full => {
                self.sacked -= if last.sacked { last.bytes() } else { 0 };
                self.lost -= if last.lost { last.bytes() } else { 0 };
                *last = Record { resent: true, ..Record::new(last.start, end, now) };
            }
            _ => self.flight.push(Record::new(start, end, now)),
        }
    }

    /// `start..end`, or what of it is outstanding, was sent again.
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

    /// All numbers before `acknowledged` have arrived. `minimum` is the least round-trip time. An
    /// acknowledgement of what was not sent, or is acknowledged already, changes nothing.
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
        self.settle_assumed(&mut told);
        told
    }

    /// Takes the SACK blocks of a segment that acknowledges `acknowledged`. Blocks of data that is
    /// not outstanding are ignored, but for a report of duplicates (RFC 2883, section 4).
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

    /// Without SACK: an acknowledgement repeats the one before, so one more segment must have
    /// arrived behind the gap (RFC 5681, section 3.2). Gives the number of such in a row.
    pub(super) fn duplicate_ack(&mut self, maximum_segment: u32) -> u32 {
        self.assumed_unit = maximum_segment;
        let most = self.outstanding().saturating_sub(self.lost).saturating_sub(maximum_segment);
        self.assumed = self.assumed.saturating_add(maximum_segment).min(most);
        self.duplicates = self.duplicates.saturating_add(1);
        self.duplicates
    }

    /// Without SACK: duplicate acknowledgements tell nothing until something is acknowledged.
    pub(super) fn disregard_duplicates(&mut self) {
        self.duplicates = u32::MAX;
    }

    /// With SACK: takes for lost what should have arrived before something that was sent later and
    /// has arrived (RFC 8985, section 6.2, step 5).
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
                // All behind it was sent later still, be it for the first time or again.
                None if !record.resent => break,
                None => {}
            }
        }
        self.lost += losses.bytes;
        losses
    }

    /// Takes the first outstanding bytes for lost, at most a segment's: after the third duplicate
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

    /// The retransmission timer has expired: takes for lost whatever the peer does not have. If the
    /// peer says to have the very first bytes and yet does not acknowledge them, it has taken its
    /// word back, and nothing that it said counts (RFC 2018, section 8).
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

    /// A time-out or recovery was for nothing: what was taken for lost and not sent again is on the
    /// way after all.
    pub(super) fn mark_none_lost(&mut self) {
        for record in self.flight.iter_mut() {
            record.lost = false;
        }
        self.lost = 0;
    }

    /// The first bytes that are taken for lost: where they begin and how many they are.
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

    /// Recovery has ended.
    pub(super) fn on_recovery_end(&mut self) {
        (self.assumed, self.duplicates) = (0, 0);
        self.rack.on_recovery_end();
    }

    /// Makes a record begin at this number if one lies around it, and gives the index of the first
    /// record that ends behind it.
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

    /// Joins the record with that before it if they share time and fate.
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

    /// What duplicate acknowledgements stood for is acknowledged now, except the gap before it (RFC
    /// 6582, section 3.2: partial acknowledgements deflate the window).
    fn settle_assumed(&mut self, told: &mut Acknowledged) {
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

/// Whether the first block reports a duplicate: it lies before the acknowledgement, or within the
/// second block (RFC 2883, section 4).
pub(super) fn is_duplicate_report(blocks: &[SackBlock], acknowledged: Sequence) -> bool {
    match blocks {
        [first, ..] if first.start >= first.end => false,
        [first, ..] if first.end <= acknowledged => true,
        [first, second, ..] => first.start >= second.start && first.end <= second.end,
        _ => false,
    }
}
