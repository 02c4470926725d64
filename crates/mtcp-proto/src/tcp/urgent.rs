//! Urgent data (RFC 9293, section 3.8.5; RFC 6093), as Linux reads it: the urgent pointer names the
//! byte behind the urgent one on the way out, and the byte before the pointer is the urgent one on
//! the way in.
//!
//! Urgent bytes stay where they are in the stream. Whether they are taken out of it is for whoever
//! reads the stream, who is told where the last one stands.

use super::connection::Connection;
use crate::sequence::Sequence;
use crate::socket::Urgent;
use crate::wire::tcp::{Flags, TcpHeader};

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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    sequence: Sequence,
    /// Its place in the stream, and what it is once it has come.
    urgent: Urgent,
}

impl Connection {
    /// What the application has sent so far ends with an urgent byte.
    pub(super) fn mark_urgent(&mut self) {
        let end = self.send.data_end();
        self.options.urgent_mut().end = Some(end);
    }

    /// Whether an urgent byte is not acknowledged: segments are then single and sent at once.
    pub(super) fn is_sending_urgent(&self) -> bool {
        self.urgent_end().is_some_and(|end| end > self.send.unacknowledged)
    }

    fn urgent_end(&self) -> Option<Sequence> {
        self.options.urgent().end
    }

    /// The urgent pointer of a segment that begins here, if it has one.
    pub(super) fn urgent_pointer(&self, sequence: Sequence) -> Option<u16> {
        let ahead = self.urgent_end()?.distance(sequence);
        // A pointer that is too far to be told says at least that there is one.
        (ahead > 0 && self.is_sending_urgent()).then(|| ahead.min(i32::from(u16::MAX)) as u16)
    }

    /// Whether the urgent byte has been announced and has not come.
    pub(super) fn awaits_urgent(&self) -> bool {
        self.options.urgent().mark.is_some_and(|mark| mark.urgent.byte.is_none())
    }

    /// A segment in the window, before its data are taken.
    pub(super) fn take_urgent(&mut self, header: &TcpHeader, data: &[u8]) {
        let announced = header.flags.contains(Flags::URG);
        if !announced && !self.awaits_urgent() {
            return;
        }
        let next = self.receive.next;
        let urgent_data = self.options.urgent_mut();
        let at = header.sequence + u32::from(header.urgent.saturating_sub(1));
        let known = urgent_data.mark.is_some_and(|mark| at <= mark.sequence);
        if announced && !known && at >= next && !self.receive.ended {
            let position = self.receive.bytes + u64::from(at.since(next));
            urgent_data.mark = Some(Mark { sequence: at, urgent: Urgent { position, byte: None } });
            self.receive.arrivals = self.receive.arrivals.wrapping_add(1);
        }
        if let Some(mark) = urgent_data.mark.as_mut().filter(|mark| mark.urgent.byte.is_none())
            && mark.sequence >= header.sequence
            && let Some(byte) = data.get(mark.sequence.since(header.sequence) as usize)
        {
            mark.urgent.byte = Some(*byte);
            self.receive.arrivals = self.receive.arrivals.wrapping_add(1);
        }
    }

    /// The last urgent byte of the peer's.
    pub(crate) fn urgent(&self) -> Option<Urgent> {
        self.options.urgent().mark.map(|mark| mark.urgent)
    }

    /// Bytes of the stream that the application has taken.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.receive.bytes - self.receive.ring.len() as u64
    }
}
