//! Allocates all buffers of a stack, in size classes and within one limit.

/// Bytes of a block of class 0; each class is twice as large as the one before.
const SMALLEST_BLOCK_BYTES: usize = 2 << 10;

/// Blocks of 2 KiB, 4 KiB and so on to 64 MiB.
const CLASSES: usize = 16;

/// Largest block that a connection gets even if memory is scarce.
pub(crate) const SHORT_BLOCK_BYTES: usize = 4 << 10;

/// Largest share (1/8) of the limit for free blocks that are kept for reuse.
const KEPT_PART: usize = 8;

/// After a short block was refused, memory is scarce until at most this share of the limit, in
/// eighths, is in use.
const ENOUGH_EIGHTHS: usize = 2;

/// What a block is for. It determines the share of the limit that the blocks of all connections
/// may reach together before this one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Data to be sent. A quarter of the limit is left for received data: two stacks whose memory
    /// is full of data to send could otherwise not receive the data or acknowledgements that free
    /// it. Another quarter is left for short blocks, so that peers that do not read leave memory
    /// for all others.
    Send,
    /// Data received in order. The last eighth is left for short blocks.
    Receive,
    /// Data received out of order, which may be dropped (RFC 2018, section 8).
    OutOfOrder,
}

impl Purpose {
    /// The share of the limit, in eighths. While there is no short block for everyone, freed memory
    /// becomes short blocks.
    fn eighths(self, is_short: bool, is_scarce: bool) -> usize {
        match (self, is_short) {
            (Purpose::Send, false) if is_scarce => ENOUGH_EIGHTHS,
            (Purpose::OutOfOrder, _) | (Purpose::Send, false) => 4,
            (Purpose::Send, true) => 6,
            (Purpose::Receive, false) => 7,
            (Purpose::Receive, true) => 8,
        }
    }
}

/// A refusal for lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shortage {
    /// Of a block that is not short: the connection continues with a short one.
    Long,
    /// Of a short block: the connection gets nothing.
    Short,
}

/// Allocates the memory of all [`Ring`](super::Ring)s of a stack, and of data out of order.
///
/// Returned blocks are kept and reused without clearing, so that a short connection costs neither a
/// call of the allocator nor zeroed pages. Used and kept blocks together stay below the limit.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: [Vec<Box<[u8]>>; CLASSES],
    limit_bytes: usize,
    lent_bytes: usize,
    kept_bytes: usize,
    shortage: Option<Shortage>,
    is_scarce: bool,
}

impl BufferPool {
    /// A pool with this limit for used and kept bytes.
    pub(crate) fn new(limit_bytes: usize) -> BufferPool {
        BufferPool {
            free: std::array::from_fn(|_| Vec::new()),
            limit_bytes,
            lent_bytes: 0,
            kept_bytes: 0,
            shortage: None,
            is_scarce: false,
        }
    }

    /// The smallest class with blocks of at least `bytes`; `None` beyond the largest.
    pub(crate) fn class(bytes: usize) -> Option<usize> {
        let blocks = bytes.max(1).div_ceil(SMALLEST_BLOCK_BYTES);
        let class = blocks.checked_next_power_of_two()?.trailing_zeros() as usize;
        (class < CLASSES).then_some(class)
    }

    /// Bytes of the blocks of a class.
    const fn block_bytes(class: usize) -> usize {
        SMALLEST_BLOCK_BYTES << class
    }

    /// Allocates a block of at least `bytes` with arbitrary content; `None` beyond the share of the
    /// purpose, which [`BufferPool::take_shortage`] then reports, or beyond the largest class.
    pub(crate) fn take(&mut self, purpose: Purpose, bytes: usize) -> Option<Box<[u8]>> {
        let class = Self::class(bytes)?;
        let bytes = Self::block_bytes(class);
        let is_short = bytes <= SHORT_BLOCK_BYTES;
        self.is_scarce &= self.lent_bytes > self.limit_bytes / 8 * ENOUGH_EIGHTHS;
        let share = self.limit_bytes / 8 * purpose.eighths(is_short, self.is_scarce);
        if bytes > share.saturating_sub(self.lent_bytes) {
            // Data out of order is dropped without harm.
            let shortage = if is_short { Shortage::Short } else { Shortage::Long };
            if purpose != Purpose::OutOfOrder {
                self.shortage = self.shortage.max(Some(shortage));
                self.is_scarce |= is_short;
            }
            return None;
        }
        self.allocate(class)
    }

