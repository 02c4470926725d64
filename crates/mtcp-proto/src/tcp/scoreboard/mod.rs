//! Tracks sent data: when it was sent, what of it was delivered, and what is presumed lost (RFC
//! 2018, RFC 2883, RFC 6582, RFC 6675, RFC 8985).

mod detail;
mod flight;

use self::detail::Detail;
use super::rack::RackParameters;
use crate::sequence::Sequence;
use crate::time::Instant;
use crate::wire::tcp::SackBlock;
use std::time::Duration;

/// The outstanding data of a connection, in bytes of sequence numbers (so a SYN or FIN is one).
///
/// Data that is sent at one time, however many segments it fills, is one plain range. Three numbers
/// are enough as long as no more is outstanding and the peer acknowledges it from the beginning. A
/// finished flight has no influence on the loss of a later one (RFC 8985 compares with data that
/// was sent later). Any other event creates the details on the heap, which then stay.
///
/// For each acknowledgement call [`Scoreboard::acknowledge`], then [`Scoreboard::sack`] or
/// [`Scoreboard::duplicate_ack`], then (with SACK only) [`Scoreboard::detect_losses`].
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    /// The outstanding range, unless there are details.
    unacknowledged: Sequence,
    next: Sequence,
    /// When data was last sent for the first time.
    sent_at: Instant,
    detail: Option<Box<Detail>>,
}

/// The result of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// Numbers by which it advanced; zero if it did not.
    pub(crate) bytes: u32,
    /// Bytes of them that were not known to have arrived.
    pub(crate) delivered: u32,
    /// A round-trip time, if none of the data was sent twice (Karn's algorithm).
    pub(crate) round_trip: Option<Duration>,
    /// If some of the data was sent again: the longest time since then.
    pub(crate) resent_for: Option<Duration>,
    /// Whether some of the data was sent only once and was not known to have arrived, by which
    /// F-RTO (RFC 5682) detects a spurious time-out.
    pub(crate) original: bool,
}

/// The result of SACK blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sacked {
    /// Bytes that were not known to have arrived.
    pub(crate) bytes: u32,
    /// A round-trip time, of data that was sent once.
    pub(crate) round_trip: Option<Duration>,
    /// Whether some of the data was sent only once.
    pub(crate) original: bool,
    /// Data that the peer has received twice (RFC 2883).
    pub(crate) duplicate: Option<SackBlock>,
}

/// The data that was declared lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Bytes that were not presumed lost before.
    pub(crate) bytes: u32,
    /// When to look for losses again, because more data would be lost by then.
    pub(crate) deadline: Option<Instant>,
}

impl Scoreboard {
    /// A scoreboard without outstanding data.
    pub(crate) fn new() -> Scoreboard {
        Scoreboard::default()
    }

    fn detail(&mut self) -> &mut Detail {
        let (unacknowledged, next, sent_at) = (self.unacknowledged, self.next, self.sent_at);
        self.detail.get_or_insert_with(|| Box::new(Detail::new(unacknowledged, next, sent_at)))
    }

    /// Bytes that are sent and not acknowledged.
    #[cfg(test)]
    pub(crate) fn outstanding(&self) -> u32 {
        match &self.detail {
            Some(detail) => detail.outstanding(),
            None => self.next.since(self.unacknowledged),
        }
    }

    /// When data was last sent for the first time; zero if none was.
    pub(crate) fn sent_at(&self) -> Instant {
        self.sent_at
    }

