//! Read and write buffers: used once, each owned by exactly one flow (section 3.1.3 of the paper).

use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::Flow;
use super::core::{Core, WriteMemory};
use super::path::Path;
use crate::error::Error;
use crate::error::Result;
use crate::transport::ReadSlot;

/// A message that has arrived. Releasing or dropping it returns its memory to the transport.
///
/// ```compile_fail,E0382
/// # fn example(buffer: fable::ReadBuffer) {
/// buffer.release();
/// println!("{}", buffer.len()); // used after release
/// # }
/// ```
/// On a transport in its unsafe form the bytes are in memory that the peer can still write to.
/// Flows use these forms only between ends that have both declared trust.
#[derive(Debug)]
pub struct ReadBuffer {
    /// `None` once the slot is returned.
    slot: Option<ReadSlot>,
    path: Rc<Path>,
}

impl ReadBuffer {
    /// Wraps a slot of this path.
    pub(super) fn new(slot: ReadSlot, path: Rc<Path>) -> ReadBuffer {
        ReadBuffer { slot: Some(slot), path }
    }

    /// Returns the epoch of the path on which the message arrived.
    pub fn epoch(&self) -> u32 {
        self.path.epoch
    }

    /// Returns the memory to the transport, as dropping the buffer does.
    pub fn release(self) {}

    /// Sends the message over another flow and releases it (section 3.1.3). Sockets and pipes send
    /// it without a copy, if nothing is queued before it. A transport in shared memory copies it,
    /// because no two paths share memory.
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
        // In a forked child the slot still belongs to the parent.
        if let Some(slot) = self.slot.take().filter(|_| self.path.creator.is_here()) {
            self.path.inner.borrow_mut().transport.release(slot);
        }
    }
}

/// Memory for one message, to be filled and committed. Its content is undefined at first. Dropping
/// it returns the memory unused.
///
/// On a transport in shared memory, in its safe form too, the peer has this memory mapped: it can
/// read what is written here before `commit`, and write to it at any time. The safe form protects
/// what is read, not what is written. So write the message, and nothing that the peer must not see;
/// and take no decision from what is read back here. Who computes a message in several steps does
/// that in memory of its own, and copies the result.
///
/// ```compile_fail,E0382
/// # fn example(mut buffer: fable::WriteBuffer) -> fable::Result<()> {
/// buffer.commit()?;
/// buffer[0] = 1; // used after commit
/// # Ok(())
/// # }
/// ```
pub struct WriteBuffer {
    /// `None` once the memory is returned.
    room: Option<WriteMemory>,
    core: Rc<Core>,
}

impl std::fmt::Debug for WriteBuffer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("WriteBuffer");
        shown.field("epoch", &self.epoch()).field("bytes", &self.len()).finish()
    }
}

impl WriteBuffer {
    /// Wraps memory of this flow.
    pub(super) fn new(room: WriteMemory, core: Rc<Core>) -> WriteBuffer {
        WriteBuffer { room: Some(room), core }
    }

    /// Returns the epoch of the path that the buffer was allocated for. After a move the buffer can
    /// still be committed: it is copied to the new path.
    pub fn epoch(&self) -> u32 {
        match &self.room {
            Some(WriteMemory::Slot(_, path) | WriteMemory::Private(_, path, _)) => path.epoch,
            None => 0,
        }
    }

    /// Sends the whole buffer. Never waits.
    ///
    /// Messages arrive in the order in which their buffers were allocated if they are committed in
    /// that order. Whether a message that is committed before an older buffer arrives before it
    /// depends on the transport.
    ///
    /// # Errors
    /// [`Error::PeerDied`], [`Error::Ended`] behind [`Flow::finish`] or when the flow was dropped,
    /// [`Error::Corrupt`], [`Error::Forked`], [`Error::System`].
    #[inline]
    pub fn commit(self) -> Result<()> {
        self.commit_first(usize::MAX)
    }

    /// Sends the first `bytes` bytes, or the whole buffer if it has fewer.
    ///
    /// # Errors
    /// Those of [`WriteBuffer::commit`].
    #[inline]
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
            Some(WriteMemory::Slot(slot, _)) => slot,
            Some(WriteMemory::Private(bytes, ..)) => bytes,
            None => &[],
        }
    }
}

impl DerefMut for WriteBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.room {
            Some(WriteMemory::Slot(slot, _)) => slot,
            Some(WriteMemory::Private(bytes, ..)) => bytes,
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
