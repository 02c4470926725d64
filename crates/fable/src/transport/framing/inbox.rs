//! Extracts messages from a stream of bytes.
//!
//! The stream is read in blocks, and messages are returned where they were received. Two things are
//! copied within this process: the beginning of a message that runs over the end of its block, and,
//! for a message so long that it gets its own block, the eight bytes of the next header.
//!
//! With `HEADER` = 0 messages have no headers: what one call has received is a message.

use super::blocks::{BLOCK_BYTES, Blocks};
use super::header::{HEADER_BYTES, Header};
use crate::error::{TransportError, TransportResult};
use crate::transport::slot::Owner;
use crate::transport::{ReadSlot, Record, SLOTS_MAX, TOO_LONG};

/// A read for a message of at least this length ends with it, so that the next message does not
/// begin in a block that is too small for it.
const LONG_BYTES: usize = 16 << 10;

/// With less room than this at the end of a block, the next block is used.
const ROOM_BYTES_MIN: usize = 4 << 10;

/// The result of receiving from a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Received {
    /// This many bytes were received, at least one.
    Bytes(usize),
    /// Nothing has arrived.
    Nothing,
    /// The stream has ended.
    End,
    /// The connection has failed: what the peer sent last may be lost.
    Failed,
}

pub(in crate::transport) struct Inbox<const HEADER: usize> {
    name: &'static str,
    owner: Owner,
    blocks: Blocks,
    /// The block that is being filled; its bytes `start..end` were received and not handed out yet.
    block: usize,
    start: usize,
    end: usize,
    held: usize,
    ended: bool,
    /// Without headers: whether the end was handed out as a record.
    end_is_delivered: bool,
    /// The longest message that is accepted.
    bytes_max: usize,
}

impl<const HEADER: usize> Inbox<HEADER> {
    pub(in crate::transport) fn new(name: &'static str, owner: Owner) -> TransportResult<Self> {
        let mut blocks = Blocks::default();
        let block = blocks.take(BLOCK_BYTES)?;
        Ok(Inbox {
            name,
            owner,
            blocks,
            block,
            start: 0,
            end: 0,
            held: 0,
            ended: false,
            end_is_delivered: HEADER > 0,
            bytes_max: usize::MAX,
        })
    }

    /// Sets the longest message that is accepted.
    pub(in crate::transport) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Returns the next message. `receive` reads from the stream into the given memory.
    pub(in crate::transport) fn acquire(
        &mut self,
        mut receive: impl FnMut(&mut [u8]) -> TransportResult<Received>,
    ) -> TransportResult<Option<ReadSlot>> {
        loop {
            let header = self.header()?;
            if let Some(header) = header
                && self.end - self.start >= HEADER + header.bytes
            {
                return self.hand_out(header).map(Some);
            }
            if self.ended && !self.end_is_delivered {
                let end = self.hand_out(Header { bytes: 0, record: Record::EndOfFlow })?;
                self.end_is_delivered = true;
                return Ok(Some(end));
            }
            if self.ended {
                return Err(TransportError::Closed);
            }
            let needed = HEADER + header.map_or(0, |header| header.bytes);
            match receive(self.room(needed)?)? {
                Received::Bytes(bytes) => {
                    self.end += bytes;
                    assert!(self.end <= self.blocks.capacity(self.block), "no more than the room");
                }
                Received::Nothing => return Ok(None),
                Received::End => self.ended = true,
                Received::Failed => (self.ended, self.end_is_delivered) = (true, true),
            }
        }
    }

    /// Returns whether the peer has closed its end.
    pub(in crate::transport) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns whether `acquire` has a result without receiving more.
    pub(in crate::transport) fn has_more(&self) -> bool {
        let has_message = self.header().map_or(true, |header| {
            header.is_some_and(|header| self.end - self.start >= HEADER + header.bytes)
        });
        has_message || self.ended
    }

    pub(in crate::transport) fn release(&mut self, slot: ReadSlot) {
        if slot.owner == self.owner {
            self.held -= 1;
            self.blocks.let_go(slot.token as usize);
        }
    }

    /// Returns the header at `start`, if it has arrived completely.
    fn header(&self) -> TransportResult<Option<Header>> {
        if HEADER == 0 {
            let bytes = self.end - self.start;
            return Ok((bytes > 0).then_some(Header { bytes, record: Record::Data }));
        }
        if self.end - self.start < HEADER_BYTES {
            return Ok(None);
        }
        let place = self.blocks.at(self.block, self.start, HEADER_BYTES);
        // SAFETY: the bytes lie within the block, were received, and no slot contains them.
        let wire = unsafe { place.cast::<[u8; HEADER_BYTES]>().read_unaligned() };
        let header = Header::from_wire(wire).and_then(|header| match header.bytes {
            bytes if bytes > self.bytes_max => Err(TOO_LONG),
            _ => Ok(header),
        });
        header.map(Some).map_err(|what| TransportError::Corrupt { transport: self.name, what })
    }

    fn hand_out(&mut self, header: Header) -> TransportResult<ReadSlot> {
        if self.held >= SLOTS_MAX {
            return Err(TransportError::TooManySlots { held: self.held });
        }
        let place = self.blocks.at(self.block, self.start + HEADER, header.bytes);
        self.start += HEADER + header.bytes;
        self.held += 1;
        self.blocks.hold(self.block);
        let (owner, token) = (self.owner, self.block as u64);
        // SAFETY: the bytes lie within the block and were received. The block is referenced until
        // the slot is returned, and later input is placed behind these bytes.
        Ok(unsafe { ReadSlot::new(place, header.bytes, header.record, owner, token) })
    }

    /// Returns room for input behind the received bytes, in a block with `needed` bytes from
    /// `start`.
    fn room(&mut self, needed: usize) -> TransportResult<&mut [u8]> {
        self.make_room(needed)?;
        let capacity = self.blocks.capacity(self.block);
        let limit = match needed > LONG_BYTES {
            true => capacity.min(self.start + needed + HEADER),
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
            self.block = self.blocks.take(needed + HEADER)?;
        }
        let target = self.blocks.at(self.block, 0, begun);
        // SAFETY: both areas lie within referenced blocks; no slot lies in the target, which is new
        // or used by this inbox only. `copy` permits overlap.
        unsafe { std::ptr::copy(source.as_ptr(), target.as_ptr(), begun) };
        if self.block != old {
            self.blocks.let_go(old);
        }
        (self.start, self.end) = (0, begun);
        Ok(())
    }
}

impl<const HEADER: usize> Drop for Inbox<HEADER> {
    fn drop(&mut self) {
        if self.held > 0 {
            // Slots may still point into the blocks.
            self.blocks.leak();
        }
    }
}
