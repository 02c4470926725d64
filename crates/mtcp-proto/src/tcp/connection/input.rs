//! Processes an incoming segment: the order of its checks (RFC 9293, section 3.10.7.4), and header
//! prediction, the fast path for most segments.

use super::{Connection, Context};
use crate::socket::State;
use crate::wire::ip::Ecn;
use crate::wire::tcp::{Flags, TcpHeader};

impl Connection {
    /// Processes a segment by header prediction: the next data, or an acknowledgement of new data,
    /// of an established connection without losses or gaps. The effect is that of
    /// [`Connection::process`], but the results of its checks are known. Returns false, and does
    /// nothing, for any other segment.
    pub(super) fn predicted(
        &mut self,
        header: &TcpHeader,
        ecn: Ecn,
        data: &[u8],
        context: &mut Context<'_>,
    ) -> bool {
        let acknowledges = header.acknowledgement.since(self.send.unacknowledged);
        let expected = self.state == State::Established
            && Flags(header.flags.0 & !Flags::PSH.0) == Flags::ACK
            && header.sequence == self.receive.next
            && acknowledges <= self.send.next.since(self.send.unacknowledged)
            && data.len() <= self.receive.window() as usize
            && (acknowledges > 0 || !data.is_empty())
            && header.options.sack_count == 0
            && self.ecn.is_plain(ecn, header.flags)
            && self.receive.reassembly.is_empty()
            && !self.orphan
            && !self.options.urgent().is_awaited()
            && self.stamps.lets_in(header, context.now);
        if !expected {
            return false;
        }
        self.take_sign_of_life(header, context);
        self.take_acknowledgement(header, data.len(), context);
        if !data.is_empty() {
            context.counters.data_segments_received += 1;
            self.take_in_order(data, context);
        }
        true
    }

    /// Processes any segment.
    pub(super) fn process(
        &mut self,
        header: &TcpHeader,
        ecn: Ecn,
        data: &[u8],
        context: &mut Context<'_>,
    ) {
        match self.state {
            State::Closed => {}
            State::SynSent => self.input_syn_sent(header, data, context),
            _ => self.input_with_peer(header, ecn, data, context),
        }
    }

    fn take_sign_of_life(&mut self, header: &TcpHeader, context: &Context<'_>) {
        self.alive.heard(context.now);
        self.stamps.follow(header, self.receive.acknowledged, context.now);
        // As in Linux: data that MSG_MORE delays is sent when any segment of the peer arrives.
        self.held = false;
    }

    fn input_with_peer(
        &mut self,
        header: &TcpHeader,
        ecn: Ecn,
        data: &[u8],
        context: &mut Context<'_>,
    ) {
        let flags = header.flags;
        let resets = flags.contains(Flags::RST);
        if resets {
            if self.state != State::TimeWait {
                // In TIME-WAIT, a reset could end the wait too early (RFC 1337).
                self.take_reset(header, context);
            }
            return;
        }
        if !self.stamps.lets_in(header, context.now) {
            context.counters.drop_paws += 1;
            self.answer_outsider(data.is_empty(), context);
            return;
        }
        let opens = flags.contains(Flags::SYN);
        let crossing = opens && self.is_crossing_syn(header);
        if opens && !crossing {
            return self.take_unexpected_syn(header, context);
        }
        let fin = flags.contains(Flags::FIN);
        if !crossing && !self.lies_in_window(header, data.len() + usize::from(fin)) {
            if self.state == State::TimeWait && fin {
                self.linger(context);
            }
            let start = header.sequence;
            if !data.is_empty() && start < self.receive.next {
                context.counters.duplicates += 1;
                let end = (start + data.len() as u32).min(self.receive.next);
                self.receive.reassembly.note_duplicate(start, end);
            }
            return self.answer_outsider(data.is_empty() && !fin, context);
        }
        if !flags.contains(Flags::ACK) {
            return;
        }
        let opening = self.state == State::SynReceived;
        let believed = if opening {
            self.complete(header, context)
        } else {
            self.believes(header.acknowledgement, context)
        };
        if !believed {
            return;
        }
        // This must follow the checks: an attacker who has guessed a number in the window must not
        // set TS.Recent, because all later segments of the peer would then be too old.
        self.take_sign_of_life(header, context);
        if !opening {
            self.take_acknowledgement(header, data.len() + usize::from(fin), context);
        }
        self.take_marks(header, ecn, data.len());
        if crossing {
            self.acks.due = true;
            return;
        }
        if self.is_synchronized() {
            self.take_urgent(header, data);
        }
        if (!data.is_empty() || fin) && self.is_synchronized() {
            self.take_text(header.sequence, data, fin, context);
        }
    }

    /// Handles the ECN marks of a segment in the window (RFC 3168, section 6.1).
    fn take_marks(&mut self, header: &TcpHeader, ecn: Ecn, bytes: usize) {
        let demand = self.ecn.take(header, ecn, bytes > 0, self.send.next);
        self.acks.due |= demand.acknowledgement;
        if demand.reduction && self.is_synchronized() {
            if !self.send.congestion.in_recovery() {
                self.send.congestion.on_congestion_mark(self.send.outstanding());
            }
            self.ecn.note_reduction(self.send.next);
        }
    }

    /// Whether the segment is the SYN-ACK of a simultaneous open.
    fn is_crossing_syn(&self, header: &TcpHeader) -> bool {
        self.state == State::SynReceived
            && header.flags.contains(Flags::ACK)
            && header.sequence + 1 == self.receive.next
            && header.acknowledgement == self.send.next
    }

    /// Whether a segment of `length` numbers is in the window (RFC 9293, section 3.10.7.4, first
    /// step), with two exceptions. An empty segment may be at the right edge, the next number of a
    /// peer that has filled the window. A segment at the left edge of a closed window may
    /// acknowledge.
    fn lies_in_window(&self, header: &TcpHeader, length: usize) -> bool {
        let (next, edge) = (self.receive.next, self.receive.edge);
        let start = header.sequence;
        if length == 0 {
            return start >= next && start <= edge;
        }
        let last = start + (length - 1) as u32;
        start == next || (start > next && start < edge) || (last >= next && last < edge)
    }
}
