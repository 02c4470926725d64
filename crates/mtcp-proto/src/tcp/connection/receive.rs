//! Data that come, and how the application takes them (RFC 9293, sections 3.8.6 and 3.10.7.4).

use super::{Connection, Context};
use crate::error::Error;
use crate::sequence::Sequence;
use crate::socket::State;
use crate::tcp::Failure;
use crate::tcp::timers::NEVER;

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
        // What there was to repeat is no longer true.
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

    /// The application has made room: the peer is told if its window at least doubles by that.
    pub(super) fn window_may_open(&mut self, context: &mut Context<'_>) {
        if self.receive.ended || !self.is_synchronized() {
            return;
        }
        let limit = self.options.receive_buffer_bytes;
        self.acks.due |= self.receive.can_double(limit, context.pool.pressed());
    }

    /// For an application that wants no more: what came can still be taken, as on Linux.
    pub(super) fn stop_receiving(&mut self) {
        self.receive.shut = true;
    }
}
