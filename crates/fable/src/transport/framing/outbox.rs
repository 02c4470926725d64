//! Messages into a stream of bytes.
//!
//! A slot has the header's room before it, and slots lie one behind the other in a block: a message
//! is sent from where the application wrote it, and a batch of them is one piece of memory as long
//! as they are committed in order and filled to the end.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::blocks::{BLOCK_BYTES, Blocks};
use super::header::{HEADER_BYTES, Header, MESSAGE_BYTES_MAX};
use crate::error::{TransportError, TransportResult};
use crate::transport::slot::Owner;
use crate::transport::{Record, SLOTS_MAX, WriteSlot};

/// With more than this waiting to be sent there is no room for another message.
const QUEUED_BYTES_MAX: usize = 256 << 10;

/// What slots in the application's hands may take of this process's memory.
const HELD_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;

/// As many pieces go into one call.
const PIECES_MAX: usize = 16;

/// How long the memory of a message is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Keeping {
    /// Until it is sent, because the kernel copies.
    UntilSent,
    /// Until the peer has read it. There is no room for more while this many bytes are unread.
    UntilRead { bytes_max: usize },
}

pub(in crate::transport) struct Outbox {
    name: &'static str,
    owner: Owner,
    blocks: Blocks,
    /// The block in which the next slot begins, at `filled`.
    block: usize,
    filled: usize,
    held: usize,
    held_bytes: usize,
    /// Committed and not sent yet.
    queue: VecDeque<Piece>,
    queued_bytes: usize,
    keeping: Keeping,
    /// Sent and not read yet: the position in the stream behind each piece, and its block.
    unread: VecDeque<(u64, usize)>,
    /// How many bytes were sent since the beginning, and how many of them were read.
    sent: u64,
    acknowledged: u64,
    batch: u32,
    committed: u32,
}

/// A part of a block, which holds it.
struct Piece {
    block: usize,
    start: usize,
    end: usize,
}

impl Outbox {
    pub(in crate::transport) fn new(
        name: &'static str,
        owner: Owner,
        keeping: Keeping,
    ) -> TransportResult<Outbox> {
        let mut blocks = Blocks::default();
        let block = blocks.take(BLOCK_BYTES)?;
        Ok(Outbox {
            name,
            owner,
            blocks,
            block,
            filled: 0,
            held: 0,
            held_bytes: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            keeping,
            unread: VecDeque::new(),
            sent: 0,
            acknowledged: 0,
            batch: 1,
            committed: 0,
        })
    }

    pub(in crate::transport) fn set_batch(&mut self, commits: u32) {
        self.batch = commits.max(1);
    }

    /// Whether there is so much on its way that nothing may be added.
    pub(in crate::transport) fn is_full(&self) -> bool {
        let unread_bytes_max = match self.keeping {
            Keeping::UntilSent => u64::MAX,
            Keeping::UntilRead { bytes_max } => bytes_max as u64,
        };
        self.queued_bytes > QUEUED_BYTES_MAX || self.sent - self.acknowledged > unread_bytes_max
    }

    /// The peer has read this many bytes since the beginning.
    pub(in crate::transport) fn acknowledge(&mut self, position: u64) -> TransportResult<()> {
        if position < self.acknowledged || position > self.sent {
            let what = "it has read what was not sent";
            return Err(TransportError::Corrupt { transport: self.name, what });
        }
        self.acknowledged = position;
        while let Some(&(end, block)) = self.unread.front()
            && end <= position
        {
            self.unread.pop_front();
            self.blocks.let_go(block);
        }
        Ok(())
    }

