//! Memory of our own, in blocks that several messages share.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The size of a block, unless one message needs more.
pub(in crate::transport) const BLOCK_BYTES: usize = 64 << 10;

/// How many unused blocks are kept for the next message; what is beyond goes back at once.
const FREE_BLOCKS_MAX: usize = 4;

/// Blocks are known by number. Each is held by whoever took it and by every message in it, and is
/// used again when the last of them has let it go.
#[derive(Default)]
pub(in crate::transport) struct Blocks {
    blocks: Vec<Block>,
    /// Blocks with memory that nobody holds, the last one used at the end, while it is warm.
    free: Vec<usize>,
    /// Numbers without memory.
    vacant: Vec<usize>,
}

#[derive(Default)]
struct Block {
    memory: Option<Memory>,
    holders: usize,
}

impl Blocks {
    /// A block of at least this size, held once.
    pub(super) fn take(&mut self, bytes: usize) -> usize {
        let fits = |&number: &usize| self.capacity(number) >= bytes;
        let number = match self.free.iter().rposition(fits) {
            Some(place) => self.free.remove(place),
            None => {
                let number = self.vacant.pop().unwrap_or_else(|| {
                    self.blocks.push(Block::default());
                    self.blocks.len() - 1
                });
                self.blocks[number].memory = Some(Memory::new(bytes.max(BLOCK_BYTES)));
                number
            }
        };
        self.hold(number);
        number
    }

    pub(super) fn hold(&mut self, number: usize) {
        self.blocks[number].holders += 1;
    }

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

    /// Whether no message is left in the block.
    pub(super) fn is_held_once(&self, number: usize) -> bool {
        self.blocks[number].holders == 1
    }

    pub(super) fn capacity(&self, number: usize) -> usize {
        self.blocks[number].memory.as_ref().map_or(0, |memory| memory.layout.size())
    }

    /// The address of `bytes` bytes in a block.
    pub(super) fn at(&self, number: usize, offset: usize, bytes: usize) -> NonNull<u8> {
        let memory = self.blocks[number].memory.as_ref().expect("a block that is held has memory");
        assert!(offset + bytes <= memory.layout.size(), "a message lies within its block");
        // SAFETY: the offset was just checked to lie within the allocation.
        unsafe { memory.start.add(offset) }
    }

    /// Gives the memory to whoever still looks at it, for good.
    pub(super) fn leak(&mut self) {
        self.blocks.drain(..).for_each(std::mem::forget);
    }
}

/// One allocation, zeroed at first. Only its address is kept, never a reference to it: messages in
/// it belong to different owners.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation belongs to no thread.
unsafe impl Send for Memory {}

impl Memory {
    fn new(bytes: usize) -> Memory {
        let layout = Layout::from_size_align(bytes, 64).expect("a block is of a bounded size");
        // SAFETY: the size is at least that of a block, not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Memory { start, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and nobody holds the block any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_used_again_when_its_last_message_is_gone() {
        let mut blocks = Blocks::default();
        let first = blocks.take(10);
        blocks.hold(first);
        blocks.let_go(first);
        assert!(blocks.is_held_once(first));
        assert_ne!(blocks.take(10), first, "it is still held");
        blocks.let_go(first);
        assert_eq!(blocks.take(10), first);
    }

    #[test]
    fn what_is_kept_unused_is_bounded() {
        let mut blocks = Blocks::default();
        let taken: Vec<usize> = (0..100).map(|_| blocks.take(1 << 20)).collect();
        taken.into_iter().for_each(|number| blocks.let_go(number));
        let kept: usize = (0..100).map(|number| blocks.capacity(number)).sum();
        assert_eq!(kept, 1 << 20, "one long block is kept");
    }
}
