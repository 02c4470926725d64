//! Controls how much data may be in flight: the congestion window, by CUBIC or NewReno.

mod cubic;
mod newreno;
mod rate_reduction;
mod slow_start;

use self::cubic::Cubic;
use self::newreno::NewReno;
use self::rate_reduction::RateReduction;
use self::slow_start::SlowStart;
use crate::config::Congestion;
use crate::time::Instant;
use std::time::Duration;

/// The largest congestion window, which is that of a scaled window (RFC 7323, section 2.3).
const WINDOW_BYTES_MAX: u32 = 1 << 30;

/// The congestion window of a connection, in bytes, and the algorithm that changes it.
///
/// During recovery the window follows the bytes in flight
/// ([`CongestionControl::recovery_allowance`]). At all times, the number of bytes that may be sent
/// is the window minus the bytes in flight.
#[derive(Debug)]
pub(crate) struct CongestionControl {
    window: u32,
    threshold: u32,
    maximum_segment: u16,
    initial_segments: u16,
    kind: Congestion,
    /// Whether a time-out has expired and no data was acknowledged since.
    timed_out: bool,
    slow_start: SlowStart,
    /// Allocated when the first slow start ends.
    past: Option<Box<AfterSlowStart>>,
}

/// State that is needed only after the first slow start.
#[derive(Debug)]
struct AfterSlowStart {
    algorithm: Algorithm,
    /// The newest measurement, from which CUBIC computes the target of one round trip ahead.
    round_trip: Duration,
    recovery: Option<RateReduction>,
    saved: Option<Saved>,
}

#[derive(Clone, Copy, Debug)]
enum Algorithm {
    NewReno(NewReno),
    Cubic(Cubic),
}

/// The state before the last reduction, in case it was spurious.
#[derive(Debug)]
struct Saved {
    window: u32,
    threshold: u32,
    algorithm: Algorithm,
}

impl AfterSlowStart {
    fn new(kind: Congestion) -> AfterSlowStart {
        let algorithm = match kind {
            Congestion::NewReno => Algorithm::NewReno(NewReno::default()),
            Congestion::Cubic => Algorithm::Cubic(Cubic::new()),
        };
        AfterSlowStart { algorithm, round_trip: Duration::ZERO, recovery: None, saved: None }
    }

    fn cubic(&mut self) -> Option<&mut Cubic> {
        match &mut self.algorithm {
            Algorithm::Cubic(cubic) => Some(cubic),
            Algorithm::NewReno(_) => None,
        }
    }
}

impl CongestionControl {
    /// Creates the control of a new connection, whose initial window is this number of segments
    /// (RFC 6928) of at least one byte.
    pub(crate) fn new(
        kind: Congestion,
        maximum_segment: u16,
        initial_window_segments: u16,
    ) -> CongestionControl {
        let maximum_segment = maximum_segment.max(1);
        let initial_segments = initial_window_segments.max(1);
        CongestionControl {
            window: (u32::from(maximum_segment) * u32::from(initial_segments))
                .min(WINDOW_BYTES_MAX),
            threshold: u32::MAX,
            maximum_segment,
            initial_segments,
            kind,
            timed_out: false,
            slow_start: SlowStart::new(),
            past: None,
        }
    }

    fn past(&mut self) -> &mut AfterSlowStart {
        let kind = self.kind;
        self.past.get_or_insert_with(|| Box::new(AfterSlowStart::new(kind)))
    }

    fn cubic(&mut self) -> Option<&mut Cubic> {
        self.past.as_mut()?.cubic()
    }

    fn segment(&self) -> u32 {
        u32::from(self.maximum_segment)
    }

    /// Bytes that may be in flight.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// The slow-start threshold, in bytes; `u32::MAX` before the first loss.
    pub(crate) fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Whether the window is below the threshold.
    pub(crate) fn in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// Whether [`CongestionControl::on_loss`] was called and that recovery has not ended.
    pub(crate) fn in_recovery(&self) -> bool {
        self.past.as_ref().is_some_and(|past| past.recovery.is_some())
    }