    /// The worst refusal since the last call.
    pub(crate) fn take_shortage(&mut self) -> Option<Shortage> {
        self.shortage.take()
    }

    fn allocate(&mut self, class: usize) -> Option<Box<[u8]>> {
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

    /// Returns a block that [`BufferPool::take`] has allocated.
    pub(crate) fn release(&mut self, block: Box<[u8]>) {
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

    /// Bytes in use.
    pub(crate) fn used_bytes(&self) -> usize {
        self.lent_bytes
    }

    /// Whether more than three quarters are in use, so that windows should shrink.
    pub(crate) fn pressed(&self) -> bool {
        self.lent_bytes > self.limit_bytes / 4 * 3
    }

    /// Frees kept blocks, the largest first, until at most `most_bytes` are kept.
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
    fn the_limit_holds_for_what_is_lent_and_kept() {
        let mut pool = BufferPool::new(64 << 10);
        let take = |pool: &mut BufferPool, bytes| pool.take(Purpose::Receive, bytes);
        let blocks: Vec<_> =
            (0..32).map(|_| take(&mut pool, 1).expect("below the limit")).collect();
        assert!(take(&mut pool, 1).is_none() && pool.pressed());
        assert_eq!(pool.take_shortage(), Some(Shortage::Short));
        assert_eq!(pool.take_shortage(), None, "it is reported once");
        assert_eq!(pool.used_bytes(), 64 << 10);
        for block in blocks {
            pool.release(block);
        }
        assert_eq!((pool.used_bytes(), pool.kept_bytes), (0, 8 << 10));
        // The kept blocks are freed for one that needs their share of the limit.
        let large = pool.allocate(5).expect("nothing else is lent");
        assert_eq!((pool.used_bytes(), pool.kept_bytes), (64 << 10, 0));
        assert!(pool.allocate(0).is_none() && take(&mut pool, usize::MAX).is_none());
        pool.release(large);
        assert_eq!((pool.used_bytes(), pool.kept_bytes), (0, 0));
        assert!(!pool.pressed());
    }

    #[test]
    fn each_purpose_leaves_room_for_those_that_matter_more() {
        let mut pool = BufferPool::new(1 << 20);
        let mut blocks = Vec::new();
        let mut fill = |pool: &mut BufferPool, purpose, bytes: usize| {
            blocks.extend(std::iter::from_fn(|| pool.take(purpose, bytes)));
            (pool.used_bytes() >> 10, pool.take_shortage())
        };
        assert_eq!(fill(&mut pool, Purpose::OutOfOrder, 1), (512, None));
        assert_eq!(fill(&mut pool, Purpose::Send, 64 << 10), (512, Some(Shortage::Long)));
        assert_eq!(fill(&mut pool, Purpose::Send, SHORT_BLOCK_BYTES), (768, Some(Shortage::Short)));
        assert_eq!(fill(&mut pool, Purpose::Receive, 64 << 10), (896, Some(Shortage::Long)));
        assert_eq!(fill(&mut pool, Purpose::Receive, 1), (1024, Some(Shortage::Short)));
    }

    #[test]
    fn after_a_shortage_freed_memory_becomes_short_blocks() {
        let mut pool = BufferPool::new(1 << 20);
        let long = |pool: &mut BufferPool| pool.take(Purpose::Send, 64 << 10);
        let mut blocks: Vec<_> = std::iter::from_fn(|| long(&mut pool)).collect();
        let short: Vec<_> = std::iter::from_fn(|| pool.take(Purpose::Send, 1)).collect();
        blocks.drain(1..).for_each(|block| pool.release(block));
        assert!(long(&mut pool).is_none() && pool.take(Purpose::Send, 1).is_some());
        short.into_iter().for_each(|block| pool.release(block));
        assert!(long(&mut pool).is_some(), "enough is free");
    }

    #[test]
    fn a_block_that_came_back_is_lent_again_as_it_is() {
        let mut pool = BufferPool::new(1 << 20);
        let mut block = pool.take(Purpose::Send, 1).expect("below the limit");
        block[7] = 42;
        pool.release(block);
        assert_eq!(pool.take(Purpose::Send, 1).expect("kept")[7], 42);
    }
}
