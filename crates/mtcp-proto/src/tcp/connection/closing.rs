//! Closes connections: FINs, half-closed connections, and the record for TIME_WAIT (RFC 9293,
//! section 3.6).

use super::{Connection, Context, Remains};
use crate::error::Error;
use crate::socket::{Readiness, Shutdown, State};
use crate::tcp::Failure;
use crate::tcp::due::Due;
use crate::tcp::scoreboard::Scoreboard;
use crate::tcp::timers::NEVER;

impl Connection {
    /// Whether both sides have exchanged and acknowledged their initial numbers.
    pub(super) fn is_synchronized(&self) -> bool {
        !matches!(self.state, State::SynSent | State::SynReceived | State::Closed)
    }

    /// Ends one or both directions for the application.
    pub(super) fn end_directions(
        &mut self,
        how: Shutdown,
        context: &mut Context<'_>,
    ) -> Result<(), Error> {
        // In TIME-WAIT, the application can no longer affect the connection.
        if matches!(self.state, State::Closed | State::TimeWait) {
            return Err(Error::NotConnected);
        }
        if matches!(how, Shutdown::Receive | Shutdown::Both) {
            self.stop_receiving();
        }
        if matches!(how, Shutdown::Send | Shutdown::Both) {
            self.stop_sending(context);
        }
        Ok(())
    }

    /// Queues our FIN after the last byte. Before the connection is established the FIN waits.
    fn stop_sending(&mut self, context: &mut Context<'_>) {
        if self.send.fin {
            return;
        }
        self.send.fin = true;
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            _ => return,
        }
        self.watch_window(context);
    }

    /// Handles the application's close. Unread data, and data that arrives later, reset the
    /// connection (RFC 2525, section 2.17).
    pub(super) fn give_up_by_application(&mut self, context: &mut Context<'_>) {
        self.orphan = true;
        let unread = !self.receive.ring.is_empty() || !self.receive.reassembly.is_empty();
        match self.state {
            State::Closed => {}
            State::SynSent => self.fail(Failure::Aborted, false, context),
            State::TimeWait => self.receive.release(context.pool),
            _ if self.options.linger_reset || unread => self.fail(Failure::Aborted, true, context),
            _ => {
                self.stop_sending(context);
                if self.state == State::FinWait2 {
                    self.timers.slow = context.now + context.config.fin_wait_2;
                }
            }
        }
    }

    /// Handles the peer's FIN, after all its data (RFC 9293, section 3.10.7.4, eighth step).
    pub(super) fn take_fin(&mut self, context: &mut Context<'_>) {
        self.receive.ended = true;
        self.receive.next += 1;
        self.receive.edge = self.receive.edge.max(self.receive.next);
        self.receive.arrivals = self.receive.arrivals.wrapping_add(1);
        self.acks.due = true;
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.wait_for_stragglers(context),
            _ => {}
        }
    }

    /// Handles the acknowledgement of our FIN.
    pub(super) fn fin_was_acknowledged(&mut self, context: &mut Context<'_>) {
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                self.timers.slow = NEVER;
                if self.orphan {
                    self.timers.slow = context.now + context.config.fin_wait_2;
                } else {
                    self.arm_keepalive(context);
                }
            }
            State::Closing => self.wait_for_stragglers(context),
            State::LastAck => {
                context.counters.connections_closed += 1;
                self.finish(context);
            }
            _ => {}
        }
    }

    fn wait_for_stragglers(&mut self, context: &mut Context<'_>) {
        self.state = State::TimeWait;
        context.counters.connections_closed += 1;
        self.timers.stop();
        self.send.ring.release(context.pool);
        self.send.scoreboard = Scoreboard::new();
        self.linger(context);
    }

    /// Enters TIME-WAIT, which lasts twice the lifetime of a segment, from the last FIN on.
    pub(super) fn linger(&mut self, context: &Context<'_>) {
        self.timers.slow = context.now + 2 * context.config.maximum_segment_lifetime;
    }

    /// Enters CLOSED after an orderly end.
    pub(super) fn finish(&mut self, context: &mut Context<'_>) {
        self.state = State::Closed;
        self.timers.stop();
        self.due = Due::default();
        self.acks.due = false;
        self.send.ring.release(context.pool);
        self.send.scoreboard = Scoreboard::new();
        if self.orphan {
            self.receive.release(context.pool);
        }
    }

    /// Enters CLOSED because of a failure. If `tell`, sends the peer a reset, provided that the
    /// state has a peer.
    pub(super) fn fail(&mut self, reason: Failure, tell: bool, context: &mut Context<'_>) {
        if self.state == State::Closed {
            return;
        }
        let peer_knows = match self.state {
            State::SynSent | State::TimeWait => false,
            State::SynReceived => self.send.next != self.send.initial,
            _ => true,
        };
        if matches!(reason, Failure::Reset | Failure::Broken) {
            context.counters.connections_reset += 1;
        }
        self.finish(context);
        self.error = Some(reason);
        self.due.reset = tell && peer_knows;
    }

    /// The present readiness of the socket, level-triggered.
    pub(super) fn ready(&self) -> Readiness {
        let closed = self.state == State::Closed;
        let ended = self.receive.ended || closed;
        let mut ready = Readiness::default();
        let arrived = self.receive.ring.len();
        let enough = self.options.receive_low_water_bytes().max(1) as usize;
        if ended || self.receive.shut || arrived >= enough {
            ready = ready.with(Readiness::READABLE);
        }
        if closed || (self.is_synchronized() && (self.send.fin || self.has_room_to_send())) {
            ready = ready.with(Readiness::WRITABLE);
        }
        if ended {
            ready = ready.with(Readiness::PEER_CLOSED);
        }
        if closed || (ended && self.send.fin) {
            ready = ready.with(Readiness::CLOSED);
        }
        if self.error.is_some() {
            ready = ready.with(Readiness::ERROR);
        }
        if matches!(self.state, State::FinWait2 | State::TimeWait | State::Closed) {
            ready = ready.with(Readiness::SEND_FINISHED);
        }
        ready
    }

    /// The state for a TIME_WAIT record, once the connection has no other state to keep.
    pub(super) fn what_remains(&self) -> Option<Remains> {
        let idle = self.plan().is_none() && (self.orphan || self.receive.ring.is_empty());
        (self.state == State::TimeWait && idle).then(|| Remains {
            next: self.send.next,
            expected: self.receive.next,
            window: self.receive.announced_field(),
            timestamps: self.stamps.on.then_some((self.stamps.recent, self.stamps.offset)),
        })
    }
}
