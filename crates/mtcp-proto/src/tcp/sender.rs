//! Implements the send side of a connection: stores the application's data and decides how much of
//! it may be sent now (RFC 9293, sections 3.7.4 and 3.8.6.2.1).

use super::congestion::CongestionControl;
use super::rtt::RoundTrip;
use super::scoreboard::Scoreboard;
use crate::config::{Config, Congestion};
use crate::memory::Ring;
use crate::sequence::Sequence;

/// The limit of an initial window of more than two segments, in bytes (RFC 6928, section 2).
const INITIAL_WINDOW_BYTES: u32 = 14_600;

/// The send side of a connection.
#[derive(Debug)]
pub(super) struct Sender {
    /// ISS.
    pub(super) initial: Sequence,
    /// SND.UNA. Once our SYN is acknowledged, the ring begins here.
    pub(super) unacknowledged: Sequence,
    /// SND.NXT; it never moves back.
    pub(super) next: Sequence,
    /// SND.WND, unshifted.
    pub(super) window: u32,
    /// The largest window that the peer has ever offered.
    pub(super) window_max: u32,
    /// SND.WL1 and SND.WL2: the segment that set the window.
    window_sequence: Sequence,
    window_acknowledgement: Sequence,
    /// The largest segment that the peer accepts.
    pub(super) peer_segment: u16,
    /// The largest segment that the peer and the path accept, including the space for options.
    pub(super) segment: u16,
    /// Bytes of data in a full segment, beside timestamps.
    pub(super) full: u16,
    /// The shift of the peer's window fields.
    pub(super) scale: u8,
    pub(super) scale_agreed: bool,
    /// Whether both sides have agreed on SACK.
    pub(super) sack: bool,
    /// Whether the application has ended this direction: a FIN follows the data.
    pub(super) fin: bool,
    /// Whether that FIN was acknowledged.
    pub(super) fin_acknowledged: bool,
    /// Whether a byte beyond the window was sent as a probe, which the peer may accept or drop.
    pub(super) probed: bool,
    /// The end of the last small segment that was sent.
    pub(super) small_end: Sequence,
    pub(super) ring: Ring,
    pub(super) scoreboard: Scoreboard,
    pub(super) congestion: CongestionControl,
    pub(super) rtt: RoundTrip,
    /// Data bytes that the peer has acknowledged.
    pub(super) bytes_acknowledged: u64,
}

/// New data that may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fresh {
    pub(super) bytes: u32,
    /// Whether a FIN follows the last of these bytes.
    pub(super) fin: bool,
}

impl Sender {
    pub(super) fn new(initial: Sequence, config: &Config) -> Sender {
        Sender {
            initial,
            unacknowledged: initial,
            next: initial,
            window: 0,
            window_max: 0,
            window_sequence: Sequence(0),
            window_acknowledgement: Sequence(0),
            peer_segment: 536,
            segment: 536,
            full: 536,
            scale: 0,
            scale_agreed: false,
            sack: false,
            fin: false,
            fin_acknowledged: false,
            probed: false,
            small_end: initial,
            ring: Ring::new(),
            scoreboard: Scoreboard::new(),
            congestion: CongestionControl::new(Congestion::default(), 536, 1),
            rtt: RoundTrip::new(config),
            bytes_acknowledged: 0,
        }
    }

    /// Starts congestion control when the connection is established.
    pub(super) fn start(&mut self, kind: Congestion, segments: u32) {
        let full = u32::from(self.full);
        let segments = segments.min((INITIAL_WINDOW_BYTES / full).max(2));
        let segments = u16::try_from(segments).unwrap_or(u16::MAX);
        self.congestion = CongestionControl::new(kind, self.full, segments);
    }

    /// Sequence numbers that were sent and are not acknowledged.
    pub(super) fn outstanding(&self) -> u32 {
        self.next.since(self.unacknowledged)
    }

    /// Whether a small segment was sent and is not acknowledged. If its stored end is ahead of all
    /// data sent, it was sent before the numbers wrapped.
    pub(super) fn has_small_outstanding(&self) -> bool {
        self.small_end > self.unacknowledged && self.small_end <= self.next
    }

    /// The largest number that an acknowledgement may have.
    pub(super) fn sendable_end(&self) -> Sequence {
        if self.probed { self.next.max(self.unacknowledged + 1) } else { self.next }
    }

    /// The end of the application's data.
    pub(super) fn data_end(&self) -> Sequence {
        self.unacknowledged + self.ring.len() as u32
    }

    /// Whether there is data, or a FIN, that was never sent.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        let ahead = self.data_end().distance(self.next);
        // After a FIN was sent, the next number is beyond the data.
        ahead > 0 || (ahead == 0 && self.fin && !self.fin_acknowledged)
    }

    /// Whether a FIN was sent.
    pub(super) fn fin_sent(&self) -> bool {
        self.fin && (self.fin_acknowledged || self.next > self.data_end())
    }

    pub(super) fn maximum_segment(&self) -> u16 {
        self.full
    }

    /// Takes the window of a segment, unless a newer one has set it (RFC 9293, section 3.10.7.4,
    /// fifth step). True if it has changed.
    pub(super) fn update_window(&mut self, window: u32, sequence: Sequence, ack: Sequence) -> bool {
        // A retransmission has an old number, but if it acknowledges new data, its window is new as
        // well. An older window combined with the newer acknowledgement would reach too far.
        let newer = ack > self.unacknowledged
            || self.window_sequence < sequence
            || (self.window_sequence == sequence && self.window_acknowledgement <= ack);
        newer && self.set_window(window, sequence, ack)
    }

    /// Sets the window from a segment; true if it has changed.
    pub(super) fn set_window(&mut self, window: u32, sequence: Sequence, ack: Sequence) -> bool {
        let changed = self.window != window;
        self.window = window;
        self.window_max = self.window_max.max(window);
        self.window_sequence = sequence;
        self.window_acknowledgement = ack;
        changed
    }
}
