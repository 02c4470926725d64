//! Implements the receive side of a connection: the advertised window, and the data in it (RFC
//! 9293, sections 3.8.6 and 3.10.7.4).

use super::reassembly::Reassembly;
use crate::memory::{BufferPool, Purpose, Ring};
use crate::sequence::Sequence;

/// Largest window that is offered while memory is short.
const PRESSED_BYTES: u32 = 4 << 10;

/// The receive side of a connection.
#[derive(Debug)]
pub(super) struct Receiver {
    /// RCV.NXT.
    pub(super) next: Sequence,
    /// The right edge of the window: the farthest that was announced. It never moves left.
    pub(super) edge: Sequence,
    /// The number up to which we have acknowledged (Last.ACK.sent of RFC 7323).
    pub(super) acknowledged: Sequence,
    /// The largest segment that our option allows the peer to send.
    pub(super) largest: u16,
    /// The shift of our window fields.
    pub(super) scale: u8,
    /// Whether the application has shut receiving down. It then receives the end of the stream
    /// after the data that still arrives.
    pub(super) shut: bool,
    /// Whether the peer's FIN and all data before it have arrived.
    pub(super) ended: bool,
    /// Whether a FIN has arrived, perhaps before missing data, and its position.
    ends: bool,
    end: Sequence,
    /// Counts arrivals; wraps.
    pub(super) arrivals: u16,
    pub(super) ring: Ring,
    pub(super) reassembly: Reassembly,
    /// Data bytes that arrived in order.
    pub(super) bytes: u64,
}

impl Receiver {
    pub(super) fn new() -> Receiver {
        Receiver {
            next: Sequence(0),
            edge: Sequence(0),
            acknowledged: Sequence(0),
            largest: 0,
            scale: 0,
            shut: false,
            ended: false,
            ends: false,
            end: Sequence(0),
            arrivals: 0,
            ring: Ring::new(),
            reassembly: Reassembly::new(),
            bytes: 0,
        }
    }

    /// Starts at the initial number of the peer's SYN.
    pub(super) fn begin(&mut self, syn: Sequence) {
        self.next = syn + 1;
        self.edge = self.next;
        self.acknowledged = self.next;
    }

    /// Bytes of the window that was announced to the peer.
    pub(super) fn window(&self) -> u32 {
        self.edge.since(self.next)
    }

    /// Records a FIN that ends at this number, perhaps before missing data.
    pub(super) fn note_fin(&mut self, end: Sequence) {
        if end >= self.next && end <= self.edge {
            (self.ends, self.end) = (true, end);
        }
    }

    /// Whether all data before a received FIN has arrived and the FIN is not processed yet.
    pub(super) fn has_reached_end(&self) -> bool {
        self.ends && self.end == self.next && !self.ended
    }

    /// Appends the data that was expected next, as far as there is memory; returns the number of
    /// bytes.
    #[inline]
    pub(super) fn push(&mut self, pool: &mut BufferPool, data: &[u8]) -> usize {
        let taken = self.ring.push(pool, Purpose::Receive, data, self.limit());
        self.advance(taken as u32);
        taken
    }

    /// Takes the expected data, and the data that waited behind it. False if there is no memory for
    /// all of the former.
    pub(super) fn fill_gap(&mut self, pool: &mut BufferPool, data: &[u8]) -> bool {
        let limit = self.limit();
        let taken = self.ring.push(pool, Purpose::Receive, data, limit);
        let end = self.next + taken as u32;
        let waited = self.reassembly.deliver(pool, end, &mut self.ring, limit);
        self.advance(taken as u32 + waited);
        taken == data.len()
    }

    /// Keeps data that lies behind a gap. False if it is dropped.
    pub(super) fn keep(&mut self, pool: &mut BufferPool, sequence: Sequence, data: &[u8]) -> bool {
        self.reassembly.insert(pool, sequence, data)
    }

    /// Drops what lies behind a gap. The peer sends it again (RFC 2018, section 8).
    pub(super) fn drop_out_of_order(&mut self, pool: &mut BufferPool) {
        self.reassembly.release(pool);
    }

