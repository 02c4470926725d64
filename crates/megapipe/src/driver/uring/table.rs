//! Tracks the free entries of the ring's file table for lightweight sockets.
//!
//! The kernel accepts a connection before it looks for a free entry, and closes the connection if
//! there is none. So there is never more than one accept for each free entry. Multishot accepts may
//! take all connections of a queue at once, so they are used only while there is room for that.

/// Number of connections that a multishot accept may take before the driver can stop it: the usual
/// backlog of an accept queue with nginx and Linux, or a quarter of a larger table.
const LEAST_MARGIN: u32 = 512;
const MOST_MARGIN: u32 = 4096;

/// The entries of the table.
#[derive(Debug)]
pub(super) struct Table {
    size: u32,
    used: u32,
    /// Entries that accepts in flight may still fill.
    reserved: u32,
}

/// How connections may be accepted into the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Multishot accepts are possible.
    Ample,
    /// Connections are accepted one by one.
    Scarce,
    /// No connection can be accepted now.
    None,
}

impl Table {
    pub(super) fn new(size: u32) -> Table {
        Table { size, used: 0, reserved: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.used >= self.size
    }

    /// Counts an entry that was filled.
    pub(super) fn fill(&mut self) {
        self.used += 1;
    }

    /// Counts an entry that was freed.
    pub(super) fn free(&mut self) {
        self.used = self.used.saturating_sub(1);
    }

    /// Returns how connections may be accepted now.
    pub(super) fn room(&self) -> Room {
        let free = self.size.saturating_sub(self.used + self.reserved);
        let margin = (self.size / 4).clamp(LEAST_MARGIN, MOST_MARGIN);
        match free {
            0 => Room::None,
            free if free <= margin => Room::Scarce,
            _ => Room::Ample,
        }
    }

    /// Reserves an entry for an accept of one connection.
    pub(super) fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// Ends the reservation, because that accept has ended.
    pub(super) fn release(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_table_is_filled_one_by_one() {
        let mut table = Table::new(3);
        assert_eq!(table.room(), Room::Scarce);
        table.reserve();
        table.reserve();
        table.fill();
        assert_eq!(table.room(), Room::None, "both accepts may bring one");
        table.release();
        assert_eq!(table.room(), Room::Scarce);
        table.release();
        table.fill();
        table.fill();
        assert!(table.is_full() && table.room() == Room::None);
        table.free();
        assert!(!table.is_full() && table.room() == Room::Scarce);
    }

    #[test]
    fn a_large_one_keeps_room_for_a_queue() {
        let mut table = Table::new(1024);
        (0..511).for_each(|_| table.fill());
        assert_eq!(table.room(), Room::Ample);
        table.fill();
        assert_eq!(table.room(), Room::Scarce);
        let mut huge = Table::new(1 << 20);
        (0..(1 << 20) - 4097).for_each(|_| huge.fill());
        assert_eq!(huge.room(), Room::Ample);
        huge.fill();
        assert_eq!(huge.room(), Room::Scarce);
    }
}
