//! The wakers of tasks that wait for the same event.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::{Context, Waker};

/// Wakers of any number of tasks. Foreign code runs only while they are not borrowed.
#[derive(Default)]
pub(crate) struct Waiters {
    wakers: RefCell<VecDeque<(u64, Waker)>>,
    last: Cell<u64>,
}

/// Identifies one that waits, from its first wait on.
#[derive(Debug, Default)]
pub(crate) struct Place(Option<u64>);

impl Waiters {
    /// Keeps the waker of the calling task, in its former place if it still has it.
    pub(crate) fn wait(&self, place: &mut Place, context: &Context<'_>) {
        let mut waker = context.waker().clone();
        let mut wakers = self.wakers.borrow_mut();
        if let Some((_, kept)) = wakers.iter_mut().find(|(own, _)| place.0 == Some(*own)) {
            std::mem::swap(kept, &mut waker);
            // `waker`, the former one, is dropped after this.
            return drop(wakers);
        }
        let number = self.last.get() + 1;
        self.last.set(number);
        place.0 = Some(number);
        wakers.push_back((number, waker));
    }

    /// Forgets one that waits.
    pub(crate) fn forget(&self, place: &mut Place) {
        let Some(number) = place.0.take() else { return };
        let mut wakers = self.wakers.borrow_mut();
        let index = wakers.iter().position(|(own, _)| *own == number);
        let removed = index.and_then(|index| wakers.remove(index));
        drop(wakers);
        drop(removed);
    }

    /// Wakes all that wait. Returns whether there were any.
    pub(crate) fn wake_all(&self) -> bool {
        let count = self.wakers.borrow().len();
        for _ in 0..count {
            let first = self.wakers.borrow_mut().pop_front();
            if let Some((_, waker)) = first {
                waker.wake();
            }
        }
        count > 0
    }
}

/// A [`Place`] that is forgotten when it is dropped: the place of a future.
pub(super) struct Waiting<'a> {
    waiters: &'a Waiters,
    pub(super) place: Place,
}

impl Waiting<'_> {
    pub(super) fn new(waiters: &Waiters) -> Waiting<'_> {
        Waiting { waiters, place: Place::default() }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiters.forget(&mut self.place);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_waiter_is_woken_once_and_a_dropped_one_not_at_all() {
        let waiters = Waiters::default();
        let counts = [(); 3].map(|()| Arc::new(Count::default()));
        let wakers = counts.each_ref().map(|count| Waker::from(Arc::clone(count)));
        let mut places = [(); 3].map(|()| Waiting::new(&waiters));
        for _ in 0..2 {
            for (waiting, waker) in places.iter_mut().zip(&wakers) {
                waiters.wait(&mut waiting.place, &Context::from_waker(waker));
            }
        }
        let [first, second, third] = places;
        drop(second);
        assert!(waiters.wake_all());
        assert!(!waiters.wake_all());
        let woken = counts.each_ref().map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!(woken, [1, 0, 1]);
        // Nothing keeps a waker that has been used or forgotten.
        drop(wakers);
        assert!(counts.iter().all(|count| Arc::strong_count(count) == 1));
        drop((first, third));
    }
}