    /// Discards all data and returns the memory to the pool.
    pub(super) fn release(&mut self, pool: &mut BufferPool) {
        self.ring.release(pool);
        self.reassembly.release(pool);
    }

    /// The most bytes that the ring may hold: its content and the window.
    fn limit(&self) -> usize {
        self.ring.len() + self.window() as usize
    }

    fn advance(&mut self, bytes: u32) {
        self.next += bytes;
        self.bytes += u64::from(bytes);
        if bytes > 0 {
            self.arrivals = self.arrivals.wrapping_add(1);
        }
    }

    /// Whether the window could at least double. If more than half of it is left, the next
    /// acknowledgement is early enough to announce it.
    pub(super) fn can_double(&self, limit_bytes: u32, pressed: bool) -> bool {
        let wanted = self.wanted(limit_bytes, pressed);
        wanted > self.window() && wanted / 2 >= self.window()
    }

    /// Bytes that could be received now.
    fn free(&self, limit_bytes: u32, pressed: bool) -> u32 {
        let free = limit_bytes.saturating_sub(self.ring.len() as u32);
        if pressed { free.min(PRESSED_BYTES) } else { free }
    }

    /// The window that could be announced. The edge moves only by a step that is worth a segment
    /// (RFC 9293, section 3.8.6.2.2: half of the buffer or a full segment).
    fn wanted(&self, limit_bytes: u32, pressed: bool) -> u32 {
        let free = self.free(limit_bytes, pressed);
        let step = (limit_bytes / 2).min(u32::from(self.largest));
        if free >= self.window().saturating_add(step) { free } else { self.window() }
    }

    /// Bytes that the ring may hold beyond the application's limit, because a shifted window is
    /// rounded up so that its edge does not move left.
    fn slack(&self, limit_bytes: u32) -> u32 {
        if self.scale == 0 { 0 } else { limit_bytes / 8 }
    }

    /// Returns the window field of a segment that is being sent; the peer may rely on it from now
    /// on.
    ///
    /// A window that is no multiple of the shift is rounded up if the edge would move left
    /// otherwise. A peer that sends tiny segments could move the edge on forever in this way.
    /// Beyond the slack, the window is therefore rounded down, as RFC 7323, section 2.4 allows, and
    /// the earlier announcement remains valid.
    pub(super) fn announce(&mut self, limit_bytes: u32, pressed: bool) -> u16 {
        let wanted = self.wanted(limit_bytes, pressed);
        let most = u32::from(u16::MAX) << self.scale;
        let unit = 1 << self.scale;
        let used = (self.ring.len() as u32).saturating_add(wanted);
        let room = used < limit_bytes.saturating_add(self.slack(limit_bytes));
        let below = wanted / unit;
        let field = if (below << self.scale) < self.window() && room { below + 1 } else { below };
        let field = field.min(u32::from(u16::MAX));
        let offered = (field << self.scale).min(most);
        self.edge = self.edge.max(self.next + offered);
        field as u16
    }

    /// Returns the window field of a SYN, which is never shifted.
    pub(super) fn announce_unscaled(&mut self, limit_bytes: u32, pressed: bool) -> u16 {
        let wanted = self.free(limit_bytes, pressed).max(self.window());
        let offered = wanted.min(u32::from(u16::MAX));
        self.edge = self.edge.max(self.next + offered);
        offered as u16
    }

    /// The window field that a segment would have now, without announcing it.
    pub(super) fn announced_field(&self) -> u16 {
        (self.window() >> self.scale).min(u32::from(u16::MAX)) as u16
    }
}

/// The least shift with which the window can cover the buffer (RFC 7323, section 2.3).
pub(super) fn scale_for(buffer_bytes: u32) -> u8 {
    let mut scale = 0;
    while scale < 14 && (u32::from(u16::MAX) << scale) < buffer_bytes {
        scale += 1;
    }
    scale
}
