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

use super::connection::{Connection, Context};
use super::timers::NEVER;
use crate::wire::tcp::Options;

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
}

impl Connection {
    /// Data has come in order. `largest` is what our own option allowed a segment to have, so that
    /// segments which a device has joined do not pass for one.
    pub(super) fn acknowledge_data(&mut self, bytes: u32, largest: u16, context: &Context<'_>) {
        let acks = &mut self.acks;
        let segment = bytes.min(u32::from(largest));
        acks.segment_bytes = acks.segment_bytes.max(segment as u16);
        acks.waiting_bytes = acks.waiting_bytes.saturating_add(bytes);
        let full = u32::from(acks.segment_bytes);
        if self.options.quick_ack
            || acks.waiting_bytes >= 2 * full
            || (acks.quick > 0 && segment >= full)
        {
            acks.due = true;
            acks.quick = acks.quick.saturating_sub(1);
        } else if self.timers.acknowledgement == NEVER {
            self.timers.acknowledgement = context.now + context.config.delayed_ack;
        }
    }

    /// A segment with an acknowledgement has gone out.
    pub(super) fn acknowledged_all(&mut self) {
        self.acks.due = self.due.repeats > 0;
        self.acks.waiting_bytes = 0;
        self.timers.acknowledgement = NEVER;
        self.receive.acknowledged = self.receive.next;
    }

    /// One without data has gone out, which is one of those that are owed.
    pub(super) fn acknowledged_alone(&mut self) {
        if self.due.repeats > 0 {
            self.due.repeats -= 1;
            self.acks.due = self.due.repeats > 0;
        }
    }

    /// Writes the blocks for which there is room; if not all that is new fits, another
    /// acknowledgement is due.
    pub(super) fn report_blocks(&mut self, options: &mut Options) {
        let reassembly = &mut self.receive.reassembly;
        reassembly.blocks(&mut options.sack, usize::from(options.sack_count));
        self.acks.due |= reassembly.has_untold();
    }
}
