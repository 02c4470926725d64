//! Blocks of memory for slots.

use std::ptr::NonNull;

use crate::transport::SLOTS_MAX;

/// The most unused blocks that are kept.
const SPARE_BLOCKS_MAX: usize = 4;

/// Blocks of one size: used by slots, or spare.
#[derive(Debug)]
pub(super) struct Blocks {
    block_bytes: usize,
    held: Vec<Option<Block>>,
    vacant: Vec<usize>,
    spare: Vec<Block>,
}

/// Initialised bytes on the heap, freed only by [`Block::free`]: if a slot is lost, its block
/// stays, because the slot may still be read.
#[derive(Debug)]
pub(super) struct Block(NonNull<[u8]>);

// SAFETY: a block owns its memory as a `Box<[u8]>` does.
unsafe impl Send for Block {}

impl Block {
    fn new(bytes: usize) -> Block {
        Block(NonNull::from(Box::leak(vec![0; bytes].into_boxed_slice())))
    }

    /// Returns the block's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory belongs to this block, and the owner of a block has no slot of it.
        unsafe { self.0.as_ref() }
    }

    /// Returns the block's bytes for writing.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory belongs to this block, which is borrowed exclusively and has no slot.
        unsafe { self.0.as_mut() }
    }

    fn free(self) {
        // SAFETY: the memory came from a box, and the block is consumed.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Blocks {
    /// Makes an empty set of blocks of this size.
    pub(super) fn new(block_bytes: usize) -> Blocks {
        Blocks { block_bytes, held: Vec::new(), vacant: Vec::new(), spare: Vec::new() }
    }

    /// Returns a block that no slot points into.
    pub(super) fn take(&mut self) -> Block {
        self.spare.pop().unwrap_or_else(|| Block::new(self.block_bytes))
    }

    /// Takes back a block that no slot points into any more.
    pub(super) fn give(&mut self, block: Block) {
        if self.spare.len() < SPARE_BLOCKS_MAX {
            self.spare.push(block);
        } else {
            block.free();
        }
    }

    /// Returns how many slots use a block.
    pub(super) fn held(&self) -> usize {
        self.held.len() - self.vacant.len()
    }

    /// Returns whether so many slots are in use that no more may be allocated.
    pub(super) fn is_full(&self) -> bool {
        self.held() >= SLOTS_MAX
    }

    /// Stores a block for a slot. The token finds it again.
    pub(super) fn hold(&mut self, block: Block) -> (NonNull<u8>, u64) {
        let pointer = block.0.cast();
        let index = match self.vacant.pop() {
            Some(index) => {
                self.held[index] = Some(block);
                index
            }
            None => {
                self.held.push(Some(block));
                self.held.len() - 1
            }
        };
        (pointer, index as u64)
    }

    /// Removes and returns the block of a slot that was returned.
    pub(super) fn retake(&mut self, token: u64) -> Option<Block> {
        let index = usize::try_from(token).ok()?;
        let block = self.held.get_mut(index)?.take()?;
        self.vacant.push(index);
        Some(block)
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.spare.drain(..).for_each(Block::free);
    }
}
