//! Detects losses and retransmits.

use super::{Connection, Context};
use crate::sequence::Sequence;
use crate::tcp::due::Plan;
use crate::tcp::rack::{RackParameters, TailLossProbe};
use crate::tcp::recovery::Phase;
use crate::tcp::scoreboard::{Acknowledged, Sacked};
use crate::tcp::sender::Fresh;
use crate::tcp::timers::{NEVER, Waiting};
use crate::wire::tcp::TcpHeader;
use std::time::Duration;

/// Number of duplicate acknowledgements that indicate a loss, without SACK (RFC 5681, section 3.2).
const DUPLICATES: u32 = 3;

/// The least time-out of a tail loss probe: a peer that shares our CPU may not run for this long.
const TAIL_PROBE_MIN: Duration = Duration::from_millis(2);

impl Connection {
    /// Whether lost data may be sent again now. The first lost segment of a flight always may.
    pub(super) fn may_send_again(&self) -> bool {
        let board = &self.send.scoreboard;
        let lost = board.lost_bytes();
        if lost == 0 {
            return false;
        }
        let in_flight = board.in_flight();
        let next = lost.min(u32::from(self.send.full));
        in_flight == 0 || in_flight.saturating_add(next) <= self.send.congestion.window()
    }

    fn rack_parameters(&self) -> RackParameters {
        RackParameters {
            minimum: self.send.rtt.minimum(),
            smoothed: self.send.rtt.smoothed(),
            in_recovery: self.recovery.phase != Phase::Open,
            maximum_segment: u32::from(self.send.full),
        }
    }

    /// Whether no reordering or loss was seen, so that no search for losses is needed.
    pub(super) fn is_calm(&self) -> bool {
        self.recovery.phase == Phase::Open
            && self.send.scoreboard.sacked_bytes() == 0
            && self.timers.waiting != Waiting::Reordering
    }

    /// Looks for losses after an acknowledgement, and begins recovery if there are new ones.
    /// Returns the number of bytes lost.
    pub(super) fn look_for_losses(
        &mut self,
        told: &Acknowledged,
        duplicates: u32,
        context: &mut Context<'_>,
    ) -> u32 {
        if self.send.sack {
            if self.is_calm() {
                return 0;
            }
            let parameters = self.rack_parameters();
            let losses = self.send.scoreboard.detect_losses(context.now, &parameters);
            if let Some(at) = losses.deadline {
                self.timers.arm(at, Waiting::Reordering);
            } else if self.timers.waiting == Waiting::Reordering {
                self.arm_retransmission(context);
            }
            if losses.bytes > 0 {
                self.begin_recovery(context);
            }
            return losses.bytes;
        }
        let full = u32::from(self.send.full);
        let partial = told.bytes > 0
            && self.recovery.phase == Phase::Recovery
            && !self.recovery.is_past(self.send.unacknowledged);
        let third = duplicates == DUPLICATES && self.recovery.phase == Phase::Open;
        if third {
            self.begin_recovery(context);
        }
        if third || partial { self.send.scoreboard.mark_first_lost(full) } else { 0 }
    }

    fn begin_recovery(&mut self, context: &mut Context<'_>) {
        if self.recovery.phase != Phase::Open {
            return;
        }
        context.counters.fast_recoveries += 1;
        self.recovery.enter(Phase::Recovery, self.send.next);
        self.send.congestion.on_loss(self.send.outstanding());
        self.ecn.note_reduction(self.send.next);
        self.due.tail_probe = false;
    }

    /// Ends the phase if all data that was outstanding when it began has arrived. True if this has
    /// set the congestion window, which then does not grow by the same acknowledgement.
    pub(super) fn end_recovery(&mut self) -> bool {
        if self.recovery.phase == Phase::Open || !self.recovery.is_past(self.send.unacknowledged) {
            return false;
        }
        let sets_window = self.send.congestion.in_recovery();
        let repeats_all = self.recovery.phase == Phase::Loss;
        let at_point = self.recovery.end(self.send.unacknowledged);
        self.send.congestion.on_recovery_end();
        self.send.scoreboard.on_recovery_end();
        if repeats_all && at_point && !self.send.sack {
            // Data that the peer already had was sent again and causes duplicate acknowledgements
            // that indicate no loss. They count only beyond this point (RFC 6582, section 3.2 step
            // 1, and section 4).
            self.send.scoreboard.disregard_duplicates();
        }
        sets_window
    }

    /// Reverts a spurious reduction, if an acknowledgement shows that it was spurious.
    pub(super) fn judge(&mut self, header: &TcpHeader, told: &Acknowledged, sacked: &Sacked) {
        let echo = header.options.timestamps.filter(|_| self.stamps.on).map(|stamps| stamps.echo);
        let reports = (told, sacked);
        if self.recovery.judge(header.acknowledgement, echo, self.send.sack, reports) {
            self.send.congestion.undo();
            self.send.scoreboard.mark_none_lost();
            self.send.scoreboard.on_recovery_end();
        }
    }

    /// Records that data was sent for the first time.
    pub(super) fn sent_fresh(&mut self, start: Sequence, end: Sequence, context: &mut Context<'_>) {
        let first = self.send.outstanding() == 0;
        self.send.scoreboard.sent(start, end, context.now);
        self.send.congestion.on_sent(end.since(start));
        self.send.next = end;
        self.due.window_probe = false;
        if first {
            self.recovery.base = context.now;
            self.alive.progress_at = context.now;
        }
        if first || (self.timers.waiting == Waiting::TailLoss && !self.due.tail_probe) {
            self.arm_loss_timer(context);
        }
    }

