//! The bytes of one direction of a connection.

use super::BufferPool;

/// A ring of bytes. It has no memory until data comes, grows through the classes of the pool, and
/// gives its memory back by [`Ring::settle`] once it is empty.
///
/// Behind the content there may lie bytes that came out of order: [`Ring::write_at`] puts them
/// there, and [`Ring::extend`] makes them content once the gap before them is filled. The ring does
/// not know which of these bytes are there; the reassembly queue does.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    /// Empty, or a power of two long.
    block: Box<[u8]>,
    head: u32,
    content: u32,
    /// How far bytes that are no content yet reach behind the content.
    beyond: u32,
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

    /// Whether there is no content; bytes out of order may still be there.
    pub(crate) fn is_empty(&self) -> bool {
        self.content == 0
    }

    /// Bytes of memory that the ring holds.
    pub(crate) fn capacity(&self) -> usize {
        self.block.len()
    }

    /// Appends as much of the data as keeps the content within the limit and as the pool has memory
    /// for; gives the number of bytes taken. For a direction without bytes out of order, or data
    /// that ends before they begin or overwrites them.
    pub(crate) fn push(&mut self, pool: &mut BufferPool, data: &[u8], limit_bytes: usize) -> usize {
        let wanted = data.len().min(limit_bytes.saturating_sub(self.len()));
        if !self.reserve(pool, self.len() + wanted) {
            self.reserve(pool, self.len() + 1);
        }
        let taken = wanted.min(self.block.len() - self.len());
        self.store(self.len(), &data[..taken]);
        self.extend(taken);
        taken
    }

    /// Writes data `offset` bytes behind the end of the content, without making it content. False,
    /// and nothing changes, if it would reach beyond the limit (counted from the beginning of the
    /// content) or there is no memory for it.
    pub(crate) fn write_at(
        &mut self,
        pool: &mut BufferPool,
        offset: usize,
        data: &[u8],
        limit_bytes: usize,
    ) -> bool {
        let Some(reach) = offset.checked_add(data.len()) else { return false };
        if reach > limit_bytes.saturating_sub(self.len()) || !self.reserve(pool, self.len() + reach)
        {
            return false;
        }
        self.store(self.len() + offset, data);
        self.beyond = self.beyond.max(reach as u32);
        true
    }

    /// Makes the next bytes behind the content, which [`Ring::write_at`] has written, content.
    pub(crate) fn extend(&mut self, bytes: usize) {
        debug_assert!(self.len() + bytes <= self.block.len(), "these bytes were never written");
        let bytes = bytes.min(self.block.len() - self.len()) as u32;
        self.content += bytes;
        self.beyond = self.beyond.saturating_sub(bytes);
    }

    /// Content from `offset` on, at most `bytes` of it, as the two parts in which it lies.
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

    /// Copies content from `offset` on into the room, and gives the number of bytes.
    pub(crate) fn copy_out(&self, offset: usize, room: &mut [u8]) -> usize {
        let (first, second) = self.slices(offset, room.len());
        let bytes = first.len() + second.len();
        room[..first.len()].copy_from_slice(first);
        room[first.len()..bytes].copy_from_slice(second);
        bytes
    }

    /// Moves content into the room, and gives the number of bytes.
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

    /// Gives the memory back if nothing is in it.
    pub(crate) fn settle(&mut self, pool: &mut BufferPool) {
        if self.content == 0 && self.beyond == 0 {
            self.release(pool);
        }
    }

    /// Drops everything and gives the memory back.
    pub(crate) fn release(&mut self, pool: &mut BufferPool) {
        if !self.block.is_empty() {
            pool.give(std::mem::take(&mut self.block));
        }
        *self = Ring::new();
    }

    /// Where the byte at this offset from the beginning of the content lies.
    fn place(&self, offset: usize) -> usize {
        (self.head as usize + offset) & (self.block.len() - 1)
    }

    /// Makes room for so many bytes from the beginning of the content on.
    fn reserve(&mut self, pool: &mut BufferPool, bytes: usize) -> bool {
        if bytes <= self.block.len() {
            return true;
        }
        let Some(mut block) = BufferPool::class(bytes).and_then(|class| pool.take(class)) else {
            return false;
        };
        let used = self.len() + self.beyond as usize;
        if used > 0 {
            let start = self.head as usize;
            let first = used.min(self.block.len() - start);
            block[..first].copy_from_slice(&self.block[start..start + first]);
            block[first..used].copy_from_slice(&self.block[..used - first]);
        }
        let old = std::mem::replace(&mut self.block, block);
        self.head = 0;
        if !old.is_empty() {
            pool.give(old);
        }
        true
    }

    /// Writes at an offset from the beginning of the content, where there is room.
    fn store(&mut self, offset: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let start = self.place(offset);
        let first = data.len().min(self.block.len() - start);
        self.block[start..start + first].copy_from_slice(&data[..first]);
        self.block[..data.len() - first].copy_from_slice(&data[first..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, VecDeque};

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        WriteAt(usize, usize),
        Read(usize),
        Consume(usize),
        Copy(usize, usize),
        Settle,
        Release,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0usize..6000).prop_map(Step::Push),
            3 => (1usize..9000, 1usize..3000).prop_map(|(at, bytes)| Step::WriteAt(at, bytes)),
            3 => (0usize..6000).prop_map(Step::Read),
            1 => (0usize..6000).prop_map(Step::Consume),
            1 => (0usize..6000, 0usize..6000).prop_map(|(offset, bytes)| Step::Copy(offset, bytes)),
            2 => Just(Step::Settle),
            1 => Just(Step::Release),
        ]
    }

    /// What the ring should hold, byte by byte.
    #[derive(Default)]
    struct Model {
        content: VecDeque<u8>,
        /// By offset from the end of the content.
        beyond: BTreeMap<usize, u8>,
    }

    impl Model {
        fn push(&mut self, data: &[u8]) {
            self.content.extend(data);
            self.beyond = self.beyond.split_off(&data.len());
            self.beyond =
                self.beyond.iter().map(|(offset, byte)| (offset - data.len(), *byte)).collect();
        }

        /// How many bytes out of order follow the content without a gap.
        fn in_order(&self) -> usize {
            (0..).take_while(|offset| self.beyond.contains_key(offset)).count()
        }
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
            let mut model = Model::default();
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
                        let taken = ring.push(&mut pool, &data, limit);
                        prop_assert_eq!(taken, bytes.min(limit - model.content.len()));
                        model.push(&data[..taken]);
                        let more = model.in_order();
                        ring.extend(more);
                        let data: Vec<u8> = (0..more).map(|offset| model.beyond[&offset]).collect();
                        model.push(&data);
                    }
                    Step::WriteAt(offset, bytes) => {
                        let data = fresh(bytes);
                        let fits = model.content.len() + offset + bytes <= limit;
                        prop_assert_eq!(ring.write_at(&mut pool, offset, &data, limit), fits);
                        if fits {
                            model.beyond.extend((offset..).zip(data));
                        }
                    }
                    Step::Read(bytes) => {
                        let mut room = vec![0; bytes];
                        let read = ring.read(&mut room);
                        let expected: Vec<u8> =
                            model.content.drain(..bytes.min(model.content.len())).collect();
                        prop_assert_eq!(&room[..read], &expected[..]);
                    }
                    Step::Consume(bytes) => {
                        ring.consume(bytes);
                        model.content.drain(..bytes.min(model.content.len()));
                    }
                    Step::Copy(offset, bytes) => {
                        let mut room = vec![0; bytes];
                        let copied = ring.copy_out(offset, &mut room);
                        let expected: Vec<u8> =
                            model.content.iter().skip(offset).take(bytes).copied().collect();
                        prop_assert_eq!(&room[..copied], &expected[..]);
                    }
                    Step::Settle => ring.settle(&mut pool),
                    Step::Release => {
                        ring.release(&mut pool);
                        model = Model::default();
                    }
                }
                prop_assert_eq!(ring.len(), model.content.len());
                prop_assert_eq!(pool.used_bytes(), ring.capacity());
                prop_assert!(ring.capacity() < 2 * limit.max(2048));
            }
            let mut rest = vec![0; ring.len()];
            ring.read(&mut rest);
            prop_assert_eq!(rest, model.content.into_iter().collect::<Vec<u8>>());
        }
    }

    #[test]
    fn a_ring_without_data_has_no_memory() {
        let mut pool = BufferPool::new(1 << 20);
        let mut ring = Ring::new();
        assert!(size_of::<Ring>() <= 32 && ring.capacity() == 0 && ring.is_empty());
        assert_eq!(ring.push(&mut pool, b"request", 1 << 20), 7);
        assert_eq!(pool.used_bytes(), 2048);
        ring.settle(&mut pool);
        assert_eq!(pool.used_bytes(), 2048, "there is content");
        ring.consume(7);
        ring.settle(&mut pool);
        assert_eq!((pool.used_bytes(), ring.capacity()), (0, 0));
        assert!(ring.write_at(&mut pool, 3, b"early", 100));
        ring.settle(&mut pool);
        assert_eq!(pool.used_bytes(), 2048, "there are bytes out of order");
        ring.extend(8);
        ring.consume(8);
        ring.settle(&mut pool);
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn a_pool_without_memory_leaves_the_ring_as_it_is() {
        let mut pool = BufferPool::new(4096);
        let mut ring = Ring::new();
        assert_eq!(ring.push(&mut pool, &[1; 1000], 1 << 20), 1000);
        // Class 1 does not fit beside class 0, so what the first block takes is taken.
        assert_eq!(ring.push(&mut pool, &[2; 3000], 1 << 20), 1048);
        assert_eq!(ring.push(&mut pool, &[3; 1], 1 << 20), 0);
        assert!(!ring.write_at(&mut pool, 0, &[3; 1], 1 << 20));
        assert!(!ring.write_at(&mut pool, usize::MAX, &[3; 1], usize::MAX));
        let mut room = [0; 3000];
        assert_eq!(ring.read(&mut room), 2048);
        assert_eq!((room[999], room[1000], room[2047]), (1, 2, 2));
    }
}
