//! Transport over a heap in shared memory in each direction, managed by its writer, and pipes for
//! the eight-byte descriptors of messages and their releases (section 2.1.4 of the paper).
//!
//! Messages may be released in any order without delaying others, and poll(2) can wait for both
//! directions. Each heap's allocator is in its writer's private memory: the peer can neither break
//! nor read it, and what the peer releases is checked against it.

mod heap;
mod notes;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::framing::{BlockPosition, Pile};
use super::pipe::{self, End};
use super::slot::Owner;
use super::wait::wait_by_poll;
use super::{
    Direction, Offer, PathOptions, RING_BYTES_MAX, ReadSlot, Record, SLOTS_MAX, TOO_LARGE,
    Transport, Wait, WaitMethod, WriteSlot,
};
use crate::error::{TransportError, TransportResult};
use crate::kind::{Form, Kind};
use crate::memory::{Mapping, create_sealed, sealed_bytes};
use heap::{GRANULE_BYTES, Heap};
use notes::{MESSAGES_MAX, Note, Notes};

const HEAP_BYTES_MIN: usize = 64 << 10;
const HEAP_BYTES_MAX: usize = RING_BYTES_MAX;

/// The most releases that are held back until there are messages to send, or nothing else to do.
const RELEASES_KEPT_BACK: usize = 64;

/// Makes a path, and the offer for the other end.
pub(super) fn create(
    kind: Kind,
    options: PathOptions,
) -> TransportResult<(Box<dyn Transport>, Offer)> {
    if options.ring_bytes > HEAP_BYTES_MAX {
        return Err(TransportError::BadOffer("a heap has at most 1 GiB"));
    }
    let heap_bytes = options.ring_bytes.max(HEAP_BYTES_MIN).next_power_of_two();
    let memory = create_sealed(c"fable-shmem-pipe", 2 * heap_bytes)?;
    let (reading, peer_writing) = pipe::make(notes::PIPE_BYTES)?;
    let (peer_reading, writing) = pipe::make(notes::PIPE_BYTES)?;
    let transport = ShmemPipe::new(kind, heap_bytes, &memory, [reading, writing], 0)?;
    let descriptors = vec![memory, peer_reading, peer_writing];
    Ok((Box::new(transport), Offer { kind, descriptors }))
}

pub(super) fn open(offer: Offer, limits: PathOptions) -> TransportResult<Box<dyn Transport>> {
    let [memory, reading, writing] = <[_; 3]>::try_from(offer.descriptors)
        .map_err(|_| TransportError::BadOffer("a shared heap comes as three descriptors"))?;
    let heap_bytes = sealed_bytes(memory.as_fd())? / 2;
    let bounds = HEAP_BYTES_MIN..=HEAP_BYTES_MAX;
    if !heap_bytes.is_power_of_two() || !bounds.contains(&heap_bytes) {
        return Err(TransportError::BadOffer("the memory has no size of two heaps"));
    }
    if heap_bytes > limits.ring_bytes.max(HEAP_BYTES_MIN) {
        return Err(TOO_LARGE);
    }
    pipe::check(reading.as_fd(), End::Reading)?;
    pipe::check(writing.as_fd(), End::Writing)?;
    Ok(Box::new(ShmemPipe::new(offer.kind, heap_bytes, &memory, [reading, writing], 1)?))
}

struct ShmemPipe {
    kind: Kind,
    owner: Owner,
    heap_bytes: usize,
    own_heap: NonNull<u8>,
    peer_heap: NonNull<u8>,
    heap: Heap,
    notes: Notes,
    writing: usize,
    reading: usize,
    /// The size that the last `acquire_write` without success requested: a waiting writer needs it.
    wanted_bytes: usize,
    batch: u32,
    committed: u32,
    releases: usize,
    /// Messages that have arrived: first granule, length, record.
    arrived: VecDeque<(u32, usize, Record)>,
    /// The number of the peer's messages that were not released yet.
    unreleased: usize,
    /// The memory to which messages are copied in the safe form.
    copies: Option<Pile>,
    /// The last field, because the others point into it.
    mapping: Option<Mapping>,
}

// SAFETY: the heaps lie in the mapping, which the transport owns; the mapping is not bound to a
// thread.
unsafe impl Send for ShmemPipe {}

