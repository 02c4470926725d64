//! The law of CUBIC (RFC 9438). Windows are counted in segments here, and times in seconds, as
//! there.

use crate::time::Instant;
use std::time::Duration;

/// C, which scales the cubic (section 5.1).
const C: f64 = 0.4;
/// The part of the window that is left after a loss: beta (section 4.6).
const BETA: f64 = 0.7;
/// The same, in percent.
pub(super) const LEFT_PERCENT: u32 = 70;
/// What makes the Reno-friendly window as fast as Reno with that beta (section 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// Congestion avoidance along a cubic of the time since the last loss.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cubic {
    /// Where the curve is flat: the window at the last loss, or less (section 4.7).
    flat: f32,
    /// The time from the beginning of the stage to the flat.
    delay: f32,
    /// The window that Reno would have (W_est).
    friendly: f64,
    /// The window at the last loss.
    prior: f32,
    /// What the window has grown beyond whole bytes.
    remainder: f32,
    /// When this stage of congestion avoidance began, moved on by the time without use of the
    /// window.
    epoch: Option<Instant>,
    /// When the last acknowledgement came.
    last: Instant,
    /// Whether the stage follows no loss but a time-out or the end of slow start: it begins flat.
    begins_flat: bool,
}

impl Cubic {
    /// A connection that has seen no loss.
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

        // Section 4.3: as fast as Reno, and with its own pace again beyond the old window.
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

    /// The window was not in use, so the time since the last acknowledgement does not count
    /// (section 5.8).
    pub(super) fn pause(&mut self, now: Instant) {
        if let Some(epoch) = &mut self.epoch {
            *epoch = *epoch + now.since(self.last);
        }
        self.last = now;
    }

    /// A loss or mark at this window, in bytes (sections 4.6 and 4.7).
    pub(super) fn shrink(&mut self, window: u32, maximum_segment: u32) {
        let window = (f64::from(window) / f64::from(maximum_segment)) as f32;
        self.prior = window;
        // Fast convergence: a flow that did not get back to its old window leaves room to others.
        self.flat = if window < self.flat { window * (1.0 + BETA as f32) / 2.0 } else { window };
        self.restart(false);
    }

    /// The next stage begins when congestion avoidance does; after a time-out or slow start without
    /// loss it begins flat (sections 4.8 and 4.10).
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

    /// W_cubic: the window so many seconds after the stage began (equation 1).
    fn curve(&self, seconds: f64) -> f64 {
        let from_flat = seconds - f64::from(self.delay);
        C * from_flat * from_flat * from_flat + f64::from(self.flat)
    }
}
