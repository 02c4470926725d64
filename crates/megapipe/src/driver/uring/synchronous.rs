//! Requests that the driver itself waits for: socket options, second descriptors.
//!
//! Their memory is on the heap and stays with the driver until the kernel is done with it, also
//! when waiting for it fails half-way.

use super::UringDriver;
use super::ring::Patience;
use crate::driver::INTERNAL_TAG;
use io_uring::squeue;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// The lower half of the tags of synchronous requests; the upper half is a sequence number.
const SYNCHRONOUS: u64 = INTERNAL_TAG & 0xffff_ffff;

/// Errors of io_uring_enter(2) after which a synchronous request is abandoned.
const ERRORS_MAX: u32 = 8;

/// The state of synchronous requests.
#[derive(Default)]
pub(super) struct Synchronous {
    sequence: u32,
    /// The request that is waited for, and its result once that has come.
    waiting: Option<(u64, Option<i32>)>,
    /// The memory of requests that could not be waited for and that the kernel may still take out
    /// of the submission queue.
    abandoned: Vec<(u64, Box<[u8]>)>,
}

impl Synchronous {
    fn begin(&mut self) -> u64 {
        self.sequence = self.sequence.wrapping_add(1);
        let tag = u64::from(self.sequence) << 32 | SYNCHRONOUS;
        self.waiting = Some((tag, None));
        tag
    }

    /// Takes the completion of `tag`; false if it is of no synchronous request.
    pub(super) fn settle(&mut self, tag: u64, result: i32) -> bool {
        if tag & 0xffff_ffff != SYNCHRONOUS {
            return false;
        }
        match &mut self.waiting {
            Some((waiting, slot)) if *waiting == tag => *slot = Some(result),
            _ => self.forget(tag, result),
        }
        true
    }

    /// Frees the memory of an abandoned request, or closes the descriptor that it has opened.
    fn forget(&mut self, tag: u64, result: i32) {
        let Some(at) = self.abandoned.iter().position(|(abandoned, _)| *abandoned == tag) else {
            return;
        };
        let (_, memory) = self.abandoned.swap_remove(at);
        if memory.is_empty() && result >= 0 {
            // SAFETY: the kernel has just opened this descriptor, and no caller gets it.
            drop(unsafe { OwnedFd::from_raw_fd(result) });
        }
    }

    /// Whether the kernel may still use memory of an abandoned request.
    pub(super) fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }
}

impl UringDriver {
    /// Runs an entry to its end and gives its result; what else completes meanwhile goes to the
    /// backlog. `memory`: what the entry points to, which holds the kernel's answer afterwards; a
    /// request without memory gives a new descriptor.
    ///
    /// # Errors
    /// `EBUSY` if the submission queue is full, `EAGAIN` if the kernel stays out of memory, and
    /// other errors of io_uring_enter(2) if they come again and again.
    ///
    /// # Safety
    ///
    /// The entry points to nothing but `memory`, and completes by itself.
    pub(super) unsafe fn run(
        &mut self,
        entry: squeue::Entry,
        memory: Box<[u8]>,
    ) -> io::Result<(i32, Box<[u8]>)> {
        let tag = self.synchronous.begin();
        // SAFETY: the memory is kept, here or among the abandoned, until the entry's completion.
        if unsafe { self.push(&entry.user_data(tag)) }.is_err() {
            self.synchronous.waiting = None;
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let waited = self.await_synchronous();
        let result = self.synchronous.waiting.take().and_then(|(_, result)| result);
        match (result, waited) {
            (Some(result), _) => Ok((result, memory)),
            (None, waited) => {
                self.synchronous.abandoned.push((tag, memory));
                Err(waited.err().unwrap_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN)))
            }
        }
    }

    /// An error does not end the wait at once: the request would stay in the queue and take effect
    /// after it was reported as failed.
    fn await_synchronous(&mut self) -> io::Result<()> {
        let mut errors = 0;
        let is_done = |driver: &UringDriver| {
            driver.synchronous.waiting.is_none_or(|(_, result)| result.is_some())
        };
        while !is_done(self) {
            self.prepare();
            self.prompt = 0;
            let patience = Patience { want: 1, linger_us: 0, timeout: None };
            let entered = self.persist(|ring| ring.enter(patience));
            self.harvest_into_backlog();
            if let Err(error) = entered {
                errors += 1;
                if errors == ERRORS_MAX {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
