//! Queues messages for a stream of bytes.
//!
//! A slot has room for the header before it, and slots follow each other in a block. So a message
//! is sent from where the application wrote it, and a batch is one piece of memory as long as its
//! messages are committed in order and filled to the end.
//!
//! With `HEADER` = 0 messages have no headers, and only data are sent.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::blocks::{BLOCK_BYTES, BlockPosition, Pile};
use super::header::{HEADER_BYTES, Header, MESSAGE_BYTES_MAX, message_bytes_max};
use crate::error::{TransportError, TransportResult};
use crate::transport::slot::Owner;
use crate::transport::{Deliveries, Record, SLOTS_MAX, Undelivered, WriteSlot};

/// The most queued bytes at which there is still room for another message.
const QUEUED_BYTES_MAX: usize = 256 << 10;

/// The most memory of this process for slots that the application holds.
const HELD_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;

/// The most pieces in one call.
const PIECES_MAX: usize = 16;

pub(in crate::transport) struct Outbox<const HEADER: usize> {
    name: &'static str,
    owner: Owner,
    pile: Pile,
    held: usize,
    held_bytes: usize,
    /// Committed pieces that are not sent.
    queue: VecDeque<Piece>,
    queued_bytes: usize,
    /// The number of bytes that were sent since the beginning.
    sent: u64,
    batch: u32,
    committed: u32,
    deliveries: Deliveries,
}

/// A part of a block, from the start of a place.
struct Piece {
    place: BlockPosition,
    end: usize,
}

impl<const HEADER: usize> Outbox<HEADER> {
    pub(in crate::transport) fn new(name: &'static str, owner: Owner) -> TransportResult<Self> {
        Ok(Outbox {
            name,
            owner,
            pile: Pile::new()?,
            held: 0,
            held_bytes: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            sent: 0,
            batch: 1,
            committed: 0,
            deliveries: Deliveries::new(),
        })
    }

    pub(in crate::transport) fn set_batch(&mut self, commits: u32) {
        self.batch = commits.max(1);
    }

    /// Returns whether the queue is too long for another message.
    pub(in crate::transport) fn is_full(&self) -> bool {
        self.queued_bytes > QUEUED_BYTES_MAX
    }

    pub(in crate::transport) fn acquire(&mut self, bytes: usize) -> TransportResult<WriteSlot> {
        let bytes_max = message_bytes_max(HEADER);
        if bytes > bytes_max {
            let transport = self.name;
            return Err(TransportError::TooLong { bytes, bytes_max, transport });
        }
        if self.held >= SLOTS_MAX || self.held_bytes + bytes > HELD_BYTES_MAX {
            return Err(TransportError::TooManySlots { held: self.held });
        }
        let place = self.pile.place(HEADER + bytes)?;
        self.held += 1;
        self.held_bytes += bytes;
        // SAFETY: the place is as long as header and message, and lies in memory that was zeroed
        // once; only this slot uses it until the pile gets it back.
        Ok(unsafe {
            let payload = self.pile.at(place, HEADER + bytes).add(HEADER);
            WriteSlot::new(payload, bytes, self.owner, place.to_token())
        })
    }

    /// Queues a message. Returns whether it is time to send.
    pub(in crate::transport) fn commit(
        &mut self,
        slot: WriteSlot,
        bytes: usize,
        record: Record,
    ) -> TransportResult<bool> {
        if slot.owner != self.owner {
            return Err(TransportError::Foreign);
        }
        let is_sent = HEADER > 0 || record == Record::Data;
        let bytes = if is_sent { bytes.min(slot.len()) } else { 0 };
        let place = self.take_back(&slot, HEADER + bytes);
        if HEADER > 0 {
            let header = Header { bytes, record }.to_wire();
            let before = self.pile.at(place, HEADER_BYTES).cast::<[u8; HEADER_BYTES]>();
            // SAFETY: the memory before the slot is reserved for the header.
            unsafe { before.write_unaligned(header) };
        }
        let end = place.start + HEADER + bytes;
        match self.queue.back_mut() {
            _ if end == place.start => self.pile.let_go(place),
            Some(last)
                if last.place.block == place.block
                    && last.end == place.start
                    && end - last.place.start <= BLOCK_BYTES =>
            {
                last.end = end;
                self.pile.let_go(place);
            }
            _ => self.queue.push_back(Piece { place, end }),
        }
        self.queued_bytes += end - place.start;
        if record == Record::Data && end > place.start {
            self.deliveries.committed(self.sent + self.queued_bytes as u64, bytes);
        }
        self.committed += 1;
        Ok(self.committed >= self.batch)
    }

