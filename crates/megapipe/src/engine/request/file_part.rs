//! Sends a part of a file in chunks; each is sent before the next is read.

use crate::driver::{NO_OFFSET, Operation};
use crate::slab::Key;

/// Bytes that are read and sent at a time.
const CHUNK_BYTES: usize = 128 << 10;

/// A part of a file that is being sent.
pub(crate) struct FilePart {
    pub(crate) file: Key,
    /// Offset of the next byte to read, and the number of bytes left to read.
    offset: u64,
    left: usize,
    /// The chunk to send, and how many of its bytes were sent.
    chunk: Vec<u8>,
    sent: usize,
}

impl FilePart {
    pub(crate) fn new(file: Key, offset: u64, bytes: usize) -> Box<FilePart> {
        Box::new(FilePart { file, offset, left: bytes, chunk: Vec::new(), sent: 0 })
    }

    /// Whether the next operation is a read of the file.
    pub(super) fn is_read(&self) -> bool {
        self.left > 0 && self.sent == self.chunk.len()
    }

    /// Returns the number of bytes that have not been sent.
    pub(super) fn unsent(&self) -> usize {
        self.left + self.chunk.len() - self.sent
    }

    /// Returns the next operation, on the file or the socket.
    pub(crate) fn operation(&mut self) -> Operation {
        if !self.is_read() {
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
        if self.is_read() {
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
        bytes > 0 && self.unsent() > 0
    }
}