    /// Bytes that are estimated to be in flight (RFC 6675, section 4: the pipe).
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        match &self.detail {
            Some(detail) => detail.in_flight(),
            None => self.next.since(self.unacknowledged),
        }
    }

    /// Bytes that the peer has received behind a gap.
    #[inline]
    pub(crate) fn sacked_bytes(&self) -> u32 {
        self.detail.as_ref().map_or(0, |detail| detail.sacked_bytes())
    }

    /// Bytes that are presumed lost and were not sent again.
    #[inline]
    pub(crate) fn lost_bytes(&self) -> u32 {
        self.detail.as_ref().map_or(0, |detail| detail.lost_bytes())
    }

    /// Records that `start..end` was sent for the first time; it begins at the end of the data sent
    /// before.
    pub(crate) fn sent(&mut self, start: Sequence, end: Sequence, now: Instant) {
        let empty = self.unacknowledged == self.next;
        if start >= end {
            return;
        }
        if self.detail.is_none() && (empty || self.sent_at == now) {
            if empty {
                self.unacknowledged = start;
            }
            self.next = end;
        } else {
            self.detail().sent(start, end, now);
        }
        self.sent_at = now;
    }

    /// Records that `start..end`, or the outstanding part of it, was sent again.
    pub(crate) fn resent(&mut self, start: Sequence, end: Sequence, now: Instant) {
        self.detail().resent(start, end, now);
    }

    /// Records that all numbers before `acknowledged` have arrived. `minimum` is the least
    /// round-trip time. An acknowledgement of data that was not sent, or is acknowledged already,
    /// has no effect.
    pub(crate) fn acknowledge(
        &mut self,
        acknowledged: Sequence,
        now: Instant,
        minimum: Option<Duration>,
    ) -> Acknowledged {
        if let Some(detail) = &mut self.detail {
            return detail.acknowledge(acknowledged, now, minimum);
        }
        if acknowledged <= self.unacknowledged || acknowledged > self.next {
            return Acknowledged::default();
        }
        let bytes = acknowledged.since(self.unacknowledged);
        self.unacknowledged = acknowledged;
        Acknowledged {
            bytes,
            delivered: bytes,
            round_trip: Some(now.since(self.sent_at)),
            resent_for: None,
            original: true,
        }
    }

    /// Applies the SACK blocks of a segment that acknowledges `acknowledged`. Blocks of data that
    /// is not outstanding are ignored, except for a report of duplicates (RFC 2883, section 4).
    pub(crate) fn sack(
        &mut self,
        blocks: &[SackBlock],
        acknowledged: Sequence,
        now: Instant,
        minimum: Option<Duration>,
    ) -> Sacked {
        self.detail().sack(blocks, acknowledged, now, minimum)
    }

    /// Without SACK: handles a duplicate acknowledgement, by which one more segment must have
    /// arrived behind the gap (RFC 5681, section 3.2). Returns the number of consecutive ones.
    pub(crate) fn duplicate_ack(&mut self, maximum_segment: u32) -> u32 {
        self.detail().duplicate_ack(maximum_segment)
    }

    /// Without SACK: ignores duplicate acknowledgements until new data is acknowledged.
    pub(crate) fn disregard_duplicates(&mut self) {
        self.detail().disregard_duplicates();
    }

    /// With SACK: declares lost the data that should have arrived before data that was sent later
    /// and has arrived (RFC 8985, section 6.2, step 5).
    pub(crate) fn detect_losses(&mut self, now: Instant, parameters: &RackParameters) -> Losses {
        let detail = self.detail.as_mut();
        detail.map_or_else(Losses::default, |detail| detail.detect_losses(now, parameters))
    }

    /// Declares the first outstanding bytes lost, at most one segment: after the third duplicate
    /// acknowledgement, and on a partial acknowledgement in recovery (RFC 6582, section 3.2).
    pub(crate) fn mark_first_lost(&mut self, maximum_segment: u32) -> u32 {
        self.detail().mark_first_lost(maximum_segment)
    }

    /// Handles the retransmission time-out: declares lost all data that the peer does not have. If
    /// the peer has reported the very first bytes and yet does not acknowledge them, it has
    /// discarded them. Then none of its reports count (RFC 2018, section 8).
    pub(crate) fn mark_all_lost(&mut self) -> u32 {
        self.detail().mark_all_lost()
    }

    /// Handles a spurious time-out or recovery: data that was declared lost and not sent again is
    /// in flight after all.
    pub(crate) fn mark_none_lost(&mut self) {
        if let Some(detail) = &mut self.detail {
            detail.mark_none_lost();
        }
    }

    /// The start and number of the first bytes that are presumed lost.
    pub(crate) fn next_lost(&mut self) -> Option<(Sequence, u32)> {
        self.detail.as_mut()?.next_lost()
    }

    /// The last segment that was sent, for a tail loss probe to repeat (RFC 8985, section 7.3).
    pub(crate) fn last_segment(&self, maximum_segment: u32) -> Option<(Sequence, u32)> {
        if let Some(detail) = &self.detail {
            return detail.last_segment(maximum_segment);
        }
        let bytes = self.next.since(self.unacknowledged).min(maximum_segment);
        (bytes > 0).then_some((self.next - bytes, bytes))
    }

    /// Resets the state of a recovery at its end.
    pub(crate) fn on_recovery_end(&mut self) {
        if let Some(detail) = &mut self.detail {
            detail.on_recovery_end();
        }
    }
}

#[cfg(test)]
mod tests;
