//! Sending a part of a file: it is read in chunks, each of which is sent before the next is read.
//!
//! The reads are operations on the file's own endpoint with the tag of the request, so that every
//! driver does them as it does others: without blocking the thread on a disk.

use super::{Engine, Request};
use crate::driver::{Full, NO_OFFSET, Operation, Outcome};
use crate::engine::Payload;
use crate::slab::Key;

/// Bytes that are read and sent at a time.
const CHUNK_BYTES: usize = 128 << 10;

/// A part of a file on its way.
pub(crate) struct FilePart {
    file: Key,
    /// What is still to be read.
    offset: u64,
    left: usize,
    /// What is to be sent, and how much of it has been.
    chunk: Vec<u8>,
    sent: usize,
}

impl FilePart {
    pub(crate) fn new(file: Key, offset: u64, bytes: usize) -> Box<FilePart> {
        Box::new(FilePart { file, offset, left: bytes, chunk: Vec::new(), sent: 0 })
    }

    /// Whether the file is to be read next.
    fn is_read(&self) -> bool {
        self.left > 0 && self.sent == self.chunk.len()
    }

    /// Bytes that have not been sent.
    pub(super) fn unsent(&self) -> usize {
        self.left + self.chunk.len() - self.sent
    }

    /// What is to be done next, with the file or with the socket.
    pub(super) fn operation(&mut self) -> Operation {
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

    /// Notes that `bytes` bytes were read or sent, the latter in `progress`, too; true if there is
    /// more to do.
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

impl Request {
    /// Whether its next operation is on a file instead of its handle.
    pub(super) fn reads_file(&self) -> bool {
        matches!(&self.payload, Payload::File(part) if part.is_read())
    }
}

impl Engine {
    /// Has the driver read the next chunk of the file that a request sends.
    pub(super) fn start_file_read(&mut self, id: Key) -> Result<(), Full> {
        let Some(request) = self.requests.get_mut(id) else { return Ok(()) };
        if self.members.get(request.handle).is_none() {
            // Its handle went while it waited.
            self.requests.remove(id);
            return Ok(());
        }
        let Payload::File(part) = &mut request.payload else { return Ok(()) };
        match self.members.get(part.file).filter(|file| file.leaving.is_none()) {
            Some(file) => self.driver.submit(id.tag(), file.object, part.operation())?,
            None => self.ready.push_back(Outcome::plain(id.tag(), -libc::EBADF)),
        }
        if let Some(member) = self.members.get_mut(request.handle) {
            member.note_begun(request);
        }
        let (key, lane) = (request.handle, request.lane);
        self.counters.operations += 1;
        self.extend_deadline(key, lane);
        Ok(())
    }

    /// What the result of reading a file to be sent means: its end is an error, and a read that the
    /// kernel has no thread for is done here.
    pub(super) fn judge_file_read(&mut self, id: Key, result: i32) -> i32 {
        let Some(request) = self.requests.get_mut(id) else { return result };
        let Payload::File(part) = &mut request.payload else { return result };
        let leaving = self.members.get(request.handle).and_then(|member| member.leaving.as_ref());
        let aborted = leaving.is_some_and(|leaving| leaving.is_aborted());
        match result {
            // What was read is not sent any more.
            _ if request.cancelled || aborted => {
                if result < 0 {
                    result
                } else {
                    -libc::ECANCELED
                }
            }
            0 => -libc::ENODATA,
            result if result == -libc::ECANCELED => {
                match self.members.get(part.file).filter(|file| file.leaving.is_none()) {
                    Some(file) => match self.driver.run_inline(file.object, &part.operation()) {
                        0 => -libc::ENODATA,
                        read => read,
                    },
                    None => -libc::EBADF,
                }
            }
            result => result,
        }
    }
}
