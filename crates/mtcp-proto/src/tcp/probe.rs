//! Probes a silent peer: zero-window probes (RFC 9293, section 3.8.6.1), keepalive (section 3.8.4),
//! and the limit after which the connection fails (section 3.8.3; RFC 5482).

use crate::config::Keepalive;
use crate::time::Instant;
use std::num::NonZeroU32;
use std::time::Duration;

/// Least time between answers to empty segments outside the window, in milliseconds, so that two
/// sides that disagree do not answer each other forever.
const ANSWERS_APART_MS: u32 = 50;

/// The least interval between keepalive probes.
const KEEPALIVE_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// How long a window that is too small for a full segment may grow before it is used (RFC 9293,
/// section 3.8.6.2.1).
const OVERRIDE_MIN: Duration = Duration::from_millis(100);
const OVERRIDE_MAX: Duration = Duration::from_secs(1);

/// The action when the keepalive timer has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepaliveStep {
    /// Do nothing before this time.
    Wait(Instant),
    /// Send a probe, and wait until this time.
    Probe(Instant),
    /// Fail the connection, because the peer has not answered.
    GiveUp,
}

/// When the peer was last active, and the probes since.
#[derive(Debug)]
pub(super) struct Alive {
    /// When the last segment of the peer arrived.
    pub(super) heard_at: Instant,
    /// When our data was last acknowledged, or when data began to wait.
    pub(super) progress_at: Instant,
    /// When the application last read, or the peer last acknowledged a full segment or all of our
    /// data; or when the first data came into an empty buffer.
    pub(super) moved_at: Instant,
    /// When a segment outside the window was last answered: the lower bits of milliseconds.
    answered_ms: Option<NonZeroU32>,
    /// Keepalive probes since the last segment of the peer.
    probes: u8,
    /// Consecutive window probes.
    window_probes: u8,
}

impl Alive {
    pub(super) fn new(now: Instant) -> Alive {
        Alive {
            heard_at: now,
            progress_at: now,
            moved_at: now,
            answered_ms: None,
            probes: 0,
            window_probes: 0,
        }
    }

    /// Records that a segment of the peer has arrived.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard_at = now;
        self.probes = 0;
    }

    /// Whether it is too early to answer a segment outside the window again. If it is not, the call
    /// records an answer.
    pub(super) fn answers_too_soon(&mut self, empty: bool, now: Instant) -> bool {
        let now_ms = now.as_millis() as u32;
        let too_soon = |last: NonZeroU32| now_ms.wrapping_sub(last.get()) < ANSWERS_APART_MS;
        if empty && self.answered_ms.is_some_and(too_soon) {
            return true;
        }
        self.answered_ms = Some(NonZeroU32::new(now_ms).unwrap_or(NonZeroU32::MIN));
        false
    }

    /// Records that our data was acknowledged, or begins to wait.
    pub(super) fn progress(&mut self, now: Instant) {
        self.progress_at = now;
        self.window_probes = 0;
    }

    /// Records that data begins to wait for a window, unless it did so before the last probe.
    pub(super) fn begin_window_wait(&mut self, now: Instant) {
        if self.window_probes == 0 {
            self.progress_at = now;
        }
    }

    /// The wait before the next window probe. Probes of a closed window follow each other like
    /// retransmissions (RFC 9293, section 3.8.6.1). A window that is open, but too small for a full
    /// segment, is used as it is after the override time-out (section 3.8.6.2.1).
    /// override time-out (section 3.8.6.2.1).
    pub(super) fn window_wait(&self, window: u32, timeout: Duration, most: Duration) -> Duration {
        if window > 0 {
            return timeout.clamp(OVERRIDE_MIN, OVERRIDE_MAX);
        }
        let rounds = u32::from(self.window_probes).min(16);
        (timeout * (1 << rounds)).min(most)
    }

    /// Counts a window probe that was sent.
    pub(super) fn sent_window_probe(&mut self) {
        self.window_probes = self.window_probes.saturating_add(1);
    }

    /// Handles the expired keepalive timer. Data in flight or waiting (`asks`) has the same effect
    /// as a probe.
    pub(super) fn keepalive(
        &mut self,
        keepalive: &Keepalive,
        asks: bool,
        now: Instant,
    ) -> KeepaliveStep {
        let due = self.heard_at + keepalive.idle;
        let next = now + keepalive.interval.max(KEEPALIVE_INTERVAL_MIN);
        if self.probes == 0 && now < due {
            KeepaliveStep::Wait(due)
        } else if asks {
            KeepaliveStep::Wait(next)
        } else if self.probes >= keepalive.probes.max(1) {
            KeepaliveStep::GiveUp
        } else {
            self.probes = self.probes.saturating_add(1);
            KeepaliveStep::Probe(next)
        }
    }
}
