//! Detects losses by the time of transmission: RACK and its tail loss probe (RFC 8985).

use crate::sequence::Sequence;
use crate::time::Instant;
use std::time::Duration;

/// Segments delivered beyond a gap from which on it is useless to wait for reordered ones, as long
/// as no reordering was ever seen (RFC 8985, section 6.2 step 4).
const DUPLICATE_THRESHOLD: u32 = 3;
/// Recoveries after which a widened reordering window narrows again (section 6.2 step 4).
const WIDENED_RECOVERIES: u8 = 16;
/// The tail loss probe's time-out before the round-trip time is measured (section 7.2).
const PROBE_TIMEOUT_UNMEASURED: Duration = Duration::from_secs(1);

/// Properties of the connection and its path that loss detection needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RackParameters {
    /// The least round-trip time; `None` before the first measurement.
    pub(crate) minimum: Option<Duration>,
    /// The smoothed round-trip time.
    pub(crate) smoothed: Option<Duration>,
    /// Whether recovery has begun.
    pub(crate) in_recovery: bool,
    /// Bytes of a full segment.
    pub(crate) maximum_segment: u32,
}

/// The most recently sent segment that was delivered, and how much reordering there is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rack {
    /// When that segment was sent, and its end; `None` before the first delivery.
    newest: Option<(Instant, Sequence)>,
    round_trip: Duration,
    /// The end of the farthest data delivered.
    farthest: Sequence,
    reordering_seen: bool,
    /// Factor by which the reordering window is widened, minus one.
    widened: u8,
    recoveries_left: u8,
    /// While `Some`, further reports of duplicates belong to the same round trip.
    duplicate_round: Option<Sequence>,
}

/// A delivered segment, as the scoreboard recorded it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) sent_at: Instant,
    pub(super) end: Sequence,
    pub(super) resent: bool,
}

impl Rack {
    /// Records that a segment has arrived (section 6.2, steps 2 and 3).
    pub(super) fn deliver(&mut self, delivery: Delivery, now: Instant, minimum: Option<Duration>) {
        let Delivery { sent_at, end, resent } = delivery;
        if self.newest.is_none() || end > self.farthest {
            self.farthest = end;
        } else if end < self.farthest && !resent {
            self.reordering_seen = true;
        }
        let round_trip = now.since(sent_at);
        // An acknowledgement that arrives sooner than the path allows is for the copy that was sent
        // first.
        if resent && minimum.is_some_and(|minimum| round_trip < minimum) {
            return;
        }
        if self.newest.is_none_or(|newest| is_after((sent_at, end), newest)) {
            self.newest = Some((sent_at, end));
            self.round_trip = round_trip;
        }
    }

    /// Handles a reported duplicate, which shows that a segment was declared lost too early (step
    /// 4).
    pub(super) fn on_duplicate(&mut self, next: Sequence) {
        if self.duplicate_round.is_none() {
            self.duplicate_round = Some(next);
            self.widened = self.widened.saturating_add(1);
            self.recoveries_left = WIDENED_RECOVERIES;
        }
    }

    /// Records that all data before `acknowledged` is acknowledged.
    pub(super) fn on_acknowledged(&mut self, acknowledged: Sequence) {
        if self.duplicate_round.is_some_and(|round| acknowledged >= round) {
            self.duplicate_round = None;
        }
    }

    /// Records that a recovery has ended.
    pub(super) fn on_recovery_end(&mut self) {
        self.recoveries_left = self.recoveries_left.saturating_sub(1);
        if self.recoveries_left == 0 {
            self.widened = 0;
        }
    }

    /// The reordering window: how much later than a segment that was sent after it a segment may
    /// arrive (step 4).
    pub(super) fn reordering_window(
        &self,
        parameters: &RackParameters,
        selectively_acknowledged: u32,
    ) -> Duration {
        let enough = parameters.maximum_segment.saturating_mul(DUPLICATE_THRESHOLD);
        if !self.reordering_seen && (parameters.in_recovery || selectively_acknowledged >= enough) {
            return Duration::ZERO;
        }
        let quarter = parameters.minimum.unwrap_or_default() / 4;
        let window = quarter * (u32::from(self.widened) + 1);
        parameters.smoothed.map_or(window, |smoothed| window.min(smoothed))
    }

