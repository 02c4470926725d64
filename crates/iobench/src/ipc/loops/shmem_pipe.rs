//! A heap in shared memory for each direction, and pipes for the numbers of its slots (section
//! 2.1.4 of the paper).

use std::os::fd::OwnedFd;

use ipcload::{End, Load, Result};

use super::shared_memory::SharedMemory;
use super::{LoopEnd, Notes, taken};

/// The bytes of a heap, unless the fewest slots need more.
const HEAP_BYTES: usize = 1 << 20;
/// How many slots a heap has: notes of all of them fit into a pipe.
const SLOTS: std::ops::RangeInclusive<usize> = 4..=1024;
/// Slots begin at cache lines.
const ALIGNMENT: usize = 64;

/// An end. The reader looks at the heap itself, or (`SAFE`) at a copy, which the writer cannot
/// change.
pub(super) struct ShmemPipe<const SAFE: bool> {
    memory: SharedMemory,
    /// The offsets of the heaps that this end writes to and reads from.
    heaps: [usize; 2],
    slot_bytes: usize,
    message_bytes: usize,
    /// Slots of this end's heap that are free.
    free: Vec<u64>,
    /// Slots of the other heap that were read, and are returned together.
    read: Vec<u64>,
    returned_at: usize,
    /// Messages, there and back.
    messages: Notes,
    /// Slots that are free again, there and back.
    returns: Notes,
    copy: Vec<u8>,
}

/// The slots of a heap for messages of this size, and the bytes of each.
fn shape(message_bytes: usize) -> (usize, usize) {
    let slot_bytes = message_bytes.next_multiple_of(ALIGNMENT);
    ((HEAP_BYTES / slot_bytes).clamp(*SLOTS.start(), *SLOTS.end()), slot_bytes)
}

impl<const SAFE: bool> ShmemPipe<SAFE> {
    fn new(memory: SharedMemory, side: usize, notes: [Notes; 2], load: &Load) -> Self {
        let (slots, slot_bytes) = shape(load.bytes());
        let heap = |side: usize| side * slots * slot_bytes;
        let [messages, returns] = notes;
        ShmemPipe {
            memory,
            heaps: [heap(side), heap(1 - side)],
            slot_bytes,
            message_bytes: load.bytes(),
            free: (0..slots as u64).collect(),
            read: Vec::new(),
            returned_at: slots / 2,
            messages,
            returns,
            copy: vec![0; load.bytes()],
        }
    }

    fn bytes_of_both_heaps(load: &Load) -> usize {
        let (slots, slot_bytes) = shape(load.bytes());
        2 * slots * slot_bytes
    }
}

impl<const SAFE: bool> LoopEnd for ShmemPipe<SAFE> {
    fn create(load: &Load) -> Result<(Self, Vec<OwnedFd>)> {
        let (memory, file) = SharedMemory::create(Self::bytes_of_both_heaps(load))?;
        let (messages, [messages_input, messages_output]) = Notes::create()?;
        let (returns, [returns_input, returns_output]) = Notes::create()?;
        let others = vec![file, messages_input, messages_output, returns_input, returns_output];
        Ok((Self::new(memory, 0, [messages, returns], load), others))
    }

    fn open(load: &Load, inherited: Vec<OwnedFd>) -> Result<Self> {
        let [file, messages_input, messages_output, returns_input, returns_output] =
            taken(inherited)?;
        let memory = SharedMemory::map(&file, Self::bytes_of_both_heaps(load))?;
        let notes = [[messages_input, messages_output], [returns_input, returns_output]];
        Ok(Self::new(memory, 1, notes.map(Notes::new), load))
    }
}

impl<const SAFE: bool> End for ShmemPipe<SAFE> {
    #[inline]
    fn send(&mut self, bytes: usize, fill: impl Fn(&mut [u8])) -> Result<bool> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.returns.receive()?,
        };
        let place = self.memory.at(self.heaps[0] + slot as usize * self.slot_bytes, bytes);
        // SAFETY: the bytes lie within the mapping. The other process reads the slot only between
        // the note of its message and its return.
        fill(unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), bytes) });
        self.messages.send(&[slot])?;
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool> {
        Ok(true)
    }

    #[inline]
    fn receive(&mut self, look: impl FnOnce(&[u8])) -> Result<bool> {
        let slot = self.messages.receive()?;
        let offset = self.heaps[1] + slot as usize * self.slot_bytes;
        let place = self.memory.at(offset, self.message_bytes);
        // SAFETY: the bytes lie within the mapping. The other process writes to the slot only after
        // its return.
        let message = unsafe { std::slice::from_raw_parts(place.as_ptr(), self.message_bytes) };
        if SAFE {
            self.copy.copy_from_slice(message);
            look(&self.copy);
        } else {
            look(message);
        }
        self.read.push(slot);
        if self.read.len() >= self.returned_at {
            self.returns.send(&self.read)?;
            self.read.clear();
        }
        Ok(true)
    }
}
