//! The reading end of a ring.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::layout::{Header, Ring, Sleeper, UNIT_BYTES, take_sleeper};
use crate::error::{TransportError, TransportResult};
use crate::transport::slot::Owner;
use crate::transport::{ReadSlot, SLOTS_MAX};

pub(super) struct Consumer {
    ring: Ring,
    owner: Owner,
    writer_sleeps: bool,
    /// Where the next message will be.
    position: u64,
    /// Up to where all is returned.
    returned: u64,
    /// Up to where the writer knows it.
    published: u64,
    /// Messages in the application's hands, by the position behind them, and whether they have
    /// been returned out of turn.
    held: VecDeque<(u64, bool)>,
    copies: Option<Copies>,
}

impl Consumer {
    /// # Safety
    /// The ring's memory must stay mapped as long as the consumer or a slot of it is used.
    pub(super) unsafe fn new(
        ring: Ring,
        owner: Owner,
        writer_sleeps: bool,
        copies: bool,
    ) -> Consumer {
        Consumer {
            ring,
            owner,
            writer_sleeps,
            position: 0,
            returned: 0,
            published: 0,
            held: VecDeque::new(),
            copies: copies.then(Copies::default),
        }
    }

    pub(super) fn holds_slots(&self) -> bool {
        !self.held.is_empty() || self.copies.as_ref().is_some_and(|copies| copies.held > 0)
    }

    pub(super) fn has_more(&self) -> bool {
        self.ring.header(self.position).load(Ordering::Acquire) != 0
    }

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
            let payload = self.ring.payload(self.position);
            let end = self.position + header.extent_bytes as u64;
            if end - self.published > self.ring.ring_bytes as u64 {
                // Without this a ring full of unused places would keep this loop busy for good.
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
                // SAFETY: the copy is the slot's until `release` brings its number back.
                let slot = unsafe { ReadSlot::new(copy, header.bytes, record, self.owner, token) };
                return Ok(Some(slot));
            }
            self.held.push_back((end, false));
            // SAFETY: the payload lies within the ring, this process only reads it, and the
            // writer gets the place back with `release` only.
            let slot = unsafe { ReadSlot::new(payload, header.bytes, record, self.owner, end) };
            return Ok(Some(slot));
        }
    }

    pub(super) fn release(&mut self, slot: ReadSlot) -> Option<Sleeper> {
        if slot.owner != self.owner {
            return None;
        }
        match &mut self.copies {
            Some(copies) => copies.give_back(slot.token),
            None => self.give_back(slot.token),
        }
        if self.returned - self.published >= (self.ring.ring_bytes / 8) as u64 {
            return self.publish();
        }
        None
    }

    fn give_back(&mut self, end: u64) {
        if let Some(entry) = self.held.iter_mut().find(|entry| entry.0 == end) {
            entry.1 = true;
        }
        while let Some(&(end, true)) = self.held.front() {
            self.returned = end;
            self.held.pop_front();
        }
    }

    /// Tells the writer what has been returned, and says whom to wake.
    pub(super) fn publish(&mut self) -> Option<Sleeper> {
        if self.published == self.returned {
            return None;
        }
        self.published = self.returned;
        self.ring.consumed().store(self.returned, Ordering::Release);
        if !self.writer_sleeps {
            return None;
        }
        fence(Ordering::SeqCst);
        take_sleeper(self.ring.room_sleeper())
    }

    pub(super) fn announce(&self, sleeper: Sleeper) -> *const AtomicU32 {
        self.ring.data_sleeper().store(sleeper.word(), Ordering::SeqCst);
        self.ring.data_sleeper()
    }

    pub(super) fn awake(&self) {
        self.ring.data_sleeper().store(0, Ordering::Relaxed);
    }
}

/// Private memory for messages that are looked at in copies. Blocks are used again, the last one
/// returned first, while it is warm.
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
        // SAFETY: the block is large enough and nobody else's; the caller vouches for the source.
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
            // Somebody may still look at a slot.
            self.blocks.drain(..).for_each(std::mem::forget);
        }
    }
}
