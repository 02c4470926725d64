//! The writing end of a ring.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::layout::{Header, Ring, Sleeper, UNIT_BYTES, take_sleeper};
use crate::error::{TransportError, TransportResult};
use crate::transport::slot::Owner;
use crate::transport::{Record, SLOTS_MAX, SlotPlace, WriteSlot};

pub(super) struct Producer {
    ring: Ring,
    owner: Owner,
    /// Whether the reader may sleep, and so must be looked after at each publication.
    reader_sleeps: bool,
    /// Where the next slot begins. Its header is zero already.
    reserved: u64,
    /// What the reader had returned when we last looked.
    consumed: u64,
    held: usize,
    /// The extent that the last `acquire` without success asked for: what a waiting writer needs.
    wanted_bytes: usize,
    /// Publish after this many commits.
    batch: u32,
    committed: u32,
    /// The first message of the batch, whose header is kept back: those behind it are complete,
    /// but out of the reader's sight.
    kept_back: Option<(u64, u64)>,
}

impl Producer {
    /// # Safety
    /// The ring's memory must stay mapped as long as the producer or a slot of it is used.
    pub(super) unsafe fn new(ring: Ring, owner: Owner, reader_sleeps: bool) -> Producer {
        Producer {
            ring,
            owner,
            reader_sleeps,
            reserved: 0,
            consumed: 0,
            held: 0,
            wanted_bytes: UNIT_BYTES,
            batch: 1,
            committed: 0,
            kept_back: None,
        }
    }

    pub(super) fn message_bytes_max(&self) -> usize {
        self.ring.extent_bytes_max() - UNIT_BYTES
    }

    pub(super) fn holds_slots(&self) -> bool {
        self.held > 0
    }

    pub(super) fn set_batch(&mut self, commits: u32) {
        self.batch = commits.max(1);
    }

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
        // Before the slot can be published: what lies behind it is no message yet.
        self.ring.header(self.reserved).store(0, Ordering::Relaxed);
        // SAFETY: the place lies between what the reader has returned and the next slot, so it is
        // only this slot's; the ring's memory stays mapped, as `new` demands.
        let slot =
            unsafe { WriteSlot::new(self.ring.payload(position), bytes, self.owner, position) };
        Ok(Some(slot))
    }

    /// Room for the message and for the zero behind it.
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

    /// Whether the message that had no room fits now, or the next look will find that the peer is
    /// corrupt. To ask for more, the longest message for example, would hang: the peer may keep
    /// messages for good, and it tells of each place that it returns only once.
    pub(super) fn has_room(&self) -> bool {
        self.look_at_consumed()
            .map_or(true, |consumed| self.has_room_for(self.wanted_bytes, consumed))
    }

    /// Publishes a slot, as unused if there is no record, and tells whom to wake.
    pub(super) fn commit(
        &mut self,
        slot: WriteSlot,
        bytes: usize,
        record: Option<Record>,
    ) -> TransportResult<Option<Sleeper>> {
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
        if self.committed >= self.batch {
            return Ok(self.flush());
        }
        Ok(None)
    }

    /// Publishes a slot as unused that is still held. When it comes back this happens again, and
    /// changes nothing, because nothing is acquired in between.
    pub(super) fn pass_over(&self, place: SlotPlace) {
        let extent_bytes = (place.bytes + UNIT_BYTES).next_multiple_of(UNIT_BYTES);
        self.publish(place.token, Header { bytes: 0, extent_bytes, record: None }.to_word());
    }

    fn publish(&self, position: u64, header: u64) {
        let word: &AtomicU64 = self.ring.header(position);
        word.store(header, Ordering::Release);
    }

    pub(super) fn flush(&mut self) -> Option<Sleeper> {
        if self.committed == 0 {
            return None;
        }
        self.committed = 0;
        if let Some((position, header)) = self.kept_back.take() {
            self.publish(position, header);
        }
        if !self.reader_sleeps {
            return None;
        }
        // Between the publication and the look at the sleeper: see `prepare_wait`.
        fence(Ordering::SeqCst);
        take_sleeper(self.ring.data_sleeper())
    }

    pub(super) fn announce(&self, sleeper: Sleeper) -> *const AtomicU32 {
        self.ring.room_sleeper().store(sleeper.word(), Ordering::SeqCst);
        self.ring.room_sleeper()
    }

    pub(super) fn awake(&self) {
        self.ring.room_sleeper().store(0, Ordering::Relaxed);
    }
}
