//! Messages out of a stream of bytes.
//!
//! The stream is read in blocks, and messages are looked at where they were received. Two things
//! are moved within this process: the beginning of a message that runs over the end of its block,
//! and, for a message that is so long that it gets a block of its own, the eight bytes of the next
//! header.

use super::blocks::{BLOCK_BYTES, Blocks};
use super::header::{HEADER_BYTES, Header};
use crate::error::{TransportError, TransportResult};
use crate::transport::slot::Owner;
use crate::transport::{ReadSlot, SLOTS_MAX};

/// From this length on a read ends with the message, so that the next one is not begun in a block
/// that it does not fit into.
const LONG_BYTES: usize = 16 << 10;

/// Less room than this at the end of a block is not worth a read.
const ROOM_BYTES_MIN: usize = 4 << 10;

/// What there was to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Received {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// Nothing any more.
    End,
}

pub(in crate::transport) struct Inbox {
    name: &'static str,
    owner: Owner,
    blocks: Blocks,
    /// The block that is being filled; what was received and not handed out yet is `start..end`.
    block: usize,
    start: usize,
    end: usize,
    held: usize,
    ended: bool,
}

impl Inbox {
    pub(in crate::transport) fn new(name: &'static str, owner: Owner) -> TransportResult<Inbox> {
        let mut blocks = Blocks::default();
        let block = blocks.take(BLOCK_BYTES)?;
        Ok(Inbox { name, owner, blocks, block, start: 0, end: 0, held: 0, ended: false })
    }

    /// The next message. `receive` reads from the stream into the given room.
    pub(in crate::transport) fn acquire(
        &mut self,
        mut receive: impl FnMut(&mut [u8]) -> TransportResult<Received>,
    ) -> TransportResult<Option<ReadSlot>> {
        loop {
            let header = self.header()?;
            if let Some(header) = header
                && self.end - self.start >= HEADER_BYTES + header.bytes
            {
                return self.hand_out(header).map(Some);
            }
            if self.ended {
                return Err(TransportError::Closed);
            }
            let needed = HEADER_BYTES + header.map_or(0, |header| header.bytes);
            match receive(self.room(needed)?)? {
                Received::Bytes(bytes) => {
                    self.end += bytes;
                    assert!(self.end <= self.blocks.capacity(self.block), "no more than the room");
                }
                Received::Nothing => return Ok(None),
                Received::End => self.ended = true,
            }
        }
    }

    /// Whether the peer has closed its end.
    pub(in crate::transport) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether `acquire` has something to say without receiving more.
    pub(in crate::transport) fn has_more(&self) -> bool {
        let has_message = self.header().map_or(true, |header| {
            header.is_some_and(|header| self.end - self.start >= HEADER_BYTES + header.bytes)
        });
        has_message || self.ended
    }

    pub(in crate::transport) fn release(&mut self, slot: ReadSlot) {
        if slot.owner == self.owner {
            self.held -= 1;
            self.blocks.let_go(slot.token as usize);
        }
    }

    /// The header at `start`, if all of it is there.
    fn header(&self) -> TransportResult<Option<Header>> {
        if self.end - self.start < HEADER_BYTES {
            return Ok(None);
        }
        let place = self.blocks.at(self.block, self.start, HEADER_BYTES);
        // SAFETY: the bytes lie within the block, were received, and are in nobody's hands.
        let wire = unsafe { place.cast::<[u8; HEADER_BYTES]>().read_unaligned() };
        let header = Header::from_wire(wire);
        header.map(Some).map_err(|what| TransportError::Corrupt { transport: self.name, what })
    }

    fn hand_out(&mut self, header: Header) -> TransportResult<ReadSlot> {
        if self.held >= SLOTS_MAX {
            return Err(TransportError::TooManySlots { held: self.held });
        }
        let place = self.blocks.at(self.block, self.start + HEADER_BYTES, header.bytes);
        self.start += HEADER_BYTES + header.bytes;
        self.held += 1;
        self.blocks.hold(self.block);
        let (owner, token) = (self.owner, self.block as u64);
        // SAFETY: the bytes lie within the block and were received; the block is held until the
        // slot is back, and what is received meanwhile goes behind them.
        Ok(unsafe { ReadSlot::new(place, header.bytes, header.record, owner, token) })
    }

    /// Room to receive into, behind what was received, in a block with `needed` bytes from `start`.
    fn room(&mut self, needed: usize) -> TransportResult<&mut [u8]> {
        self.make_room(needed)?;
        let capacity = self.blocks.capacity(self.block);
        let limit = match needed > LONG_BYTES {
            true => capacity.min(self.start + needed + HEADER_BYTES),
            false => capacity,
        };
        let bytes = limit - self.end;
        let place = self.blocks.at(self.block, self.end, bytes);
        // SAFETY: the bytes lie within the block, which was zeroed once, behind every message that
        // was handed out; `self` is borrowed as long as the room.
        Ok(unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), bytes) })
    }

    fn make_room(&mut self, needed: usize) -> TransportResult<()> {
        let capacity = self.blocks.capacity(self.block);
        let begun = self.end - self.start;
        let is_only_ours = self.blocks.is_held_once(self.block);
        if begun == 0 && is_only_ours {
            (self.start, self.end) = (0, 0);
        }
        let wanted = if begun == 0 { needed.max(ROOM_BYTES_MIN) } else { needed };
        if capacity - self.start >= wanted {
            return Ok(());
        }
        let source = self.blocks.at(self.block, self.start, begun);
        let old = self.block;
        if !(is_only_ours && capacity >= needed) {
            self.block = self.blocks.take(needed + HEADER_BYTES)?;
        }
        let target = self.blocks.at(self.block, 0, begun);
        // SAFETY: both lie within blocks that are held; no slot lies in the target, which is
        // either new or this inbox's only. They may overlap.
        unsafe { std::ptr::copy(source.as_ptr(), target.as_ptr(), begun) };
        if self.block != old {
            self.blocks.let_go(old);
        }
        (self.start, self.end) = (0, begun);
        Ok(())
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if self.held > 0 {
            // Somebody may still look at a slot.
            self.blocks.leak();
        }
    }
}
