//! Requests that the driver itself waits for: socket options, second descriptors.
//!
//! Their memory is on the heap and stays with the driver until the kernel is done with it, also
//! when waiting for it fails half-way.

use super::UringDriver;
use super::ring::Patience;
use crate::driver::INTERNAL_TAG;
use io_uring::squeue;
use std::io;

/// The lower half of the tags of synchronous requests; the upper half is a sequence number.
const SYNCHRONOUS: u64 = INTERNAL_TAG & 0xffff_ffff;

/// The state of synchronous requests.
#[derive(Default)]
pub(super) struct Synchronous {
    sequence: u32,
    /// The request that is waited for, and its result once that has come.
    waiting: Option<(u64, Option<i32>)>,
    /// The memory of requests that could not be waited for and that the kernel may still take out
    /// of the submission queue.
    abandoned: Vec<(u64, Box<[u8]>)>,
    /// Those of them that open a socket in the ring's file table.
    opening: Vec<u64>,
}

impl Synchronous {
    fn begin(&mut self) -> u64 {
        self.sequence = self.sequence.wrapping_add(1);
        let tag = u64::from(self.sequence) << 32 | SYNCHRONOUS;
        self.waiting = Some((tag, None));
        tag
    }

    /// Takes the completion of `tag`; gives the entry of the file table if it has opened a socket
    /// that is not waited for any more.
    pub(super) fn settle(&mut self, tag: u64, result: i32) -> Option<u32> {
        if tag & 0xffff_ffff != SYNCHRONOUS {
            return None;
        }
        if let Some((waiting, slot)) = &mut self.waiting
            && *waiting == tag
        {
            *slot = Some(result);
            return None;
        }
        self.abandoned.retain(|(abandoned, _)| *abandoned != tag);
        let at = self.opening.iter().position(|opening| *opening == tag)?;
        self.opening.swap_remove(at);
        u32::try_from(result).ok()
    }

    /// Notes that the last request opens a socket, if it has been abandoned.
    pub(super) fn note_opening(&mut self) {
        let tag = u64::from(self.sequence) << 32 | SYNCHRONOUS;
        if self.abandoned.iter().any(|(abandoned, _)| *abandoned == tag) {
            self.opening.push(tag);
        }
    }

    /// Whether the kernel may still use memory of an abandoned request.
    pub(super) fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }
}

impl UringDriver {
    /// Runs an entry to its end and gives its result; what else completes meanwhile goes to the
    /// backlog. `memory`: what the entry points to, which holds the kernel's answer afterwards.
    ///
    /// # Errors
    /// `EBUSY` if the submission queue is full, `EAGAIN` if the kernel stays out of memory, and
    /// other errors of io_uring_enter(2).
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

    fn await_synchronous(&mut self) -> io::Result<()> {
        let is_done = |driver: &UringDriver| {
            driver.synchronous.waiting.is_none_or(|(_, result)| result.is_some())
        };
        while !is_done(self) {
            self.prepare();
            self.prompt = 0;
            let patience = Patience { want: 1, linger_us: 0, timeout: None };
            self.persist(|ring| ring.enter(patience))?;
            self.harvest_into_backlog();
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
        let abandon = |synchronous: &mut Synchronous| {
            let tag = synchronous.begin();
            synchronous.waiting = None;
            synchronous.abandoned.push((tag, Box::default()));
            tag
        };
        let [option, socket, failed] = [(); 3].map(|()| {
            let tag = abandon(&mut synchronous);
            if synchronous.sequence > 1 {
                synchronous.note_opening();
            }
            tag
        });
        assert_eq!(synchronous.settle(option, 7), None, "no socket");
        assert_eq!(synchronous.settle(socket, 7), Some(7));
        assert_eq!(synchronous.settle(failed, -libc::ENFILE), None);
        assert!(!synchronous.has_abandoned() && synchronous.opening.is_empty());
        let tag = synchronous.begin();
        synchronous.note_opening();
        assert_eq!(synchronous.settle(tag, 3), None, "it is waited for");
        assert_eq!(synchronous.waiting, Some((tag, Some(3))));
    }
}
