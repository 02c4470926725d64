//! Message slots.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The type of a message for the flow above the path. It travels in the header of every transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Record {
    /// The application's bytes.
    Data = 1,
    /// The last message of this path: later ones are on the next epoch's path.
    EndOfEpoch = 2,
    /// The last message of the flow in this direction.
    EndOfFlow = 3,
}

impl Record {
    /// Returns the record with this number on the wire.
    pub(crate) fn from_wire(number: u8) -> Option<Record> {
        match number {
            1 => Some(Record::Data),
            2 => Some(Record::EndOfEpoch),
            3 => Some(Record::EndOfFlow),
            _ => None,
        }
    }
}

/// Identifies the transport that a slot belongs to. Numbers are unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// Draws a new number.
    pub(crate) fn new() -> Owner {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Owner(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Identifies a write slot, for code that does not hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlace {
    pub(crate) bytes: usize,
    pub(crate) token: u64,
}

/// Memory for a message, to be filled and committed. Its content is undefined at first: it can be
/// that of an earlier message.
///
/// In shared memory the peer can read and change it at any time, before `commit` too, in either
/// form of a transport: the safe form protects what is read, not what is written.
#[derive(Debug)]
pub struct WriteSlot {
    pointer: NonNull<u8>,
    bytes: usize,
    pub(crate) owner: Owner,
    /// Identifies the slot within its transport.
    pub(crate) token: u64,
}

impl WriteSlot {
    /// # Safety
    /// `bytes` bytes at `pointer` must be initialised, stay valid, and be used by nothing else in
    /// this process until the slot has been returned to its transport or dropped.
    pub(crate) unsafe fn new(
        pointer: NonNull<u8>,
        bytes: usize,
        owner: Owner,
        token: u64,
    ) -> WriteSlot {
        WriteSlot { pointer, bytes, owner, token }
    }

    /// Returns the place of the slot.
    pub(crate) fn place(&self) -> SlotPlace {
        SlotPlace { bytes: self.bytes, token: self.token }
    }
}

impl Deref for WriteSlot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `new` demands that the memory is valid and that only this slot uses it.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }
}

impl DerefMut for WriteSlot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `new` demands that the memory is valid and that only this slot, which is borrowed
        // exclusively, uses it.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}

/// A message that has arrived.
///
/// On a transport in its unsafe form the writer can still change the bytes: trust the peer, or use
/// the safe form.
#[derive(Debug)]
pub struct ReadSlot {
    pointer: NonNull<u8>,
    bytes: usize,
    record: Record,
    pub(crate) owner: Owner,
    /// Identifies the slot within its transport.
    pub(crate) token: u64,
}

impl ReadSlot {
    /// # Safety
    /// `bytes` bytes at `pointer` must be initialised and stay valid until the slot has been
    /// returned to its transport or dropped, and this process must not write to them.
    pub(crate) unsafe fn new(
        pointer: NonNull<u8>,
        bytes: usize,
        record: Record,
        owner: Owner,
        token: u64,
    ) -> ReadSlot {
        ReadSlot { pointer, bytes, record, owner, token }
    }

    /// Returns the type of the message.
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
