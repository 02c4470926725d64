//! Implements the ring. The values in its slots stay in place: the producer writes into a slot and
//! the consumer reads from it. A slot with memory of its own (for a frame) therefore keeps that
//! memory for reuse.

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(loom)]
use loom::sync::Arc;
#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicUsize, Ordering};

/// loom's cell gives access through closures, and so does this one.
#[cfg(not(loom))]
#[derive(Debug)]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    fn with_mut<R>(&self, borrow: impl FnOnce(*mut T) -> R) -> R {
        borrow(self.0.get())
    }
}

/// An index on its own pair of cache lines, because the CPU fetches neighbouring lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Index(AtomicUsize);

/// The first index, which is not 0 in tests.
const START: usize = sys::START as usize;

/// Indices only increase, until they wrap; the slot is the index modulo the size, a power of two.
#[derive(Debug)]
struct Shared<T> {
    /// Slots that the producer has published.
    tail: Index,
    /// Slots that the consumer has released.
    head: Index,
    slots: Box<[UnsafeCell<T>]>,
}

// SAFETY: only one end accesses a slot: the producer those from its published index up to `head +
// size`, the consumer those below the published index. Release and Acquire order the transfer of
// the indices.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: the slots are values of T, which may be sent.
unsafe impl<T: Send> Send for Shared<T> {}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// The next slot to write; the slots from the published tail up to here are written but not
    /// visible.
    next: usize,
    published: usize,
    /// `head` when it was last loaded.
    head: usize,
    /// The slots below it have been reclaimed.
    reclaimed: usize,
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    next: usize,
    released: usize,
    /// `tail` when it was last loaded.
    tail: usize,
}

/// Creates a ring of at least `slots` slots.
pub(crate) fn ring<T: Default>(slots: usize) -> (Producer<T>, Consumer<T>) {
    let slots = slots.max(2).next_power_of_two();
    let shared = Arc::new(Shared {
        tail: Index(AtomicUsize::new(START)),
        head: Index(AtomicUsize::new(START)),
        slots: (0..slots).map(|_| UnsafeCell::new(T::default())).collect(),
    });
    let producer = Producer {
        shared: Arc::clone(&shared),
        next: START,
        published: START,
        head: START,
        reclaimed: START,
    };
    (producer, Consumer { shared, next: START, released: START, tail: START })
}

impl<T> Shared<T> {
    fn slot(&self, index: usize) -> &UnsafeCell<T> {
        &self.slots[index & (self.slots.len() - 1)]
    }
}

impl<T> Producer<T> {
    /// Fills the next slot, which still has the content that the consumer left; false if the ring
    /// is full. The consumer sees it after [`Producer::publish`].
    pub(crate) fn write(&mut self, fill: impl FnOnce(&mut T)) -> bool {
        let size = self.shared.slots.len();
        if self.next.wrapping_sub(self.head) == size {
            self.head = self.shared.head.0.load(Ordering::Acquire);
            if self.next.wrapping_sub(self.head) == size {
                return false;
            }
        }
        // SAFETY: the slot is not published, and the consumer has released it, so only this end
        // uses it.
        self.shared.slot(self.next).with_mut(|slot| fill(unsafe { &mut *slot }));
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Publishes the written slots to the consumer; true if there were new ones.
    pub(crate) fn publish(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        self.published = self.next;
        self.shared.tail.0.store(self.next, Ordering::Release);
        true
    }

    /// Passes each slot that the consumer has released, and that was not written again, to `take`,
    /// which may remove its memory; each slot once.
    pub(crate) fn reclaim(&mut self, mut take: impl FnMut(&mut T)) {
        if self.reclaimed == self.published {
            return;
        }
        self.head = self.shared.head.0.load(Ordering::Acquire);
        let size = self.shared.slots.len();
        if self.next.wrapping_sub(self.reclaimed) > size {
            self.reclaimed = self.next.wrapping_sub(size);
        }
        while self.reclaimed != self.head {
            // SAFETY: the consumer has released the slot, and this end has not written it again:
            // the index is not more than `size` below `next`.
            self.shared.slot(self.reclaimed).with_mut(|slot| take(unsafe { &mut *slot }));
            self.reclaimed = self.reclaimed.wrapping_add(1);
        }
    }

    /// Whether the consumer has released all published slots.
    pub(crate) fn is_drained(&self) -> bool {
        self.shared.head.0.load(Ordering::Relaxed) == self.published
    }
}

impl<T> Consumer<T> {
    /// Passes the next slot to `take`; `None` if the ring is empty. The producer can reuse it after
    /// [`Consumer::release`].
    pub(crate) fn read<R>(&mut self, take: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: the slot is published and not released, so only this end uses it.
        let taken = self.shared.slot(self.next).with_mut(|slot| take(unsafe { &mut *slot }));
        self.next = self.next.wrapping_add(1);
        Some(taken)
    }

    /// Whether there is nothing to read.
    pub(crate) fn is_empty(&mut self) -> bool {
        if self.next == self.tail {
            self.tail = self.shared.tail.0.load(Ordering::Acquire);
        }
        self.next == self.tail
    }

    /// Releases all slots that were read; true if there were any.
    pub(crate) fn release(&mut self) -> bool {
        if self.released == self.next {
            return false;
        }
        self.released = self.next;
        self.shared.head.0.store(self.next, Ordering::Release);
        true
    }
}