    /// Sends a message without a copy, if nothing is queued before it. Copies only the part that
    /// `send` does not take at once. Returns false if nothing was sent.
    pub(in crate::transport) fn forward(
        &mut self,
        message: &[u8],
        send: impl FnOnce(&[IoSlice<'_>]) -> TransportResult<usize>,
    ) -> TransportResult<bool> {
        let is_free = self.queue.is_empty() && self.batch == 1;
        let is_short = message.len() <= message_bytes_max(HEADER);
        if !is_free || !is_short {
            return Ok(false);
        }
        let header = Header { bytes: message.len(), record: Record::Data }.to_wire();
        let header = &header[..HEADER];
        // First: a lack of memory must not end the message in its middle.
        let mut place = self.pile.place(HEADER + message.len())?;
        let sent = match send(&[IoSlice::new(header), IoSlice::new(message)]) {
            Ok(sent) if sent > 0 => sent,
            taken => {
                self.pile.let_go(place);
                return taken.map(|_| false);
            }
        };
        self.sent += sent as u64;
        let rest = [&header[sent.min(HEADER)..], &message[sent.saturating_sub(HEADER)..]];
        let end = place.start + HEADER + message.len();
        place.start += sent;
        let left = end - place.start;
        self.deliveries.committed(self.sent + left as u64, message.len());
        if place.start == end {
            self.pile.let_go(place);
            return Ok(true);
        }
        let mut to = self.pile.at(place, end - place.start);
        for part in rest {
            // SAFETY: the place is as long as header and message, and nothing else uses it.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), to.as_ptr(), part.len());
                to = to.add(part.len());
            }
        }
        self.queued_bytes += end - place.start;
        self.queue.push_back(Piece { place, end });
        Ok(true)
    }

    /// Returns whether there are so many messages that [`Outbox::undelivered`] should be called.
    pub(in crate::transport) fn has_many_undelivered(&self) -> bool {
        self.deliveries.is_long()
    }

    /// Returns the undelivered messages, if this many of the sent bytes are not acknowledged.
    pub(in crate::transport) fn undelivered(&mut self, missing: u64) -> Undelivered {
        self.deliveries.undelivered(self.sent.saturating_sub(missing))
    }

    /// Returns the undelivered messages of a stream that has ended, and the position up to which it
    /// was sent.
    pub(in crate::transport) fn end(&mut self) -> (Deliveries, u64) {
        (std::mem::replace(&mut self.deliveries, Deliveries::new()), self.sent)
    }

    pub(in crate::transport) fn abandon(&mut self, slot: WriteSlot) {
        if slot.owner == self.owner {
            let place = self.take_back(&slot, 0);
            self.pile.let_go(place);
        }
    }

    fn take_back(&mut self, slot: &WriteSlot, used: usize) -> BlockPosition {
        let place = BlockPosition::from_token(slot.token);
        self.held -= 1;
        self.held_bytes -= slot.len();
        self.pile.shrink(place, HEADER + slot.len(), used);
        place
    }

    /// Sends queued messages until `send`, which returns how much it took, takes nothing more.
    /// Returns true if the queue is empty.
    pub(in crate::transport) fn send(
        &mut self,
        mut send: impl FnMut(&[IoSlice<'_>]) -> TransportResult<usize>,
    ) -> TransportResult<bool> {
        self.committed = 0;
        while !self.queue.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let count = self.queue.len().min(PIECES_MAX);
            for (slice, piece) in pieces.iter_mut().zip(&self.queue) {
                let bytes = piece.end - piece.place.start;
                let start = self.pile.at(piece.place, bytes);
                // SAFETY: the bytes lie within a block that the piece references, and nothing
                // writes to committed bytes.
                *slice = IoSlice::new(unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) });
            }
            match send(&pieces[..count])? {
                0 => return Ok(false),
                sent => self.forget(sent),
            }
        }
        Ok(true)
    }

    fn forget(&mut self, mut sent: usize) {
        self.queued_bytes -= sent;
        self.sent += sent as u64;
        while let Some(piece) = self.queue.front_mut() {
            let bytes = piece.end - piece.place.start;
            if sent < bytes {
                piece.place.start += sent;
                return;
            }
            sent -= bytes;
            let place = piece.place;
            self.queue.pop_front();
            self.pile.let_go(place);
        }
    }
}

impl<const HEADER: usize> Drop for Outbox<HEADER> {
    fn drop(&mut self) {
        if self.held > 0 {
            // Slots may still be written to.
            self.pile.leak();
        }
    }
}