impl ShmemPipe {
    fn new(
        kind: Kind,
        heap_bytes: usize,
        memory: &OwnedFd,
        [reading, writing]: [OwnedFd; 2],
        side: usize,
    ) -> TransportResult<ShmemPipe> {
        let mapping = Mapping::with_rings(memory.as_fd(), 2 * heap_bytes, 0, 0)?;
        let copies = match kind.form() {
            Some(Form::Safe) => Some(Pile::new()?),
            _ => None,
        };
        Ok(ShmemPipe {
            kind,
            owner: Owner::new(),
            heap_bytes,
            own_heap: mapping.at(side * heap_bytes, heap_bytes),
            peer_heap: mapping.at((1 - side) * heap_bytes, heap_bytes),
            heap: Heap::new(heap_bytes),
            notes: Notes::new(reading, writing, heap_bytes, heap_bytes / 4)?,
            writing: 0,
            reading: 0,
            wanted_bytes: 0,
            batch: 1,
            committed: 0,
            releases: 0,
            arrived: VecDeque::new(),
            unreleased: 0,
            copies,
            mapping: Some(mapping),
        })
    }

    fn corrupt(what: &'static str) -> TransportError {
        TransportError::Corrupt { transport: "shmem-pipe", what }
    }

    /// Reads what the peer has sent: executes releases and keeps messages for `acquire_read`.
    fn receive(&mut self) -> TransportResult<()> {
        self.notes.receive()?;
        while let Some(note) = self.notes.next().map_err(ShmemPipe::corrupt)? {
            match note {
                Note::Release { granule } => {
                    let released = self.heap.release(granule);
                    released.map_err(|_| ShmemPipe::corrupt("it released what it did not have"))?;
                }
                Note::Message { granule, bytes, record } => {
                    if self.unreleased >= MESSAGES_MAX {
                        return Err(ShmemPipe::corrupt("more messages than may be on their way"));
                    }
                    self.unreleased += 1;
                    self.arrived.push_back((granule, bytes, record));
                }
            }
        }
        Ok(())
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.heap.taken() < MESSAGES_MAX && self.heap.has_room(bytes)
    }

    /// Releases a message of the peer at the next flush.
    fn let_go(&mut self, granule: u32) {
        self.unreleased -= 1;
        self.releases += 1;
        self.notes.push(Note::Release { granule });
    }

    fn hand_out(
        &mut self,
        granule: u32,
        bytes: usize,
        record: Record,
    ) -> TransportResult<ReadSlot> {
        // SAFETY: the message was checked to lie within the heap.
        let source = unsafe { self.peer_heap.add(granule as usize * GRANULE_BYTES) };
        let (pointer, token) = match &mut self.copies {
            None => (source, u64::from(granule)),
            Some(copies) => {
                let place = copies.place(bytes)?;
                let copy = copies.at(place, bytes);
                // SAFETY: the source lies within the heap; the copy is as long and private. The
                // peer may write meanwhile, and only the copied bytes are used.
                unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), copy.as_ptr(), bytes) };
                self.let_go(granule);
                (copy, place.to_token())
            }
        };
        self.reading += 1;
        // SAFETY: the bytes lie within the heap, or in the copy, which only this slot uses until it
        // is returned; this process does not write to them.
        Ok(unsafe { ReadSlot::new(pointer, bytes, record, self.owner, token) })
    }
}

impl Transport for ShmemPipe {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn message_bytes_max(&self) -> usize {
        self.heap_bytes / 4
    }

    fn limit_reads(&mut self, bytes_max: usize) {
        self.notes.limit(bytes_max);
    }

    fn acquire_write(&mut self, bytes: usize) -> TransportResult<Option<WriteSlot>> {
        let bytes_max = self.message_bytes_max();
        if bytes > bytes_max {
            let transport = self.kind.base_name();
            return Err(TransportError::TooLong { bytes, bytes_max, transport });
        }
        if self.writing >= SLOTS_MAX {
            return Err(TransportError::TooManySlots { held: self.writing });
        }
        if !self.has_room_for(bytes) {
            self.flush()?;
            self.receive()?;
            if !self.has_room_for(bytes) {
                self.wanted_bytes = bytes;
                return if self.notes.has_ended() { Err(TransportError::Closed) } else { Ok(None) };
            }
        }
        let Some(granule) = self.heap.take(bytes) else {
            return Ok(None);
        };
        self.writing += 1;
        // SAFETY: the part of the heap is as long, lies within the mapping, and only this slot uses
        // it.
        Ok(Some(unsafe {
            let place = self.own_heap.add(granule as usize * GRANULE_BYTES);
            WriteSlot::new(place, bytes, self.owner, u64::from(granule))
        }))
    }

