//! What the cores are told to do.

use std::sync::atomic::{AtomicU8, Ordering};

/// What a core does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// Serves.
    #[default]
    Serve,
    /// Takes no new connections, and ends with the last one.
    Drain,
    /// Ends at once.
    Stop,
}

/// The present order; whoever changes it wakes the cores.
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
