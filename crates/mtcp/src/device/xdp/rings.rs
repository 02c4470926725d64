//! Implements the four rings between an AF_XDP socket and the kernel: single producer, single
//! consumer, in shared memory (Documentation/networking/af_xdp.rst).
//!
//! Both counters of a ring only increase. Each side publishes its counter with release and loads
//! the other's with acquire, so that it sees complete entries. A counter of the kernel is limited
//! to the capacity of the ring before it is used.

use super::memory::Mapping;
use std::sync::atomic::{AtomicU32, Ordering};

/// The common part of both kinds of rings: the offsets in the memory.
#[derive(Debug)]
struct Ring<T> {
    memory: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    count: u32,
    entry: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// # Panics
    /// If the offsets are outside of the memory, or `count` is no power of two; the kernel returns
    /// neither.
    fn new(memory: Mapping, offsets: &libc::xdp_ring_offset, count: u32) -> Ring<T> {
        let place = |offset: u64, bytes: usize, align: usize| {
            let offset = usize::try_from(offset).expect("an offset in memory");
            let end = offset.checked_add(bytes).expect("an end in memory");
            assert!(end <= memory.bytes() && offset % align == 0, "the ring lies in its memory");
            offset
        };
        assert!(count.is_power_of_two(), "a ring's size is a power of two");
        let word = size_of::<AtomicU32>();
        let bytes = size_of::<T>() * count as usize;
        let (producer, consumer) =
            (place(offsets.producer, word, word), place(offsets.consumer, word, word));
        let flags = place(offsets.flags, word, word);
        let entries = place(offsets.desc, bytes, align_of::<T>());
        Ring { memory, producer, consumer, flags, entries, count, entry: std::marker::PhantomData }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `new` has checked that the offset is within the memory and aligned; the kernel
        // accesses the word atomically as well.
        unsafe { &*self.memory.start().add(offset).as_ptr().cast::<AtomicU32>() }
    }

    fn entry(&self, index: u32) -> *mut T {
        let slot = (index & (self.count - 1)) as usize;
        // SAFETY: `new` has checked that `count` entries are within the memory.
        unsafe { self.memory.start().as_ptr().add(self.entries).cast::<T>().add(slot) }
    }
}

/// A ring that we fill: buffers for received frames, or frames to send.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// The counter of written entries, and the published one.
    next: u32,
    published: u32,
    /// The kernel's counter when it was last loaded.
    consumed: u32,
}

impl<T: Copy> Producer<T> {
    /// Creates a ring at its beginning.
    pub(super) fn new(memory: Mapping, offsets: &libc::xdp_ring_offset, count: u32) -> Self {
        let ring: Ring<T> = Ring::new(memory, offsets, count);
        let next = ring.word(ring.producer).load(Ordering::Relaxed);
        let consumed = ring.word(ring.consumer).load(Ordering::Acquire);
        Producer { ring, next, published: next, consumed }
    }

