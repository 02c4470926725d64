//! Implements explicit congestion notification (RFC 3168, section 6.1).

use crate::sequence::Sequence;
use crate::wire::ip::Ecn;
use crate::wire::tcp::{Flags, TcpHeader};

/// The reaction that the ECN marks of a segment require.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Demand {
    /// Send an acknowledgement with an echo at once.
    pub(super) acknowledgement: bool,
    /// Reduce the congestion window.
    pub(super) reduction: bool,
}

/// The ECN state of a connection.
#[derive(Debug)]
pub(super) struct Marking {
    /// Whether our SYN offers ECN.
    offered: bool,
    /// Whether both sides use ECN.
    on: bool,
    /// A mark was received: every acknowledgement echoes it until the peer has reacted.
    echo: bool,
    /// The window was reduced, and the next data segment reports it.
    reduced: bool,
    /// Marks of data before this number were already answered; the sender reacts once per round
    /// trip.
    until: Option<Sequence>,
}

impl Marking {
    pub(super) fn new(offered: bool) -> Marking {
        Marking { offered, on: false, echo: false, reduced: false, until: None }
    }

    /// Processes the flags of the peer's SYN or SYN-ACK (RFC 3168, section 6.1.1).
    pub(super) fn negotiate(&mut self, flags: Flags, wanted: bool) {
        let both = Flags::ECE.with(Flags::CWR);
        self.on = wanted
            && if flags.contains(Flags::ACK) {
                self.offered && flags.contains(Flags::ECE) && !flags.contains(Flags::CWR)
            } else {
                flags.contains(both)
            };
    }

    /// Restores the result of the negotiation from a SYN cookie.
    pub(super) fn resume(&mut self, on: bool) {
        self.on = on;
    }

    /// The ECN flags of our SYN, or of our SYN-ACK. Repeated SYNs do not have them, since some
    /// routers drop such SYNs (section 6.1.1.1).
    pub(super) fn syn_flags(&mut self, answers: bool, tries: u8) -> Flags {
        match (answers, self.on) {
            (true, true) => Flags::ECE,
            (false, _) if self.offered && tries == 0 => Flags::ECE.with(Flags::CWR),
            (false, _) => {
                self.offered = false;
                Flags::default()
            }
            _ => Flags::default(),
        }
    }

    /// The codepoint of a packet: routers may mark only new data (sections 6.1.4 to 6.1.6).
    pub(super) fn codepoint(&self, new_data: bool) -> Ecn {
        if self.on && new_data { Ecn::Capable0 } else { Ecn::NotCapable }
    }

    /// The ECN bits of a segment; CWR is sent once, on new data.
    pub(super) fn flags(&mut self, new_data: bool) -> Flags {
        let mut flags = if self.echo { Flags::ECE } else { Flags::default() };
        if new_data && self.reduced {
            self.reduced = false;
            flags = flags.with(Flags::CWR);
        }
        flags
    }

    /// Whether a segment carries no ECN information to process.
    pub(super) fn is_plain(&self, ecn: Ecn, flags: Flags) -> bool {
        !self.on || (ecn != Ecn::Experienced && !flags.intersects(Flags::ECE.with(Flags::CWR)))
    }

    /// Processes the marks of a segment in the window; `next` is the next sequence number to send.
    #[inline]
    pub(super) fn take(
        &mut self,
        header: &TcpHeader,
        ecn: Ecn,
        has_data: bool,
        next: Sequence,
    ) -> Demand {
        if self.is_plain(ecn, header.flags) {
            return Demand::default();
        }
        if header.flags.contains(Flags::CWR) {
            self.echo = false;
        }
        let marked = ecn == Ecn::Experienced && has_data;
        self.echo |= marked;
        let answered = self.is_answered(header.acknowledgement, next);
        Demand {
            acknowledgement: marked,
            reduction: header.flags.contains(Flags::ECE) && !answered,
        }
    }

    /// Whether the marks of this round trip were already answered, when the peer acknowledges
    /// `acknowledged` and `next` is the next number to send. A stored number that is not between
    /// the two is old: after two gigabytes without a mark it would compare as one that is still to
    /// come.
    fn is_answered(&self, acknowledged: Sequence, next: Sequence) -> bool {
        self.until.is_some_and(|until| until.since(acknowledged) <= next.since(acknowledged))
    }

    /// Records that the window was reduced for another reason.
    pub(super) fn note_reduction(&mut self, next: Sequence) {
        if self.on {
            self.reduced = true;
            self.until = Some(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduction_answers_the_marks_of_its_round_trip_and_of_no_later_one() {
        let mut marking = Marking::new(true);
        marking.resume(true);
        let start = Sequence(u32::MAX - 10_000);
        assert!(!marking.is_answered(start, start + 20_000));
        marking.note_reduction(start + 20_000);
        assert!(marking.is_answered(start + 1000, start + 20_000));
        assert!(marking.is_answered(start + 20_000, start + 40_000));
        for later in [20_001, 1 << 20, 1 << 31, (1 << 31) + 50_000, 3 << 30, u32::MAX] {
            assert!(!marking.is_answered(start + later, start + later + 20_000), "{later}");
        }
    }
}