    /// The time at which a segment counts as lost; `None` if it was not sent before the newest
    /// delivered one (step 5).
    pub(super) fn lost_at(
        &self,
        sent_at: Instant,
        end: Sequence,
        window: Duration,
    ) -> Option<Instant> {
        let newest = self.newest?;
        is_after(newest, (sent_at, end)).then(|| sent_at + (self.round_trip + window))
    }

    /// Whether segments have arrived in a different order from that in which they were sent.
    #[cfg(test)]
    pub(super) fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }
}

fn is_after(one: (Instant, Sequence), other: (Instant, Sequence)) -> bool {
    one.0 > other.0 || (one.0 == other.0 && one.1 > other.1)
}

/// The tail loss probe in flight (RFC 8985, section 7).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TailLossProbe {
    /// The end of the probe, and whether it repeated data.
    under_way: Option<(Sequence, bool)>,
}

impl TailLossProbe {
    /// The time-out of the probe after the last transmission (section 7.2). If `lone`, at most one
    /// segment is outstanding, whose acknowledgement the peer may delay by
    /// `delayed_acknowledgement`. The caller limits the result to the time that is left of the
    /// retransmission time-out.
    pub(crate) fn timeout(
        smoothed: Option<Duration>,
        lone: bool,
        delayed_acknowledgement: Duration,
    ) -> Duration {
        let Some(smoothed) = smoothed else { return PROBE_TIMEOUT_UNMEASURED };
        let delay = if lone { delayed_acknowledgement } else { Duration::ZERO };
        smoothed * 2 + delay
    }

    /// Whether a probe is in flight, so that no other may be sent (section 7.3).
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Records that a probe was sent; `end` is the end of all data sent.
    pub(crate) fn on_sent(&mut self, end: Sequence, repeated: bool) {
        self.under_way = Some((end, repeated));
    }

    /// Handles an acknowledgement (section 7.4.2). True if the probe has repaired a loss, to which
    /// the congestion control must react. `duplicate_reported`: the acknowledgement reports the
    /// probe's data as a duplicate. `pure_duplicate`: it repeats the previous one and has no SACK
    /// blocks.
    pub(crate) fn on_ack(
        &mut self,
        acknowledged: Sequence,
        duplicate_reported: bool,
        pure_duplicate: bool,
    ) -> bool {
        let Some((end, repeated)) = self.under_way else { return false };
        if acknowledged < end {
            return false;
        }
        if !repeated || duplicate_reported {
            self.under_way = None;
            return false;
        }
        if acknowledged > end {
            self.under_way = None;
            return true;
        }
        if pure_duplicate {
            self.under_way = None;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_probe_is_due_after_two_round_trips_and_the_peers_delay() {
        let delay = ms(200);
        assert_eq!(TailLossProbe::timeout(None, false, delay), ms(1000));
        assert_eq!(TailLossProbe::timeout(Some(ms(30)), false, delay), ms(60));
        assert_eq!(TailLossProbe::timeout(Some(ms(30)), true, delay), ms(260));
    }

    /// Tests RFC 8985, section 7.4.2, case by case.
    #[test]
    fn a_probe_tells_of_a_loss_only_if_it_repaired_one() {
        let end = Sequence(5);
        let (before, behind) = (Sequence(u32::MAX), Sequence(6));
        let sent = |repeated| {
            let mut probe = TailLossProbe::default();
            probe.on_sent(end, repeated);
            assert!(probe.is_under_way());
            probe
        };
        let mut new_data = sent(false);
        assert!(!new_data.on_ack(before, false, false) && new_data.is_under_way());
        assert!(!new_data.on_ack(behind, false, false) && !new_data.is_under_way());

        let mut reported = sent(true);
        assert!(!reported.on_ack(end, false, false) && reported.is_under_way());
        assert!(!reported.on_ack(end, true, false) && !reported.is_under_way());

        let mut repaired = sent(true);
        assert!(repaired.on_ack(behind, false, false) && !repaired.is_under_way());

        let mut repeated = sent(true);
        assert!(!repeated.on_ack(end, false, true) && !repeated.is_under_way());
    }
}
