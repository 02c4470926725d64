use std::ops::{Deref, DerefMut};

use super::Flow;
use crate::error::{Error, Result};

/// A message that has arrived.
#[derive(Debug)]
pub struct ReadBuffer {}

impl ReadBuffer {
    /// The epoch of the path that it came on.
    pub fn epoch(&self) -> u32 {
        unimplemented!()
    }

    /// Returns its memory, as dropping it does.
    pub fn release(self) {}

    /// Sends it on over another flow.
    pub fn commit_into(self, flow: &Flow) -> std::result::Result<(), (Error, ReadBuffer)> {
        unimplemented!("{flow:?}")
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        unimplemented!()
    }
}

/// Room for a message.
#[derive(Debug)]
pub struct WriteBuffer {}

impl WriteBuffer {
    /// The epoch of the path that it is for.
    pub fn epoch(&self) -> u32 {
        unimplemented!()
    }

    /// Sends it whole.
    pub fn commit(self) -> Result<()> {
        unimplemented!()
    }

    /// Sends its first `bytes`.
    pub fn commit_first(self, bytes: usize) -> Result<()> {
        unimplemented!("{bytes}")
    }
}

impl Deref for WriteBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        unimplemented!()
    }
}

impl DerefMut for WriteBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        unimplemented!()
    }
}
