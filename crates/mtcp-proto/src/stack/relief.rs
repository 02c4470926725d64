//! Takes memory back from connections that hold it without use, while others lack it.
//!
//! A call examines a few connections in the order of the table, so that its cost does not depend on
//! their number. What was received out of order is dropped, for the peer sends it again. Data to be
//! sent or read cannot be: the connection that holds most of it without progress is reset.

use super::Stack;
use super::table::Slot;
use crate::memory::{SHORT_BLOCK_BYTES, Shortage};
use crate::socket::State;
use crate::time::Instant;
use std::time::Duration;

/// Connections examined in one call.
const LOOKS: u32 = 64;

/// Least time between two calls that examine.
const APART: Duration = Duration::from_millis(1);

/// A connection whose buffers have not moved for this time holds them without use: if others get
/// short blocks only, and if they get none.
const IDLE: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(10)];

/// A connection that holds no more than this keeps it: a short block in each direction.
const RESERVED_BYTES: usize = 2 * SHORT_BLOCK_BYTES;

/// The state of the search.
#[derive(Debug)]
pub(super) struct Relief {
    /// The slot to examine next.
    next: u32,
    /// No call before this time examines.
    not_before: Instant,
}

impl Relief {
    pub(super) fn new(now: Instant) -> Relief {
        Relief { next: 0, not_before: now }
    }
}

impl Stack {
    /// Takes memory back if a connection was refused some since the last call.
    #[inline]
    pub(super) fn relieve(&mut self) {
        if let Some(shortage) = self.shared.pool.take_shortage()
            && self.relief.not_before <= self.shared.now
        {
            self.relief.not_before = self.shared.now + APART;
            self.take_back(shortage);
        }
    }

    #[cold]
    fn take_back(&mut self, shortage: Shortage) {
        let idle = IDLE[usize::from(shortage == Shortage::Short)];
        let mut victim = None;
        for _ in 0..LOOKS.min(self.table.slots_used()) {
            let index = self.relief.next;
            self.relief.next = (index + 1) % self.table.slots_used();
            let Some(Slot::Connection(entry)) = self.table.at_mut(index) else { continue };
            let connection = &mut entry.connection;
            connection.drop_out_of_order(&mut self.shared.pool);
            let held = connection.held_bytes();
            let is_idle = self.shared.now.since(connection.idle_since()) >= idle;
            let is_open = connection.state() != State::Closed;
            if is_open && is_idle && held > RESERVED_BYTES {
                victim = victim.max(Some((held, index)));
            }
        }
        if let Some((_, index)) = victim {
            self.shared.counters.reset_for_memory += 1;
            if let Some(entry) = self.table.connection_mut(index) {
                entry.connection.forfeit(&mut self.shared.context());
            }
            self.update_schedule(index);
        }
    }
}