    pub(in crate::transport) fn acquire(&mut self, bytes: usize) -> TransportResult<WriteSlot> {
        if bytes > MESSAGE_BYTES_MAX {
            let (bytes_max, transport) = (MESSAGE_BYTES_MAX, self.name);
            return Err(TransportError::TooLong { bytes, bytes_max, transport });
        }
        if self.held >= SLOTS_MAX || self.held_bytes + bytes > HELD_BYTES_MAX {
            return Err(TransportError::TooManySlots { held: self.held });
        }
        let extent = HEADER_BYTES + bytes;
        if self.blocks.is_held_once(self.block) {
            self.filled = 0;
        }
        if self.blocks.capacity(self.block) - self.filled < extent {
            let block = self.blocks.take(extent)?;
            self.blocks.let_go(self.block);
            self.block = block;
            self.filled = 0;
        }
        let start = self.filled;
        let place = self.blocks.at(self.block, start + HEADER_BYTES, bytes);
        self.filled += extent;
        self.held += 1;
        self.held_bytes += bytes;
        self.blocks.hold(self.block);
        let token = (self.block as u64) << 32 | start as u64;
        // SAFETY: the bytes lie within the block, which was zeroed once; nothing else lies there
        // until the block is let go, for the slot and for what of it is queued.
        Ok(unsafe { WriteSlot::new(place, bytes, self.owner, token) })
    }

    /// Queues a message, and says whether it is time to send.
    pub(in crate::transport) fn commit(
        &mut self,
        slot: WriteSlot,
        bytes: usize,
        record: Record,
    ) -> TransportResult<bool> {
        if slot.owner != self.owner {
            return Err(TransportError::Foreign);
        }
        let bytes = bytes.min(slot.len());
        let (block, start) = self.take_back(&slot, HEADER_BYTES + bytes);
        let header = Header { bytes, record }.to_wire();
        let place = self.blocks.at(block, start, HEADER_BYTES).cast::<[u8; HEADER_BYTES]>();
        // SAFETY: the room before the slot is reserved for this.
        unsafe { place.write_unaligned(header) };
        let end = start + HEADER_BYTES + bytes;
        match self.queue.back_mut() {
            Some(last)
                if last.block == block && last.end == start && end - last.start <= BLOCK_BYTES =>
            {
                last.end = end;
                self.blocks.let_go(block);
            }
            _ => self.queue.push_back(Piece { block, start, end }),
        }
        self.queued_bytes += end - start;
        self.committed += 1;
        Ok(self.committed >= self.batch)
    }

    pub(in crate::transport) fn abandon(&mut self, slot: WriteSlot) {
        if slot.owner == self.owner {
            let (block, _) = self.take_back(&slot, 0);
            self.blocks.let_go(block);
        }
    }

    /// Where the slot lies. What it does not use, the next one gets, if it was the last one.
    fn take_back(&mut self, slot: &WriteSlot, used: usize) -> (usize, usize) {
        let (block, start) = ((slot.token >> 32) as usize, (slot.token & 0xffff_ffff) as usize);
        self.held -= 1;
        self.held_bytes -= slot.len();
        if block == self.block && start + HEADER_BYTES + slot.len() == self.filled {
            self.filled = start + used;
        }
        (block, start)
    }

    /// Sends what is queued, until `send`, which says how much it took, takes nothing more. True if
    /// nothing is left.
    pub(in crate::transport) fn send(
        &mut self,
        mut send: impl FnMut(&[IoSlice<'_>]) -> TransportResult<usize>,
    ) -> TransportResult<bool> {
        self.committed = 0;
        while !self.queue.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let count = self.queue.len().min(PIECES_MAX);
            for (slice, piece) in pieces.iter_mut().zip(&self.queue) {
                let bytes = piece.end - piece.start;
                let place = self.blocks.at(piece.block, piece.start, bytes);
                // SAFETY: the bytes lie within a block that the piece holds, and nobody writes to
                // what is committed.
                *slice = IoSlice::new(unsafe { std::slice::from_raw_parts(place.as_ptr(), bytes) });
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
        let mut position = self.sent;
        self.sent += sent as u64;
        while let Some(piece) = self.queue.front_mut() {
            let bytes = piece.end - piece.start;
            if sent < bytes {
                piece.start += sent;
                return;
            }
            sent -= bytes;
            position += bytes as u64;
            let block = piece.block;
            self.queue.pop_front();
            match self.keeping {
                Keeping::UntilSent => self.blocks.let_go(block),
                Keeping::UntilRead { .. } => self.unread.push_back((position, block)),
            }
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        if self.held > 0 {
            // Somebody may still write to a slot.
            self.blocks.leak();
        }
    }
}
