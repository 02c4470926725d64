//! Places for messages.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a message is to the flow above the path. It travels in the header of every transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Record {
    /// The application's bytes.
    Data = 1,
    /// The last message of this path: what follows comes on the next epoch's.
    EndOfEpoch = 2,
    /// The last message of the flow in this direction.
    EndOfFlow = 3,
}

impl Record {
    /// The record with this number on the wire.
    pub(crate) fn from_wire(number: u8) -> Option<Record> {
        match number {
            1 => Some(Record::Data),
            2 => Some(Record::EndOfEpoch),
            3 => Some(Record::EndOfFlow),
            _ => None,
        }
    }
}

/// Which transport a slot belongs to. Numbers are unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    pub(crate) fn new() -> Owner {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Owner(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Where a write slot lies, for who no longer has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlace {
    pub(crate) bytes: usize,
    pub(crate) token: u64,
}

/// Room for a message, to be filled and committed. Its content is undefined at first: what an
/// earlier message left there, for example.
#[derive(Debug)]
pub struct WriteSlot {
    pointer: NonNull<u8>,
    bytes: usize,
    pub(crate) owner: Owner,
    /// The transport's own mark of the place.
    pub(crate) token: u64,
}

impl WriteSlot {
    /// # Safety
    /// `bytes` bytes at `pointer` must be initialised, stay valid, and be nobody else's in this
    /// process until the slot has come back to its transport or been dropped.
    pub(crate) unsafe fn new(
        pointer: NonNull<u8>,
        bytes: usize,
        owner: Owner,
        token: u64,
    ) -> WriteSlot {
        WriteSlot { pointer, bytes, owner, token }
    }

    /// Where it lies.
    pub(crate) fn place(&self) -> SlotPlace {
        SlotPlace { bytes: self.bytes, token: self.token }
    }
}

impl Deref for WriteSlot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `new` demands that the memory is valid and this process's only.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }
}

impl DerefMut for WriteSlot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the slot is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}

/// A message that has arrived.
///
/// On a transport in its unsafe form the bytes are the writer's, who can still change them: trust
/// the peer, or take the safe form.
#[derive(Debug)]
pub struct ReadSlot {
    pointer: NonNull<u8>,
    bytes: usize,
    record: Record,
    pub(crate) owner: Owner,
    /// The transport's own mark of the place.
    pub(crate) token: u64,
}

impl ReadSlot {
    /// # Safety
    /// `bytes` bytes at `pointer` must be initialised and stay valid until the slot has come back
    /// to its transport or been dropped, and nobody in this process may write to them.
    pub(crate) unsafe fn new(
        pointer: NonNull<u8>,
        bytes: usize,
        record: Record,
        owner: Owner,
        token: u64,
    ) -> ReadSlot {
        ReadSlot { pointer, bytes, record, owner, token }
    }

    /// What the message is to the flow.
    pub fn record(&self) -> Record {
        self.record
    }
}

impl Deref for ReadSlot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `new` demands that the memory is valid and not written by this process.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }
}
