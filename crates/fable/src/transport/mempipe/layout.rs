//! What lies where in the shared memory of two rings.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{TransportError, TransportResult};
use crate::memory::{Mapping, PAGE_BYTES, sealed_bytes};
use crate::transport::Record;
use crate::transport::spin::Placement;

/// Smallest and largest ring.
const RING_BYTES_MIN: usize = PAGE_BYTES;
const RING_BYTES_MAX: usize = 1 << 30;

/// Messages start at multiples of this.
pub(super) const UNIT_BYTES: usize = 8;

/// Words that different ends write are this far apart, because processors fetch cache lines in
/// pairs.
const APART_BYTES: usize = 128;

/// The words of one direction, in units of `APART_BYTES`, from the start of its block.
const CONSUMED: usize = 0;
const DATA_SLEEPER: usize = 1;
const ROOM_SLEEPER: usize = 2;
const WORDS_PER_DIRECTION: usize = 3;
/// Behind the blocks of both directions: on which CPU each end is.
const CPUS: usize = 2 * WORDS_PER_DIRECTION;

/// How an end that waits wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleeper {
    Futex,
    Bell,
}

impl Sleeper {
    pub(super) fn word(self) -> u32 {
        match self {
            Sleeper::Futex => 1,
            Sleeper::Bell => 2,
        }
    }
}

/// A message's header, and how it is written in one word: the low half has the payload's length,
/// the rest the message's extent in units and what it is. A slot that was given back unused has no
/// record. A word of zero is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) bytes: usize,
    /// Header, payload, and what remained unused of the slot.
    pub(super) extent_bytes: usize,
    pub(super) record: Option<Record>,
}

/// The record number of a slot that was given back unused.
const UNUSED: u64 = 0xff;

impl Header {
    pub(super) fn to_word(self) -> u64 {
        let record = self.record.map_or(UNUSED, |record| record as u64);
        self.bytes as u64 | ((self.extent_bytes / UNIT_BYTES) as u64) << 32 | record << 56
    }

    /// Checks what the peer wrote against what there can be at most in the ring.
    pub(super) fn from_word(word: u64, extent_bytes_max: usize) -> Result<Header, &'static str> {
        let bytes = (word & 0xffff_ffff) as usize;
        let extent_bytes = (word >> 32 & 0xff_ffff) as usize * UNIT_BYTES;
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

/// Where the parts of one direction are in this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    /// How many bytes of messages the reader has returned since the beginning.
    consumed: NonNull<AtomicU64>,
    data_sleeper: NonNull<AtomicU32>,
    room_sleeper: NonNull<AtomicU32>,
    data: NonNull<u8>,
    pub(super) ring_bytes: usize,
}

// SAFETY: all that is behind the pointers is shared with another process anyway, and only touched
// as atomics or by the rules of the ring.
unsafe impl Send for Ring {}

impl Ring {
    pub(super) fn consumed(&self) -> &AtomicU64 {
        // SAFETY: whoever made the ring keeps its mapping.
        unsafe { self.consumed.as_ref() }
    }

    /// How the reader sleeps.
    pub(super) fn data_sleeper(&self) -> &AtomicU32 {
        // SAFETY: as in `consumed`.
        unsafe { self.data_sleeper.as_ref() }
    }

    /// How the writer sleeps.
    pub(super) fn room_sleeper(&self) -> &AtomicU32 {
        // SAFETY: as in `consumed`.
        unsafe { self.room_sleeper.as_ref() }
    }

    pub(super) fn header(&self, position: u64) -> &AtomicU64 {
        // SAFETY: as in `consumed`; positions are multiples of the unit, so the word is aligned
        // and within the first of the two mappings.
        unsafe { self.data.add(self.offset(position)).cast::<AtomicU64>().as_ref() }
    }

    /// The payload behind the header at this position, contiguous up to a ring's length.
    pub(super) fn payload(&self, position: u64) -> NonNull<u8> {
        // SAFETY: as in `header`; the second mapping follows.
        unsafe { self.data.add(self.offset(position) + UNIT_BYTES) }
    }

    fn offset(&self, position: u64) -> usize {
        position as usize & (self.ring_bytes - 1)
    }

    /// The longest extent of one message: a quarter of the ring, so that reader and writer can both
    /// be at work.
    pub(super) fn extent_bytes_max(&self) -> usize {
        self.ring_bytes / 4
    }
}

/// Wakes whoever has announced a sleep in this word. A bell is rung by the caller.
pub(super) fn take_sleeper(word: &AtomicU32) -> Option<Sleeper> {
    // A look first: the exchange would take the cache line from the sleeper each time.
    if word.load(Ordering::Relaxed) == 0 {
        return None;
    }
    match word.swap(0, Ordering::SeqCst) {
        1 => {
            // SAFETY: the word is mapped; waking touches no memory of ours.
            unsafe {
                libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1);
            }
            Some(Sleeper::Futex)
        }
        2 => Some(Sleeper::Bell),
        _ => None,
    }
}

/// Sleeps while the word is `expected`, for `left` at most. May return early.
pub(super) fn futex_wait(word: &AtomicU32, expected: u32, left: Option<Duration>) {
    let timeout = left.map(crate::clock::timespec);
    let pointer = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is mapped and the time outlives the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, pointer);
    }
}

/// The sizes of the memory: a page of words, then the two rings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    ring_bytes: usize,
}

impl Layout {
    pub(super) fn for_ring(ring_bytes: usize) -> TransportResult<Layout> {
        if ring_bytes > RING_BYTES_MAX {
            return Err(TransportError::BadOffer("a ring has at most 1 GiB"));
        }
        Ok(Layout { ring_bytes: ring_bytes.max(RING_BYTES_MIN).next_power_of_two() })
    }

    /// What the size of the peer's memory says.
    pub(super) fn for_file(memory: BorrowedFd<'_>) -> TransportResult<Layout> {
        let ring_bytes = sealed_bytes(memory)?.saturating_sub(PAGE_BYTES) / 2;
        let bounds = RING_BYTES_MIN..=RING_BYTES_MAX;
        if !ring_bytes.is_power_of_two() || !bounds.contains(&ring_bytes) {
            return Err(TransportError::BadOffer("the memory has no size of two rings"));
        }
        Ok(Layout { ring_bytes })
    }

    pub(super) fn file_bytes(self) -> usize {
        PAGE_BYTES + 2 * self.ring_bytes
    }

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
