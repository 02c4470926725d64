//! Transport over one cache line in each direction: the lower bound of message latency, for
//! measurements.
//!
//! The paper uses inter-processor interrupts as its lower bound (section 2.1.6), which no user
//! program can send. Between two processes that both spin, nothing is faster than one cache line
//! that changes its owner. A message of up to 56 bytes and its sequence number share the line; the
//! reader acknowledges with its own next message.

use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::spin::Placement;
use super::{
    Direction, Offer, ReadSlot, Record, Transport, Wait, WaitMethod, WriteSlot, slot::Owner,
};
use crate::error::{TransportError, TransportResult};
use crate::kind::Kind;
use crate::memory::{Mapping, PAGE_BYTES, create_sealed};

/// The bytes of the line beside the eight of the sequence number.
const PAYLOAD_BYTES: usize = 56;

/// The offsets of the two lines in the page. They and the words that acknowledge them are far
/// apart, so that prefetching of adjacent lines does not move one with the other.
const LINE_OFFSETS: [usize; 2] = [0, 1024];
const READ_OFFSETS: [usize; 2] = [2048, 3072];
const CPU_OFFSETS: [usize; 2] = [2560, 3584];

/// Sequence numbers and acknowledgements share a word with other fields, so they have 28 bits.
const SEQUENCE_MASK: u64 = (1 << 28) - 1;

/// Makes a path; the other end writes the second line.
pub(super) fn create() -> TransportResult<(Box<dyn Transport>, Offer)> {
    let file = create_sealed(c"fable-cacheline", PAGE_BYTES)?;
    let mapping = Mapping::with_rings(file.as_fd(), PAGE_BYTES, 0, 0)?;
    let offer = Offer { kind: Kind::Cacheline, descriptors: vec![file] };
    Ok((Box::new(Cacheline::new(mapping, 0)), offer))
}

/// Opens the other end of a path.
pub(super) fn open(offer: Offer) -> TransportResult<Box<dyn Transport>> {
    let [file] = <[_; 1]>::try_from(offer.descriptors)
        .map_err(|_| TransportError::BadOffer("a cache line comes as one descriptor"))?;
    let mapping = Mapping::with_rings(file.as_fd(), PAGE_BYTES, 0, 0)?;
    Ok(Box::new(Cacheline::new(mapping, 1)))
}

struct Cacheline {
    mapping: ManuallyDrop<Mapping>,
    owner: Owner,
    /// The index of the line that this end writes.
    side: usize,
    written: u64,
    read: u64,
    writing: bool,
    reading: bool,
    /// The number of messages that the peer had read when it last wrote, as far as this end knows.
    acknowledged: u64,
    placement: Placement,
}

impl Cacheline {
    fn new(mapping: Mapping, side: usize) -> Cacheline {
        let cpu = |side: usize| mapping.at(CPU_OFFSETS[side], 4).cast::<AtomicU32>();
        // SAFETY: `Cacheline` owns the mapping and the placement together.
        let placement = unsafe { Placement::new(cpu(side), cpu(1 - side)) };
        Cacheline {
            mapping: ManuallyDrop::new(mapping),
            owner: Owner::new(),
            side,
            written: 0,
            read: 0,
            writing: false,
            reading: false,
            acknowledged: 0,
            placement,
        }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the offset lies within the page and is a multiple of 8; both sides access the
        // word only as an atomic.
        unsafe { self.mapping.at(offset, 8).cast::<AtomicU64>().as_ref() }
    }

    fn payload(&self, side: usize) -> NonNull<u8> {
        self.mapping.at(LINE_OFFSETS[side] + 8, PAYLOAD_BYTES)
    }

    /// Returns the line's first word: its number, how many of the other side's messages were read,
    /// record, length.
    fn header(&self, bytes: usize, record: Record) -> u64 {
        let (written, read) = (self.written & SEQUENCE_MASK, self.read & SEQUENCE_MASK);
        written << 36 | read << 8 | (record as u64) << 6 | bytes as u64
    }

    fn may_go_on(&self, direction: Direction) -> bool {
        match direction {
            Direction::Read => {
                let header = self.word(LINE_OFFSETS[1 - self.side]).load(Ordering::Acquire);
                header >> 36 != self.read & SEQUENCE_MASK
            }
            Direction::Write => {
                self.word(READ_OFFSETS[self.side]).load(Ordering::Acquire) >= self.written
            }
        }
    }
}

impl Transport for Cacheline {
    fn kind(&self) -> Kind {
        Kind::Cacheline
    }

