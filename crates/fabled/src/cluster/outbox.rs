//! Queue of events for the daemon's loop: bounded, with a descriptor that is readable while the
//! queue is not empty.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::cluster_link::ClusterEvent;

/// More events than one turn of the daemon's loop can produce, unless the loop has stopped.
const EVENTS_MAX: usize = 16 * 1024;

/// The queue, and the eventfd that shows that it is not empty.
pub(super) struct Outbox {
    events: Mutex<VecDeque<ClusterEvent>>,
    ready: OwnedFd,
}

impl Outbox {
    /// Creates an empty queue.
    pub(super) fn new() -> io::Result<Outbox> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Outbox { events: Mutex::default(), ready })
    }

    /// Adds an event. If the queue is full, because the daemon's loop has stopped for long, the
    /// event is dropped, with the connection that it may contain.
    pub(super) fn push(&self, event: ClusterEvent) {
        let mut events = self.lock();
        if events.len() >= EVENTS_MAX {
            tracing::warn!("the daemon does not take its events; dropped: {event:?}");
            return;
        }
        events.push_back(event);
        // Fails only if the counter is full; the descriptor is then readable.
        let _ = rustix::io::write(&self.ready, &1_u64.to_ne_bytes());
    }

    /// Takes all events.
    pub(super) fn take(&self) -> Vec<ClusterEvent> {
        let mut events = self.lock();
        // Fails if the counter is zero.
        let _ = rustix::io::read(&self.ready, &mut [0_u8; 8]);
        events.drain(..).collect()
    }

    /// Returns the descriptor that is readable while there are events.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ClusterEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn readable(outbox: &Outbox) -> bool {
        let mut descriptors = [PollFd::new(&outbox.ready, PollFlags::IN)];
        poll(&mut descriptors, Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn the_descriptor_is_readable_while_there_are_events_and_they_are_bounded() {
        let outbox = Outbox::new().unwrap();
        assert!(!readable(&outbox) && outbox.take().is_empty());
        for _ in 0..EVENTS_MAX + 3 {
            outbox.push(ClusterEvent::Up);
        }
        assert!(readable(&outbox));
        assert_eq!(outbox.take().len(), EVENTS_MAX);
        assert!(!readable(&outbox));
    }
}
