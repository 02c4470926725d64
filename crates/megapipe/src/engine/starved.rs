//! Queues receives that found no free buffer of the channel, and restarts them when buffers are
//! free.
//!
//! A receive that finds no free buffer ends, whether or not there is anything to receive. It waits
//! here until buffers are free. Then as many receives are started as there are buffers, in the
//! order in which they began to wait: more would starve again, each at the cost of an operation. A
//! receive that finds nothing to receive takes no buffer, and must not delay those behind it. So as
//! long as none of the started receives has taken a buffer, twice as many follow, and the channel
//! does not sleep in between.

use super::Engine;
use crate::slab::Key;
use std::collections::VecDeque;

/// Waiting receives, by the class of their buffers.
#[derive(Default)]
pub(super) struct Starved {
    small: Queue,
    large: Queue,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Key>,
    /// The number of receives in the last start, and the number of leases of the class at that
    /// time.
    started: usize,
    leases: u64,
}

impl Starved {
    fn queue(&mut self, large: bool) -> &mut Queue {
        if large { &mut self.large } else { &mut self.small }
    }

    /// Removes the receives for which `keeps` is false.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&Key) -> bool) {
        self.small.waiting.retain(&mut keeps);
        self.large.waiting.retain(&mut keeps);
    }
}

impl Queue {
    /// Returns the number of receives to start, if the class has `buffers` free buffers and has
    /// given `leases` leases.
    fn quota(&self, buffers: usize, leases: u64) -> usize {
        let in_vain = self.started > 0 && self.leases == leases;
        let quota = if in_vain { buffers.max(self.started * 2) } else { buffers };
        if buffers == 0 { 0 } else { quota.min(self.waiting.len()) }
    }
}

impl Engine {
    /// Makes a receive wait for a buffer.
    pub(super) fn starve(&mut self, id: Key) {
        if let Some(request) = self.requests.get_mut(id) {
            request.recalled = false;
        }
        self.clear_in_flight(id);
        let large = self.takes_large(id);
        self.starved.queue(large).waiting.push_back(id);
        self.counters.buffer_waits += u64::from(!self.has_buffers(id));
    }

    /// Starts as many receives as there are buffers. Returns whether there may be buffers for more,
    /// after the driver has tried these.
    pub(super) fn restart_starved(&mut self) -> bool {
        let [small, large] = [false, true].map(|large| self.restart_class(large));
        small || large
    }

    fn restart_class(&mut self, large: bool) -> bool {
        if self.starved.queue(large).waiting.is_empty() {
            return false;
        }
        let leases = self.pools.class(large).lease_count();
        let buffers = self.available_buffers(large);
        let quota = self.starved.queue(large).quota(buffers, leases);
        let mut started = 0;
        for _ in 0..quota {
            let Some(id) = self.starved.queue(large).waiting.pop_front() else { break };
            if self.has_buffers(id) {
                self.start_or_stall(id);
                started += 1;
            } else {
                self.starved.queue(large).waiting.push_back(id);
            }
        }
        let queue = self.starved.queue(large);
        (queue.started, queue.leases) = (started, leases);
        let goes_on = started > 0 && !queue.waiting.is_empty();
        goes_on && self.available_buffers(large) > 0
    }

    /// Returns the number of buffers of a class that receives could take now.
    fn available_buffers(&self, large: bool) -> usize {
        let class = if large { self.config.large_buffers } else { self.config.small_buffers };
        let unleased = usize::from(class.count) - self.pools.class(large).leased_count();
        self.driver.offered(large).map_or(unleased, |offered| offered.min(unleased))
    }

    /// Whether a receive takes large buffers.
    fn takes_large(&self, id: Key) -> bool {
        let Some(request) = self.requests.get(id) else { return false };
        let Some(member) = self.members.get(request.handle) else { return false };
        member.large || member.kind.keeps_bounds()
    }

    /// Whether not all buffers of the class that the request needs are leased.
    fn has_buffers(&self, id: Key) -> bool {
        let Some(request) = self.requests.get(id) else { return true };
        if request.fetches {
            return self.pools.large.free_count() > 0;
        }
        let large = self.takes_large(id);
        let class = if large { self.config.large_buffers } else { self.config.small_buffers };
        self.pools.class(large).leased_count() < usize::from(class.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(waiting: u32, started: usize, leases: u64) -> Queue {
        let keys = (0..waiting).filter_map(|index| Key::new(index, 1));
        Queue { waiting: keys.collect(), started, leases }
    }

    #[test]
    fn as_many_are_started_as_there_are_buffers() {
        assert_eq!(queue(1000, 0, 0).quota(7, 0), 7);
        assert_eq!(queue(3, 0, 0).quota(7, 0), 3);
        assert_eq!(queue(1000, 500, 0).quota(0, 0), 0);
        // The started receives have taken a buffer each.
        assert_eq!(queue(1000, 500, 0).quota(7, 1), 7);
    }

    #[test]
    fn twice_as_many_follow_those_that_took_no_buffer() {
        assert_eq!(queue(1000, 7, 3).quota(7, 3), 14);
        assert_eq!(queue(1000, 7, 3).quota(70, 3), 70);
        assert_eq!(queue(1000, 700, 3).quota(7, 3), 1000);
    }
}
