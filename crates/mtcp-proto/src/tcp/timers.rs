//! Combines the deadlines of a connection into one.

use crate::time::Instant;

/// The deadline of a timer that is not armed.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// The purpose of the loss timer. One timer is enough: a reordering or probe timer always expires
/// before the retransmission timer that it replaces (RFC 8985, section 8), and window probes are
/// sent only while no data is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Waits for an acknowledgement (RFC 6298).
    Retransmission,
    /// Waits for an acknowledgement of the tail of a flight (RFC 8985, section 7).
    TailLoss,
    /// Waits for segments that may be reordered and not lost (RFC 8985, section 6.2).
    Reordering,
    /// Waits for the peer's window to open (RFC 9293, section 3.8.6.1).
    Window,
}

/// The timers of a connection; an unarmed one is `NEVER`.
#[derive(Debug)]
pub(super) struct Timers {
    /// Deadline for losses, or for a window that stays closed.
    pub(super) loss: Instant,
    pub(super) waiting: Waiting,
    /// Deadline of a delayed acknowledgement.
    pub(super) acknowledgement: Instant,
    /// Deadline of keepalive, of FIN-WAIT-2 or of TIME-WAIT.
    pub(super) slow: Instant,
    /// When the application may try to send again after there was no memory for its data.
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

    /// The earliest deadline, if any timer is armed.
    pub(super) fn next(&self) -> Option<Instant> {
        let next = self.loss.min(self.acknowledgement).min(self.slow).min(self.memory);
        (next != NEVER).then_some(next)
    }

    /// Arms the loss timer for this purpose.
    pub(super) fn arm(&mut self, at: Instant, waiting: Waiting) {
        self.loss = at;
        self.waiting = waiting;
    }

    /// Disarms the loss timer.
    pub(super) fn stop(&mut self) {
        *self = Timers::new();
    }
}