    /// Handles an acknowledgement of new data, after which `outstanding` bytes are sent and not
    /// acknowledged. The window grows, except in recovery and if the application did not use the
    /// window (RFC 9438, section 5.8; RFC 7661, section 4.1 gives the reason).
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        acknowledged: u32,
        round_trip: Option<Duration>,
        outstanding: u32,
        application_limited: bool,
    ) {
        if let (Some(past), Some(round_trip)) = (&mut self.past, round_trip) {
            past.round_trip = round_trip;
        }
        if acknowledged == 0 {
            return;
        }
        self.timed_out = false;
        if self.in_recovery() {
            return;
        }
        if application_limited {
            if let Some(cubic) = self.cubic() {
                cubic.pause(now);
            }
            return;
        }
        let window = if self.in_slow_start() {
            self.grow_fast(acknowledged, round_trip, outstanding)
        } else {
            let (window, segment) = (self.window, self.segment());
            let past = self.past();
            let round_trip = past.round_trip;
            match &mut past.algorithm {
                Algorithm::NewReno(algorithm) => algorithm.avoid(window, acknowledged, segment),
                Algorithm::Cubic(algorithm) => {
                    algorithm.avoid(now, window, acknowledged, segment, round_trip)
                }
            }
        };
        self.window = window.min(WINDOW_BYTES_MAX);
    }

    /// Begins recovery after a loss that was found without a time-out, with `outstanding` bytes
    /// outstanding (RFC 5681, section 3.2; RFC 6582; RFC 9438, section 4.6). Must be called once
    /// for each recovery.
    pub(crate) fn on_loss(&mut self, outstanding: u32) {
        self.reduce(outstanding);
        self.past().recovery = Some(RateReduction::new(outstanding));
    }

    /// Handles an acknowledgement in recovery: `delivered` more bytes have arrived (in order or
    /// not), and an estimated `in_flight` bytes are in flight after it. `safe`: it advanced and no
    /// further segment was found lost. Sets the window, and returns the bytes that may be sent now.
    pub(crate) fn recovery_allowance(&mut self, delivered: u32, in_flight: u32, safe: bool) -> u32 {
        let (threshold, segment) = (self.threshold, self.segment());
        let Some(recovery) = self.past.as_mut().and_then(|past| past.recovery.as_mut()) else {
            return self.window.saturating_sub(in_flight);
        };
        let allowed = recovery.allowance(delivered, in_flight, safe, threshold, segment);
        self.window = in_flight.saturating_add(allowed);
        allowed
    }

    /// Records that data was sent, for the first time or again. Only recovery counts it.
    pub(crate) fn on_sent(&mut self, bytes: u32) {
        if let Some(recovery) = self.past.as_mut().and_then(|past| past.recovery.as_mut()) {
            recovery.on_sent(bytes);
        }
    }

    /// Ends recovery: all data that was outstanding when it began is acknowledged.
    pub(crate) fn on_recovery_end(&mut self) {
        if self.past.as_mut().is_some_and(|past| past.recovery.take().is_some()) {
            self.window = self.threshold;
        }
    }

    /// Handles the expired retransmission timer, with `outstanding` bytes outstanding (RFC 5681,
    /// section 3.1; RFC 9438, section 4.8). Of several consecutive time-outs, only the first lowers
    /// the threshold.
    pub(crate) fn on_timeout(&mut self, outstanding: u32) {
        if !self.timed_out {
            self.reduce(outstanding);
            self.timed_out = true;
        }
        self.slow_start.on_timeout(outstanding);
        let past = self.past();
        past.recovery = None;
        if let Some(cubic) = past.cubic() {
            cubic.restart(true);
        }
        self.window = self.segment();
    }

    /// Handles a congestion mark that the peer has echoed (RFC 3168, section 6.1.2). Must be called
    /// at most once in a round trip, and not in recovery.
    pub(crate) fn on_congestion_mark(&mut self, outstanding: u32) {
        self.reduce(outstanding);
        self.window = self.window.min(self.threshold);
    }

    /// Reverts the last reduction, which was spurious: the segments had arrived after all (RFC
    /// 4015; RFC 9438, section 4.9).
    pub(crate) fn undo(&mut self) {
        let Some(past) = &mut self.past else { return };
        if let Some(saved) = past.saved.take() {
            past.algorithm = saved.algorithm;
            past.recovery = None;
            self.window = self.window.max(saved.window);
            self.threshold = saved.threshold;
            self.timed_out = false;
        }
    }

    /// Reduces the window when data is sent after an idle period: it halves for each time-out that
    /// has passed, down to the initial window (RFC 5681, section 4.1; RFC 2861, section 3.2).
    pub(crate) fn on_idle(&mut self, now: Instant, idle: Duration, timeout: Duration) {
        if let Some(cubic) = self.cubic() {
            cubic.pause(now);
        }
        let halvings = idle.as_nanos() / timeout.as_nanos().max(1);
        let restart = self.initial_window().min(self.window);
        if halvings == 0 || self.in_recovery() {
            return;
        }
        if self.threshold != u32::MAX {
            self.threshold = self.threshold.max(self.window / 4 * 3);
        }
        self.window = (self.window >> halvings.min(31)).max(restart);
    }

    /// Changes the segment size of the path.
    pub(crate) fn set_maximum_segment(&mut self, bytes: u16) {
        self.maximum_segment = bytes.max(1);
        self.window = self.window.max(self.segment());
    }

    fn initial_window(&self) -> u32 {
        self.segment().saturating_mul(u32::from(self.initial_segments)).min(WINDOW_BYTES_MAX)
    }

    fn grow_fast(
        &mut self,
        acknowledged: u32,
        round_trip: Option<Duration>,
        outstanding: u32,
    ) -> u32 {
        let segment = self.segment();
        let growth = self.slow_start.on_ack(acknowledged, round_trip, outstanding, segment);
        let window = self.window.saturating_add(growth.bytes).min(self.threshold);
        if growth.ends {
            self.threshold = window;
            if let Some(cubic) = self.cubic() {
                cubic.restart(true);
            }
        }
        window
    }

    /// Saves the present state and lowers the threshold.
    fn reduce(&mut self, outstanding: u32) {
        self.slow_start.end_first_slow_start();
        let (window, threshold, segment) = (self.window, self.threshold, self.segment());
        let past = self.past();
        past.saved = Some(Saved { window, threshold, algorithm: past.algorithm });
        let left_percent = match &mut past.algorithm {
            Algorithm::NewReno(algorithm) => {
                algorithm.restart();
                newreno::LEFT_PERCENT
            }
            Algorithm::Cubic(algorithm) => {
                algorithm.shrink(window, segment);
                cubic::LEFT_PERCENT
            }
        };
        let left = u64::from(outstanding) * u64::from(left_percent) / 100;
        let least = segment * 2;
        self.threshold = u32::try_from(left).unwrap_or(u32::MAX).clamp(least, u32::MAX - 1);
    }
}

#[cfg(test)]
mod tests;
