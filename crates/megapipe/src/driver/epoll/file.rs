//! Reads and writes disk files: from the page cache at once, else by helper threads, or by the
//! calling thread if no helper thread can be created.

use super::blocking::Helpers;
use super::calls::{Calls, TRANSFER_MAX};
use super::job::{Job, Work, advance, preadv};
use super::vector::{rest, total, view};
use super::{EpollDriver, HELPERS};
use crate::driver::{Full, NO_OFFSET, Object, Operation, Outcome};
use std::io;
use std::os::fd::RawFd;

/// Maximum number of bytes that a read copies from the page cache at once. Copying more would delay
/// all other operations.
const CACHED_MAX: usize = 1 << 20;

/// The number of bytes that a blocking disk access counts as for the schedule.
const BLOCKING_BYTES: usize = 1 << 20;

/// The result of reading from the page cache.
enum Cached {
    Ended(i32),
    /// After `done` bytes the read would have to wait for the disk, or take long.
    Missing {
        done: usize,
    },
}

/// Reads the bytes that are in the page cache, up to [`CACHED_MAX`].
fn read_cached(calls: &Calls, fd: RawFd, vector: &[libc::iovec], offset: u64) -> Cached {
    let all = total(vector);
    let most = all.min(CACHED_MAX);
    let mut done = 0;
    let mut left = if most < all { rest(vector, 0, most) } else { Vec::new() };
    loop {
        let parts = if left.is_empty() { vector } else { &left };
        match preadv(calls, fd, parts, advance(offset, done), libc::RWF_NOWAIT) {
            Ok(read) => {
                done += read;
                if read == 0 || done >= all {
                    return Cached::Ended(done as i32);
                }
                if done >= most {
                    return Cached::Missing { done };
                }
                // A short read: the end of the file or of the cached pages; the next attempt
                // distinguishes them.
                left = rest(vector, done, most - done);
            }
            Err(errno)
                if sys::is_refusal(errno) || [libc::EAGAIN, libc::EOPNOTSUPP].contains(&errno) =>
            {
                return Cached::Missing { done };
            }
            Err(_) if done > 0 => return Cached::Ended(done as i32),
            Err(errno) => return Cached::Ended(-errno),
        }
    }
}

impl EpollDriver {
    /// Executes a disk operation at once if it does not need the disk; else passes it to the helper
    /// threads.
    pub(super) fn submit_file(
        &mut self,
        tag: u64,
        object: Object,
        operation: Operation,
    ) -> Result<(), Full> {
        if self.helpers.as_ref().is_some_and(|helpers| helpers.is_full()) {
            return Err(Full);
        }
        let Some(entry) = self.objects.get_mut(object) else { return Ok(()) };
        let single;
        let (vector, offset) = match operation {
            Operation::Read { address, bytes, offset } => {
                single = [part(address, bytes)];
                (&single[..], offset)
            }
            Operation::Write { address, bytes, offset } => {
                single = [part(address.cast_mut(), bytes)];
                (&single[..], offset)
            }
            Operation::ReadVectored { vector, count, offset }
            | Operation::WriteVectored { vector, count, offset } => (view(vector, count), offset),
            _ => (&[][..], NO_OFFSET),
        };
        let mut done = 0;
        let reads = matches!(operation, Operation::Read { .. } | Operation::ReadVectored { .. });
        // A helper may hold the lock on the file position for as long as the disk takes.
        if reads && !(offset == NO_OFFSET && entry.is_shared()) {
            match read_cached(&self.calls, entry.fd(), vector, offset) {
                Cached::Ended(result) => {
                    self.schedule.worked(result.max(0) as usize);
                    self.outcomes.push_back(Outcome::plain(tag, result));
                    return Ok(());
                }
                Cached::Missing { done: read } => {
                    self.schedule.worked(read);
                    done = read;
                }
            }
        }
        let work = match operation {
            Operation::Sync { data_only } => Work::Sync { data_only },
            _ => {
                let vector = rest(vector, done, TRANSFER_MAX - done);
                let offset = advance(offset, done);
                if reads {
                    Work::Read { vector, offset, done }
                } else {
                    Work::Write { vector, offset }
                }
            }
        };
        let (fd, file) = (entry.fd(), entry.share());
        match file.and_then(|file| Ok((file, self.ready_helpers()?))) {
            Ok((file, helpers)) => helpers.push(Job { tag, object, file, work }),
            Err(error) => {
                self.warn_of_blocking(&error);
                let result = work.run(fd, &self.calls);
                self.schedule.worked(BLOCKING_BYTES);
                self.outcomes.push_back(Outcome::plain(tag, result));
            }
        }
        Ok(())
    }

    /// Returns the helper threads, at least one of which exists. Creates them at the first disk
    /// access.
    fn ready_helpers(&mut self) -> io::Result<&mut Helpers> {
        if self.helpers.is_none() {
            let helpers = Helpers::new()?;
            let added = self.poller.add(&self.calls, helpers.fd(), HELPERS);
            added.map_err(io::Error::from_raw_os_error)?;
            self.helpers = Some(helpers);
        }
        let helpers = self.helpers.as_mut().ok_or(io::ErrorKind::NotFound)?;
        helpers.recruit()?;
        Ok(helpers)
    }

    /// Reports, once, that the channel's own thread executes disk operations.
    fn warn_of_blocking(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                %error,
                "no helper thread for file operations: they block the thread of their channel; \
                 raise the limit on threads (`ulimit -u`, pids.max of the control group) or on \
                 descriptors (`ulimit -n`)"
            );
        }
    }
}

fn part(address: *mut u8, bytes: u32) -> libc::iovec {
    libc::iovec { iov_base: address.cast(), iov_len: bytes as usize }
}
