//! What goes out: the data of the application, and how much of it may go now (RFC 9293, sections
//! 3.7.4 and 3.8.6.2.1).

use super::congestion::CongestionControl;
use super::rtt::RoundTrip;
use super::scoreboard::Scoreboard;
use crate::config::{Config, Congestion};
use crate::memory::Ring;
use crate::sequence::Sequence;

/// Beyond two segments, the initial window has no more than these bytes (RFC 6928, section 2).
const INITIAL_WINDOW_BYTES: u32 = 14_600;

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
    /// The largest segment that the peer takes.
    pub(super) peer_segment: u16,
    /// The largest segment that peer and path take, with room for options.
    pub(super) segment: u16,
    /// Bytes of data in it beside timestamps.
    pub(super) full: u16,
    /// How far the peer's windows are shifted.
    pub(super) scale: u8,
    pub(super) scale_agreed: bool,
    /// Both sides have agreed on SACK.
    pub(super) sack: bool,
    /// The application has ended this direction: a FIN follows the data.
    pub(super) fin: bool,
    /// That FIN was acknowledged.
    pub(super) fin_acknowledged: bool,
    /// A byte beyond the window was sent, which the peer may take or not.
    pub(super) probed: bool,
    /// Behind the last small segment that was sent.
    pub(super) small_end: Sequence,
    pub(super) ring: Ring,
    pub(super) scoreboard: Scoreboard,
    pub(super) congestion: CongestionControl,
    pub(super) rtt: RoundTrip,
    /// Data bytes that the peer has acknowledged.
    pub(super) bytes_acknowledged: u64,
}

/// New data that may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fresh {
    pub(super) bytes: u32,
    /// A FIN goes with the last of these bytes.
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

    /// The connection is established.
    pub(super) fn start(&mut self, kind: Congestion, segments: u32) {
        let full = u32::from(self.full);
        let segments = segments.min((INITIAL_WINDOW_BYTES / full).max(2));
        let segments = u16::try_from(segments).unwrap_or(u16::MAX);
        self.congestion = CongestionControl::new(kind, self.full, segments);
    }

    /// Sequence numbers that are sent and not acknowledged.
    pub(super) fn outstanding(&self) -> u32 {
        self.next.since(self.unacknowledged)
    }

    /// Whether a small segment is sent and not acknowledged. One that was sent before the numbers
    /// wrapped lies ahead of all that was sent.
    pub(super) fn has_small_outstanding(&self) -> bool {
        self.small_end > self.unacknowledged && self.small_end <= self.next
    }

    /// Behind the last number that an acknowledgement can name.
    pub(super) fn sendable_end(&self) -> Sequence {
        if self.probed { self.next.max(self.unacknowledged + 1) } else { self.next }
    }

    /// Behind the last byte of the application's data.
    pub(super) fn data_end(&self) -> Sequence {
        self.unacknowledged + self.ring.len() as u32
    }

    /// Whether data, or a FIN, were never sent.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        let ahead = self.data_end().distance(self.next);
        // Behind a FIN that was sent, the next number lies beyond the data.
        ahead > 0 || (ahead == 0 && self.fin && !self.fin_acknowledged)
    }

    /// Whether a FIN is among what was sent.
    pub(super) fn fin_sent(&self) -> bool {
        self.fin && (self.fin_acknowledged || self.next > self.data_end())
    }

    pub(super) fn maximum_segment(&self) -> u16 {
        self.full
    }

    /// Takes the window of a segment, unless a newer one has set it (RFC 9293, section 3.10.7.4,
    /// fifth step). True if it has changed.
    pub(super) fn update_window(&mut self, window: u32, sequence: Sequence, ack: Sequence) -> bool {
        // A repetition has an old number, but what it newly acknowledges tells that its window is
        // new as well: an older window beside the newer acknowledgement would reach too far.
        let newer = ack > self.unacknowledged
            || self.window_sequence < sequence
            || (self.window_sequence == sequence && self.window_acknowledgement <= ack);
        newer && self.set_window(window, sequence, ack)
    }

    pub(super) fn set_window(&mut self, window: u32, sequence: Sequence, ack: Sequence) -> bool {
        let changed = self.window != window;
        self.window = window;
        self.window_max = self.window_max.max(window);
        self.window_sequence = sequence;
        self.window_acknowledgement = ack;
        changed
    }
}
