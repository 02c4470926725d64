//! Runs requests whose completion the driver awaits itself: socket options, duplicate descriptors.
//!
//! Their memory is on the heap. The driver keeps it until the kernel no longer uses it, even if the
//! wait fails.

use super::UringDriver;
use super::ring::WaitLimits;
use crate::driver::INTERNAL_TAG;
use io_uring::squeue;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// The lower half of the tags of synchronous requests; the upper half is a sequence number.
const SYNCHRONOUS: u64 = INTERNAL_TAG & 0xffff_ffff;

/// Number of errors of io_uring_enter(2) after which a synchronous request is abandoned.
const ERRORS_MAX: u32 = 8;

/// The state of synchronous requests.
#[derive(Default)]
pub(super) struct Synchronous {
    sequence: u32,
    /// The awaited request, and its result after that has arrived.
    waiting: Option<(u64, Option<i32>)>,
    /// Requests whose wait failed and that the kernel may still take from the submission queue.
    abandoned: Vec<(u64, AbandonedResource)>,
}

/// What the driver keeps or releases for an abandoned synchronous request.
pub(super) enum AbandonedResource {
    /// The memory that the entry points to, into which the kernel writes the answer.
    Memory(Box<[u8]>),
    /// The descriptor that the request opens.
    Descriptor,
    /// The socket that the request opens in the ring's file table.
    Socket,
}

impl AbandonedResource {
    /// Returns the memory; empty for a request that opens something.
    pub(super) fn into_memory(self) -> Box<[u8]> {
        if let AbandonedResource::Memory(memory) = self { memory } else { Box::default() }
    }
}

impl Synchronous {
    fn begin(&mut self) -> u64 {
        self.sequence = self.sequence.wrapping_add(1);
        let tag = u64::from(self.sequence) << 32 | SYNCHRONOUS;
        self.waiting = Some((tag, None));
        tag
    }

    /// Handles the completion of `tag`; returns the entry of the file table if it has opened a
    /// socket whose wait was abandoned.
    pub(super) fn complete(&mut self, tag: u64, result: i32) -> Option<u32> {
        if tag & 0xffff_ffff != SYNCHRONOUS {
            return None;
        }
        if let Some((waiting, slot)) = &mut self.waiting
            && *waiting == tag
        {
            *slot = Some(result);
            return None;
        }
        let at = self.abandoned.iter().position(|(abandoned, _)| *abandoned == tag)?;
        let opened = u32::try_from(result).ok();
        match self.abandoned.swap_remove(at).1 {
            AbandonedResource::Memory(_) => None,
            AbandonedResource::Socket => opened,
            AbandonedResource::Descriptor => {
                // SAFETY: the kernel has just opened this descriptor, and no caller gets it.
                drop(opened.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) }));
                None
            }
        }
    }

    /// Returns whether the kernel may still use memory of an abandoned request.
    pub(super) fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }
}

impl UringDriver {
    /// Runs an entry to its end and returns its result; other completions go to the backlog
    /// meanwhile.
    ///
    /// # Errors
    /// `EBUSY` if the submission queue is full, `EAGAIN` if the kernel stays out of memory, and
    /// other errors of io_uring_enter(2) if they recur.
    ///
    /// # Safety
    /// The entry points to nothing but the memory of `stake`, and completes by itself.
    pub(super) unsafe fn run(
        &mut self,
        entry: squeue::Entry,
        stake: AbandonedResource,
    ) -> io::Result<(i32, AbandonedResource)> {
        let tag = self.synchronous.begin();
        // SAFETY: the memory is kept, here or in `abandoned`, until the entry's completion.
        if unsafe { self.push(&entry.user_data(tag)) }.is_err() {
            self.synchronous.waiting = None;
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let waited = self.await_synchronous();
        let result = self.synchronous.waiting.take().and_then(|(_, result)| result);
        match (result, waited) {
            (Some(result), _) => Ok((result, stake)),
            (None, waited) => {
                self.synchronous.abandoned.push((tag, stake));
                Err(waited.err().unwrap_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN)))
            }
        }
    }

    /// Waits for the synchronous request. An error does not end the wait at once, because the
    /// request would stay in the queue and take effect after it was reported as failed.
    fn await_synchronous(&mut self) -> io::Result<()> {
        let mut errors = 0;
        let is_done = |driver: &UringDriver| {
            driver.synchronous.waiting.is_none_or(|(_, result)| result.is_some())
        };
        while !is_done(self) {
            self.prepare();
            self.prompt = 0;
            let limits = WaitLimits { want: 1, linger_us: 0, timeout: None };
            let entered = self.persist(|ring| ring.enter(limits));
            self.reap_into_backlog();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_not_waited_for_is_given_back() {
        let mut synchronous = Synchronous::default();
        let stakes = [
            AbandonedResource::Memory(Box::default()),
            AbandonedResource::Socket,
            AbandonedResource::Socket,
        ];
        let [option, socket, failed] = stakes.map(|stake| {
            let tag = synchronous.begin();
            synchronous.waiting = None;
            synchronous.abandoned.push((tag, stake));
            tag
        });
        assert_eq!(synchronous.complete(option, 7), None, "no socket");
        assert_eq!(synchronous.complete(socket, 7), Some(7));
        assert_eq!(synchronous.complete(failed, -libc::ENFILE), None);
        assert!(!synchronous.has_abandoned());
        let tag = synchronous.begin();
        assert_eq!(synchronous.complete(tag, 3), None, "it is waited for");
        assert_eq!(synchronous.waiting, Some((tag, Some(3))));
    }
}