    /// Writes an entry; false if the ring is full.
    pub(super) fn push(&mut self, value: T) -> bool {
        if self.next.wrapping_sub(self.consumed) >= self.ring.count {
            self.consumed = self.ring.word(self.ring.consumer).load(Ordering::Acquire);
            if self.next.wrapping_sub(self.consumed) >= self.ring.count {
                return false;
            }
        }
        // SAFETY: the entry is between the kernel's counter and ours. The kernel has read the old
        // entry, and reads the new one only after it is published.
        unsafe { self.ring.entry(self.next).write(value) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Publishes the written entries to the kernel.
    pub(super) fn publish(&mut self) {
        if self.published != self.next {
            self.ring.word(self.ring.producer).store(self.next, Ordering::Release);
            self.published = self.next;
        }
    }

    /// Published entries that the kernel has not taken.
    pub(super) fn pending(&mut self) -> u32 {
        self.consumed = self.ring.word(self.ring.consumer).load(Ordering::Acquire);
        self.published.wrapping_sub(self.consumed).min(self.ring.count)
    }

    /// Whether the kernel no longer polls the ring and needs a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        let flags = self.ring.word(self.ring.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring that the kernel fills: received frames, or buffers that were sent.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// The counter of entries that were taken, and the released one.
    next: u32,
    released: u32,
    /// The kernel's counter when it was last loaded.
    produced: u32,
}

impl<T: Copy> Consumer<T> {
    /// Creates a ring at its beginning.
    pub(super) fn new(memory: Mapping, offsets: &libc::xdp_ring_offset, count: u32) -> Self {
        let ring: Ring<T> = Ring::new(memory, offsets, count);
        let next = ring.word(ring.consumer).load(Ordering::Relaxed);
        Consumer { ring, next, released: next, produced: next }
    }

    /// The next entry, if there is one.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.produced == self.next && self.is_empty() {
            return None;
        }
        // SAFETY: the entry is between our counter and the kernel's, which was loaded with acquire.
        // It is complete, and the kernel does not overwrite it before it is released.
        let value = unsafe { self.ring.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(value)
    }

    /// Returns the taken entries to the kernel.
    pub(super) fn release(&mut self) {
        if self.released != self.next {
            self.ring.word(self.ring.consumer).store(self.next, Ordering::Release);
            self.released = self.next;
        }
    }

    /// Whether the ring has no entry now.
    pub(super) fn is_empty(&mut self) -> bool {
        if self.produced == self.next {
            let produced = self.ring.word(self.ring.producer).load(Ordering::Acquire);
            let fresh = produced.wrapping_sub(self.next).min(self.ring.count);
            self.produced = self.next.wrapping_add(fresh);
        }
        self.produced == self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const OFFSETS: libc::xdp_ring_offset =
        libc::xdp_ring_offset { producer: 0, consumer: 64, flags: 128, desc: 192 };
    const COUNT: u32 = 8;

    /// Memory of a ring whose counters are about to wrap.
    fn memory() -> Mapping {
        let memory = Mapping::anonymous(4096).expect("memory");
        for offset in [OFFSETS.producer, OFFSETS.consumer] {
            // SAFETY: the offset is within the memory and aligned.
            unsafe {
                memory.start().add(offset as usize).as_ptr().cast::<u32>().write(u32::MAX - 2);
            }
        }
        memory
    }

    /// Maps the same pages at two addresses, as the kernel and the process see them.
    fn shared() -> (Mapping, Mapping) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(4096).expect("a size");
        let file = file.into();
        let map = || Mapping::ring(&file, 4096, 0).expect("memory");
        (map(), map())
    }

    #[test]
    fn a_full_ring_refuses_and_counts_wrap_around() {
        let mut fill: Producer<u64> = Producer::new(memory(), &OFFSETS, COUNT);
        for value in 0..u64::from(COUNT) {
            assert!(fill.push(value));
        }
        assert!(!fill.push(8));
        assert_eq!(fill.pending(), 0, "nothing is published yet");
        fill.publish();
        assert_eq!(fill.pending(), COUNT);
        assert!(!fill.needs_wakeup());
        // The kernel takes three entries.
        let consumer = fill.ring.consumer;
        fill.ring.word(consumer).store((u32::MAX - 2).wrapping_add(3), Ordering::Release);
        assert_eq!(fill.pending(), 5);
        assert!(fill.push(8) && fill.push(9) && fill.push(10) && !fill.push(11));
    }

    #[test]
    fn a_count_beyond_the_ring_is_clamped() {
        let mut ring: Consumer<u64> = Consumer::new(memory(), &OFFSETS, COUNT);
        assert_eq!(ring.pop(), None);
        let producer = ring.ring.producer;
        ring.ring.word(producer).store(1 << 30, Ordering::Release);
        for _ in 0..COUNT {
            assert!(ring.pop().is_some());
        }
        ring.release();
        let consumer = ring.ring.consumer;
        let released = ring.ring.word(consumer).load(Ordering::Relaxed);
        assert_eq!(released, (u32::MAX - 2).wrapping_add(COUNT));
    }

    #[test]
    fn entries_pass_between_threads_in_order() {
        const ENTRIES: u64 = 100_000;
        let (ours, theirs) = shared();
        let mut from: Consumer<u64> = Consumer::new(theirs, &OFFSETS, COUNT);
        let mut to: Producer<u64> = Producer::new(ours, &OFFSETS, COUNT);
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                while next < ENTRIES {
                    if to.push(next) {
                        next += 1;
                    } else {
                        thread::yield_now();
                    }
                    to.publish();
                }
            });
            let mut expected = 0;
            while expected < ENTRIES {
                match from.pop() {
                    Some(value) => {
                        assert_eq!(value, expected);
                        expected += 1;
                    }
                    None => thread::yield_now(),
                }
                from.release();
            }
        });
    }
}
