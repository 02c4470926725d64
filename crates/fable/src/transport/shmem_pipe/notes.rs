//! The words that travel through the pipes: messages, and releases of messages.
//!
//! Each end sends through one pipe its own messages' descriptors and the releases of the peer's.
//! An end has at most [`MESSAGES_MAX`] messages on their way or in the peer's hands, so a pipe
//! never holds more than twice as many words, and never fills: an end that sleeps has always said
//! everything.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use super::heap::GRANULE_BYTES;
use crate::error::{TransportError, TransportResult};
use crate::transport::Record;
use crate::transport::framing::Received;
use crate::transport::pipe;

/// Messages of one end on their way or in the peer's hands.
pub(super) const MESSAGES_MAX: usize = 2048;

/// What the pipes must have room for: a page that ends in a gap counts as half of one.
pub(super) const PIPE_BYTES: usize = 2 * 2 * MESSAGES_MAX * WORD_BYTES;

const WORD_BYTES: usize = 8;

/// Reads in a row: what an honest peer can have written comes in fewer.
const READS_MAX: usize = 64;

/// A word's top byte when it is a release.
const RELEASE: u64 = 0xff;

/// From the low end: 24 bits for the first granule, 32 for the length, 8 for the record.
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

    /// Checks what the peer wrote against its heap's size and the longest message.
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
            return Err("a message is longer than any may be");
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
    /// Words to be written.
    outgoing: Vec<u8>,
    /// Read, and not looked at yet.
    arrived: VecDeque<u8>,
    ended: bool,
}

impl Notes {
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

    /// Sent with the next `flush`.
    pub(super) fn push(&mut self, note: Note) {
        self.outgoing.extend_from_slice(&note.to_word().to_le_bytes());
    }

    pub(super) fn flush(&mut self) -> TransportResult<bool> {
        while !self.outgoing.is_empty() {
            match pipe::write(self.writing.as_fd(), &[IoSlice::new(&self.outgoing)])? {
                0 => return Ok(false),
                bytes => drop(self.outgoing.drain(..bytes)),
            }
        }
        Ok(true)
    }

    /// Reads what there is.
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
                Received::End => {
                    self.ended = true;
                    break;
                }
            }
        }
        Ok(())
    }

    /// The next word that was received.
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

    /// Whether the peer has closed its end, and all of it was received.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn arrival(&self) -> RawFd {
        self.reading.as_raw_fd()
    }

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
