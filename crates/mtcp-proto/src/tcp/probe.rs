//! Asking a silent peer: probes of a closed window (RFC 9293, section 3.8.6.1), keepalive (section
//! 3.8.4), and when to give up (section 3.8.3; RFC 5482).

use crate::config::Keepalive;
use crate::time::Instant;
use std::num::NonZeroU32;
use std::time::Duration;

/// Empty segments that do not fit are answered no more often than this, so that two sides that
/// disagree do not answer each other forever.
const ANSWERS_APART_MS: u32 = 50;

/// The least interval between keepalive probes.
const KEEPALIVE_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// How long a window too small for a segment may grow before it is used (RFC 9293, section
/// 3.8.6.2.1).
const OVERRIDE_MIN: Duration = Duration::from_millis(100);
const OVERRIDE_MAX: Duration = Duration::from_secs(1);

/// What keepalive does when its timer has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepaliveStep {
    /// Nothing before this time.
    Wait(Instant),
    /// Sends a probe, and waits until this time.
    Probe(Instant),
    /// The peer has not answered.
    GiveUp,
}

#[derive(Debug)]
pub(super) struct Alive {
    /// When the peer was last heard.
    pub(super) heard_at: Instant,
    /// When our data last moved on, or began to wait.
    pub(super) progress_at: Instant,
    /// When a segment outside the window was last answered: the lower bits of milliseconds.
    answered_ms: Option<NonZeroU32>,
    /// Keepalive probes without an answer.
    probes: u8,
    /// Window probes in a row.
    window_probes: u8,
}

impl Alive {
    pub(super) fn new(now: Instant) -> Alive {
        Alive { heard_at: now, progress_at: now, answered_ms: None, probes: 0, window_probes: 0 }
    }

    pub(super) fn heard(&mut self, now: Instant) {
        self.heard_at = now;
        self.probes = 0;
    }

    /// Whether it is too early to answer a segment outside the window again. If it is not, that
    /// counts as an answer.
    pub(super) fn answers_too_soon(&mut self, empty: bool, now: Instant) -> bool {
        let now_ms = now.as_millis() as u32;
        let too_soon = |last: NonZeroU32| now_ms.wrapping_sub(last.get()) < ANSWERS_APART_MS;
        if empty && self.answered_ms.is_some_and(too_soon) {
            return true;
        }
        self.answered_ms = Some(NonZeroU32::new(now_ms).unwrap_or(NonZeroU32::MIN));
        false
    }

    pub(super) fn progress(&mut self, now: Instant) {
        self.progress_at = now;
        self.window_probes = 0;
    }

    /// Data begin to wait for a window, unless they did so before the last probe.
    pub(super) fn begin_window_wait(&mut self, now: Instant) {
        if self.window_probes == 0 {
            self.progress_at = now;
        }
    }

    /// Probes of a closed window follow each other like retransmissions (RFC 9293, section
    /// 3.8.6.1). A window that is open, but too small for a segment, is used as it is after the
    /// override time-out (section 3.8.6.2.1).
    pub(super) fn window_wait(&self, window: u32, timeout: Duration, most: Duration) -> Duration {
        if window > 0 {
            return timeout.clamp(OVERRIDE_MIN, OVERRIDE_MAX);
        }
        let rounds = u32::from(self.window_probes).min(16);
        (timeout * (1 << rounds)).min(most)
    }

    pub(super) fn sent_window_probe(&mut self) {
        self.window_probes = self.window_probes.saturating_add(1);
    }

    /// When the keepalive timer has expired. Data that are under way or wait (`asks`) ask the same
    /// question as a probe.
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
