//! The ring. Its slots hold values that stay where they are: a producer writes into a slot and a
//! consumer reads in place, so that a slot with memory of its own (a frame) keeps it from round to
//! round.

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

/// loom's cell lends by closures; so does this one.
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

/// An index on a pair of cache lines of its own: neighbouring lines are fetched in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Index(AtomicUsize);

/// Indices count on for ever; the slot is the index modulo the size, a power of two.
#[derive(Debug)]
struct Shared<T> {
    /// Slots that the producer has made visible.
    tail: Index,
    /// Slots that the consumer has given back.
    head: Index,
    slots: Box<[UnsafeCell<T>]>,
}

// SAFETY: a slot is touched by one end only: by the producer from `head + size` up to what it has
// published, by the consumer below that. The indices are handed over by Release and Acquire.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: the slots are values of T, which may be sent.
unsafe impl<T: Send> Send for Shared<T> {}

/// The end that writes.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// The next slot to write; from the published tail up to here slots are written in secret.
    next: usize,
    published: usize,
    /// `head` as it was when last looked at.
    head: usize,
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    next: usize,
    released: usize,
    /// `tail` as it was when last looked at.
    tail: usize,
}

/// A ring of at least `slots` slots.
pub(crate) fn ring<T: Default>(slots: usize) -> (Producer<T>, Consumer<T>) {
    let slots = slots.max(2).next_power_of_two();
    let shared = Arc::new(Shared {
        tail: Index(AtomicUsize::new(0)),
        head: Index(AtomicUsize::new(0)),
        slots: (0..slots).map(|_| UnsafeCell::new(T::default())).collect(),
    });
    let producer = Producer { shared: Arc::clone(&shared), next: 0, published: 0, head: 0 };
    (producer, Consumer { shared, next: 0, released: 0, tail: 0 })
}

impl<T> Shared<T> {
    fn slot(&self, index: usize) -> &UnsafeCell<T> {
        &self.slots[index & (self.slots.len() - 1)]
    }
}

impl<T> Producer<T> {
    /// Fills the next slot, which still holds what the consumer left there; false if the ring is
    /// full. Seen by the consumer after [`Producer::publish`].
    pub(crate) fn write(&mut self, fill: impl FnOnce(&mut T)) -> bool {
        let size = self.shared.slots.len();
        if self.next.wrapping_sub(self.head) == size {
            self.head = self.shared.head.0.load(Ordering::Acquire);
            if self.next.wrapping_sub(self.head) == size {
                return false;
            }
        }
        // SAFETY: the slot is not published, and the consumer has given it back: it is ours.
        self.shared.slot(self.next).with_mut(|slot| fill(unsafe { &mut *slot }));
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Shows the consumer all that was written; true if that is anything new.
    pub(crate) fn publish(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        self.published = self.next;
        self.shared.tail.0.store(self.next, Ordering::Release);
        true
    }

    /// Whether the consumer has given back all that was published.
    pub(crate) fn is_drained(&self) -> bool {
        self.shared.head.0.load(Ordering::Relaxed) == self.published
    }
}

impl<T> Consumer<T> {
    /// Lends the next slot; `None` if the ring is empty. The producer has it back after
    /// [`Consumer::release`].
    pub(crate) fn read<R>(&mut self, take: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: the slot is published and not given back: it is ours.
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

    /// Gives back all slots that were read; true if there were any.
    pub(crate) fn release(&mut self) -> bool {
        if self.released == self.next {
            return false;
        }
        self.released = self.next;
        self.shared.head.0.store(self.next, Ordering::Release);
        true
    }
}
