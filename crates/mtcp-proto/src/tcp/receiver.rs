//! What comes: the window that we offer, and the data that lie in it (RFC 9293, sections 3.8.6
//! and 3.10.7.4).

use super::Failure;
use super::connection::{Connection, Context};
use super::reassembly::Reassembly;
use crate::error::Error;
use crate::memory::Ring;
use crate::sequence::Sequence;
use crate::socket::State;

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

impl Connection {
    /// Takes the part of a segment's data that lies in the window, and its FIN. The caller has
    /// checked that some of it does.
    pub(super) fn take_text(
        &mut self,
        sequence: Sequence,
        data: &[u8],
        fin: bool,
        context: &mut Context<'_>,
    ) {
        let end = sequence + data.len() as u32;
        if fin && end >= self.receive.next && end <= self.receive.edge {
            (self.receive.ends, self.receive.end) = (true, end);
        }
        if !data.is_empty() {
            context.counters.data_segments_received += 1;
            self.take_bytes(sequence, data, context);
        } else if fin {
            self.acks.due = true;
        }
        let receive = &self.receive;
        if receive.ends && receive.end == receive.next && !receive.ended {
            self.take_fin(context);
        }
    }

    fn take_bytes(&mut self, sequence: Sequence, data: &[u8], context: &mut Context<'_>) {
        let receive = &mut self.receive;
        let behind = receive.next.distance(sequence).max(0) as usize;
        let ahead = sequence.distance(receive.next).max(0) as u32;
        let room = receive.window().saturating_sub(ahead) as usize;
        let Some(fresh) = data.get(behind..).filter(|fresh| !fresh.is_empty()) else {
            context.counters.duplicates += 1;
            receive.reassembly.note_duplicate(sequence, sequence + data.len() as u32);
            self.acks.hurry();
            return;
        };
        let fresh = &fresh[..fresh.len().min(room)];
        if fresh.len() < data.len() - behind {
            context.counters.drop_out_of_window += 1;
            self.acks.due = true;
        }
        if fresh.is_empty() || receive.ended {
            return;
        }
        if self.orphan {
            // Nobody will ever take it (RFC 2525, section 2.17).
            self.fail(Failure::Aborted, true, context);
        } else if receive.shut && self.send.fin {
            // Both directions are shut down: the peer must learn that the data is not taken.
            self.fail(Failure::Reset, true, context);
        } else if ahead > 0 {
            self.take_out_of_order(sequence, fresh, context);
        } else if receive.reassembly.is_empty() {
            self.take_in_order(fresh, context);
        } else {
            self.fill_gap(fresh, context);
        }
    }

    /// The common case: what was expected, and nothing waits behind it.
    pub(super) fn take_in_order(&mut self, data: &[u8], context: &mut Context<'_>) {
        let receive = &mut self.receive;
        let limit = receive.ring.len() + receive.window() as usize;
        let taken = receive.ring.push(context.pool, data, limit);
        self.advance(taken as u32);
        let largest = self.receive.largest;
        if taken < data.len() {
            context.counters.drop_no_memory += 1;
            self.acks.due = true;
        } else {
            self.acknowledge_data(taken as u32, largest, context);
        }
    }

    fn fill_gap(&mut self, data: &[u8], context: &mut Context<'_>) {
        let receive = &mut self.receive;
        let limit = receive.ring.len() + receive.window() as usize;
        self.acks.hurry();
        // What there was to repeat is no longer true.
        self.due.repeats = 0;
        if !receive.ring.write_at(context.pool, 0, data, limit) {
            context.counters.drop_no_memory += 1;
            return;
        }
        let end = receive.next + data.len() as u32;
        let bytes = data.len() as u32 + receive.reassembly.advance(end);
        receive.ring.extend(bytes as usize);
        self.advance(bytes);
    }

    fn take_out_of_order(&mut self, sequence: Sequence, data: &[u8], context: &mut Context<'_>) {
        context.counters.out_of_order += 1;
        self.acks.hurry();
        let receive = &mut self.receive;
        if !self.send.sack {
            self.due.repeats = self.due.repeats.saturating_add(1);
        }
        let limit = receive.ring.len() + receive.window() as usize;
        let offset = sequence.since(receive.next) as usize;
        let end = sequence + data.len() as u32;
        if !receive.ring.write_at(context.pool, offset, data, limit)
            || !receive.reassembly.insert(sequence, end)
        {
            context.counters.drop_no_memory += 1;
        }
    }

    fn advance(&mut self, bytes: u32) {
        let receive = &mut self.receive;
        receive.next += bytes;
        receive.bytes += u64::from(bytes);
        if bytes > 0 {
            receive.arrivals = receive.arrivals.wrapping_add(1);
        }
    }

    /// Takes the bytes that came, for the application.
    pub(super) fn give_data(
        &mut self,
        room: &mut [u8],
        context: &mut Context<'_>,
    ) -> Result<usize, Error> {
        if self.receive.ring.is_empty() || room.is_empty() {
            return self.nothing_to_give(room.is_empty());
        }
        let bytes = self.receive.ring.read(room);
        self.receive.ring.settle(context.pool);
        self.window_may_open(context);
        Ok(bytes)
    }

    /// Shows the bytes that came, for the application.
    pub(super) fn show_data(&self, offset: usize, room: &mut [u8]) -> Result<usize, Error> {
        if offset < self.receive.ring.len() {
            return Ok(self.receive.ring.copy_out(offset, room));
        }
        match self.error {
            Some(error) if offset == 0 && !room.is_empty() && !self.receive.ended => {
                Err(error.into())
            }
            _ => self.end_or_wait(room.is_empty()),
        }
    }

    fn nothing_to_give(&mut self, no_room: bool) -> Result<usize, Error> {
        match self.error.take() {
            // Behind the peer's end, an error is for who sends.
            Some(error) if !no_room && !self.receive.ended => Err(error.into()),
            error => {
                self.error = error;
                self.end_or_wait(no_room)
            }
        }
    }

    fn end_or_wait(&self, no_room: bool) -> Result<usize, Error> {
        let ended = self.receive.ended || self.receive.shut || self.state == State::Closed;
        if ended || no_room {
            return Ok(0);
        }
        match self.state {
            State::SynSent | State::SynReceived => Err(Error::NotConnected),
            _ => Err(Error::WouldBlock),
        }
    }

    /// The application has made room: the peer is told if its window at least doubles by that,
    /// since with more than half of it left, the next acknowledgement comes in time.
    pub(super) fn window_may_open(&mut self, context: &mut Context<'_>) {
        if self.receive.ended || !self.is_synchronized() {
            return;
        }
        let limit = self.options.receive_buffer_bytes;
        let wanted = self.receive.wanted(limit, context.pool.pressed());
        if wanted > self.receive.window() && wanted / 2 >= self.receive.window() {
            self.acks.due = true;
        }
    }

    /// For an application that wants no more: what came can still be taken, as on Linux.
    pub(super) fn stop_receiving(&mut self) {
        self.receive.shut = true;
    }
}
