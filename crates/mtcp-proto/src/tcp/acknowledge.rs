//! Decides when received segments are acknowledged (RFC 9293, section 3.8.6.3; RFC 5681, section
//! 4.2).
//!
//! The next output sends a pending acknowledgement, once for all segments of a batch, and with data
//! if there is any. A delayed acknowledgement waits for data to be sent, for the second full-sized
//! segment, or for the timer.
//!
//! RFC 5681, section 4.2, demands an immediate acknowledgement for each segment out of order,
//! because the peer counts them. A peer with SACK counts the bytes in the blocks (RFC 6675, section
//! 4; RFC 8985, section 6.2), so one acknowledgement is enough for as many segments as its blocks
//! have room for. A peer without SACK counts duplicate acknowledgements without data (RFC 5681,
//! section 3.2): it gets one for each segment that has arrived.

/// Number of full-sized segments that are acknowledged at once, at the beginning and after a gap,
/// because the peer's congestion window grows by acknowledgements.
const QUICK: u8 = 16;

/// The size from which a segment counts as full-sized until a larger one arrives (RFC 9293, section
/// 3.7.1).
const SEGMENT_BYTES_MIN: u32 = 536;

/// The state of acknowledging received segments.
#[derive(Debug)]
pub(super) struct Acknowledging {
    /// Whether the next output sends an acknowledgement.
    pub(super) due: bool,
    /// Number of further full-sized segments that are acknowledged at once.
    quick: u8,
    /// The largest segment that was received.
    segment_bytes: u16,
    /// Bytes received since the last acknowledgement.
    waiting_bytes: u32,
}

impl Acknowledging {
    pub(super) fn new() -> Acknowledging {
        Acknowledging {
            due: false,
            quick: QUICK,
            segment_bytes: SEGMENT_BYTES_MIN as u16,
            waiting_bytes: 0,
        }
    }

    /// Acknowledges at once after a gap has appeared or was filled, because the peer is in recovery
    /// and needs every acknowledgement.
    pub(super) fn hurry(&mut self) {
        self.due = true;
        self.quick = QUICK;
    }

    /// Records that data has arrived in order. `largest` is the segment size that our own option
    /// allowed, so that segments which a device has joined do not count as one. True if the
    /// acknowledgement may wait for a second segment.
    pub(super) fn take_data(&mut self, bytes: u32, largest: u16, at_once: bool) -> bool {
        let segment = bytes.min(u32::from(largest));
        self.segment_bytes = self.segment_bytes.max(segment as u16);
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes);
        let full = u32::from(self.segment_bytes);
        if at_once || self.waiting_bytes >= 2 * full || (self.quick > 0 && segment >= full) {
            self.due = true;
            self.quick = self.quick.saturating_sub(1);
            return false;
        }
        true
    }

    /// Records that an acknowledgement was sent; duplicates of it may still have to be sent.
    pub(super) fn sent(&mut self, repeats: bool) {
        self.due = repeats;
        self.waiting_bytes = 0;
    }
}
