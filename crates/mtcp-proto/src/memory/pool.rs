//! All buffers of a stack, in classes of sizes, under one bound.

/// Bytes of a block of class 0; each class is twice as large as the one before.
const SMALLEST_BLOCK_BYTES: usize = 2 << 10;

/// Blocks of 2 KiB, 4 KiB and so on to 64 MiB.
const CLASSES: usize = 16;

/// A connection that sends has one of so many bytes even where memory is scarce.
const SHORT_BLOCK_BYTES: usize = 4 << 10;

/// Blocks that are kept for reuse never take more than this part of the bound.
const KEPT_PART: usize = 8;

/// The source of the memory of all [`Ring`](super::Ring)s of a stack.
///
/// Blocks that come back are kept and lent again as they are, so that a short connection costs
/// neither a call of the allocator nor zeroed pages. What is lent and what is kept stay together
/// under the bound.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: [Vec<Box<[u8]>>; CLASSES],
    limit_bytes: usize,
    lent_bytes: usize,
    kept_bytes: usize,
}

impl BufferPool {
    /// A pool that lends and keeps at most so many bytes.
    pub(crate) fn new(limit_bytes: usize) -> BufferPool {
        BufferPool {
            free: std::array::from_fn(|_| Vec::new()),
            limit_bytes,
            lent_bytes: 0,
            kept_bytes: 0,
        }
    }

    /// The smallest class with blocks of at least so many bytes; `None` beyond the largest.
    pub(crate) fn class(bytes: usize) -> Option<usize> {
        let blocks = bytes.max(1).div_ceil(SMALLEST_BLOCK_BYTES);
        let class = blocks.checked_next_power_of_two()?.trailing_zeros() as usize;
        (class < CLASSES).then_some(class)
    }

    /// Bytes of the blocks of a class.
    const fn block_bytes(class: usize) -> usize {
        SMALLEST_BLOCK_BYTES << class
    }

    /// Lends a block whose contents are whatever was in it last; `None` at the bound or for a class
    /// that does not exist.
    pub(crate) fn take(&mut self, class: usize) -> Option<Box<[u8]>> {
        if class >= CLASSES {
            return None;
        }
        let bytes = Self::block_bytes(class);
        if let Some(block) = self.free[class].pop() {
            self.kept_bytes -= bytes;
            self.lent_bytes += bytes;
            return Some(block);
        }
        if bytes > self.limit_bytes.saturating_sub(self.lent_bytes) {
            return None;
        }
        self.forget(self.limit_bytes - self.lent_bytes - bytes);
        self.lent_bytes += bytes;
        Some(vec![0; bytes].into_boxed_slice())
    }

    /// The length of the block that holds so many bytes, if the pool has one for data to be sent.
    ///
    /// A quarter is kept for data that come: two stacks whose memory is full of what they send
    /// could take nothing of each other any more, not even what makes room. Another quarter is kept
    /// for short blocks, so that a few peers that do not read leave something to all others.
    pub(crate) fn block_for_sending(&self, bytes: usize) -> Option<usize> {
        let block_bytes = Self::block_bytes(Self::class(bytes)?);
        let quarters = if block_bytes <= SHORT_BLOCK_BYTES { 3 } else { 2 };
        let most = self.limit_bytes / 4 * quarters;
        (block_bytes <= most.saturating_sub(self.lent_bytes)).then_some(block_bytes)
    }

    /// Takes a block back that [`BufferPool::take`] has lent.
    pub(crate) fn give(&mut self, block: Box<[u8]>) {
        let bytes = block.len();
        let Some(class) = Self::class(bytes).filter(|&class| Self::block_bytes(class) == bytes)
        else {
            debug_assert!(bytes == 0, "a block of {bytes} bytes is not of this pool");
            return;
        };
        self.lent_bytes = self.lent_bytes.saturating_sub(bytes);
        if self.kept_bytes + bytes <= self.limit_bytes / KEPT_PART {
            self.kept_bytes += bytes;
            self.free[class].push(block);
        }
    }

    /// Bytes that are lent.
    pub(crate) fn used_bytes(&self) -> usize {
        self.lent_bytes
    }

    /// Whether more than three quarters are lent, so that windows should shrink.
    pub(crate) fn pressed(&self) -> bool {
        self.lent_bytes > self.limit_bytes / 4 * 3
    }

    /// Frees kept blocks, the largest first, until at most so many bytes are kept.
    fn forget(&mut self, most_bytes: usize) {
        for class in (0..CLASSES).rev() {
            while self.kept_bytes > most_bytes && self.free[class].pop().is_some() {
                self.kept_bytes -= Self::block_bytes(class);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_every_length_up_to_the_largest_block() {
        assert_eq!(BufferPool::class(0), Some(0));
        assert_eq!(BufferPool::class(2048), Some(0));
        assert_eq!(BufferPool::class(2049), Some(1));
        assert_eq!(BufferPool::class(64 << 20), Some(15));
        assert_eq!(BufferPool::class((64 << 20) + 1), None);
        assert_eq!(BufferPool::class(usize::MAX), None);
        assert_eq!(BufferPool::block_bytes(15), 64 << 20);
    }

    #[test]
    fn the_bound_holds_for_what_is_lent_and_kept() {
        let mut pool = BufferPool::new(64 << 10);
        let blocks: Vec<_> = (0..32).map(|_| pool.take(0).expect("within the bound")).collect();
        assert!(pool.take(0).is_none() && pool.pressed());
        assert_eq!(pool.used_bytes(), 64 << 10);
        for block in blocks {
            pool.give(block);
        }
        assert_eq!((pool.used_bytes(), pool.kept_bytes), (0, 8 << 10));
        // The kept blocks make way for one that takes the whole bound.
        let large = pool.take(5).expect("nothing else is lent");
        assert_eq!((pool.used_bytes(), pool.kept_bytes), (64 << 10, 0));
        assert!(pool.take(0).is_none() && pool.take(CLASSES).is_none());
        pool.give(large);
        assert_eq!((pool.used_bytes(), pool.kept_bytes), (0, 0));
        assert!(!pool.pressed());
    }

    #[test]
    fn long_blocks_for_sending_leave_room_for_short_ones_and_both_for_what_comes() {
        let mut pool = BufferPool::new(1 << 20);
        let mut blocks = Vec::new();
        let mut fill = |pool: &mut BufferPool, bytes: usize| {
            while let Some(bytes) = pool.block_for_sending(bytes) {
                let class = BufferPool::class(bytes).expect("it exists");
                blocks.push(pool.take(class).expect("there is room"));
            }
        };
        fill(&mut pool, 64 << 10);
        assert_eq!(pool.used_bytes(), 512 << 10);
        fill(&mut pool, SHORT_BLOCK_BYTES);
        assert_eq!(pool.used_bytes(), 768 << 10);
        assert!(pool.take(7).is_some(), "for what comes");
    }

    #[test]
    fn a_block_that_came_back_is_lent_again_as_it_is() {
        let mut pool = BufferPool::new(1 << 20);
        let mut block = pool.take(0).expect("within the bound");
        block[7] = 42;
        pool.give(block);
        assert_eq!(pool.take(0).expect("kept")[7], 42);
    }
}
