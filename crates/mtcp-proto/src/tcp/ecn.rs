//! Explicit congestion notification (RFC 3168, section 6.1).

use crate::sequence::Sequence;
use crate::wire::ip::Ecn;
use crate::wire::tcp::{Flags, TcpHeader};

/// What the marks of a segment ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Demand {
    /// An acknowledgement with an echo at once.
    pub(super) acknowledgement: bool,
    /// A smaller congestion window.
    pub(super) reduction: bool,
}

#[derive(Debug)]
pub(super) struct Marking {
    /// Our SYN offers it.
    offered: bool,
    /// Both sides take part.
    on: bool,
    /// A mark has come: every acknowledgement says so until the peer has reacted.
    echo: bool,
    /// We have reacted, and the next data segment says so.
    reduced: bool,
    /// Marks of data before this were answered already: once per round trip.
    until: Option<Sequence>,
}

impl Marking {
    pub(super) fn new(offered: bool) -> Marking {
        Marking { offered, on: false, echo: false, reduced: false, until: None }
    }

    /// The peer's SYN or SYN-ACK (RFC 3168, section 6.1.1).
    pub(super) fn negotiate(&mut self, flags: Flags, wanted: bool) {
        let both = Flags::ECE.with(Flags::CWR);
        self.on = wanted
            && if flags.contains(Flags::ACK) {
                self.offered && flags.contains(Flags::ECE) && !flags.contains(Flags::CWR)
            } else {
                flags.contains(both)
            };
    }

    pub(super) fn resume(&mut self, on: bool) {
        self.on = on;
    }

    /// The bits of our SYN, which are left out of repetitions, since some routers drop such SYNs
    /// (section 6.1.1.1), or of our SYN-ACK.
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

    /// The codepoint of a packet: only new data may be marked (section 6.1.4 to 6.1.6).
    pub(super) fn codepoint(&self, new_data: bool) -> Ecn {
        if self.on && new_data { Ecn::Capable0 } else { Ecn::NotCapable }
    }

    /// The bits of a segment; the news that we have reacted travel once, on new data.
    pub(super) fn flags(&mut self, new_data: bool) -> Flags {
        let mut flags = if self.echo { Flags::ECE } else { Flags::default() };
        if new_data && self.reduced {
            self.reduced = false;
            flags = flags.with(Flags::CWR);
        }
        flags
    }

    /// Whether a segment brings nothing for this part.
    pub(super) fn is_plain(&self, ecn: Ecn, flags: Flags) -> bool {
        !self.on || (ecn != Ecn::Experienced && !flags.intersects(Flags::ECE.with(Flags::CWR)))
    }

    /// A segment in the window has come with these marks; `next` is to be sent next.
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

    /// Whether this round trip's marks were answered already, by an acknowledgement of this number
    /// while `next` is to be sent next. A number that does not lie between the two is one of long
    /// ago: after two gigabytes without a mark it would compare as one to come.
    fn is_answered(&self, acknowledged: Sequence, next: Sequence) -> bool {
        self.until.is_some_and(|until| until.since(acknowledged) <= next.since(acknowledged))
    }

    /// The window was halved for another reason.
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