    fn message_bytes_max(&self) -> usize {
        PAYLOAD_BYTES
    }

    /// Does nothing: no message is long, and none is copied.
    fn limit_reads(&mut self, _bytes_max: usize) {}

    fn acquire_write(&mut self, bytes: usize) -> TransportResult<Option<WriteSlot>> {
        if bytes > PAYLOAD_BYTES {
            let transport = self.kind().base_name();
            return Err(TransportError::TooLong { bytes, bytes_max: PAYLOAD_BYTES, transport });
        }
        if self.writing {
            return Err(TransportError::TooManySlots { held: 1 });
        }
        // In a ping-pong the peer's message acknowledges this end's; the separate word matters only
        // to an end that sends twice in a row.
        let acknowledged = self.acknowledged == self.written & SEQUENCE_MASK;
        if !acknowledged && !self.may_go_on(Direction::Write) {
            return Ok(None);
        }
        self.writing = true;
        // SAFETY: the peer has read the previous message, and this is the only write slot.
        Ok(Some(unsafe { WriteSlot::new(self.payload(self.side), bytes, self.owner, 0) }))
    }

    fn commit(&mut self, slot: WriteSlot, bytes: usize, record: Record) -> TransportResult<()> {
        if slot.owner != self.owner {
            return Err(TransportError::Foreign);
        }
        self.writing = false;
        self.written += 1;
        let header = self.header(bytes.min(slot.len()), record);
        self.word(LINE_OFFSETS[self.side]).store(header, Ordering::Release);
        Ok(())
    }

    fn abandon(&mut self, slot: WriteSlot) {
        self.writing &= slot.owner != self.owner;
    }

    fn set_batch(&mut self, _commits: u32) {}

    fn flush(&mut self) -> TransportResult<bool> {
        Ok(true)
    }

    fn acquire_read(&mut self) -> TransportResult<Option<ReadSlot>> {
        if self.reading {
            return Err(TransportError::TooManySlots { held: 1 });
        }
        let header = self.word(LINE_OFFSETS[1 - self.side]).load(Ordering::Acquire);
        if header >> 36 == self.read & SEQUENCE_MASK {
            return Ok(None);
        }
        let corrupt = |what| TransportError::Corrupt { transport: "cacheline", what };
        let record = Record::from_wire((header >> 6 & 3) as u8).ok_or(corrupt("its record"))?;
        let bytes = (header & 63) as usize;
        if bytes > PAYLOAD_BYTES || header >> 36 != (self.read + 1) & SEQUENCE_MASK {
            return Err(corrupt("its length or sequence number"));
        }
        self.reading = true;
        self.acknowledged = header >> 8 & SEQUENCE_MASK;
        let payload = self.payload(1 - self.side);
        // SAFETY: the bytes lie within the line. The peer does not change them before they are
        // acknowledged; as on every transport in its unsafe form, it is trusted to do so.
        Ok(Some(unsafe { ReadSlot::new(payload, bytes, record, self.owner, 0) }))
    }

    fn release(&mut self, slot: ReadSlot) {
        if slot.owner == self.owner {
            self.reading = false;
            self.read += 1;
            self.word(READ_OFFSETS[1 - self.side]).store(self.read, Ordering::Release);
        }
    }

    fn has_room(&mut self) -> bool {
        self.may_go_on(Direction::Write)
    }

    fn prepare_wait(&mut self, _direction: Direction, _: WaitMethod) -> TransportResult<Wait> {
        // The peer never notifies.
        Ok(Wait::Ready)
    }

    fn end_wait(&mut self, _direction: Direction) {}

    fn wait(&mut self, direction: Direction, timeout: Option<Duration>) -> TransportResult<bool> {
        let (word, read, written) = match direction {
            Direction::Read => (LINE_OFFSETS[1 - self.side], self.read, 0),
            Direction::Write => (READ_OFFSETS[self.side], 0, self.written),
        };
        let word = self.mapping.at(word, 8).cast::<AtomicU64>();
        // SAFETY: the word lies in the mapping, which outlives this call.
        let word = unsafe { word.as_ref() };
        Ok(self.placement.spin_on(timeout, || match direction {
            Direction::Read => word.load(Ordering::Acquire) >> 36 != read & SEQUENCE_MASK,
            Direction::Write => word.load(Ordering::Acquire) >= written,
        }))
    }
}

impl Drop for Cacheline {
    fn drop(&mut self) {
        // Otherwise a slot may still point into the mapping.
        if !self.writing && !self.reading {
            // SAFETY: the mapping is not used again.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}
