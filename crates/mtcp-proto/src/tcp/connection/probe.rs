//! Applies probes, keepalive and the user time-out to a connection whose peer is silent.

use super::{Connection, Context};
use crate::socket::State;
use crate::tcp::Failure;
use crate::tcp::probe::KeepaliveStep;
use crate::tcp::timers::{NEVER, Waiting};
use crate::time::Instant;
use std::time::Duration;

impl Connection {
    /// The user time-out: how long the peer may leave data unacknowledged, or probes unanswered.
    pub(super) fn user_timeout(&self, context: &Context<'_>) -> Duration {
        self.options.user_timeout().unwrap_or(context.config.give_up)
    }

    /// Whether the connection fails after this time-out. A peer may keep its window closed as long
    /// as it answers, unless the application has closed the socket.
    pub(super) fn gives_up(&mut self, context: &mut Context<'_>) -> bool {
        // A window that has just opened by less than a segment does not count as silence either.
        let waits_for_window = self.send.window == 0 || self.send.outstanding() == 0;
        let closed_window = waits_for_window && !self.orphan;
        let since = if closed_window { self.alive.heard_at } else { self.alive.progress_at };
        if context.now.since(since) < self.user_timeout(context) {
            return false;
        }
        self.time_out(true, context);
        true
    }

    /// Fails because the peer does not answer, with the error that a router has reported, if any
    /// (RFC 5461, section 2.1).
    pub(super) fn time_out(&mut self, tell: bool, context: &mut Context<'_>) {
        context.counters.connections_timed_out += 1;
        self.fail(self.soft_error.unwrap_or(Failure::TimedOut), tell, context);
    }

    /// The end of the user time-out, if it is before the given time; otherwise that time.
    pub(super) fn limit_to_user_timeout(&self, at: Instant, context: &Context<'_>) -> Instant {
        let end = self.alive.progress_at + self.user_timeout(context);
        if end > context.now { at.min(end) } else { at }
    }

    /// Applies a changed user time-out to a running timer.
    pub(super) fn apply_user_timeout(&mut self, context: &Context<'_>) {
        if self.timers.waiting == Waiting::Retransmission && self.timers.loss != NEVER {
            self.timers.loss = self.limit_to_user_timeout(self.timers.loss, context);
        }
    }

    /// Starts the window probe timer if nothing is in flight and data cannot be sent.
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
        if !waits {
            self.alive.begin_window_wait(context.now);
        }
        let at = context.now + self.window_wait(context);
        if !waits || (self.send.window > 0 && at < self.timers.loss) {
            self.timers.arm(at, Waiting::Window);
        }
    }

    fn window_wait(&self, context: &Context<'_>) -> Duration {
        let timeout = self.send.rtt.timeout();
        self.alive.window_wait(self.send.window, timeout, context.config.maximum_rto)
    }

    /// Queues a window probe, or fails the connection.
    pub(super) fn on_window_timeout(&mut self, context: &mut Context<'_>) {
        if self.send.outstanding() > 0 || !self.has_unsent() || self.gives_up(context) {
            return;
        }
        if self.fresh().is_none() {
            self.due.window_probe = true;
        }
    }

    /// Records that a window probe was sent.
    pub(super) fn sent_window_probe(&mut self, context: &mut Context<'_>) {
        self.due.window_probe = false;
        context.counters.window_probes += 1;
        self.alive.sent_window_probe();
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

    /// Queues a keepalive probe, or fails the connection.
    pub(super) fn on_keepalive_timeout(&mut self, context: &mut Context<'_>) {
        let Some(keepalive) = self.options.keepalive() else { return };
        if !matches!(self.state, State::Established | State::CloseWait | State::FinWait2) {
            return;
        }
        let asks = self.send.outstanding() > 0 || self.has_unsent();
        match self.alive.keepalive(&keepalive, asks, context.now) {
            KeepaliveStep::Wait(at) => self.timers.slow = at,
            KeepaliveStep::Probe(next) => {
                self.due.keepalive = true;
                self.timers.slow = next;
            }
            KeepaliveStep::GiveUp => self.time_out(true, context),
        }
    }
}
