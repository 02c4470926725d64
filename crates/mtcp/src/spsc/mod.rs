//! What joins two threads: a bounded ring with one producer and one consumer, and a doorbell that
//! is rung only while somebody sleeps beside it.
//!
//! After mTCP, section 4.1: the application's thread and the stack's share queues, not locks. Each
//! end keeps its own copy of the other's index and looks at the real one only when the copy says
//! that the ring is full (or empty), so a batch costs one cache line's journey and not one for each
//! message.

mod doorbell;
mod ring;

pub(crate) use self::doorbell::{Doorbell, EventDescriptor, Signal, Sleep};
pub(crate) use self::ring::{Consumer, Producer, ring};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
