//! Defines commands to the cores.

use std::sync::atomic::{AtomicU8, Ordering};

/// A command to all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// Serve.
    #[default]
    Serve,
    /// Accept no new connections, and end with the last one.
    Drain,
    /// End at once.
    Stop,
}

/// The present command; the thread that changes it wakes the cores.
#[derive(Debug, Default)]
pub(crate) struct Orders(AtomicU8);

impl Orders {
    pub(crate) fn give(&self, order: Order) {
        self.0.store(order as u8, Ordering::Release);
    }

    pub(crate) fn present(&self) -> Order {
        match self.0.load(Ordering::Acquire) {
            0 => Order::Serve,
            1 => Order::Drain,
            _ => Order::Stop,
        }
    }
}
