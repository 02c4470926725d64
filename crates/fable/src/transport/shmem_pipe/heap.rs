//! Buddy allocator of a shared heap (Knuth, The Art of Computer Programming, volume 1, section
//! 2.5). All its state is in this process; it never accesses the heap's memory.

/// The alignment of parts: one cache line.
pub(super) const GRANULE_BYTES: usize = 64;

const NONE: u32 = u32::MAX;

/// The state of the part that begins at a granule: the top two bits say which, the others its
/// order.
const FREE: u8 = 0x40;
const TAKEN: u8 = 0x80;
const SENT: u8 = 0xc0;
const WHAT: u8 = 0xc0;

/// The allocator. Parts have power-of-two sizes: order 0 is a granule, each further order is twice
/// as large.
pub(super) struct Heap {
    /// The first free part of each order.
    free: Vec<u32>,
    /// The links of the lists of free parts, by granule.
    next: Vec<u32>,
    previous: Vec<u32>,
    state: Vec<u8>,
    taken: usize,
}

/// The error for a release of a part that was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotSent;

impl Heap {
    /// Makes an allocator for a heap of `bytes` bytes, a power of two.
    pub(super) fn new(bytes: usize) -> Heap {
        let granules = bytes / GRANULE_BYTES;
        let order_max = granules.ilog2() as usize;
        let mut heap = Heap {
            free: vec![NONE; order_max + 1],
            next: vec![0; granules],
            previous: vec![0; granules],
            state: vec![0; granules],
            taken: 0,
        };
        heap.put(0, order_max);
        heap
    }

    /// Returns how many parts are allocated, sent or not.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Returns whether `take` would succeed.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.free.iter().skip(order_of(bytes)).any(|&first| first != NONE)
    }

    /// Allocates a part of at least this size and returns its first granule.
    pub(super) fn take(&mut self, bytes: usize) -> Option<u32> {
        let order = order_of(bytes);
        let found = (order..self.free.len()).find(|&order| self.free[order] != NONE)?;
        let granule = self.free[found];
        self.remove(granule, found);
        for order in (order..found).rev() {
            self.put(granule + (1 << order), order);
        }
        self.state[granule as usize] = TAKEN | order as u8;
        self.taken += 1;
        Some(granule)
    }

    /// Marks the part as sent, so that the peer may release it.
    pub(super) fn mark_sent(&mut self, granule: u32) {
        self.state[granule as usize] |= SENT;
    }

    /// Frees a part that was allocated and not sent.
    pub(super) fn give_back(&mut self, granule: u32) {
        let order = usize::from(self.state[granule as usize] & !WHAT);
        self.taken -= 1;
        self.state[granule as usize] = 0;
        self.merge(granule, order);
    }

    /// Frees a part that was sent, when the peer releases it.
    pub(super) fn release(&mut self, granule: u32) -> Result<(), NotSent> {
        match self.state.get(granule as usize) {
            Some(state) if state & WHAT == SENT => {
                self.give_back(granule);
                Ok(())
            }
            _ => Err(NotSent),
        }
    }

    fn merge(&mut self, mut granule: u32, mut order: usize) {
        while order + 1 < self.free.len() {
            let buddy = granule ^ (1 << order);
            if self.state[buddy as usize] != FREE | order as u8 {
                break;
            }
            self.remove(buddy, order);
            granule &= !(1 << order);
            order += 1;
        }
        self.put(granule, order);
    }

    fn put(&mut self, granule: u32, order: usize) {
        let first = self.free[order];
        if first != NONE {
            self.previous[first as usize] = granule;
        }
        self.next[granule as usize] = first;
        self.previous[granule as usize] = NONE;
        self.free[order] = granule;
        self.state[granule as usize] = FREE | order as u8;
    }

    fn remove(&mut self, granule: u32, order: usize) {
        let (next, previous) = (self.next[granule as usize], self.previous[granule as usize]);
        match previous {
            NONE => self.free[order] = next,
            previous => self.next[previous as usize] = next,
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
        self.state[granule as usize] = 0;
    }
}

fn order_of(bytes: usize) -> usize {
    bytes.div_ceil(GRANULE_BYTES).max(1).next_power_of_two().ilog2() as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_part_is_released_once_and_only_when_sent() {
        let mut heap = Heap::new(1 << 16);
        let part = heap.take(100).unwrap();
        assert_eq!(heap.release(part), Err(NotSent), "it was not sent");
        heap.mark_sent(part);
        assert_eq!(heap.release(part + 1), Err(NotSent), "the middle of a part is none");
        assert_eq!(heap.release(1 << 20), Err(NotSent), "it lies outside");
        assert_eq!(heap.release(part), Ok(()));
        assert_eq!(heap.release(part), Err(NotSent), "it is released already");
    }

    proptest! {
        /// Allocates and frees in any order: parts never overlap, and at the end the heap is one
        /// free part.
        #[test]
        fn parts_never_overlap(steps in prop::collection::vec((0_usize..20_000, 0_usize..8), 300)) {
            const BYTES: usize = 1 << 16;
            let mut heap = Heap::new(BYTES);
            let mut parts: Vec<(usize, usize)> = Vec::new();
            for (bytes, pick) in steps {
                if let Some(granule) = heap.take(bytes) {
                    let start = granule as usize * GRANULE_BYTES;
                    prop_assert!(start + bytes <= BYTES);
                    for &(other, length) in &parts {
                        prop_assert!(start + bytes <= other || other + length <= start);
                    }
                    parts.push((start, bytes.max(1)));
                }
                if pick < parts.len() {
                    let (start, _) = parts.swap_remove(pick);
                    heap.mark_sent((start / GRANULE_BYTES) as u32);
                    prop_assert_eq!(heap.release((start / GRANULE_BYTES) as u32), Ok(()));
                }
            }
            for (start, _) in parts {
                heap.give_back((start / GRANULE_BYTES) as u32);
            }
            prop_assert_eq!(heap.taken(), 0);
            prop_assert_eq!(heap.take(BYTES), Some(0));
        }
    }
}
