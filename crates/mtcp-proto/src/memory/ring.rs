//! Buffers the bytes of one direction of a connection.

use super::{BufferPool, Purpose};

/// A ring of bytes. It has no memory until data arrives, grows through the classes of the pool, and
/// returns its memory by [`Ring::release_if_empty`] once it is empty.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    /// Empty, or a power of two long.
    block: Box<[u8]>,
    head: u32,
    content: u32,
}

impl Ring {
    /// An empty ring without memory.
    pub(crate) fn new() -> Ring {
        Ring::default()
    }

    /// Bytes of content.
    pub(crate) fn len(&self) -> usize {
        self.content as usize
    }

    /// Whether there is no content.
    pub(crate) fn is_empty(&self) -> bool {
        self.content == 0
    }

    /// Bytes of memory that the ring holds.
    pub(crate) fn capacity(&self) -> usize {
        self.block.len()
    }

    /// Appends as much of the data as the limit and the pool permit; returns the number of bytes.
    pub(crate) fn push(
        &mut self,
        pool: &mut BufferPool,
        purpose: Purpose,
        data: &[u8],
        limit_bytes: usize,
    ) -> usize {
        let wanted = data.len().min(limit_bytes.saturating_sub(self.len()));
        if !self.reserve(pool, purpose, self.len() + wanted) && self.block.len() == self.len() {
            self.reserve(pool, purpose, self.len() + 1);
        }
        let taken = wanted.min(self.block.len() - self.len());
        self.store(&data[..taken]);
        self.content += taken as u32;
        taken
    }

    /// At most `bytes` bytes of the content from `offset` on. They are two slices because the ring
    /// wraps.
    fn slices(&self, offset: usize, bytes: usize) -> (&[u8], &[u8]) {
        let offset = offset.min(self.len());
        let bytes = bytes.min(self.len() - offset);
        if bytes == 0 {
            return (&[], &[]);
        }
        let start = self.place(offset);
        let first = bytes.min(self.block.len() - start);
        (&self.block[start..start + first], &self.block[..bytes - first])
    }

    /// Copies content from `offset` on into `room`; returns the number of bytes.
    pub(crate) fn copy_out(&self, offset: usize, room: &mut [u8]) -> usize {
        let (first, second) = self.slices(offset, room.len());
        let bytes = first.len() + second.len();
        room[..first.len()].copy_from_slice(first);
        room[first.len()..bytes].copy_from_slice(second);
        bytes
    }

    /// Moves content into `room`; returns the number of bytes.
    pub(crate) fn read(&mut self, room: &mut [u8]) -> usize {
        let bytes = self.copy_out(0, room);
        self.consume(bytes);
        bytes
    }

    /// Drops bytes from the beginning of the content; at most all of it.
    pub(crate) fn consume(&mut self, bytes: usize) {
        let bytes = bytes.min(self.len());
        if bytes > 0 {
            self.head = self.place(bytes) as u32;
            self.content -= bytes as u32;
        }
    }

    /// Returns the memory to the pool if the ring is empty.
    pub(crate) fn release_if_empty(&mut self, pool: &mut BufferPool) {
        if self.content == 0 {
            self.release(pool);
        }
    }

    /// Discards the content and returns the memory to the pool.
    pub(crate) fn release(&mut self, pool: &mut BufferPool) {
        if !self.block.is_empty() {
            pool.release(std::mem::take(&mut self.block));
        }
        *self = Ring::new();
    }

    /// The index in the block of the byte at this offset from the beginning of the content.
    fn place(&self, offset: usize) -> usize {
        (self.head as usize + offset) & (self.block.len() - 1)
    }

    /// Makes room for so many bytes of content. False, and nothing changes, if there is no memory.
    fn reserve(&mut self, pool: &mut BufferPool, purpose: Purpose, bytes: usize) -> bool {
        if bytes <= self.block.len() {
            return true;
        }
        let Some(mut block) = pool.take(purpose, bytes) else { return false };
        self.copy_out(0, &mut block);
        let old = std::mem::replace(&mut self.block, block);
        self.head = 0;
        if !old.is_empty() {
            pool.release(old);
        }
        true
    }

