//! When what came is acknowledged (RFC 9293, section 3.8.6.3; RFC 5681, section 4.2).
//!
//! An acknowledgement that is due goes out with the next output, once for all segments of a batch
//! and on data if there is any. One that is not yet due waits for a companion: for data of ours,
//! for the second full-sized segment, or for the timer.
//!
//! Of segments out of order, section 4.2 wants each to be acknowledged at once, because the peer
//! counts. One with SACK counts what the blocks name (RFC 6675, section 4; RFC 8985, section 6.2),
//! so one acknowledgement is enough for as many segments as its blocks have room for. One without
//! counts acknowledgements that repeat each other and hold no data (section 3.2): it gets as many
//! of them as segments have come.

/// Full-sized segments at the beginning, and after a gap, that are acknowledged at once, because
/// the peer's congestion window grows by acknowledgements.
const QUICK: u8 = 16;

/// What a segment is taken for full-sized until a larger one comes (RFC 9293, section 3.7.1).
const SEGMENT_BYTES_MIN: u32 = 536;

#[derive(Debug)]
pub(super) struct Acknowledging {
    /// One goes out with the next output.
    pub(super) due: bool,
    /// How many full-sized segments are still answered at once.
    quick: u8,
    /// The largest segment that came.
    segment_bytes: u16,
    /// Bytes that came since the last acknowledgement.
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

    /// A gap has come or gone: the peer recovers, and must hear of every segment.
    pub(super) fn hurry(&mut self) {
        self.due = true;
        self.quick = QUICK;
    }

    /// Data has come in order. `largest` is what our own option allowed a segment to have, so that
    /// segments which a device has joined do not pass for one. True if the acknowledgement may wait
    /// for a companion.
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

    /// A segment with an acknowledgement goes out; others may be owed that repeat it.
    pub(super) fn sent(&mut self, repeats: bool) {
        self.due = repeats;
        self.waiting_bytes = 0;
    }
}
