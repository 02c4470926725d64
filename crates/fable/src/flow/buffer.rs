//! Buffers: single use, each owned by exactly one flow (section 3.1.3 of the paper).

use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::Flow;
use super::core::{Core, Room};
use super::path::Path;
use crate::error::Error;
use crate::error::Result;
use crate::transport::ReadSlot;

/// A message that has arrived. Its memory goes back to the transport when this is released or
/// dropped.
///
/// ```compile_fail,E0382
/// # fn example(buffer: fable::ReadBuffer) {
/// buffer.release();
/// println!("{}", buffer.len()); // used after release
/// # }
/// ```
///
/// On a transport in its unsafe form the bytes are in memory that the peer can still write to:
/// flows use these only between ends that have both said that they trust each other.
#[derive(Debug)]
pub struct ReadBuffer {
    /// Taken when it goes back.
    slot: Option<ReadSlot>,
    path: Rc<Path>,
}

impl ReadBuffer {
    pub(super) fn new(slot: ReadSlot, path: Rc<Path>) -> ReadBuffer {
        ReadBuffer { slot: Some(slot), path }
    }

    /// The epoch of the path that it came on.
    pub fn epoch(&self) -> u32 {
        self.path.epoch
    }

    /// Returns its memory, as dropping it does.
    pub fn release(self) {}

    /// Sends the message on over another flow and releases it (section 3.1.3). Sockets and pipes
    /// take it from where it lies, if nothing waits before it; into shared memory it is copied,
    /// because no two paths share any.
    ///
    /// # Errors
    /// Those of [`Flow::try_write`] and [`WriteBuffer::commit`], with the buffer unchanged.
    #[allow(clippy::result_large_err)] // The buffer is given back, and is small.
    pub fn commit_into(self, flow: &Flow) -> std::result::Result<(), (Error, ReadBuffer)> {
        let copied = || {
            let mut buffer = flow.try_write(self.len())?;
            buffer.copy_from_slice(&self);
            buffer.commit()
        };
        match flow.core.forward(&self).and_then(|sent| if sent { Ok(()) } else { copied() }) {
            Ok(()) => Ok(()),
            Err(error) => Err((error, self)),
        }
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.slot.as_deref().unwrap_or_default()
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        // In a child of fork it is the parent's to return.
        if let Some(slot) = self.slot.take().filter(|_| self.path.birth.is_here()) {
            self.path.inner.borrow_mut().transport.release(slot);
        }
    }
}

/// Room for a message, to be filled and committed. Its content is undefined at first. Dropped, it
/// goes back unused.
///
/// ```compile_fail,E0382
/// # fn example(mut buffer: fable::WriteBuffer) -> fable::Result<()> {
/// buffer.commit()?;
/// buffer[0] = 1; // used after commit
/// # Ok(())
/// # }
/// ```
pub struct WriteBuffer {
    /// Taken when it goes back.
    room: Option<Room>,
    core: Rc<Core>,
}

impl std::fmt::Debug for WriteBuffer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("WriteBuffer");
        shown.field("epoch", &self.epoch()).field("bytes", &self.len()).finish()
    }
}

impl WriteBuffer {
    pub(super) fn new(room: Room, core: Rc<Core>) -> WriteBuffer {
        WriteBuffer { room: Some(room), core }
    }

    /// The epoch of the path that it was made for. It may still be committed when the flow has
    /// moved on: on the old path as long as that takes messages, copied over afterwards.
    pub fn epoch(&self) -> u32 {
        match &self.room {
            Some(Room::Slot(_, path) | Room::Private(_, path, _)) => path.epoch,
            None => 0,
        }
    }

    /// Sends it whole. Never waits.
    ///
    /// Messages arrive in the order of the acquisitions of their buffers if they are committed in
    /// that order. Whether one that is committed before an older buffer arrives before it depends
    /// on the transport.
    ///
    /// # Errors
    /// [`Error::PeerDied`], [`Error::Ended`] behind [`Flow::finish`] or when the flow was dropped,
    /// [`Error::Corrupt`], [`Error::Forked`], [`Error::System`].
    pub fn commit(self) -> Result<()> {
        let bytes = self.len();
        self.commit_first(bytes)
    }

    /// Sends its first `bytes`, or all if it has fewer.
    ///
    /// # Errors
    /// As [`WriteBuffer::commit`].
    pub fn commit_first(mut self, bytes: usize) -> Result<()> {
        match self.room.take() {
            Some(room) => self.core.commit(room, bytes),
            None => Ok(()),
        }
    }
}

impl Deref for WriteBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.room {
            Some(Room::Slot(slot, _)) => slot,
            Some(Room::Private(bytes, ..)) => bytes,
            None => &[],
        }
    }
}

impl DerefMut for WriteBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.room {
            Some(Room::Slot(slot, _)) => slot,
            Some(Room::Private(bytes, ..)) => bytes,
            None => &mut [],
        }
    }
}

impl Drop for WriteBuffer {
    fn drop(&mut self) {
        if let Some(room) = self.room.take() {
            self.core.give_back(room);
        }
    }
}
