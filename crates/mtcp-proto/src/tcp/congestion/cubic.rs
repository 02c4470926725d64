//! Implements CUBIC congestion avoidance (RFC 9438). As in the RFC, windows are counted in segments
//! and times in seconds.

use crate::time::Instant;
use std::time::Duration;

/// C, which scales the cubic (section 5.1).
const C: f64 = 0.4;
/// beta: the factor by which a loss multiplies the window (section 4.6).
const BETA: f64 = 0.7;
/// `BETA` in percent.
pub(super) const LEFT_PERCENT: u32 = 70;
/// The factor that makes the Reno-friendly window as fast as Reno with that beta (section 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// Congestion avoidance with a window that is a cubic function of the time since the last loss.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cubic {
    /// The window at which the curve is flat: that of the last loss, or less (section 4.7).
    flat: f32,
    /// The time from the beginning of the stage to the flat part of the curve.
    delay: f32,
    /// The window that Reno would have (W_est).
    friendly: f64,
    /// The window at the last loss.
    prior: f32,
    /// Growth of the window by less than a byte that is not applied yet.
    remainder: f32,
    /// When this stage of congestion avoidance began, moved later by the time in which the window
    /// was not used.
    epoch: Option<Instant>,
    /// When the last acknowledgement arrived.
    last: Instant,
    /// Whether the stage begins flat: it follows no loss but a time-out or the end of slow start.
    begins_flat: bool,
}

impl Cubic {
    /// The state of a connection that has seen no loss.
    pub(super) fn new() -> Cubic {
        Cubic { begins_flat: true, ..Cubic::default() }
    }

    /// The window, in bytes, after an acknowledgement in congestion avoidance (sections 4.2 to
    /// 4.5).
    pub(super) fn avoid(
        &mut self,
        now: Instant,
        window: u32,
        acknowledged: u32,
        maximum_segment: u32,
        round_trip: Duration,
    ) -> u32 {
        let unit = f64::from(maximum_segment);
        let current = f64::from(window) / unit;
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => self.begin(now, current),
        };
        self.last = now;
        let elapsed = now.since(epoch).as_secs_f64();
        let segments = f64::from(acknowledged) / unit;

        // Section 4.3: as fast as Reno; beyond the old window it grows by one segment per window.
        let pace = if self.friendly < f64::from(self.prior) { ALPHA } else { 1.0 };
        self.friendly += pace * segments / current;
        let friendly = self.friendly;
        let next = if self.curve(elapsed) < friendly {
            current.max(friendly)
        } else {
            let ahead = self.curve(elapsed + round_trip.as_secs_f64());
            let target = ahead.clamp(current, 1.5 * current);
            current + (target - current) / current * segments
        };
        let grown = (next - current) * unit + f64::from(self.remainder);
        let whole = grown.clamp(0.0, f64::from(u32::MAX / 4)).floor();
        self.remainder = (grown - whole).clamp(0.0, 1.0) as f32;
        window.saturating_add(whole as u32)
    }

    /// Excludes the time since the last acknowledgement, because the window was not in use (section
    /// 5.8).
    pub(super) fn pause(&mut self, now: Instant) {
        if let Some(epoch) = &mut self.epoch {
            *epoch = *epoch + now.since(self.last);
        }
        self.last = now;
    }

    /// Handles a loss or mark at this window, in bytes (sections 4.6 and 4.7).
    pub(super) fn shrink(&mut self, window: u32, maximum_segment: u32) {
        let window = (f64::from(window) / f64::from(maximum_segment)) as f32;
        self.prior = window;
        // Fast convergence: a flow that did not reach its old window again leaves room to other
        // flows.
        self.flat = if window < self.flat { window * (1.0 + BETA as f32) / 2.0 } else { window };
        self.restart(false);
    }

    /// Prepares the next stage, which begins with congestion avoidance. After a time-out, or after
    /// slow start without a loss, it begins flat (sections 4.8 and 4.10).
    pub(super) fn restart(&mut self, begins_flat: bool) {
        self.epoch = None;
        self.remainder = 0.0;
        self.begins_flat = begins_flat;
    }

    /// W_max, in segments.
    #[cfg(test)]
    pub(super) fn flat_segments(&self) -> f64 {
        f64::from(self.flat)
    }

    fn begin(&mut self, now: Instant, current: f64) -> Instant {
        self.epoch = Some(now);
        self.friendly = current;
        if self.begins_flat || f64::from(self.flat) <= current {
            self.flat = current as f32;
            self.delay = 0.0;
        } else {
            self.delay = ((f64::from(self.flat) - current) / C).cbrt() as f32;
        }
        now
    }

    /// W_cubic: the window at this number of seconds after the stage began (equation 1).
    fn curve(&self, seconds: f64) -> f64 {
        let from_flat = seconds - f64::from(self.delay);
        C * from_flat * from_flat * from_flat + f64::from(self.flat)
    }
}
