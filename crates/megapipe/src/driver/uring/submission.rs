//! Submits requests to the kernel.

use super::entries::{self, Class};
use super::objects::{self, Target};
use super::ring::{Entered, Ring};
use super::table::Room;
use super::{FORGOTTEN_TAG, RETRIES_MAX, RETRY_PAUSE, UringDriver};
use crate::driver::{Full, INSTALLED_TAG, Object, Operation};
use crate::slab::Key;
use crate::sys::RWF_NOSIGNAL;
use io_uring::types::{CancelBuilder, Fixed};
use io_uring::{opcode, squeue};
use std::io;

impl UringDriver {
    /// Adds an entry to the submission queue; submits the queue to make room.
    ///
    /// # Safety
    /// As for [`Ring::push`].
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> Result<(), Full> {
        // SAFETY: the caller keeps what the entry points to valid until its last completion.
        if unsafe { self.ring.push(entry) } {
            return Ok(());
        }
        self.hand_over_firmly().map_err(|_| Full)?;
        // SAFETY: the caller keeps what the entry points to valid until its last completion.
        if unsafe { self.ring.push(entry) } { Ok(()) } else { Err(Full) }
    }

    /// Adds an entry whose result does not matter. An entry that finds no room even after a flush
    /// is lost, so this method is only for entries whose effect closing the ring has, too.
    pub(super) fn push_forgotten(&mut self, entry: squeue::Entry) {
        let entry = entry.user_data(FORGOTTEN_TAG).flags(squeue::Flags::SKIP_SUCCESS);
        // SAFETY: the entries that callers pass (close, cancel) point to no memory.
        if unsafe { self.push(&entry) }.is_err() {
            tracing::warn!("the submission queue is stuck: a close or a cancellation is lost");
        }
    }

    pub(super) fn record_submission(&mut self, tag: u64, class: Class) {
        self.outstanding += 1;
        if tag >= INSTALLED_TAG {
            return;
        }
        let index = Key::index_in(tag);
        if index >= self.classes.len() {
            self.classes.resize(index + 1, Class::Plain);
        }
        self.classes[index] = class;
    }

    /// Submits the queue to the kernel; entries that it does not take now stay queued.
    pub(super) fn hand_over(&mut self) -> io::Result<Entered> {
        self.prepare();
        self.prompt = 0;
        self.ring.submit()
    }

    /// Submits the whole queue to the kernel, in several attempts if necessary, and makes the
    /// kernel end cancelled requests, because they keep their files open until then.
    pub(super) fn hand_over_firmly(&mut self) -> io::Result<()> {
        self.prepare();
        self.prompt = 0;
        while self.ring.queued() > 0 || self.cancelled {
            self.persist(if self.cancelled { Ring::submit_and_work } else { Ring::submit })?;
            self.cancelled = false;
        }
        Ok(())
    }

    /// Repeats `attempt` while the kernel has no memory or no room for completions, and reaps
    /// completions meanwhile; a signal handler does not end it.
    ///
    /// # Errors
    /// `EAGAIN` if the lack lasts, and all other errors of `attempt`.
    pub(super) fn persist(
        &mut self,
        mut attempt: impl FnMut(&mut Ring) -> io::Result<Entered>,
    ) -> io::Result<()> {
        for _ in 0..RETRIES_MAX {
            match attempt(&mut self.ring)? {
                Entered::Busy => {
                    self.reap_into_backlog();
                    std::thread::sleep(RETRY_PAUSE);
                }
                Entered::Signal => {}
                Entered::Returned | Entered::TimeUp => return Ok(()),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    pub(super) fn reap_into_backlog(&mut self) {
        let mut backlog = std::mem::take(&mut self.backlog);
        self.reap_completions(&mut backlog);
        self.backlog = backlog;
    }

    /// Provides buffers, frees discarded sockets, and cancels accepts; called before submitting.
    pub(super) fn prepare(&mut self) {
        self.small.refill();
        self.large.refill();
        while let Some(index) = self.discarded.pop() {
            self.discard(index);
        }
        while let Some(tag) = self.unbounded.pop() {
            self.push_forgotten(opcode::AsyncCancel2::new(CancelBuilder::user_data(tag)).build());
        }
    }

    /// Builds the entry of an operation on an object, without a tag.
    pub(super) fn entry(&self, object: Object, operation: Operation) -> squeue::Entry {
        let groups = (self.small.group(), self.large.group());
        let (fd, flags) = match Target::of(object) {
            Target::Descriptor(fd) => (fd, squeue::Flags::empty()),
            Target::Direct(index) => (index as i32, squeue::Flags::FIXED_FILE),
        };
        let nature = objects::nature(object);
        let file_flags = if self.writes_quietly { RWF_NOSIGNAL } else { 0 };
        entries::build(fd, nature, operation, groups, file_flags).flags(flags)
    }

    /// Adapts an operation to the free entries of the file table: while there are none, a listener
    /// is only polled.
    pub(super) fn admit(&self, operation: Operation) -> (Operation, Class) {
        if let Operation::Accept { lightweight: true, repeat } = operation
            && !self.direct_sockets
        {
            return (Operation::Accept { lightweight: false, repeat }, Class::AcceptLightweight);
        }
        let operation = match (operation, self.table.room()) {
            (Operation::Accept { lightweight: true, .. }, Room::None) => {
                let wait = Operation::Poll { events: libc::POLLIN as u32, repeat: false };
                return (wait, Class::AcceptLater);
            }
            (Operation::Accept { lightweight: true, .. }, Room::Scarce) => {
                Operation::Accept { lightweight: true, repeat: false }
            }
            (operation, _) => operation,
        };
        (operation, Class::of(&operation))
    }

    /// Frees an entry of the file table.
    pub(super) fn discard(&mut self, index: u32) {
        self.table.free();
        self.push_forgotten(opcode::Close::new(Fixed(index)).build());
    }
}
