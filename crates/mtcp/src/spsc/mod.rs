//! Implements the connection between two threads: a bounded ring with one producer and one
//! consumer, and a doorbell, which wakes the other thread only while it sleeps.
//!
//! As in mTCP (lock-free data structures), the application's thread and the stack's share queues
//! without locks. Each end keeps its own copy of the other's index, and loads the real one only if
//! the copy says that the ring is full (or empty). A batch therefore transfers one cache line
//! between the CPUs, not one for each message.

mod doorbell;
mod ring;

pub(crate) use self::doorbell::{Doorbell, EventDescriptor, Signal, Sleep};
pub(crate) use self::ring::{Consumer, Producer, ring};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
