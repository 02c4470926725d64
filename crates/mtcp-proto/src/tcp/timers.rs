//! The deadlines of a connection, folded into one.

use crate::time::Instant;

/// A moment that does not come.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// What the loss timer waits for. One is enough: a reordering or probe timer always comes before
/// the retransmission timer that it replaces (RFC 8985, section 8), and a window is probed only
/// while nothing else is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// For an acknowledgement (RFC 6298).
    Retransmission,
    /// For an acknowledgement of the tail of a flight (RFC 8985, section 7).
    TailLoss,
    /// For segments that may only be reordered (RFC 8985, section 6.2).
    Reordering,
    /// For a window (RFC 9293, section 3.8.6.1).
    Window,
}

#[derive(Debug)]
pub(super) struct Timers {
    /// Losses, or a window that stays closed.
    pub(super) loss: Instant,
    pub(super) waiting: Waiting,
    /// A delayed acknowledgement.
    pub(super) acknowledgement: Instant,
    /// Keepalive; the end of FIN-WAIT-2 and of TIME-WAIT.
    pub(super) slow: Instant,
    /// When to try again after there was no memory for what the application sends.
    pub(super) memory: Instant,
}

impl Timers {
    pub(super) fn new() -> Timers {
        Timers {
            loss: NEVER,
            waiting: Waiting::Retransmission,
            acknowledgement: NEVER,
            slow: NEVER,
            memory: NEVER,
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        let next = self.loss.min(self.acknowledgement).min(self.slow).min(self.memory);
        (next != NEVER).then_some(next)
    }

    pub(super) fn arm(&mut self, at: Instant, waiting: Waiting) {
        self.loss = at;
        self.waiting = waiting;
    }

    pub(super) fn stop(&mut self) {
        *self = Timers::new();
    }
}
