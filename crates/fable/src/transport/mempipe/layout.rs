//! Layout of the shared memory of two rings.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::Duration;

#[cfg(all(test, loom))]
pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(all(test, loom)))]
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::thread::futex;

use crate::error::{TransportError, TransportResult};
use crate::memory::{Mapping, PAGE_BYTES, sealed_bytes};
use crate::transport::spin::Placement;
use crate::transport::{RING_BYTES_MAX, Record, TOO_LARGE};

/// Smallest ring.
const RING_BYTES_MIN: usize = PAGE_BYTES;

/// The alignment of messages, in bytes.
pub(super) const UNIT_BYTES: usize = 8;

/// A header has 24 bits for the extent in units: less than a quarter of the largest ring.
const UNITS_MAX: usize = 0xff_ffff;

/// Words that different ends write are this far apart, because processors fetch cache lines in
/// pairs.
const APART_BYTES: usize = 128;

/// The words of one direction, in units of `APART_BYTES`, from the start of its block.
const CONSUMED: usize = 0;
const DATA_SLEEPER: usize = 1;
const ROOM_SLEEPER: usize = 2;
const WORDS_PER_DIRECTION: usize = 3;
/// The offset of the words that say on which CPU each end is, behind the blocks of both directions.
const CPUS: usize = 2 * WORDS_PER_DIRECTION;

/// The value of a word that announces a sleep on the word itself, as a futex.
pub(super) const ON_FUTEX: u32 = 1;

/// The value of a word that announces a sleep until the peer's socket is notified.
pub(super) const ON_BELL: u32 = 2;

/// A message's header in one word: the low half has the payload's length, the rest the message's
/// extent in units and its record. A slot that was returned unused has no record. A word of zero is
/// no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) bytes: usize,
    /// The bytes of header, payload, and the unused rest of the slot.
    pub(super) extent_bytes: usize,
    pub(super) record: Option<Record>,
}

/// The record number of a slot that was returned unused.
const UNUSED: u64 = 0xff;

impl Header {
    /// Encodes the header.
    pub(super) fn to_word(self) -> u64 {
        let record = self.record.map_or(UNUSED, |record| record as u64);
        self.bytes as u64 | ((self.extent_bytes / UNIT_BYTES) as u64) << 32 | record << 56
    }

    /// Parses a header that the peer wrote, and checks it against the longest possible extent.
    pub(super) fn from_word(word: u64, extent_bytes_max: usize) -> Result<Header, &'static str> {
        let bytes = (word & 0xffff_ffff) as usize;
        let extent_bytes = (word >> 32) as usize & UNITS_MAX;
        let extent_bytes = extent_bytes * UNIT_BYTES;
        let record = match word >> 56 {
            UNUSED => None,
            number => Some(Record::from_wire(number as u8).ok_or("an unknown record")?),
        };
        if extent_bytes > extent_bytes_max {
            return Err("a message is longer than the ring");
        }
        if bytes + UNIT_BYTES > extent_bytes {
            return Err("a message is longer than its place");
        }
        Ok(Header { bytes, extent_bytes, record })
    }
}

/// The addresses of one direction's parts in this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    /// How many bytes of messages the reader has returned since the beginning.
    consumed: NonNull<AtomicU64>,
    data_sleeper: NonNull<AtomicU32>,
    room_sleeper: NonNull<AtomicU32>,
    data: NonNull<u8>,
    /// loom's atomics are larger than a word, so they lie beside the data.
    #[cfg(all(test, loom))]
    headers: NonNull<AtomicU64>,
    pub(super) ring_bytes: usize,
}

// SAFETY: the memory behind the pointers is shared with another process, so it is accessed only as
// atomics or by the rules of the ring.
unsafe impl Send for Ring {}

impl Ring {
    /// Returns the word with the number of bytes that the reader has returned.
    pub(super) fn consumed(&self) -> &AtomicU64 {
        // SAFETY: `direction` demands that its caller keeps the mapping as long as the ring is
        // used.
        unsafe { self.consumed.as_ref() }
    }

    /// Returns the word in which the reader announces that it sleeps.
    pub(super) fn data_sleeper(&self) -> &AtomicU32 {
        // SAFETY: the caller of `direction` keeps the mapping; the word is an aligned atomic in it.
        unsafe { self.data_sleeper.as_ref() }
    }

    /// Returns the word in which the writer announces that it sleeps.
    pub(super) fn room_sleeper(&self) -> &AtomicU32 {
        // SAFETY: the caller of `direction` keeps the mapping; the word is an aligned atomic in it.
        unsafe { self.room_sleeper.as_ref() }
    }

    /// Returns the header of the message at this position.
    #[cfg(not(all(test, loom)))]
    pub(super) fn header(&self, position: u64) -> &AtomicU64 {
        // SAFETY: the caller of `direction` keeps the mapping. Positions are multiples of the unit,
        // so the word is aligned and lies within the first of the two mappings.
        unsafe { self.data.add(self.offset(position)).cast::<AtomicU64>().as_ref() }
    }

    /// Returns the address of the payload after the header at this position. It is contiguous up to
    /// a ring's length.
    pub(super) fn payload(&self, position: u64) -> NonNull<u8> {
        // SAFETY: the header lies within the first mapping, and the second one follows it.
        unsafe { self.data.add(self.offset(position) + UNIT_BYTES) }
    }