    fn commit(&mut self, slot: WriteSlot, bytes: usize, record: Record) -> TransportResult<()> {
        if slot.owner != self.owner {
            return Err(TransportError::Foreign);
        }
        let granule = slot.token as u32;
        self.writing -= 1;
        self.heap.mark_sent(granule);
        self.notes.push(Note::Message { granule, bytes: bytes.min(slot.len()), record });
        self.committed += 1;
        if self.committed >= self.batch {
            self.flush()?;
        }
        Ok(())
    }

    fn abandon(&mut self, slot: WriteSlot) {
        if slot.owner == self.owner {
            self.writing -= 1;
            self.heap.give_back(slot.token as u32);
        }
    }

    fn set_batch(&mut self, commits: u32) {
        self.batch = commits.max(1);
    }

    fn flush(&mut self) -> TransportResult<bool> {
        (self.committed, self.releases) = (0, 0);
        self.notes.flush()
    }

    fn acquire_read(&mut self) -> TransportResult<Option<ReadSlot>> {
        if self.arrived.is_empty() {
            self.receive()?;
        }
        let Some(&(granule, bytes, record)) = self.arrived.front() else {
            if self.notes.has_ended() {
                return Err(TransportError::Closed);
            }
            if self.releases > 0 && self.committed == 0 {
                // Messages that a peer sent before it closed must still be read.
                let _ = self.flush();
            }
            return Ok(None);
        };
        if self.reading >= SLOTS_MAX {
            return Err(TransportError::TooManySlots { held: self.reading });
        }
        self.arrived.pop_front();
        self.hand_out(granule, bytes, record).map(Some)
    }

    fn release(&mut self, slot: ReadSlot) {
        if slot.owner != self.owner {
            return;
        }
        self.reading -= 1;
        match &mut self.copies {
            Some(copies) => copies.let_go(BlockPosition::from_token(slot.token)),
            None => self.let_go(slot.token as u32),
        }
        if self.releases >= RELEASES_KEPT_BACK && self.committed == 0 {
            // A later call reports that the peer is gone.
            let _ = self.flush();
        }
    }

    fn has_room(&mut self) -> bool {
        self.notes.has_ended() || self.has_room_for(self.wanted_bytes)
    }

    fn prepare_wait(&mut self, direction: Direction, _manner: WaitMethod) -> TransportResult<Wait> {
        let flushed = match self.flush() {
            // A peer that is gone takes nothing, but its messages can still be read.
            Err(TransportError::Closed) if direction == Direction::Read => false,
            flushed => flushed?,
        };
        self.receive()?;
        let has_ended = self.notes.has_ended();
        let (is_ready, descriptor, events) = match direction {
            Direction::Read => {
                (has_ended || !self.arrived.is_empty(), self.notes.arrival(), libc::POLLIN)
            }
            Direction::Write if !flushed => (false, self.notes.room(), libc::POLLOUT),
            Direction::Write => (self.has_room(), self.notes.arrival(), libc::POLLIN),
        };
        Ok(if is_ready { Wait::Ready } else { Wait::Descriptor { descriptor, events } })
    }

    fn end_wait(&mut self, _direction: Direction) {}

    fn wait(&mut self, direction: Direction, timeout: Option<Duration>) -> TransportResult<bool> {
        let begin = Instant::now();
        loop {
            let wait = self.prepare_wait(direction, WaitMethod::Descriptor)?;
            if matches!(wait, Wait::Ready) {
                return Ok(true);
            }
            let left = timeout.map(|all| all.saturating_sub(begin.elapsed()));
            if !wait_by_poll(wait, left)? {
                return Ok(false);
            }
        }
    }
}

impl Drop for ShmemPipe {
    fn drop(&mut self) {
        if self.writing + self.reading > 0 {
            // Slots may still point into the mapping.
            std::mem::forget(self.mapping.take());
            if let Some(copies) = &mut self.copies {
                copies.leak();
            }
        }
    }
}
