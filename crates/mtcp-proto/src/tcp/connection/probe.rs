//! What a connection does about a silent peer.

use super::{Connection, Context};
use crate::socket::State;
use crate::tcp::Failure;
use crate::tcp::probe::KeepaliveStep;
use crate::tcp::timers::{NEVER, Waiting};
use crate::time::Instant;
use std::time::Duration;

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
