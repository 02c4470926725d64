//! The reading end of a ring.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use super::layout::{Header, Ordering, Ring, UNIT_BYTES, announce, fence, take_sleeper};
use crate::error::{TransportError, TransportResult};
use crate::transport::slot::Owner;
use crate::transport::{ReadSlot, SLOTS_MAX, TOO_LONG};

/// The reading end: its position, and the messages that the application holds.
pub(super) struct Consumer {
    ring: Ring,
    owner: Owner,
    /// The longest message that is accepted.
    bytes_max: usize,
    /// The position of the next message.
    position: u64,
    /// The position up to which all messages were returned.
    returned: u64,
    /// The position up to which the writer knows that.
    published: u64,
    /// The messages that the application holds: the position behind each, and whether it was
    /// returned before an older one.
    held: VecDeque<(u64, bool)>,
    copies: Option<Copies>,
}

impl Consumer {
    /// # Safety
    /// The ring's memory must stay mapped as long as the consumer or a slot of it is used.
    pub(super) unsafe fn new(ring: Ring, owner: Owner, copies: bool) -> Consumer {
        Consumer {
            ring,
            owner,
            bytes_max: usize::MAX,
            position: 0,
            returned: 0,
            published: 0,
            held: VecDeque::new(),
            copies: copies.then(Copies::default),
        }
    }

    /// Sets the longest message that is accepted.
    pub(super) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    pub(super) fn holds_slots(&self) -> bool {
        !self.held.is_empty() || self.copies.as_ref().is_some_and(|copies| copies.held > 0)
    }

    /// Returns whether a message has arrived.
    pub(super) fn has_more(&self) -> bool {
        self.ring.header(self.position).load(Ordering::Acquire) != 0
    }

    /// Returns the next message, if there is one.
    pub(super) fn acquire(&mut self) -> TransportResult<Option<ReadSlot>> {
        loop {
            let word = self.ring.header(self.position).load(Ordering::Acquire);
            if word == 0 {
                return Ok(None);
            }
            let held = self.copies.as_ref().map_or(self.held.len(), |copies| copies.held);
            if held >= SLOTS_MAX {
                return Err(TransportError::TooManySlots { held });
            }
            let header = Header::from_word(word, self.ring.extent_bytes_max())
                .map_err(|what| TransportError::Corrupt { transport: "mempipe", what })?;
            if header.bytes > self.bytes_max {
                let what = TOO_LONG;
                return Err(TransportError::Corrupt { transport: "mempipe", what });
            }
            let payload = self.ring.payload(self.position);
            let end = self.position + header.extent_bytes as u64;
            if end - self.published > self.ring.ring_bytes as u64 {
                // Without this check a ring full of unused slots would keep this loop busy for
                // ever.
                let what = "it wrote over what was not returned";
                return Err(TransportError::Corrupt { transport: "mempipe", what });
            }
            self.position = end;
            let Some(record) = header.record else {
                self.held.push_back((end, false));
                self.give_back(end);
                continue;
            };
            if let Some(copies) = &mut self.copies {
                // SAFETY: the header was checked: the payload lies within the ring.
                let (copy, token) = unsafe { copies.take(payload, header.bytes) };
                self.returned = end;
                // SAFETY: only this slot uses the copy until `release` returns its number.
                let slot = unsafe { ReadSlot::new(copy, header.bytes, record, self.owner, token) };
                return Ok(Some(slot));
            }
            self.held.push_back((end, false));
            // SAFETY: the payload lies within the ring, this process only reads it, and the writer
            // reuses the memory only after `release`.
            let slot = unsafe { ReadSlot::new(payload, header.bytes, record, self.owner, end) };
            return Ok(Some(slot));
        }
    }

    /// Takes back a message. Returns whether to notify the writer.
    pub(super) fn release(&mut self, slot: ReadSlot) -> bool {
        if slot.owner != self.owner {
            return false;
        }
        match &mut self.copies {
            Some(copies) => copies.give_back(slot.token),
            None => self.give_back(slot.token),
        }
        self.returned - self.published >= (self.ring.ring_bytes / 8) as u64 && self.publish()
    }

    fn give_back(&mut self, end: u64) {
        if let Ok(index) = self.held.binary_search_by_key(&end, |entry| entry.0) {
            self.held[index].1 = true;
        }
        while let Some(&(end, true)) = self.held.front() {
            self.returned = end;
            self.held.pop_front();
        }
    }

    /// Publishes the position up to which the memory is returned. Returns whether to notify the
    /// writer.
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.returned {
            return false;
        }
        self.published = self.returned;
        self.ring.consumed().store(self.returned, Ordering::Release);
        fence(Ordering::SeqCst);
        take_sleeper(self.ring.room_sleeper())
    }

    /// Announces that the reader is about to sleep; returns the word that a futex waits on. Check
    /// for messages again before sleeping.
    pub(super) fn announce(&self, sleep: u32) -> *const AtomicU32 {
        announce(self.ring.data_sleeper(), sleep)
    }

    /// Withdraws the announcement.
    pub(super) fn awake(&self) {
        self.ring.data_sleeper().store(0, Ordering::Relaxed);
    }
}

/// Private memory for copies of messages. Blocks are reused; the one that was returned last comes
/// first, because it is still in the cache.
#[derive(Default)]
struct Copies {
    blocks: Vec<Vec<u8>>,
    free: Vec<usize>,
    held: usize,
}

impl Copies {
    /// # Safety
    /// `bytes` bytes at `source` must be mapped. Another process may write to them meanwhile.
    unsafe fn take(&mut self, source: NonNull<u8>, bytes: usize) -> (NonNull<u8>, u64) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(Vec::new());
            self.blocks.len() - 1
        });
        self.held += 1;
        let block = &mut self.blocks[number];
        if block.capacity() < bytes {
            *block = Vec::with_capacity(bytes.next_power_of_two().max(UNIT_BYTES));
        }
        let copy = NonNull::new(block.as_mut_ptr()).unwrap_or(NonNull::dangling());
        // SAFETY: the block is large enough and used by no other slot; the caller guarantees that
        // the source is mapped.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), copy.as_ptr(), bytes) };
        (copy, number as u64)
    }

    fn give_back(&mut self, token: u64) {
        self.held -= 1;
        self.free.push(token as usize);
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        if self.held > 0 {
            // Slots may still point into the blocks.
            self.blocks.drain(..).for_each(std::mem::forget);
        }
    }
}
