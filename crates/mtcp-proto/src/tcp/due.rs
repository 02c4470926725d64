//! Tracks which segments a connection has to send, and the most urgent kind of them.

use super::sender::Fresh;
use crate::sequence::Sequence;

/// The priority of transmission (mTCP, priority-based packet queuing).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// SYN, FIN, RST.
    Control,
    /// An acknowledgement without data.
    Acknowledgement,
    /// Data.
    Data,
}

/// Segments to send, except data and one acknowledgement.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// The SYN or SYN-ACK.
    pub(super) syn: bool,
    /// A reset that ends the connection.
    pub(super) reset: bool,
    /// A tail loss probe.
    pub(super) tail_probe: bool,
    pub(super) window_probe: bool,
    pub(super) keepalive: bool,
    /// Duplicate acknowledgements without data to send, which a peer without SACK counts.
    pub(super) repeats: u8,
    /// A reset with this number, for a segment of another connection with the same four-tuple.
    pub(super) stray_reset: bool,
    pub(super) stray: Sequence,
}

impl Due {
    /// Queues a reset for a segment of another connection, which acknowledges this number.
    pub(super) fn reset_stray(&mut self, sequence: Sequence) {
        (self.stray_reset, self.stray) = (true, sequence);
    }

    /// Whether there is nothing to send. It has no branch, because it is called after every change
    /// of a connection.
    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        let any = self.syn | self.reset | self.tail_probe | self.window_probe | self.keepalive;
        !(any | self.stray_reset)
    }
}

/// The next segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    Reset,
    StrayReset(Sequence),
    Syn,
    /// The first lost data, again.
    Again,
    /// The last segment, again, as a tail loss probe.
    TailProbe,
    Fresh(Fresh),
    /// New data as a tail loss probe.
    FreshProbe(Fresh),
    WindowProbe(Fresh),
    Keepalive,
    Acknowledgement,
}

impl Plan {
    pub(super) fn urgency(self) -> Urgency {
        match self {
            Plan::Reset | Plan::StrayReset(_) | Plan::Syn => Urgency::Control,
            Plan::Fresh(Fresh { bytes: 0, .. }) => Urgency::Control,
            Plan::Keepalive | Plan::Acknowledgement => Urgency::Acknowledgement,
            _ => Urgency::Data,
        }
    }
}
