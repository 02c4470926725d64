//! A core's part of the graceful shutdown: who waits for its request, and for the last task to end.

use slotmap::SlotMap;
use std::cell::{Cell, RefCell};
use std::task::Waker;

slotmap::new_key_type! {
    /// Identifies one that waits for the shutdown.
    pub(crate) struct WaiterKey;
}

/// See the module.
#[derive(Default)]
pub(crate) struct Stop {
    requested: Cell<bool>,
    waiters: RefCell<SlotMap<WaiterKey, Waker>>,
    when_idle: RefCell<Vec<Box<dyn FnOnce()>>>,
}

impl Stop {
    /// Wakes all that wait for the shutdown.
    pub(crate) fn request(&self) {
        self.requested.set(true);
        let waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        waiters.into_iter().for_each(|(_, waker)| waker.wake());
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.requested.get()
    }

    /// Calls the closure as soon as the core has no task.
    pub(crate) fn when_idle(&self, call: impl FnOnce() + 'static) {
        self.when_idle.borrow_mut().push(Box::new(call));
    }

    pub(crate) fn check_idle(&self, task_count: impl FnOnce() -> usize) {
        if !self.when_idle.borrow().is_empty() && task_count() == 0 {
            let calls = std::mem::take(&mut *self.when_idle.borrow_mut());
            calls.into_iter().for_each(|call| call());
        }
    }

    /// Keeps the waker of one that waits: in its former place, or in a new one, which it returns.
    pub(crate) fn wait(&self, former: Option<WaiterKey>, mut waker: Waker) -> WaiterKey {
        let mut waiters = self.waiters.borrow_mut();
        if let Some(key) = former
            && let Some(kept) = waiters.get_mut(key)
        {
            std::mem::swap(kept, &mut waker);
            drop(waiters);
            // `waker`, the former one, is dropped while nothing is borrowed.
            return key;
        }
        waiters.insert(waker)
    }

    /// Forgets one that waits.
    pub(crate) fn forget(&self, key: WaiterKey) {
        let removed = self.waiters.borrow_mut().remove(key);
        drop(removed);
    }
}
