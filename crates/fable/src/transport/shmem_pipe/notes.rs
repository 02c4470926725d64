//! Encodes and sends the words that travel through the pipes: messages, and releases of messages.
//!
//! Each end sends the descriptors of its own messages and the releases of the peer's messages
//! through one pipe. An end has at most [`MESSAGES_MAX`] messages in flight or held by the peer, so
//! a pipe never holds more than twice as many words and never fills: an end that sleeps has always
//! sent everything.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use super::heap::GRANULE_BYTES;
use crate::error::{TransportError, TransportResult};
use crate::transport::framing::Received;
use crate::transport::pipe;
use crate::transport::{Record, TOO_LONG};

/// The most messages of one end that are in flight or held by the peer.
pub(super) const MESSAGES_MAX: usize = 2048;

/// The capacity that the pipes need: a page that ends in a gap counts as half of one.
pub(super) const PIPE_BYTES: usize = 2 * 2 * MESSAGES_MAX * WORD_BYTES;

const WORD_BYTES: usize = 8;

/// The most reads in a row; a correct peer's words arrive in fewer.
const READS_MAX: usize = 64;

/// The top byte of a word that is a release.
const RELEASE: u64 = 0xff;

/// One word of a pipe. From the low end: 24 bits for the first granule, 32 for the length, 8 for
/// the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    Message { granule: u32, bytes: usize, record: Record },
    Release { granule: u32 },
}

impl Note {
    fn to_word(self) -> u64 {
        match self {
            Note::Message { granule, bytes, record } => {
                u64::from(granule) | (bytes as u64) << 24 | (record as u64) << 56
            }
            Note::Release { granule } => u64::from(granule) | RELEASE << 56,
        }
    }

    /// Checks a word of the peer against its heap's size and the longest message.
    fn from_word(word: u64, heap_bytes: usize, bytes_max: usize) -> Result<Note, &'static str> {
        let granule = (word & 0xff_ffff) as u32;
        let bytes = (word >> 24 & 0xffff_ffff) as usize;
        if word >> 56 == RELEASE {
            return match bytes {
                0 => Ok(Note::Release { granule }),
                _ => Err("a release with a length"),
            };
        }
        let record = Record::from_wire((word >> 56) as u8).ok_or("an unknown record")?;
        if bytes > bytes_max {
            return Err(TOO_LONG);
        }
        if granule as usize * GRANULE_BYTES + bytes > heap_bytes {
            return Err("a message lies outside of the heap");
        }
        Ok(Note::Message { granule, bytes, record })
    }
}

/// The pipes of one end.
pub(super) struct Notes {
    reading: OwnedFd,
    writing: OwnedFd,
    heap_bytes: usize,
    bytes_max: usize,
    /// Words that are not written yet.
    outgoing: Vec<u8>,
    /// Bytes that were read and are not parsed yet.
    arrived: VecDeque<u8>,
    ended: bool,
}

impl Notes {
    /// Wraps the pipes of one end.
    pub(super) fn new(
        reading: OwnedFd,
        writing: OwnedFd,
        heap_bytes: usize,
        bytes_max: usize,
    ) -> TransportResult<Notes> {
        for pipe in [&reading, &writing] {
            if pipe::bytes(pipe.as_fd())? < PIPE_BYTES {
                return Err(TransportError::BadOffer(
                    "a pipe is smaller than 64 KiB: raise fs.pipe-user-pages-soft",
                ));
            }
        }
        let (outgoing, arrived) = (Vec::new(), VecDeque::new());
        Ok(Notes { reading, writing, heap_bytes, bytes_max, outgoing, arrived, ended: false })
    }

    /// Sets the longest message that is accepted.
    pub(super) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = self.bytes_max.min(bytes_max);
    }

    /// Queues a word for the next `flush`.
    pub(super) fn push(&mut self, note: Note) {
        self.outgoing.extend_from_slice(&note.to_word().to_le_bytes());
    }

    /// Writes the queued words. Returns false if the pipe takes no more.
    pub(super) fn flush(&mut self) -> TransportResult<bool> {
        while !self.outgoing.is_empty() {
            match pipe::write(self.writing.as_fd(), &[IoSlice::new(&self.outgoing)])? {
                0 => return Ok(false),
                bytes => drop(self.outgoing.drain(..bytes)),
            }
        }
        Ok(true)
    }

    /// Reads what has arrived.
    pub(super) fn receive(&mut self) -> TransportResult<()> {
        let mut room = [0; 4096];
        for _ in 0..READS_MAX {
            match pipe::read(self.reading.as_fd(), &mut room)? {
                Received::Bytes(bytes) => {
                    self.arrived.extend(&room[..bytes]);
                    if bytes < room.len() {
                        break;
                    }
                }
                Received::Nothing => break,
                Received::End | Received::Failed => {
                    self.ended = true;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the next word that was received.
    pub(super) fn next(&mut self) -> Result<Option<Note>, &'static str> {
        if self.arrived.len() < WORD_BYTES {
            return Ok(None);
        }
        let mut word = [0; WORD_BYTES];
        for (byte, arrived) in word.iter_mut().zip(self.arrived.drain(..WORD_BYTES)) {
            *byte = arrived;
        }
        Note::from_word(u64::from_le_bytes(word), self.heap_bytes, self.bytes_max).map(Some)
    }

    /// Returns whether the peer has closed its end and everything was received.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the pipe that is readable when words have arrived.
    pub(super) fn arrival(&self) -> RawFd {
        self.reading.as_raw_fd()
    }

    /// Returns the pipe that is writable when there is room for words.
    pub(super) fn room(&self) -> RawFd {
        self.writing.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_reads_back() {
        let heap_bytes = 1 << 30;
        let notes = [
            Note::Message { granule: 0, bytes: 0, record: Record::Data },
            Note::Message { granule: 0xc0_0000, bytes: 1 << 28, record: Record::EndOfFlow },
            Note::Release { granule: 0xff_ffff },
        ];
        for note in notes {
            assert_eq!(Note::from_word(note.to_word(), heap_bytes, 1 << 28), Ok(note));
        }
    }

    #[test]
    fn what_no_peer_may_write_is_refused() {
        let outside = Note::Message { granule: 1023, bytes: 65, record: Record::Data }.to_word();
        let long = Note::Message { granule: 0, bytes: 16385, record: Record::Data }.to_word();
        let inside = Note::Message { granule: 1023, bytes: 64, record: Record::Data }.to_word();
        let refused = |word| Note::from_word(word, 1 << 16, 1 << 14).is_err();
        assert!(refused(outside) && refused(long) && !refused(inside));
        assert!(refused(0), "record 0");
        assert!(refused(RELEASE << 56 | 1 << 24), "a release has no length");
    }
}
