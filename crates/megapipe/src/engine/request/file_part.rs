//! Sends a part of a file: directly, or in chunks, each of which is sent before the next is read.

use crate::driver::{NO_OFFSET, Operation};
use crate::slab::Key;
use std::os::fd::RawFd;

/// Bytes that are read and sent at a time.
const CHUNK_BYTES: usize = 128 << 10;

/// Bytes that are sent directly at a time, so that other handles are served in between.
const DIRECT_BYTES: usize = 1 << 20;

/// The operation that is next, or that the driver has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileStep {
    /// Sends bytes directly from the file.
    Direct,
    /// Reads a chunk.
    Read,
    /// Writes the chunk.
    Write,
}

/// A part of a file that is being sent.
pub(crate) struct FilePart {
    pub(crate) file: Key,
    /// Offset of the next byte to read or to send directly, and the number of bytes left.
    offset: u64,
    left: usize,
    /// The chunk to send, and how many of its bytes were sent.
    chunk: Vec<u8>,
    sent: usize,
    /// Whether the next chunk has to be read, because it cannot be sent directly.
    reads: bool,
}

impl FilePart {
    pub(crate) fn new(file: Key, offset: u64, bytes: usize) -> Box<FilePart> {
        Box::new(FilePart { file, offset, left: bytes, chunk: Vec::new(), sent: 0, reads: false })
    }

    /// Returns the operation that is next, or that the driver has.
    pub(crate) fn step(&self) -> FileStep {
        match self.left > 0 && self.sent == self.chunk.len() {
            true if self.reads => FileStep::Read,
            true => FileStep::Direct,
            false => FileStep::Write,
        }
    }

    /// Reads and writes the next chunk instead of sending it directly.
    pub(crate) fn read_next(&mut self) {
        self.reads = true;
    }

    /// Returns the operation that sends the next bytes directly from the file.
    pub(crate) fn direct(&self, file: RawFd) -> Operation {
        let bytes = self.left.min(DIRECT_BYTES) as u32;
        Operation::SendFile { file, offset: self.offset, bytes }
    }

    /// Counts bytes that were sent directly. Returns true if there are more.
    pub(crate) fn skip(&mut self, bytes: usize) -> bool {
        self.left = self.left.saturating_sub(bytes);
        self.offset += bytes as u64;
        self.left > 0
    }

    /// Returns the number of bytes that have not been sent.
    pub(super) fn unsent(&self) -> usize {
        self.left + self.chunk.len() - self.sent
    }

    /// Returns the next operation of a chunk, on the file or the socket.
    pub(crate) fn operation(&mut self) -> Operation {
        if self.step() == FileStep::Write {
            let rest = &self.chunk[self.sent..];
            let (address, bytes) = (rest.as_ptr(), rest.len() as u32);
            return match self.left {
                0 => Operation::Write { address, bytes, offset: NO_OFFSET },
                _ => Operation::WriteMore { address, bytes },
            };
        }
        self.chunk.clear();
        self.sent = 0;
        let bytes = self.left.min(CHUNK_BYTES);
        self.chunk.reserve_exact(bytes);
        let address = self.chunk.spare_capacity_mut().as_mut_ptr().cast();
        Operation::Read { address, bytes: bytes as u32, offset: self.offset }
    }

    /// Counts `bytes` bytes that were read or sent, and adds sent ones to `progress`. Returns true
    /// if there is more to do.
    pub(super) fn advance(&mut self, bytes: usize, progress: &mut usize) -> bool {
        if self.step() == FileStep::Read {
            let bytes = bytes.min(self.chunk.capacity()).min(self.left);
            // SAFETY: the driver has filled that many bytes from the beginning of the chunk, which
            // `operation` has emptied and made large enough.
            unsafe { self.chunk.set_len(bytes) };
            self.left -= bytes;
            self.offset += bytes as u64;
            return bytes > 0;
        }
        self.sent += bytes;
        *progress += bytes;
        self.reads &= self.sent < self.chunk.len();
        bytes > 0 && self.unsent() > 0
    }
}
