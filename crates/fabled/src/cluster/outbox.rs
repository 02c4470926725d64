//! Events for the daemon's loop: a bounded queue, and a descriptor that is readable while there is
//! something in it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::cluster_link::ClusterEvent;

/// More than one turn of the daemon's loop can bring, unless it has stopped.
const EVENTS_MAX: usize = 16 * 1024;

pub(super) struct Outbox {
    events: Mutex<VecDeque<ClusterEvent>>,
    ready: OwnedFd,
}

impl Outbox {
    pub(super) fn new() -> io::Result<Outbox> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Outbox { events: Mutex::default(), ready })
    }

    /// Files an event. If the daemon's loop has stood still for so long that there is no room, it
    /// is dropped, and with it the connection that it may carry.
    pub(super) fn push(&self, event: ClusterEvent) {
        let mut events = self.lock();
        if events.len() >= EVENTS_MAX {
            tracing::warn!("the daemon does not take its events; dropped: {event:?}");
            return;
        }
        events.push_back(event);
        // It fails only when it has been signalled 2^64 times already.
        let _ = rustix::io::write(&self.ready, &1_u64.to_ne_bytes());
    }

    pub(super) fn take(&self) -> Vec<ClusterEvent> {
        let mut events = self.lock();
        // It fails when nothing was signalled.
        let _ = rustix::io::read(&self.ready, &mut [0_u8; 8]);
        events.drain(..).collect()
    }

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
