//! Implements slow start (RFC 5681, section 3.1), counting bytes (RFC 3465). It ends before a loss
//! when the queue on the path fills (HyStart++, RFC 9406).

use std::num::NonZeroU32;
use std::time::Duration;

// RFC 9406, section 4.3.
const LEAST_THRESHOLD_US: u32 = 4_000;
const MOST_THRESHOLD_US: u32 = 16_000;
const ROUND_TRIP_DIVISOR: u32 = 8;
const SAMPLES: u8 = 8;
const CONSERVATIVE_DIVISOR: u32 = 4;
const CONSERVATIVE_ROUNDS: u8 = 5;
/// Most segments by which one acknowledgement lets the window grow (L).
const SEGMENTS: u32 = 8;

/// Slow start, its rounds, and their round-trip times.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowStart {
    /// Bytes that must be acknowledged until the round ends.
    round_left: u32,
    /// The least round-trip times of the previous round and of this one, in microseconds.
    last_us: u32,
    current_us: u32,
    /// In conservative slow start: the round-trip time at its beginning.
    baseline_us: Option<NonZeroU32>,
    conservative_rounds: u8,
    samples: u8,
    /// Whether HyStart++ is active: in the first slow start only (RFC 9406, section 4.2).
    watches: bool,
    /// Bytes in flight at a time-out that are not yet acknowledged. Until they are, an
    /// acknowledgement may be for data that arrived long ago, and counts as one segment (RFC 3465,
    /// section 2.3).
    distrusted: u32,
}

/// The effect of an acknowledgement in slow start.
pub(super) struct Growth {
    pub(super) bytes: u32,
    /// The queue is filling; congestion avoidance begins now.
    pub(super) ends: bool,
}

impl SlowStart {
    /// The state of a connection's first slow start.
    pub(super) fn new() -> SlowStart {
        SlowStart {
            round_left: 0,
            last_us: u32::MAX,
            current_us: u32::MAX,
            baseline_us: None,
            conservative_rounds: 0,
            samples: 0,
            watches: true,
            distrusted: 0,
        }
    }

    /// Handles an acknowledgement while the window is below the threshold; `outstanding` bytes are
    /// sent and not acknowledged after it.
    pub(super) fn on_ack(
        &mut self,
        acknowledged: u32,
        round_trip: Option<Duration>,
        outstanding: u32,
        maximum_segment: u32,
    ) -> Growth {
        let segments = if self.distrusted > 0 { 1 } else { SEGMENTS };
        self.distrusted = self.distrusted.saturating_sub(acknowledged);
        let bytes = acknowledged.min(maximum_segment.saturating_mul(segments));
        if !self.watches {
            return Growth { bytes, ends: false };
        }
        if let Some(round_trip) = round_trip {
            self.measure(u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX));
        }
        let bytes = match self.baseline_us {
            Some(_) => bytes / CONSERVATIVE_DIVISOR,
            None => bytes,
        };
        self.round_left = self.round_left.saturating_sub(acknowledged);
        let ends = self.round_left == 0 && self.end_round(outstanding);
        Growth { bytes, ends }
    }

    /// Ends the first slow start after a loss or mark, because the threshold is known from now on.
    pub(super) fn end_first_slow_start(&mut self) {
        self.watches = false;
        self.baseline_us = None;
    }

    /// Handles a time-out with this number of bytes in flight.
    pub(super) fn on_timeout(&mut self, outstanding: u32) {
        self.end_first_slow_start();
        self.distrusted = self.distrusted.max(outstanding);
    }

    fn measure(&mut self, round_trip_us: u32) {
        self.current_us = self.current_us.min(round_trip_us);
        self.samples = self.samples.saturating_add(1);
        if self.samples < SAMPLES {
            return;
        }
        match self.baseline_us {
            // The increase was temporary.
            Some(baseline) if self.current_us < baseline.get() => self.baseline_us = None,
            Some(_) => {}
            None if self.last_us != u32::MAX => {
                let threshold = self.last_us / ROUND_TRIP_DIVISOR;
                let threshold = threshold.clamp(LEAST_THRESHOLD_US, MOST_THRESHOLD_US);
                if self.current_us >= self.last_us.saturating_add(threshold) {
                    self.baseline_us = NonZeroU32::new(self.current_us);
                    self.conservative_rounds = 0;
                }
            }
            None => {}
        }
    }

    /// Begins the next round, which ends when all data outstanding now is acknowledged. True if
    /// slow start has been conservative for long enough.
    fn end_round(&mut self, outstanding: u32) -> bool {
        self.round_left = outstanding;
        if self.samples > 0 {
            self.last_us = self.current_us;
        }
        self.current_us = u32::MAX;
        self.samples = 0;
        if self.baseline_us.is_none() {
            return false;
        }
        self.conservative_rounds += 1;
        let ends = self.conservative_rounds >= CONSERVATIVE_ROUNDS;
        if ends {
            self.end_first_slow_start();
        }
        ends
    }
}
