//! Queues of the requests in flight on each connection, oldest first. A stream is answered in
//! order, so an answer belongs to the oldest request.
//!
//! Only the sending thread adds and only the receiving thread takes. An entry is written before the
//! index that publishes it (release), and read after it (acquire). No thread waits.
//!
//! A request's number on its connection is its index, which continues over reconnections. Both
//! threads know it, so the request's stamp is made from it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Most requests in flight on one connection.
const DEEPEST: usize = 4_096;
const SHALLOWEST: usize = 16;
/// Most entries over all connections: half a gigabyte of memory.
const MOST_ENTRIES: usize = 1 << 25;

/// A request that was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) intended_ns: u64,
    pub(crate) actual_ns: u64,
}

/// Storage of a request. The times are relaxed atomics; the indices order their accesses.
#[derive(Default)]
struct Entry {
    intended_ns: AtomicU64,
    actual_ns: AtomicU64,
}

impl Entry {
    fn set(&self, sent: Sent) {
        self.intended_ns.store(sent.intended_ns, Ordering::Relaxed);
        self.actual_ns.store(sent.actual_ns, Ordering::Relaxed);
    }

    fn get(&self) -> Sent {
        let intended_ns = self.intended_ns.load(Ordering::Relaxed);
        Sent { intended_ns, actual_ns: self.actual_ns.load(Ordering::Relaxed) }
    }
}

/// The indices of one connection's queue; they wrap around.
#[repr(align(64))]
struct Lane {
    /// Written by the sender.
    added: AtomicU32,
    /// Set by the receiver when the connection has ended, cleared when it is open again.
    ended: AtomicBool,
    /// Written by the receiver.
    taken: AtomicU32,
}

/// The queues of all connections of one generator.
pub(crate) struct InFlight {
    lanes: Vec<Lane>,
    entries: Vec<Entry>,
    depth: usize,
}

impl InFlight {
    /// Allocates for `expected` requests in flight on each connection, within bounds.
    pub(crate) fn new(connections: usize, expected: usize) -> InFlight {
        let bound = (MOST_ENTRIES / connections.max(1)).clamp(SHALLOWEST, DEEPEST);
        let depth = expected.next_power_of_two().clamp(SHALLOWEST, DEEPEST);
        let depth =
            depth.min(if bound.is_power_of_two() { bound } else { bound.next_power_of_two() / 2 });
        let lane = || Lane {
            added: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            taken: AtomicU32::new(0),
        };
        let lanes = (0..connections).map(|_| lane()).collect();
        let entries = (0..connections * depth).map(|_| Entry::default()).collect();
        InFlight { lanes, entries, depth }
    }

    fn entry(&self, connection: usize, index: u32) -> &Entry {
        &self.entries[connection * self.depth + (index as usize & (self.depth - 1))]
    }

    /// Adds a request and returns its number; `None` if the queue is full or the connection has
    /// ended. Only one thread may ever call this, or requests are lost.
    pub(crate) fn add(&self, connection: usize, sent: Sent) -> Option<u32> {
        let lane = &self.lanes[connection];
        let added = lane.added.load(Ordering::Relaxed);
        let under_way = added.wrapping_sub(lane.taken.load(Ordering::Acquire));
        if under_way as usize >= self.depth || lane.ended.load(Ordering::Relaxed) {
            return None;
        }
        // The entry is not published yet, so the receiver does not access it.
        self.entry(connection, added).set(sent);
        lane.added.store(added.wrapping_add(1), Ordering::Release);
        Some(added)
    }

    /// Takes the oldest request. Only one thread may ever call this, or requests are taken twice.
    pub(crate) fn take(&self, connection: usize) -> Option<Sent> {
        let lane = &self.lanes[connection];
        let number = self.oldest(connection)?;
        // The entry is published, so the sender does not access it.
        let sent = self.entry(connection, number).get();
        lane.taken.store(number.wrapping_add(1), Ordering::Release);
        Some(sent)
    }

    /// Returns the number of the request that `take` would take.
    pub(crate) fn oldest(&self, connection: usize) -> Option<u32> {
        let lane = &self.lanes[connection];
        let taken = lane.taken.load(Ordering::Relaxed);
        (taken != lane.added.load(Ordering::Acquire)).then_some(taken)
    }

    /// Marks a connection as ended. The sender may be about to add a request, which `take` then
    /// finds; it adds none after the fence of its next iteration.
    pub(crate) fn end(&self, connection: usize) {
        self.lanes[connection].ended.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Marks an ended connection as open again.
    pub(crate) fn reopen(&self, connection: usize) {
        self.lanes[connection].ended.store(false, Ordering::Release);
    }

    pub(crate) fn has_ended(&self, connection: usize) -> bool {
        self.lanes[connection].ended.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    fn sent(number: u64) -> Sent {
        Sent { intended_ns: number, actual_ns: number + 1 }
    }

    #[test]
    fn queues_are_bounded() {
        let queues = InFlight::new(2, 0);
        let added = (0..100).take_while(|number| queues.add(1, sent(*number)).is_some());
        let added = added.count();
        assert_eq!(added, SHALLOWEST);
        assert_eq!(InFlight::new(1, 1 << 30).depth, DEEPEST);
        assert_eq!(InFlight::new(3_000_000, 100).depth, SHALLOWEST);
        assert_eq!(InFlight::new(100_000, 4_096).depth, 256);
    }

    #[test]
    fn an_ended_connection_takes_no_more_until_it_stands_again() {
        let queues = InFlight::new(1, 0);
        assert_eq!(queues.add(0, sent(1)), Some(0));
        queues.end(0);
        assert!(queues.add(0, sent(2)).is_none() && queues.has_ended(0));
        assert_eq!(queues.oldest(0), Some(0));
        assert_eq!(queues.take(0), Some(sent(1)));
        assert_eq!((queues.oldest(0), queues.take(0)), (None, None));
        queues.reopen(0);
        assert_eq!(queues.add(0, sent(3)), Some(1), "numbers go on");
    }

    #[test]
    fn two_threads_see_every_request_once_and_in_order() {
        let queues = InFlight::new(1, 0);
        let count = 20_000;
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..count {
                    while queues.add(0, sent(number)).is_none() {
                        thread::yield_now();
                    }
                }
            });
            for number in 0..count {
                let taken = loop {
                    match queues.take(0) {
                        Some(taken) => break taken,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(taken, sent(number));
            }
        });
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_queue(calls in prop::collection::vec(any::<bool>(), 0..200)) {
            let queues = InFlight::new(3, 0);
            let mut model = VecDeque::new();
            for (number, add) in calls.into_iter().enumerate() {
                if add {
                    let fits = model.len() < SHALLOWEST;
                    prop_assert_eq!(queues.add(2, sent(number as u64)).is_some(), fits);
                    if fits {
                        model.push_back(sent(number as u64));
                    }
                } else {
                    prop_assert_eq!(queues.take(2), model.pop_front());
                }
            }
        }
    }
}