    /// Writes behind the content, where there is room.
    fn store(&mut self, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let start = self.place(self.len());
        let first = data.len().min(self.block.len() - start);
        self.block[start..start + first].copy_from_slice(&data[..first]);
        self.block[..data.len() - first].copy_from_slice(&data[first..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Read(usize),
        Consume(usize),
        Copy(usize, usize),
        ReleaseIfEmpty,
        Release,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0usize..6000).prop_map(Step::Push),
            3 => (0usize..6000).prop_map(Step::Read),
            1 => (0usize..6000).prop_map(Step::Consume),
            1 => (0usize..6000, 0usize..6000).prop_map(|(offset, bytes)| Step::Copy(offset, bytes)),
            2 => Just(Step::ReleaseIfEmpty),
            1 => Just(Step::Release),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(100)
        })]

        #[test]
        fn a_ring_holds_what_its_model_holds(
            steps in prop::collection::vec(step(), 1..120),
            limit in prop_oneof![Just(10_000usize), Just(16 << 10), Just(3000)],
        ) {
            let mut pool = BufferPool::new(1 << 20);
            let mut ring = Ring::new();
            let mut content = VecDeque::new();
            let mut next_byte = 0u8;
            let mut fresh = |bytes: usize| -> Vec<u8> {
                let next = || {
                    next_byte = next_byte.wrapping_mul(5).wrapping_add(3);
                    next_byte
                };
                std::iter::repeat_with(next).take(bytes).collect()
            };
            for step in steps {
                match step {
                    Step::Push(bytes) => {
                        let data = fresh(bytes);
                        let taken = ring.push(&mut pool, Purpose::Receive, &data, limit);
                        prop_assert_eq!(taken, bytes.min(limit - content.len()));
                        content.extend(&data[..taken]);
                    }
                    Step::Read(bytes) => {
                        let mut room = vec![0; bytes];
                        let read = ring.read(&mut room);
                        let expected: Vec<u8> =
                            content.drain(..bytes.min(content.len())).collect();
                        prop_assert_eq!(&room[..read], &expected[..]);
                    }
                    Step::Consume(bytes) => {
                        ring.consume(bytes);
                        content.drain(..bytes.min(content.len()));
                    }
                    Step::Copy(offset, bytes) => {
                        let mut room = vec![0; bytes];
                        let copied = ring.copy_out(offset, &mut room);
                        let expected: Vec<u8> =
                            content.iter().skip(offset).take(bytes).copied().collect();
                        prop_assert_eq!(&room[..copied], &expected[..]);
                    }
                    Step::ReleaseIfEmpty => ring.release_if_empty(&mut pool),
                    Step::Release => {
                        ring.release(&mut pool);
                        content.clear();
                    }
                }
                prop_assert_eq!(ring.len(), content.len());
                prop_assert_eq!(pool.used_bytes(), ring.capacity());
                prop_assert!(ring.capacity() < 2 * limit.max(2048));
            }
            let mut rest = vec![0; ring.len()];
            ring.read(&mut rest);
            prop_assert_eq!(rest, content.into_iter().collect::<Vec<u8>>());
        }
    }

    #[test]
    fn a_ring_without_data_has_no_memory() {
        let mut pool = BufferPool::new(1 << 20);
        let mut ring = Ring::new();
        assert!(size_of::<Ring>() <= 32 && ring.capacity() == 0 && ring.is_empty());
        assert_eq!(ring.push(&mut pool, Purpose::Send, b"request", 1 << 20), 7);
        assert_eq!(pool.used_bytes(), 2048);
        ring.release_if_empty(&mut pool);
        assert_eq!(pool.used_bytes(), 2048, "there is content");
        ring.consume(7);
        ring.release_if_empty(&mut pool);
        assert_eq!((pool.used_bytes(), ring.capacity()), (0, 0));
    }

    #[test]
    fn a_pool_without_memory_leaves_the_ring_as_it_is() {
        let mut pool = BufferPool::new(4096);
        let mut ring = Ring::new();
        assert_eq!(ring.push(&mut pool, Purpose::Receive, &[1; 1000], 1 << 20), 1000);
        // Class 1 does not fit beside class 0, so what the first block takes is taken.
        assert_eq!(ring.push(&mut pool, Purpose::Receive, &[2; 3000], 1 << 20), 1048);
        assert_eq!(ring.push(&mut pool, Purpose::Receive, &[3; 1], 1 << 20), 0);
        let mut room = [0; 3000];
        assert_eq!(ring.read(&mut room), 2048);
        assert_eq!((room[999], room[1000], room[2047]), (1, 2, 2));
    }
}
