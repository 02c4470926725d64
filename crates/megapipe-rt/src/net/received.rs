//! Bytes that arrived at a connection.

use megapipe::{Buffer, Lease};
use std::fmt;
use std::ops::Deref;

/// Bytes that arrived; dereferences to `[u8]`.
///
/// They are in a buffer of the channel ([`Lease`]), which is not copied. Dropping them returns the
/// buffer, writing them to a stream sends them without a copy. A core has a limited number of these
/// buffers: keep one only while you handle the message. If more than half of them are in use, the
/// bytes are a copy instead, so that slow tasks do not stop the others.
pub struct Received(Memory);

enum Memory {
    Lease(Lease),
    Copy { bytes: Vec<u8>, start: usize },
}

impl Received {
    /// Keeps the lease, or copies it if too many are in use.
    pub(super) fn new(lease: Lease) -> Received {
        Received(match lease.is_crowded() {
            true => Memory::Copy { bytes: lease.to_vec(), start: 0 },
            false => Memory::Lease(lease),
        })
    }

    /// Makes what was received of a buffer that was to be written.
    pub(super) fn from_buffer(buffer: Buffer) -> Received {
        Received(match buffer {
            Buffer::Lease(lease) => Memory::Lease(lease),
            Buffer::Owned(bytes) => Memory::Copy { bytes, start: 0 },
            other => Memory::Copy { bytes: other.to_vec(), start: 0 },
        })
    }

    /// Removes the first `count` bytes (all of them if there are fewer), for example after parsing
    /// a header.
    pub fn advance(&mut self, count: usize) {
        match &mut self.0 {
            Memory::Lease(lease) => lease.advance(count),
            Memory::Copy { bytes, start } => *start += count.min(bytes.len() - *start),
        }
    }
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Lease(lease) => lease,
            Memory::Copy { bytes, start } => &bytes[*start..],
        }
    }
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Received> for Buffer {
    fn from(received: Received) -> Buffer {
        match received.0 {
            Memory::Lease(lease) => Buffer::Lease(lease),
            Memory::Copy { mut bytes, start } => {
                bytes.drain(..start);
                Buffer::Owned(bytes)
            }
        }
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Received({} bytes)", self.len())
    }
}
