//! Runs the timers of a connection that have expired.

use super::{Connection, Context};
use crate::socket::State;
use crate::tcp::timers::{NEVER, Waiting};

impl Connection {
    pub(super) fn run_timers(&mut self, context: &mut Context<'_>) {
        if context.now >= self.timers.acknowledgement {
            self.timers.acknowledgement = NEVER;
            self.acks.due = true;
        }
        if context.now >= self.timers.loss {
            self.timers.loss = NEVER;
            match self.timers.waiting {
                _ if matches!(self.state, State::SynSent | State::SynReceived) => {
                    self.on_handshake_timeout(context);
                }
                Waiting::Retransmission => self.on_retransmission_timeout(context),
                Waiting::TailLoss => self.on_tail_loss_timeout(context),
                Waiting::Reordering => self.on_reordering_timeout(context),
                Waiting::Window => self.on_window_timeout(context),
            }
        }
        if context.now >= self.timers.memory {
            self.timers.memory = NEVER;
        }
        if context.now >= self.timers.slow {
            self.timers.slow = NEVER;
            match self.state {
                State::TimeWait => self.finish(context),
                State::FinWait2 if self.orphan => self.finish(context),
                _ => self.on_keepalive_timeout(context),
            }
        }
    }
}
