//! Tracks urgent data (RFC 9293, section 3.8.5; RFC 6093) with Linux's interpretation: the urgent
//! pointer names the byte after the urgent byte, on output and on input.
//!
//! Urgent bytes stay in their position in the stream. The reader of the stream decides whether to
//! remove them; it gets the position of the last one.

use crate::sequence::Sequence;
use crate::socket::Urgent;
use crate::wire::tcp::TcpHeader;

/// State of urgent data, which few connections need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UrgentData {
    /// The end of the last urgent byte that we sent.
    end: Option<Sequence>,
    /// The last urgent byte that the peer announced.
    mark: Option<Mark>,
}

impl UrgentData {
    pub(super) const NONE: UrgentData = UrgentData { end: None, mark: None };

    /// Records that the data which the application has sent so far ends at `end` with an urgent
    /// byte.
    pub(super) fn mark_sent(&mut self, end: Sequence) {
        self.end = Some(end);
    }

    /// Whether an urgent byte is not acknowledged. Segments are then sent one by one and at once.
    pub(super) fn is_sending(&self, unacknowledged: Sequence) -> bool {
        self.end.is_some_and(|end| end > unacknowledged)
    }

    /// The urgent pointer of a segment that begins at `sequence`, if it needs one.
    pub(super) fn pointer(&self, sequence: Sequence, unacknowledged: Sequence) -> Option<u16> {
        let ahead = self.end?.distance(sequence);
        // A distance that does not fit into the pointer is sent as the largest value.
        (ahead > 0 && self.is_sending(unacknowledged))
            .then(|| ahead.min(i32::from(u16::MAX)) as u16)
    }

    /// Whether an urgent byte was announced and has not arrived.
    pub(super) fn is_awaited(&self) -> bool {
        self.mark.is_some_and(|mark| mark.urgent.byte.is_none())
    }

    /// The last urgent byte that the peer announced.
    pub(super) fn received(&self) -> Option<Urgent> {
        self.mark.map(|mark| mark.urgent)
    }

    /// Records the position of the peer's urgent byte, which is not before the byte expected next:
    /// `next`, at `position` in the stream. True if it is a different byte from before.
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

    /// Stores the urgent byte if it is awaited and is in this data, which begins at `sequence`.
    /// True if it was stored.
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
    /// Its position in the stream, and its value once it has arrived.
    urgent: Urgent,
}
