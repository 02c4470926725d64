//! Limits the open connections of a listener.

use crate::shutdown::ShutdownRequested;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Counts open connections.
pub(super) struct Connections {
    open: Rc<Open>,
    most: usize,
}

#[derive(Default)]
struct Open {
    count: Cell<usize>,
    /// Wakes the task that accepts.
    waiter: RefCell<Option<Waker>>,
}

/// Counts as one connection until it is dropped.
pub(super) struct Place(Rc<Open>);

impl Connections {
    pub(super) fn new(most: usize) -> Connections {
        Connections { open: Rc::default(), most: most.max(1) }
    }

    /// Waits until there may be one more connection; `None` if the shutdown is requested before.
    pub(super) async fn enter(&self, shutdown: &mut ShutdownRequested) -> Option<Place> {
        poll_fn(|context| {
            let count = self.open.count.get();
            if count < self.most {
                self.open.count.set(count + 1);
                return Poll::Ready(Some(Place(Rc::clone(&self.open))));
            }
            *self.open.waiter.borrow_mut() = Some(context.waker().clone());
            Pin::new(&mut *shutdown).poll(context).map(|()| None)
        })
        .await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        if let Some(waiter) = self.0.waiter.take() {
            waiter.wake();
        }
    }
}
