//! Private message memory in blocks that several messages share.
//!
//! Blocks are mapped, not allocated, so that the memory of one that is not used goes back to the
//! kernel at once.

use std::ptr::NonNull;

use crate::error::TransportResult;
use crate::memory::{Mapping, PAGE_BYTES};

/// The size of a block, unless one message needs more.
pub(in crate::transport) const BLOCK_BYTES: usize = 64 << 10;

/// The most unused blocks that are kept; further ones are unmapped at once.
const FREE_BLOCKS_MAX: usize = 4;

/// Blocks, by number, with a reference count: a block is referenced by the pile that fills it and
/// by every message in it, and is reused when the count is zero.
#[derive(Default)]
pub(in crate::transport) struct Blocks {
    blocks: Vec<Block>,
    /// Blocks with memory and without references. The last used one is at the end: it is still in
    /// the cache.
    free: Vec<usize>,
    /// Block numbers without memory.
    vacant: Vec<usize>,
}

#[derive(Default)]
struct Block {
    memory: Option<Mapping>,
    holders: usize,
}

impl Blocks {
    /// Returns a block of at least this size, with one reference.
    pub(super) fn take(&mut self, bytes: usize) -> TransportResult<usize> {
        let fits = |&number: &usize| self.capacity(number) >= bytes;
        let number = match self.free.iter().rposition(fits) {
            Some(place) => self.free.remove(place),
            None => {
                let bytes = bytes.max(BLOCK_BYTES).next_multiple_of(PAGE_BYTES);
                let memory = Some(Mapping::private(bytes)?);
                let number = self.vacant.pop().unwrap_or_else(|| {
                    self.blocks.push(Block::default());
                    self.blocks.len() - 1
                });
                self.blocks[number].memory = memory;
                number
            }
        };
        self.hold(number);
        Ok(number)
    }

    /// Adds a reference to a block.
    pub(super) fn hold(&mut self, number: usize) {
        self.blocks[number].holders += 1;
    }

    /// Drops a reference to a block. Without references it is reused or unmapped.
    pub(super) fn let_go(&mut self, number: usize) {
        self.blocks[number].holders -= 1;
        if self.blocks[number].holders > 0 {
            return;
        }
        let is_long = |number: usize| self.capacity(number) > BLOCK_BYTES;
        let long_one_is_kept = self.free.iter().any(|&free| is_long(free));
        if self.free.len() < FREE_BLOCKS_MAX && !(is_long(number) && long_one_is_kept) {
            self.free.push(number);
        } else {
            self.blocks[number].memory = None;
            self.vacant.push(number);
        }
    }

    /// Returns whether no message is left in the block.
    pub(super) fn is_held_once(&self, number: usize) -> bool {
        self.blocks[number].holders == 1
    }

    /// Returns the size of a block.
    pub(super) fn capacity(&self, number: usize) -> usize {
        self.blocks[number].memory.as_ref().map_or(0, |memory| memory.bytes())
    }

    /// Returns the address of `bytes` bytes in a block.
    pub(super) fn at(&self, number: usize, offset: usize, bytes: usize) -> NonNull<u8> {
        let memory = self.blocks[number].memory.as_ref().expect("a block that is held has memory");
        memory.at(offset, bytes)
    }

    /// Leaks the memory, because slots may still point into it.
    pub(super) fn leak(&mut self) {
        self.blocks.drain(..).for_each(std::mem::forget);
    }
}

/// Allocates places for messages, one after the other in a block while there is room.
pub(in crate::transport) struct Pile {
    blocks: Blocks,
    /// The block in which the next place begins, at `filled`.
    block: usize,
    filled: usize,
}

/// A place in a pile; it holds a reference to its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct BlockPosition {
    pub(super) block: usize,
    pub(super) start: usize,
}

impl BlockPosition {
    /// Encodes the place in one word, as slots keep it.
    pub(in crate::transport) fn to_token(self) -> u64 {
        (self.block as u64) << 32 | self.start as u64
    }

    pub(in crate::transport) fn from_token(token: u64) -> BlockPosition {
        BlockPosition { block: (token >> 32) as usize, start: (token & 0xffff_ffff) as usize }
    }
}

impl Pile {
    pub(in crate::transport) fn new() -> TransportResult<Pile> {
        let mut blocks = Blocks::default();
        let block = blocks.take(BLOCK_BYTES)?;
        Ok(Pile { blocks, block, filled: 0 })
    }

    pub(in crate::transport) fn place(&mut self, bytes: usize) -> TransportResult<BlockPosition> {
        if self.blocks.is_held_once(self.block) {
            self.filled = 0;
        }
        if self.blocks.capacity(self.block) - self.filled < bytes {
            let block = self.blocks.take(bytes)?;
            self.blocks.let_go(self.block);
            (self.block, self.filled) = (block, 0);
        }
        let place = BlockPosition { block: self.block, start: self.filled };
        self.filled += bytes;
        self.blocks.hold(self.block);
        Ok(place)
    }

    /// Shrinks the place from `bytes` to `used` bytes: if it was the last one, the next place gets
    /// the rest.
    pub(super) fn shrink(&mut self, place: BlockPosition, bytes: usize, used: usize) {
        if place.block == self.block && place.start + bytes == self.filled {
            self.filled = place.start + used;
        }
    }

    pub(in crate::transport) fn at(&self, place: BlockPosition, bytes: usize) -> NonNull<u8> {
        self.blocks.at(place.block, place.start, bytes)
    }

    pub(in crate::transport) fn let_go(&mut self, place: BlockPosition) {
        self.blocks.let_go(place.block);
    }

    /// Leaks the memory of all blocks, because slots may still point into it.
    pub(in crate::transport) fn leak(&mut self) {
        self.blocks.leak();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_used_again_when_its_last_message_is_gone() {
        let mut blocks = Blocks::default();
        let first = blocks.take(10).unwrap();
        blocks.hold(first);
        blocks.let_go(first);
        assert!(blocks.is_held_once(first));
        assert_ne!(blocks.take(10).unwrap(), first, "it is still held");
        blocks.let_go(first);
        assert_eq!(blocks.take(10).unwrap(), first);
    }

    #[test]
    fn what_is_kept_unused_is_bounded() {
        let mut blocks = Blocks::default();
        let taken: Vec<usize> = (0..100).map(|_| blocks.take(1 << 20).unwrap()).collect();
        taken.into_iter().for_each(|number| blocks.let_go(number));
        let kept: usize = (0..100).map(|number| blocks.capacity(number)).sum();
        assert_eq!(kept, 1 << 20, "one long block is kept");
    }
}
