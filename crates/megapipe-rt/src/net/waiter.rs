//! The waker of one task that waits.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

/// At most one waker. Foreign code runs only while it is not borrowed.
#[derive(Default)]
pub(super) struct Waiter {
    /// The waker of the task that waited last. It stays here when the task is woken, so that the
    /// next wait of the same task copies nothing.
    waker: RefCell<Option<Waker>>,
    waits: Cell<bool>,
}

impl Waiter {
    /// Keeps the waker of the calling task in place of the former one.
    pub(super) fn wait(&self, context: &Context<'_>) {
        self.waits.set(true);
        let waker = context.waker();
        if self.waker.borrow().as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            return;
        }
        let former = self.waker.replace(Some(waker.clone()));
        drop(former);
    }

    /// Wakes the task, once. Returns whether one waited.
    pub(super) fn wake(&self) -> bool {
        if !self.waits.replace(false) {
            return false;
        }
        let waker = self.waker.take();
        if let Some(waker) = waker {
            waker.wake_by_ref();
            let mut kept = self.waker.borrow_mut();
            if kept.is_none() {
                *kept = Some(waker);
            }
        }
        true
    }
}
