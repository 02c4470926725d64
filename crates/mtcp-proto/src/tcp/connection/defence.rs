//! Rejects forged segments and ICMP messages (RFC 5961; RFC 5927).

use super::{Connection, Context};
use crate::sequence::Sequence;
use crate::socket::State;
use crate::tcp::Failure;
use crate::wire::tcp::{Flags, TcpHeader};

impl Connection {
    /// Handles a reset. It ends the connection only if its number is exactly the next one expected.
    /// A challenge acknowledgement answers one elsewhere in the window (RFC 5961, section 3.2).
    pub(super) fn take_reset(&mut self, header: &TcpHeader, context: &mut Context<'_>) {
        if header.sequence == self.receive.next {
            let reason = match self.state {
                State::SynReceived => Failure::Refused,
                State::CloseWait => Failure::Broken,
                _ => Failure::Reset,
            };
            return self.fail(reason, false, context);
        }
        context.counters.drop_unproven_control += 1;
        if header.sequence >= self.receive.next && header.sequence <= self.receive.edge {
            self.challenge(context);
        }
    }

    /// Answers a SYN in a synchronized connection by a challenge acknowledgement, whatever its
    /// number (RFC 5961, section 4.2). In SYN-RECEIVED, the peer's own SYN shows that our SYN-ACK
    /// was lost.
    pub(super) fn take_unexpected_syn(&mut self, header: &TcpHeader, context: &mut Context<'_>) {
        let again = header.sequence + 1 == self.receive.next;
        if self.state == State::SynReceived && again && !header.flags.contains(Flags::ACK) {
            self.due.syn |= self.may_answer_again(context);
            return;
        }
        context.counters.drop_unproven_control += 1;
        self.challenge(context);
    }

    /// Whether an acknowledgement is of data that was sent, and not older than the largest window
    /// (RFC 5961, section 5.2). If not, a challenge acknowledgement is sent.
    pub(super) fn believes(&mut self, ack: Sequence, context: &mut Context<'_>) -> bool {
        let oldest = self.send.unacknowledged - self.send.window_max;
        if ack >= oldest && ack <= self.send.sendable_end() {
            return true;
        }
        context.counters.drop_bad_ack += 1;
        self.challenge(context);
        false
    }

    /// Sends a challenge acknowledgement, within the limit for all connections together (RFC 5961,
    /// section 7).
    fn challenge(&mut self, context: &mut Context<'_>) {
        if *context.challenge_budget > 0 && !self.acks.due {
            *context.challenge_budget -= 1;
            context.counters.challenge_acks_sent += 1;
            self.acks.due = true;
        }
    }

    /// Answers a segment that is outside the window (RFC 9293, section 3.10.7.4, first step). Empty
    /// ones are answered at a limited rate.
    pub(super) fn answer_outsider(&mut self, empty: bool, context: &mut Context<'_>) {
        context.counters.drop_out_of_window += 1;
        if !self.alive.answers_too_soon(empty, context.now) {
            self.acks.due = true;
        }
    }

    /// Whether an ICMP message quotes a segment in flight (RFC 5927, section 4.1).
    pub(super) fn quotes(&self, sequence: Sequence) -> bool {
        sequence >= self.send.unacknowledged && sequence < self.send.next
    }

    /// Handles the report that a packet could not be delivered, if it quotes a segment in flight.
    pub(super) fn take_unreachable(
        &mut self,
        reason: Failure,
        sequence: Sequence,
        context: &mut Context<'_>,
    ) {
        if !self.quotes(sequence) || self.state == State::Closed {
            context.counters.drop_icmp += 1;
            return;
        }
        match self.state {
            State::SynSent | State::SynReceived => self.fail(reason, false, context),
            _ => self.soft_error = Some(reason),
        }
    }
}
