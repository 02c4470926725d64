//! What comes: the window that we offer, and the data that lie in it (RFC 9293, sections 3.8.6
//! and 3.10.7.4).

use super::reassembly::Reassembly;
use crate::memory::{BufferPool, Ring};
use crate::sequence::Sequence;

/// What is offered to a peer while memory is short.
const PRESSED_BYTES: u32 = 4 << 10;

#[derive(Debug)]
pub(super) struct Receiver {
    /// RCV.NXT.
    pub(super) next: Sequence,
    /// The right edge of the window: the furthest that was announced. It never moves left.
    pub(super) edge: Sequence,
    /// Up to where we have acknowledged (Last.ACK.sent of RFC 7323).
    pub(super) acknowledged: Sequence,
    /// The largest segment that we have told the peer to send.
    pub(super) largest: u16,
    /// How far our windows are shifted.
    pub(super) scale: u8,
    /// The application wants no more: it finds the end behind what comes all the same.
    pub(super) shut: bool,
    /// The peer's FIN has come, and everything before it.
    pub(super) ended: bool,
    /// A FIN has come, perhaps before data that are still missing, and where it stands.
    ends: bool,
    end: Sequence,
    /// Counts arrivals.
    pub(super) arrivals: u16,
    pub(super) ring: Ring,
    pub(super) reassembly: Reassembly,
    /// Data bytes that came in order.
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

    /// The peer's SYN has come.
    pub(super) fn begin(&mut self, syn: Sequence) {
        self.next = syn + 1;
        self.edge = self.next;
        self.acknowledged = self.next;
    }

    /// Bytes of the window that the peer knows of.
    pub(super) fn window(&self) -> u32 {
        self.edge.since(self.next)
    }

    /// A FIN has come that ends here, perhaps before data that are still missing.
    pub(super) fn note_fin(&mut self, end: Sequence) {
        if end >= self.next && end <= self.edge {
            (self.ends, self.end) = (true, end);
        }
    }

    /// Whether all has come before a FIN that has come, which was not taken yet.
    pub(super) fn has_reached_end(&self) -> bool {
        self.ends && self.end == self.next && !self.ended
    }

    /// Takes data that were expected next, as far as there is memory: gives the number of bytes.
    #[inline]
    pub(super) fn push(&mut self, pool: &mut BufferPool, data: &[u8]) -> usize {
        let taken = self.ring.push(pool, data, self.limit());
        self.advance(taken as u32);
        taken
    }

    /// Takes data that were expected next, with those that wait behind them. False if there is no
    /// memory.
    pub(super) fn fill_gap(&mut self, pool: &mut BufferPool, data: &[u8]) -> bool {
        if !self.ring.write_at(pool, 0, data, self.limit()) {
            return false;
        }
        let end = self.next + data.len() as u32;
        let bytes = data.len() as u32 + self.reassembly.advance(end);
        self.ring.extend(bytes as usize);
        self.advance(bytes);
        true
    }

    /// Keeps data that lie behind a gap. False if there is no memory.
    pub(super) fn keep(&mut self, pool: &mut BufferPool, sequence: Sequence, data: &[u8]) -> bool {
        let offset = sequence.since(self.next) as usize;
        let end = sequence + data.len() as u32;
        self.ring.write_at(pool, offset, data, self.limit())
            && self.reassembly.insert(sequence, end)
    }

    /// What the ring may hold: what lies in it, and the window.
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

    /// Whether the window could at least double. With more than half of it left, the next
    /// acknowledgement comes in time to tell the peer.
    pub(super) fn can_double(&self, limit_bytes: u32, pressed: bool) -> bool {
        let wanted = self.wanted(limit_bytes, pressed);
        wanted > self.window() && wanted / 2 >= self.window()
    }

    /// Bytes that we would take.
    fn free(&self, limit_bytes: u32, pressed: bool) -> u32 {
        let free = limit_bytes.saturating_sub(self.ring.len() as u32);
        if pressed { free.min(PRESSED_BYTES) } else { free }
    }

    /// The window as it could be. The edge moves only by a step that is worth a segment (RFC 9293,
    /// section 3.8.6.2.2: half of the buffer or a full segment).
    fn wanted(&self, limit_bytes: u32, pressed: bool) -> u32 {
        let free = self.free(limit_bytes, pressed);
        let step = (limit_bytes / 2).min(u32::from(self.largest));
        if free >= self.window().saturating_add(step) { free } else { self.window() }
    }

    /// What may lie in the ring beyond the application's limit, because a shifted window is
    /// rounded up rather than its edge moved left.
    fn slack(&self, limit_bytes: u32) -> u32 {
        if self.scale == 0 { 0 } else { limit_bytes / 8 }
    }

    /// The window for a segment that is about to go out; the peer may rely on it from now on.
    ///
    /// A window that is no multiple of the shift is rounded up if the edge would move left
    /// otherwise. A peer that sends tiny segments could so push the edge on forever: beyond the
    /// slack, it is rounded down, as RFC 7323, section 2.4 allows, and what was announced before
    /// is still honoured.
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

    /// The window of a SYN, which is never shifted.
    pub(super) fn announce_unscaled(&mut self, limit_bytes: u32, pressed: bool) -> u16 {
        let wanted = self.free(limit_bytes, pressed).max(self.window());
        let offered = wanted.min(u32::from(u16::MAX));
        self.edge = self.edge.max(self.next + offered);
        offered as u16
    }

    /// The window as a segment of now would announce it, without announcing it.
    pub(super) fn announced_field(&self) -> u16 {
        (self.window() >> self.scale).min(u32::from(u16::MAX)) as u16
    }
}

/// The least shift with which the window can reach the buffer (RFC 7323, section 2.3).
pub(super) fn scale_for(buffer_bytes: u32) -> u8 {
    let mut scale = 0;
    while scale < 14 && (u32::from(u16::MAX) << scale) < buffer_bytes {
        scale += 1;
    }
    scale
}
