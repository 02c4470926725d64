//! How much may be in flight: the congestion window, under either law.

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

/// No window grows beyond this: a scaled window ends there (RFC 7323, section 2.3).
const WINDOW_BYTES_MAX: u32 = 1 << 30;

/// The congestion window of a connection, in bytes, and what it grows and shrinks by.
///
/// During recovery the window follows what is in flight
/// ([`CongestionControl::recovery_allowance`]), so that at all times as much may be sent as the
/// window exceeds what is in flight.
#[derive(Debug)]
pub(crate) struct CongestionControl {
    window: u32,
    threshold: u32,
    maximum_segment: u16,
    initial_segments: u16,
    kind: Congestion,
    /// A time-out has expired, and nothing was acknowledged since.
    timed_out: bool,
    slow_start: SlowStart,
    /// Comes into being when the first slow start ends.
    past: Option<Box<Past>>,
}

/// What only a connection needs that has left its first slow start.
#[derive(Debug)]
struct Past {
    law: Law,
    /// The newest measurement, for the look ahead of CUBIC.
    round_trip: Duration,
    recovery: Option<RateReduction>,
    saved: Option<Saved>,
}

#[derive(Clone, Copy, Debug)]
enum Law {
    NewReno(NewReno),
    Cubic(Cubic),
}

/// What there was before the last reduction, in case it was for nothing.
#[derive(Debug)]
struct Saved {
    window: u32,
    threshold: u32,
    law: Law,
}

impl Past {
    fn new(kind: Congestion) -> Past {
        let law = match kind {
            Congestion::NewReno => Law::NewReno(NewReno::default()),
            Congestion::Cubic => Law::Cubic(Cubic::new()),
        };
        Past { law, round_trip: Duration::ZERO, recovery: None, saved: None }
    }

    fn cubic(&mut self) -> Option<&mut Cubic> {
        match &mut self.law {
            Law::Cubic(cubic) => Some(cubic),
            Law::NewReno(_) => None,
        }
    }
}

impl CongestionControl {
    /// A new connection with an initial window of so many segments (RFC 6928), of at least one
    /// byte.
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

    fn past(&mut self) -> &mut Past {
        let kind = self.kind;
        self.past.get_or_insert_with(|| Box::new(Past::new(kind)))
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

    /// Whether [`CongestionControl::on_loss`] was called, and not yet the end of it.
    pub(crate) fn in_recovery(&self) -> bool {
        self.past.as_ref().is_some_and(|past| past.recovery.is_some())
    }

    /// New data was acknowledged, after which `outstanding` bytes are sent and not acknowledged.
    /// The window grows, unless in recovery, or if the application did not use it (RFC 9438,
    /// section 5.8; RFC 7661, section 4.1 says why).
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
            match &mut past.law {
                Law::NewReno(law) => law.avoid(window, acknowledged, segment),
                Law::Cubic(law) => law.avoid(now, window, acknowledged, segment, round_trip),
            }
        };
        self.window = window.min(WINDOW_BYTES_MAX);
    }

    /// A loss was found without a time-out, with so many bytes outstanding: recovery begins (RFC
    /// 5681, section 3.2; RFC 6582; RFC 9438, section 4.6). To be called once for a recovery.
    pub(crate) fn on_loss(&mut self, outstanding: u32) {
        self.reduce(outstanding);
        self.past().recovery = Some(RateReduction::new(outstanding));
    }

    /// An acknowledgement in recovery: `delivered` more bytes have arrived (in order or not),
    /// `in_flight` are estimated to be on the way after it, and it was `safe` if it advanced and no
    /// further segment was found lost. Sets the window, and gives the bytes that may be sent now.
    pub(crate) fn recovery_allowance(&mut self, delivered: u32, in_flight: u32, safe: bool) -> u32 {
        let (threshold, segment) = (self.threshold, self.segment());
        let Some(recovery) = self.past.as_mut().and_then(|past| past.recovery.as_mut()) else {
            return self.window.saturating_sub(in_flight);
        };
        let allowed = recovery.allowance(delivered, in_flight, safe, threshold, segment);
        self.window = in_flight.saturating_add(allowed);
        allowed
    }

    /// Data was sent, for the first time or again; only recovery counts it.
    pub(crate) fn on_sent(&mut self, bytes: u32) {
        if let Some(recovery) = self.past.as_mut().and_then(|past| past.recovery.as_mut()) {
            recovery.on_sent(bytes);
        }
    }

    /// All that was outstanding when recovery began is acknowledged.
    pub(crate) fn on_recovery_end(&mut self) {
        if self.past.as_mut().is_some_and(|past| past.recovery.take().is_some()) {
            self.window = self.threshold;
        }
    }

    /// The retransmission timer has expired with so many bytes outstanding (RFC 5681, section 3.1;
    /// RFC 9438, section 4.8). The threshold falls at the first of several in a row only.
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

    /// The peer has echoed a congestion mark (RFC 3168, section 6.1.2). To be called at most once
    /// in a round trip, and not in recovery.
    pub(crate) fn on_congestion_mark(&mut self, outstanding: u32) {
        self.reduce(outstanding);
        self.window = self.window.min(self.threshold);
    }

    /// The last reduction was for nothing: the segments had come after all (RFC 4015; RFC 9438,
    /// section 4.9).
    pub(crate) fn undo(&mut self) {
        let Some(past) = &mut self.past else { return };
        if let Some(saved) = past.saved.take() {
            past.law = saved.law;
            past.recovery = None;
            self.window = self.window.max(saved.window);
            self.threshold = saved.threshold;
            self.timed_out = false;
        }
    }

    /// Nothing was sent for a while, and now there is data: the window halves for each time-out
    /// that has passed, down to the initial window (RFC 5681, section 4.1; RFC 2861, section 3.2).
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

    /// The path takes segments of another size.
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

    /// Saves what there was and lowers the threshold.
    fn reduce(&mut self, outstanding: u32) {
        self.slow_start.settle();
        let (window, threshold, segment) = (self.window, self.threshold, self.segment());
        let past = self.past();
        past.saved = Some(Saved { window, threshold, law: past.law });
        let left_percent = match &mut past.law {
            Law::NewReno(law) => {
                law.restart();
                newreno::LEFT_PERCENT
            }
            Law::Cubic(law) => {
                law.shrink(window, segment);
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
