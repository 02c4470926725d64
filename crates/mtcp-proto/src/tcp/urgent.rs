//! Urgent data (RFC 9293, section 3.8.5; RFC 6093), as Linux reads it: the urgent pointer names the
//! byte behind the urgent one on the way out, and the byte before the pointer is the urgent one on
//! the way in.
//!
//! Urgent bytes stay where they are in the stream. Whether they are taken out of it is for whoever
//! reads the stream, who is told where the last one stands.

use crate::sequence::Sequence;
use crate::socket::Urgent;
use crate::wire::tcp::TcpHeader;

/// What few connections have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UrgentData {
    /// Behind the last urgent byte of ours.
    end: Option<Sequence>,
    /// The last urgent byte of the peer's.
    mark: Option<Mark>,
}

impl UrgentData {
    pub(super) const NONE: UrgentData = UrgentData { end: None, mark: None };

    /// What the application has sent so far ends here with an urgent byte.
    pub(super) fn mark_sent(&mut self, end: Sequence) {
        self.end = Some(end);
    }

    /// Whether an urgent byte is not acknowledged: segments are then single and sent at once.
    pub(super) fn is_sending(&self, unacknowledged: Sequence) -> bool {
        self.end.is_some_and(|end| end > unacknowledged)
    }

    /// The urgent pointer of a segment that begins here, if it has one.
    pub(super) fn pointer(&self, sequence: Sequence, unacknowledged: Sequence) -> Option<u16> {
        let ahead = self.end?.distance(sequence);
        // A pointer that is too far to be told says at least that there is one.
        (ahead > 0 && self.is_sending(unacknowledged))
            .then(|| ahead.min(i32::from(u16::MAX)) as u16)
    }

    /// Whether the urgent byte has been announced and has not come.
    pub(super) fn is_awaited(&self) -> bool {
        self.mark.is_some_and(|mark| mark.urgent.byte.is_none())
    }

    /// The last urgent byte of the peer's.
    pub(super) fn received(&self) -> Option<Urgent> {
        self.mark.map(|mark| mark.urgent)
    }

    /// Notes where the peer's urgent byte stands, at or behind the byte that is expected next:
    /// `next`, at `position` in the stream. True if it is another one than before.
    pub(super) fn take_pointer(
        &mut self,
        header: &TcpHeader,
        next: Sequence,
        position: u64,
    ) -> bool {
        let at = header.sequence + u32::from(header.urgent.saturating_sub(1));
        let known = self.mark.is_some_and(|mark| at <= mark.sequence);
        if known || at < next {
            return false;
        }
        let position = position + u64::from(at.since(next));
        self.mark = Some(Mark { sequence: at, urgent: Urgent { position, byte: None } });
        true
    }

    /// Takes the urgent byte if it is awaited and among these data, which begin at `sequence`. True
    /// if it was.
    pub(super) fn take_byte(&mut self, sequence: Sequence, data: &[u8]) -> bool {
        if let Some(mark) = self.mark.as_mut().filter(|mark| mark.urgent.byte.is_none())
            && mark.sequence >= sequence
            && let Some(byte) = data.get(mark.sequence.since(sequence) as usize)
        {
            mark.urgent.byte = Some(*byte);
            return true;
        }
        false
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    sequence: Sequence,
    /// Its place in the stream, and what it is once it has come.
    urgent: Urgent,
}
