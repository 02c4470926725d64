//! Asking a silent peer: probes of a closed window (RFC 9293, section 3.8.6.1), keepalive (section
//! 3.8.4), and when to give up (section 3.8.3; RFC 5482).

use super::Failure;
use super::connection::{Connection, Context};
use super::timers::{NEVER, Waiting};
use crate::socket::State;
use crate::time::Instant;
use std::num::NonZeroU32;
use std::time::Duration;

/// Empty segments that do not fit are answered no more often than this, so that two sides that
/// disagree do not answer each other forever.
const ANSWERS_APART_MS: u32 = 50;

/// How long a window too small for a segment may grow before it is used (RFC 9293, section
/// 3.8.6.2.1).
const OVERRIDE_MIN: Duration = Duration::from_millis(100);
const OVERRIDE_MAX: Duration = Duration::from_secs(1);

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
}

impl Connection {
    /// How long the peer may leave data unacknowledged, or probes unanswered.
    pub(super) fn patience(&self, context: &Context<'_>) -> Duration {
        self.options.user_timeout().unwrap_or(context.config.give_up)
    }

    /// Whether a time-out is the last one. A peer that keeps its window closed may do so as long
    /// as it answers, unless nobody but us waits for it.
    pub(super) fn gives_up(&mut self, context: &mut Context<'_>) -> bool {
        // A window that has just opened, but not far enough for a segment, is no silence either.
        let waits_for_window = self.send.window == 0 || self.send.outstanding() == 0;
        let closed_window = waits_for_window && !self.orphan;
        let since = if closed_window { self.alive.heard_at } else { self.alive.progress_at };
        if context.now.since(since) < self.patience(context) {
            return false;
        }
        self.time_out(true, context);
        true
    }

    /// The peer does not answer, most likely for the reason that a router has given (RFC 5461,
    /// section 2.1).
    pub(super) fn time_out(&mut self, tell: bool, context: &mut Context<'_>) {
        context.counters.connections_timed_out += 1;
        self.fail(self.soft_error.unwrap_or(Failure::TimedOut), tell, context);
    }

    /// The end of patience, if it comes before the time-out.
    pub(super) fn no_later_than_patience(&self, at: Instant, context: &Context<'_>) -> Instant {
        let end = self.alive.progress_at + self.patience(context);
        if end > context.now { at.min(end) } else { at }
    }

    /// The user time-out has changed: a timer that is running does not outlast it.
    pub(super) fn lose_patience(&mut self, context: &Context<'_>) {
        if self.timers.waiting == Waiting::Retransmission && self.timers.loss != NEVER {
            self.timers.loss = self.no_later_than_patience(self.timers.loss, context);
        }
    }

    /// With nothing under way, data that do not go out wait for a window: it is asked for.
    pub(super) fn watch_window(&mut self, context: &mut Context<'_>) {
        if self.send.outstanding() > 0 || !self.is_synchronized() {
            return;
        }
        if !self.has_unsent() {
            if self.timers.waiting == Waiting::Window {
                self.timers.loss = NEVER;
            }
            return;
        }
        if self.fresh().is_some() || self.due.window_probe {
            return;
        }
        let waits = self.timers.loss != NEVER && self.timers.waiting == Waiting::Window;
        if !waits && self.alive.window_probes == 0 {
            self.alive.progress_at = context.now;
        }
        let at = context.now + self.window_wait(context);
        if !waits || (self.send.window > 0 && at < self.timers.loss) {
            self.timers.arm(at, Waiting::Window);
        }
    }

    /// Probes of a closed window follow each other like retransmissions (RFC 9293, section
    /// 3.8.6.1). A window that is open, but too small for a segment, is used as it is after the
    /// override time-out (section 3.8.6.2.1).
    fn window_wait(&self, context: &Context<'_>) -> Duration {
        let timeout = self.send.rtt.timeout();
        if self.send.window > 0 {
            return timeout.clamp(OVERRIDE_MIN, OVERRIDE_MAX);
        }
        let rounds = u32::from(self.alive.window_probes).min(16);
        (timeout * (1 << rounds)).min(context.config.maximum_rto)
    }

    pub(super) fn on_window_timeout(&mut self, context: &mut Context<'_>) {
        if self.send.outstanding() > 0 || !self.has_unsent() || self.gives_up(context) {
            return;
        }
        if self.fresh().is_none() {
            self.due.window_probe = true;
        }
    }

    /// A probe has gone out.
    pub(super) fn sent_window_probe(&mut self, context: &mut Context<'_>) {
        self.due.window_probe = false;
        context.counters.window_probes += 1;
        self.alive.window_probes = self.alive.window_probes.saturating_add(1);
        if self.send.outstanding() == 0 {
            let wait = self.window_wait(context);
            self.timers.arm(context.now + wait, Waiting::Window);
        }
    }

    pub(super) fn arm_keepalive(&mut self, context: &mut Context<'_>) {
        let by_state = match self.state {
            State::FinWait2 => self.orphan,
            State::Established | State::CloseWait => false,
            _ => true,
        };
        if by_state {
            return;
        }
        self.timers.slow = match self.options.keepalive() {
            Some(keepalive) => (self.alive.heard_at + keepalive.idle).max(context.now),
            None => NEVER,
        };
    }

    pub(super) fn on_keepalive_timeout(&mut self, context: &mut Context<'_>) {
        let Some(keepalive) = self.options.keepalive() else { return };
        if !matches!(self.state, State::Established | State::CloseWait | State::FinWait2) {
            return;
        }
        let due = self.alive.heard_at + keepalive.idle;
        if self.alive.probes == 0 && context.now < due {
            self.timers.slow = due;
        } else if self.send.outstanding() > 0 || self.has_unsent() {
            // The data ask the same question.
            self.timers.slow = context.now + keepalive.interval.max(Duration::from_millis(1));
        } else if self.alive.probes >= keepalive.probes.max(1) {
            self.time_out(true, context);
        } else {
            self.alive.probes = self.alive.probes.saturating_add(1);
            self.due.keepalive = true;
            self.timers.slow = context.now + keepalive.interval.max(Duration::from_millis(1));
        }
    }
}
