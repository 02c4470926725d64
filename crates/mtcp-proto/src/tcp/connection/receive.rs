//! Processes received data, and delivers it to the application (RFC 9293, sections 3.8.6 and
//! 3.10.7.4).

use super::{Connection, Context};
use crate::error::Error;
use crate::sequence::Sequence;
use crate::socket::State;
use crate::tcp::Failure;
use crate::tcp::timers::NEVER;

/// The receive buffer of a connection from which the application has read nothing.
const RECEIVE_START_BYTES: u32 = 64 << 10;

impl Connection {
    /// Processes the part of a segment's data that is in the window, and its FIN. The caller has
    /// checked that some of it is.
    pub(super) fn take_text(
        &mut self,
        sequence: Sequence,
        data: &[u8],
        fin: bool,
        context: &mut Context<'_>,
    ) {
        let end = sequence + data.len() as u32;
        if fin {
            self.receive.note_fin(end);
        }
        if !data.is_empty() {
            context.counters.data_segments_received += 1;
            self.take_bytes(sequence, data, context);
        } else if fin {
            self.acks.due = true;
        }
        if self.receive.has_reached_end() {
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
            // The application has closed the socket and will never read the data (RFC 2525, section
            // 2.17).
            self.fail(Failure::Aborted, true, context);
        } else if receive.shut && self.send.fin {
            // Both directions are shut down: a reset tells the peer that the data is discarded.
            self.fail(Failure::Reset, true, context);
        } else if ahead > 0 {
            self.take_out_of_order(sequence, fresh, context);
        } else if receive.reassembly.is_empty() {
            self.take_in_order(fresh, context);
        } else {
            self.fill_gap(fresh, context);
        }
    }

    /// Appends data in the common case: it is the data expected next, and no data waits behind a
    /// gap.
    pub(super) fn take_in_order(&mut self, data: &[u8], context: &mut Context<'_>) {
        if self.receive.ring.is_empty() {
            self.alive.moved_at = context.now;
        }
        let taken = self.receive.push(context.pool, data);
        if taken < data.len() {
            context.counters.drop_no_memory += 1;
            self.acks.due = true;
        } else {
            self.acknowledge_data(taken as u32, context);
        }
    }

    fn acknowledge_data(&mut self, bytes: u32, context: &Context<'_>) {
        let may_wait = self.acks.take_data(bytes, self.receive.largest, self.options.quick_ack);
        if may_wait && self.timers.acknowledgement == NEVER {
            self.timers.acknowledgement = context.now + context.config.delayed_ack;
        }
    }

    fn fill_gap(&mut self, data: &[u8], context: &mut Context<'_>) {
        self.acks.hurry();
        // The data that duplicate acknowledgements would report as missing has arrived.
        self.due.repeats = 0;
        if !self.receive.fill_gap(context.pool, data) {
            context.counters.drop_no_memory += 1;
        }
    }

    fn take_out_of_order(&mut self, sequence: Sequence, data: &[u8], context: &mut Context<'_>) {
        context.counters.out_of_order += 1;
        self.acks.hurry();
        if !self.send.sack {
            self.due.repeats = self.due.repeats.saturating_add(1);
        }
        if !self.receive.keep(context.pool, sequence, data) {
            context.counters.drop_no_memory += 1;
        }
    }

    /// Moves received bytes to the application.
    pub(super) fn give_data(
        &mut self,
        room: &mut [u8],
        context: &mut Context<'_>,
    ) -> Result<usize, Error> {
        if self.receive.ring.is_empty() || room.is_empty() {
            return self.nothing_to_give(room.is_empty());
        }
        let bytes = self.receive.ring.read(room);
        self.receive.ring.release_if_empty(context.pool);
        self.alive.moved_at = context.now;
        self.window_may_open(context);
        Ok(bytes)
    }

    /// Copies received bytes for the application, and keeps them in the buffer.
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
            // After the peer's FIN, only sending reports an error.
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

    /// How much may be received before the application reads. It grows with what the application
    /// has read, up to the receive buffer: a peer gets memory from the stack only as far as the
    /// application has taken its data, at twice the rate of a slow start.
    pub(super) fn receive_limit(&self) -> u32 {
        let read = self.receive.bytes - self.receive.ring.len() as u64;
        let earned = u64::from(RECEIVE_START_BYTES) + 2 * read;
        self.options.receive_buffer_bytes.min(u32::try_from(earned).unwrap_or(u32::MAX))
    }

    /// After the application has read: announces the window if it has at least doubled.
    pub(super) fn window_may_open(&mut self, context: &mut Context<'_>) {
        if self.receive.ended || !self.is_synchronized() {
            return;
        }
        let limit = self.receive_limit();
        self.acks.due |= self.receive.can_double(limit, context.pool.pressed());
    }

    /// Shuts receiving down: data that still arrives can be read, as on Linux.
    pub(super) fn stop_receiving(&mut self) {
        self.receive.shut = true;
    }
}
