//! Runs the expired timers: those of connections, the end of TIME_WAIT, and the budget of challenge
//! acknowledgements per second.

use super::Stack;
use crate::time::Instant;

/// Most TIME_WAIT records that end in one call, so that no call takes long.
const EXPIRE_LIMIT: usize = 1024;

impl Stack {
    /// Sets the present time at the start of a call.
    pub(super) fn advance(&mut self, now: Instant) {
        let shared = &mut self.shared;
        shared.now = shared.now.max(now);
        let second = shared.now.as_nanos() / 1_000_000_000;
        if second != self.budget_second {
            self.budget_second = second;
            let limit = shared.config.challenge_acks_per_second;
            shared.challenge_budget = self.keys.challenge_budget(limit, second);
        }
    }

    /// Runs the expired timers.
    pub(super) fn run_timers(&mut self) {
        let now = self.shared.now;
        if self.wheel.next().is_some_and(|next| next <= now) {
            let mut due = std::mem::take(&mut self.due);
            self.wheel.expire(now, &mut |index| due.push(index));
            for &index in &due {
                self.run_timer(index);
            }
            due.clear();
            self.due = due;
        }
        for _ in 0..EXPIRE_LIMIT {
            let Some(record) = self.time_wait.expired(now) else { break };
            self.forget_time_wait(record);
        }
    }

    fn run_timer(&mut self, index: u32) {
        if let Some(entry) = self.table.connection_mut(index)
            && entry.attached
        {
            entry.connection.on_timer(&mut self.shared.context());
            self.update_schedule(index);
        }
    }

    /// The earliest deadline of all timers.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let replies = !self.replies.is_empty() || !self.echoes.is_empty();
        if replies || !self.transmit.is_empty() {
            return Some(Instant::ZERO);
        }
        let (timer, time_wait) = (self.wheel.next(), self.time_wait.deadline());
        timer.into_iter().chain(time_wait).min()
    }
}
