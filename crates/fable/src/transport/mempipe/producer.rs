//! The writing end of a ring.

use std::sync::atomic::AtomicU32;

use super::layout::{AtomicU64, Header, Ordering, Ring, UNIT_BYTES, announce, fence, take_sleeper};
use crate::error::{TransportError, TransportResult};
use crate::transport::slot::Owner;
use crate::transport::{Record, SLOTS_MAX, SlotPlace, WriteSlot};

/// The writing end: its position, its batch, and what it knows of the reader.
pub(super) struct Producer {
    ring: Ring,
    owner: Owner,
    /// The position of the next slot. Its header is already zero.
    reserved: u64,
    /// The position up to which the reader had returned memory at the last check.
    consumed: u64,
    held: usize,
    /// The extent that the last `acquire` without success requested: a waiting writer needs it.
    wanted_bytes: usize,
    /// The number of commits after which the batch is published.
    batch: u32,
    committed: u32,
    /// The first message of the batch, whose header is held back. The messages behind it are
    /// complete, but the reader cannot reach them.
    kept_back: Option<(u64, u64)>,
}

impl Producer {
    /// # Safety
    /// The ring's memory must stay mapped as long as the producer or a slot of it is used.
    pub(super) unsafe fn new(ring: Ring, owner: Owner) -> Producer {
        Producer {
            ring,
            owner,
            reserved: 0,
            consumed: 0,
            held: 0,
            wanted_bytes: UNIT_BYTES,
            batch: 1,
            committed: 0,
            kept_back: None,
        }
    }

    /// Returns the length of the longest message.
    pub(super) fn message_bytes_max(&self) -> usize {
        self.ring.extent_bytes_max() - UNIT_BYTES
    }

    /// Returns whether slots are in use.
    pub(super) fn holds_slots(&self) -> bool {
        self.held > 0
    }

    /// Sets after how many commits a batch is published.
    pub(super) fn set_batch(&mut self, commits: u32) {
        self.batch = commits.max(1);
    }

    /// Allocates a slot, if there is room.
    pub(super) fn acquire(&mut self, bytes: usize) -> TransportResult<Option<WriteSlot>> {
        let bytes_max = self.message_bytes_max();
        if bytes > bytes_max {
            return Err(TransportError::TooLong { bytes, bytes_max, transport: "mempipe" });
        }
        if self.held >= SLOTS_MAX {
            return Err(TransportError::TooManySlots { held: self.held });
        }
        let extent = (bytes + UNIT_BYTES).next_multiple_of(UNIT_BYTES);
        if !self.has_room_for(extent, self.consumed) {
            self.consumed = self.look_at_consumed()?;
            if !self.has_room_for(extent, self.consumed) {
                self.wanted_bytes = extent;
                return Ok(None);
            }
        }
        let position = self.reserved;
        self.reserved += extent as u64;
        self.held += 1;
        // Before the slot can be published: the word behind it must not look like a message.
        self.ring.header(self.reserved).store(0, Ordering::Relaxed);
        // SAFETY: the memory lies between what the reader has returned and the next slot, so only
        // this slot uses it; the ring's memory stays mapped, as `new` demands.
        let slot =
            unsafe { WriteSlot::new(self.ring.payload(position), bytes, self.owner, position) };
        Ok(Some(slot))
    }

    /// Returns whether there is room for the message and for the zero word behind it.
    fn has_room_for(&self, extent: usize, consumed: u64) -> bool {
        self.reserved - consumed + (extent + UNIT_BYTES) as u64 <= self.ring.ring_bytes as u64
    }

    fn look_at_consumed(&self) -> TransportResult<u64> {
        let consumed = self.ring.consumed().load(Ordering::Acquire);
        if consumed < self.consumed || consumed > self.reserved {
            let what = "it returned what was not written";
            return Err(TransportError::Corrupt { transport: "mempipe", what });
        }
        Ok(consumed)
    }

    /// Returns whether the message that had no room fits now, or the next attempt will find that
    /// the peer is corrupt. It must not ask for more room, such as that of the longest message: the
    /// peer may hold messages for ever and notifies of each returned message only once, so the
    /// writer would wait without end.
    pub(super) fn has_room(&self) -> bool {
        self.look_at_consumed()
            .map_or(true, |consumed| self.has_room_for(self.wanted_bytes, consumed))
    }

    /// Publishes a slot, as unused if there is no record. Returns whether to notify the reader.
    #[inline]
    pub(super) fn commit(
        &mut self,
        slot: WriteSlot,
        bytes: usize,
        record: Option<Record>,
    ) -> TransportResult<bool> {
        if slot.owner != self.owner {
            return Err(TransportError::Foreign);
        }
        let extent_bytes = (slot.len() + UNIT_BYTES).next_multiple_of(UNIT_BYTES);
        let header = Header { bytes: bytes.min(slot.len()), extent_bytes, record }.to_word();
        let position = slot.token;
        self.held -= 1;
        self.committed += 1;
        if self.batch > 1 && self.kept_back.is_none() {
            self.kept_back = Some((position, header));
        } else {
            self.publish(position, header);
        }
        Ok(self.committed >= self.batch && self.flush())
    }

    /// Publishes a slot that is still held as unused. When the slot is returned it is published
    /// again, which changes nothing, because nothing is acquired in between.
    pub(super) fn pass_over(&self, place: SlotPlace) {
        let extent_bytes = (place.bytes + UNIT_BYTES).next_multiple_of(UNIT_BYTES);
        self.publish(place.token, Header { bytes: 0, extent_bytes, record: None }.to_word());
    }

    fn publish(&self, position: u64, header: u64) {
        let word: &AtomicU64 = self.ring.header(position);
        word.store(header, Ordering::Release);
    }

    /// Publishes the batch. Returns whether to notify the reader.
    #[inline]
    pub(super) fn flush(&mut self) -> bool {
        if self.committed == 0 {
            return false;
        }
        self.committed = 0;
        if let Some((position, header)) = self.kept_back.take() {
            self.publish(position, header);
        }
        // Orders the publication before the check for a sleeper, see `prepare_wait`.
        fence(Ordering::SeqCst);
        take_sleeper(self.ring.data_sleeper())
    }

    /// Announces that the writer is about to sleep; returns the word that a futex waits on. Check
    /// for room again before sleeping.
    pub(super) fn announce(&self, sleep: u32) -> *const AtomicU32 {
        announce(self.ring.room_sleeper(), sleep)
    }

    /// Withdraws the announcement.
    pub(super) fn awake(&self) {
        self.ring.room_sleeper().store(0, Ordering::Relaxed);
    }
}