    /// Records that data was sent again.
    pub(super) fn sent_again(&mut self, start: Sequence, end: Sequence, context: &mut Context<'_>) {
        context.counters.retransmissions += 1;
        self.recovery.retransmissions = self.recovery.retransmissions.saturating_add(1);
        self.send.scoreboard.resent(start, end, context.now);
        self.send.congestion.on_sent(end.since(start));
        if self.stamps.on {
            self.recovery.note_stamp(self.stamps.clock(context.now), start);
        }
        self.recovery.base = context.now;
        if self.timers.waiting != Waiting::Reordering || self.timers.loss == NEVER {
            self.arm_retransmission(context);
        }
    }

    /// Restarts the loss timer after an acknowledgement of some or all outstanding data.
    pub(super) fn restart_loss_timer(&mut self, context: &mut Context<'_>) {
        self.recovery.base = context.now;
        if self.send.outstanding() == 0 {
            self.timers.arm(NEVER, Waiting::Retransmission);
            self.due.tail_probe = false;
            self.watch_window(context);
        } else if self.timers.waiting != Waiting::Reordering || self.timers.loss == NEVER {
            self.arm_loss_timer(context);
        }
    }

    /// Arms the loss timer: for a tail loss probe if one may be sent (RFC 8985, section 7.2),
    /// otherwise for a retransmission.
    fn arm_loss_timer(&mut self, context: &mut Context<'_>) {
        let may_probe = self.send.sack
            && self.is_calm()
            && !self.recovery.is_probing()
            && self.send.rtt.back_offs() == 0;
        let timeout = self.recovery.base + self.send.rtt.timeout();
        if may_probe {
            let lone = self.send.outstanding() <= u32::from(self.send.full);
            let smoothed = self.send.rtt.smoothed();
            let wait = TailLossProbe::timeout(smoothed, lone, context.config.delayed_ack);
            let wait = wait.max(TAIL_PROBE_MIN);
            let at = context.now + wait;
            if at < timeout {
                self.timers.arm(at, Waiting::TailLoss);
                return;
            }
        }
        self.arm_retransmission(context);
    }

    fn arm_retransmission(&mut self, context: &Context<'_>) {
        let at = self.recovery.base + self.send.rtt.timeout();
        let at = self.limit_to_user_timeout(at, context);
        self.timers.arm(at, Waiting::Retransmission);
    }

    /// Queues a tail loss probe, and arms the retransmission timer.
    pub(super) fn on_tail_loss_timeout(&mut self, context: &mut Context<'_>) {
        self.due.tail_probe = self.send.outstanding() > 0;
        self.arm_retransmission(context);
    }

    /// The tail loss probe to send: new data if there is any, otherwise the last segment again (RFC
    /// 8985, section 7.3).
    pub(super) fn tail_probe(&self) -> Option<Plan> {
        if self.send.outstanding() == 0 {
            return None;
        }
        let unsent = self.send.data_end().distance(self.send.next).max(0) as u32;
        let window = self.send.window.saturating_sub(self.send.outstanding());
        let bytes = unsent.min(window).min(u32::from(self.send.full));
        if bytes > 0 {
            return Some(Plan::FreshProbe(Fresh { bytes, fin: false }));
        }
        Some(Plan::TailProbe)
    }

    /// Records that a tail loss probe was sent.
    pub(super) fn sent_tail_probe(&mut self, repeated: bool, context: &mut Context<'_>) {
        self.due.tail_probe = false;
        context.counters.tail_loss_probes += 1;
        self.recovery.probed(self.send.unacknowledged, self.send.next, repeated);
        self.recovery.base = context.now;
        self.arm_retransmission(context);
    }

    /// Looks for losses again after the reordering window.
    pub(super) fn on_reordering_timeout(&mut self, context: &mut Context<'_>) {
        if self.send.outstanding() == 0 {
            return;
        }
        let parameters = self.rack_parameters();
        let losses = self.send.scoreboard.detect_losses(context.now, &parameters);
        match losses.deadline {
            Some(at) => self.timers.arm(at, Waiting::Reordering),
            None => self.arm_retransmission(context),
        }
        if losses.bytes > 0 {
            self.begin_recovery(context);
            let in_flight = self.send.scoreboard.in_flight();
            self.send.congestion.recovery_allowance(0, in_flight, false);
        }
    }

    /// Handles the expired retransmission timer: all outstanding data counts as lost (RFC 6298,
    /// section 5.4 to 5.6).
    pub(super) fn on_retransmission_timeout(&mut self, context: &mut Context<'_>) {
        if self.send.outstanding() == 0 {
            return self.watch_window(context);
        }
        if self.gives_up(context) {
            return;
        }
        context.counters.timeouts += 1;
        self.suspect_black_hole();
        self.send.congestion.on_timeout(self.send.outstanding());
        self.ecn.note_reduction(self.send.next);
        self.send.scoreboard.mark_all_lost();
        self.recovery.enter_loss(self.send.next);
        self.due.tail_probe = false;
        self.send.rtt.back_off();
        self.recovery.base = context.now;
        self.arm_retransmission(context);
    }
}