    /// Makes a ring over the memory of a model.
    #[cfg(all(test, loom))]
    pub(super) fn of_model(
        consumed: NonNull<AtomicU64>,
        [data_sleeper, room_sleeper]: [NonNull<AtomicU32>; 2],
        data: NonNull<u8>,
        headers: NonNull<AtomicU64>,
        ring_bytes: usize,
    ) -> Ring {
        Ring { consumed, data_sleeper, room_sleeper, data, headers, ring_bytes }
    }

    /// Returns the header of the message at this position.
    #[cfg(all(test, loom))]
    pub(super) fn header(&self, position: u64) -> &AtomicU64 {
        // SAFETY: the model has a header for each unit, and outlives the ring.
        unsafe { self.headers.add(self.offset(position) / UNIT_BYTES).as_ref() }
    }

    fn offset(&self, position: u64) -> usize {
        position as usize & (self.ring_bytes - 1)
    }

    /// Returns the longest extent of one message: a quarter of the ring, so that reader and writer
    /// can work at the same time, and no more than a header can say.
    pub(super) fn extent_bytes_max(&self) -> usize {
        (self.ring_bytes / 4).min(UNITS_MAX * UNIT_BYTES)
    }
}

/// Announces in this word that an end is about to sleep. Returns the word that a futex waits on.
/// The fence orders the announcement before the check that follows: either the peer sees the
/// announcement, or this end sees what the peer did before.
pub(super) fn announce(word: &AtomicU32, sleep: u32) -> *const std::sync::atomic::AtomicU32 {
    word.store(sleep, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    std::ptr::from_ref(word).cast()
}

/// Takes the announcement of a sleep from this word and wakes a sleeper on the futex. Returns
/// whether the caller has to notify one on its socket.
#[inline]
pub(super) fn take_sleeper(word: &AtomicU32) -> bool {
    // A load first: the exchange would take the cache line from the other end each time.
    if word.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let sleep = word.swap(0, Ordering::SeqCst);
    #[cfg(not(all(test, loom)))]
    if sleep == ON_FUTEX {
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
    sleep == ON_BELL
}

/// Sleeps while the word is `expected`, for `left` at most. May return early.
pub(super) fn futex_wait(
    word: &std::sync::atomic::AtomicU32,
    expected: u32,
    left: Option<Duration>,
) {
    // A time beyond the kernel's is no limit.
    let limit = left.and_then(|left| left.try_into().ok());
    let _ = futex::wait(word, futex::Flags::empty(), expected, limit.as_ref());
}

/// The sizes of the memory: a page of words, then the two rings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    ring_bytes: usize,
}

impl Layout {
    /// Computes the layout of rings of this size.
    pub(super) fn for_ring(ring_bytes: usize) -> TransportResult<Layout> {
        if ring_bytes > RING_BYTES_MAX {
            return Err(TransportError::BadOffer("a ring has at most 1 GiB"));
        }
        Ok(Layout { ring_bytes: ring_bytes.max(RING_BYTES_MIN).next_power_of_two() })
    }

    /// Computes the layout from the size of the peer's memory, whose rings may have so many bytes.
    pub(super) fn for_file(memory: BorrowedFd<'_>, bytes_max: usize) -> TransportResult<Layout> {
        let ring_bytes = sealed_bytes(memory)?.saturating_sub(PAGE_BYTES) / 2;
        let bounds = RING_BYTES_MIN..=RING_BYTES_MAX;
        if !ring_bytes.is_power_of_two() || !bounds.contains(&ring_bytes) {
            return Err(TransportError::BadOffer("the memory has no size of two rings"));
        }
        if ring_bytes > bytes_max {
            return Err(TOO_LARGE);
        }
        Ok(Layout { ring_bytes })
    }

    /// Returns the size of the file.
    pub(super) fn file_bytes(self) -> usize {
        PAGE_BYTES + 2 * self.ring_bytes
    }

    /// Maps the file.
    pub(super) fn map(self, memory: BorrowedFd<'_>) -> TransportResult<Mapping> {
        Mapping::with_rings(memory, PAGE_BYTES, 2, self.ring_bytes)
    }

    /// Direction 0 is from the end that made the memory to the other.
    ///
    /// # Safety
    /// The mapping must stay as long as the ring is used.
    pub(super) unsafe fn direction(self, mapping: &Mapping, number: usize) -> Ring {
        let word = |index: usize| {
            mapping.at((number * WORDS_PER_DIRECTION + index) * APART_BYTES, APART_BYTES)
        };
        Ring {
            consumed: word(CONSUMED).cast(),
            data_sleeper: word(DATA_SLEEPER).cast(),
            room_sleeper: word(ROOM_SLEEPER).cast(),
            data: mapping.at(PAGE_BYTES + 2 * number * self.ring_bytes, 2 * self.ring_bytes),
            #[cfg(all(test, loom))]
            headers: NonNull::dangling(),
            ring_bytes: self.ring_bytes,
        }
    }

    /// # Safety
    /// The mapping must stay as long as the placement is used.
    pub(super) unsafe fn placement(self, mapping: &Mapping, side: usize) -> Placement {
        let word = |side: usize| mapping.at((CPUS + side) * APART_BYTES, APART_BYTES).cast();
        // SAFETY: the caller keeps the mapping.
        unsafe { Placement::new(word(side), word(1 - side)) }
    }
}
