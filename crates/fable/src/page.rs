//! A flow's page: counters that both ends and the daemon see without asking each other.
//!
//! One sealed page of shared memory. Each end writes its half, everybody reads both. Nothing
//! depends on it except what people and the policy see: a peer that lies here gains nothing but a
//! wrong line in `fable top`, and transports that suit it badly. A flow between hosts has a page on
//! each, where the half of the end that is elsewhere stays empty.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::TransportResult;
use crate::identity::Role;
use crate::memory::{Mapping, PAGE_BYTES, create_sealed};

/// Makes the memory of a new page.
///
/// # Errors
/// [`crate::TransportError::System`] if the kernel refuses.
pub fn create() -> TransportResult<OwnedFd> {
    create_sealed(c"fable-page", PAGE_BYTES)
}

/// The words of one end's half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[non_exhaustive]
pub enum Counter {
    /// Messages that this end has committed.
    MessagesSent,
    /// Their bytes.
    BytesSent,
    /// Messages that this end has acquired.
    MessagesReceived,
    /// Their bytes.
    BytesReceived,
    /// On which CPU it was last seen, plus one.
    Cpu,
    /// The thread that uses the flow, in its namespace of process ids.
    Thread,
    /// How often it has slept for want of a message or of room.
    Sleeps,
    /// From commit to acquisition of messages that this end received, smoothed, in nanoseconds;
    /// zero if unknown.
    LatencyNs,
    /// A message of this end's that the other is to time: its number plus one.
    SampleNumber,
    /// When that was committed: `CLOCK_MONOTONIC` in nanoseconds.
    SampleTimeNs,
    /// Whether this end waits by a descriptor, which a spinning peer could not ring.
    Watched,
    /// The epoch that this end writes on.
    EpochWritten,
    /// The epoch that this end reads.
    EpochRead,
}

/// The page, mapped.
#[derive(Debug)]
pub struct Page {
    mapping: Mapping,
}

impl Page {
    /// Maps a page.
    ///
    /// # Errors
    /// [`crate::TransportError::BadOffer`] if it is no sealed page,
    /// [`crate::TransportError::System`] if the kernel refuses.
    pub fn open(memory: BorrowedFd<'_>) -> TransportResult<Page> {
        let mapping = Mapping::with_rings(memory.as_fd(), PAGE_BYTES, 0, 0)?;
        Ok(Page { mapping })
    }

    /// The counter of one end.
    pub fn counter(&self, role: Role, counter: Counter) -> &AtomicU64 {
        let half = role.index() * (PAGE_BYTES / 2);
        let word = self.mapping.at(half + counter as usize * 8, 8).cast::<AtomicU64>();
        // SAFETY: the word lies in the mapping, which outlives the borrow, is aligned, and is used
        // as an atomic by everybody.
        unsafe { word.as_ref() }
    }

    /// What the counter says now.
    pub fn read(&self, role: Role, counter: Counter) -> u64 {
        self.counter(role, counter).load(Ordering::Relaxed)
    }

    /// Writes a counter. Only the thread that uses this end does that, so it needs no exchange.
    pub fn write(&self, role: Role, counter: Counter, value: u64) {
        self.counter(role, counter).store(value, Ordering::Relaxed);
    }
}
