//! Defines `Buffer`, the bytes that the application gives to the channel for a write.

use crate::pool::Lease;
use std::ops::Deref;
use std::sync::Arc;

/// Bytes to be written, owned by the channel until the write's completion returns them.
///
/// Made by `From` from a `Vec<u8>`, a `Box<[u8]>`, a `&'static [u8]`, a shared `Arc<[u8]>` (a
/// cached response, for example), or a [`Lease`] of the channel itself. None of them is copied.
#[derive(Debug)]
pub enum Buffer {
    /// Bytes that the application owns.
    Owned(Vec<u8>),
    /// Bytes that exist as long as the program.
    Static(&'static [u8]),
    /// Bytes that several writes share.
    Shared(Arc<[u8]>),
    /// Bytes in a buffer of the channel.
    Lease(Lease),
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Buffer::Owned(bytes) => bytes,
            Buffer::Static(bytes) => bytes,
            Buffer::Shared(bytes) => bytes,
            Buffer::Lease(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        Buffer::Owned(bytes)
    }
}

impl From<Box<[u8]>> for Buffer {
    fn from(bytes: Box<[u8]>) -> Buffer {
        Buffer::Owned(bytes.into_vec())
    }
}

impl From<&'static [u8]> for Buffer {
    fn from(bytes: &'static [u8]) -> Buffer {
        Buffer::Static(bytes)
    }
}

impl<const N: usize> From<&'static [u8; N]> for Buffer {
    fn from(bytes: &'static [u8; N]) -> Buffer {
        Buffer::Static(bytes)
    }
}

impl From<&'static str> for Buffer {
    fn from(text: &'static str) -> Buffer {
        Buffer::Static(text.as_bytes())
    }
}

impl From<Arc<[u8]>> for Buffer {
    fn from(bytes: Arc<[u8]>) -> Buffer {
        Buffer::Shared(bytes)
    }
}

impl From<Lease> for Buffer {
    fn from(lease: Lease) -> Buffer {
        Buffer::Lease(lease)
    }
}
