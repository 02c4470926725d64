//! Disk files: from the page cache at once, else by helper threads, or by the calling thread where
//! there are none.

use super::blocking::Helpers;
use super::calls::{Calls, TRANSFER_MAX};
use super::job::{Job, Work, advance, preadv};
use super::vector::{rest, total, view};
use super::{EpollDriver, HELPERS};
use crate::driver::{Full, NO_OFFSET, Object, Operation, Outcome};
use std::io;
use std::os::fd::RawFd;

/// The most bytes that a read fetches from the page cache at once: more would delay everything
/// else by the time that copying takes.
const CACHED_MAX: usize = 1 << 20;

/// The bytes that sleeping for a disk is counted as.
const BLOCKING_BYTES: usize = 1 << 20;

/// How far a read came without a disk.
enum Cached {
    Ended(i32),
    /// After so many bytes it would have to wait for one, or take long.
    Missing {
        done: usize,
    },
}

/// Reads what the page cache has, up to [`CACHED_MAX`].
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
                // Short: the file ends here, or the cache does, which the next try tells.
                left = rest(vector, done, most - done);
            }
            Err(libc::EAGAIN | libc::EOPNOTSUPP | libc::ENOSYS) => {
                return Cached::Missing { done };
            }
            Err(_) if done > 0 => return Cached::Ended(done as i32),
            Err(errno) => return Cached::Ended(-errno),
        }
    }
}

impl EpollDriver {
    /// Does a disk operation if that needs no disk, else leaves it to the helper threads.
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

    /// The helper threads, of which there is one at least. They come into being with the first
    /// disk access.
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

    /// Reports, once, that files are served by the thread of the channel.
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
