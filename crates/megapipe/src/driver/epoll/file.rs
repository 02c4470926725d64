//! Disk files: from the page cache at once, else by helper threads.

use super::EpollDriver;
use super::calls::{Calls, TRANSFER_MAX};
use super::vector::{consume, rest, total, view};
use crate::driver::{Full, NO_OFFSET, Object, Operation, Outcome};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// What a helper thread is to do.
pub(super) struct Job {
    pub(super) tag: u64,
    pub(super) object: Object,
    pub(super) file: Arc<OwnedFd>,
    pub(super) work: Work,
    /// Bytes already read without it.
    pub(super) done: usize,
}

pub(super) enum Work {
    Read { vector: Vec<libc::iovec>, offset: u64 },
    Write { vector: Vec<libc::iovec>, offset: u64 },
    Sync { data_only: bool },
}

// SAFETY: the vectors point to memory that whoever submitted the operation keeps alive and does not
// touch until the outcome, so the helper that runs the job is the only one that uses it.
unsafe impl Send for Job {}

impl Job {
    /// Does the job to the end, and lets go of the file.
    pub(super) fn run(self, calls: &Calls) -> i32 {
        let fd = self.file.as_raw_fd();
        match self.work {
            Work::Read { vector, offset } => {
                transfer(vector, offset, self.done, |vector, offset| {
                    preadv(calls, fd, vector, offset, 0)
                })
            }
            Work::Write { vector, offset } => {
                transfer(vector, offset, self.done, |vector, offset| {
                    pwritev(calls, fd, vector, offset)
                })
            }
            Work::Sync { data_only } => {
                let sync = if data_only { libc::fdatasync } else { libc::fsync };
                // SAFETY: the calls take no pointers.
                let synced = calls.retried(|| unsafe { sync(fd) } as isize);
                synced.map_or_else(|errno| -errno, |_| 0)
            }
        }
    }
}

/// Where a transfer goes on after `done` bytes.
fn advance(offset: u64, done: usize) -> u64 {
    if offset == NO_OFFSET { NO_OFFSET } else { offset.saturating_add(done as u64) }
}

/// Repeats `call` until everything has moved, the file ends, or an error stops it; an error after
/// some progress is left to the next operation to meet.
fn transfer(
    mut vector: Vec<libc::iovec>,
    mut offset: u64,
    mut done: usize,
    mut call: impl FnMut(&[libc::iovec], u64) -> Result<usize, i32>,
) -> i32 {
    loop {
        let left = total(&vector);
        match call(&vector, offset) {
            Ok(moved) => {
                done += moved;
                if moved == 0 || moved >= left {
                    return done as i32;
                }
                consume(&mut vector, moved);
                offset = advance(offset, moved);
            }
            Err(_) if done > 0 => return done as i32,
            Err(errno) => return -errno,
        }
    }
}

/// How far a read came without a disk.
enum Cached {
    Ended(i32),
    /// After so many bytes it would have to wait for one.
    Missing {
        done: usize,
    },
}

/// Reads what the page cache has.
fn read_cached(calls: &Calls, fd: RawFd, vector: &[libc::iovec], offset: u64) -> Cached {
    let all = total(vector);
    let mut done = 0;
    let mut left = Vec::new();
    loop {
        let parts = if done == 0 { vector } else { &left };
        match preadv(calls, fd, parts, advance(offset, done), libc::RWF_NOWAIT) {
            Ok(read) => {
                done += read;
                if read == 0 || done >= all {
                    return Cached::Ended(done as i32);
                }
                // Short: the file ends here, or the cache does, which the next try tells.
                left = rest(vector, done, TRANSFER_MAX - done);
            }
            Err(libc::EAGAIN | libc::EOPNOTSUPP | libc::ENOSYS) => {
                return Cached::Missing { done };
            }
            Err(_) if done > 0 => return Cached::Ended(done as i32),
            Err(errno) => return Cached::Ended(-errno),
        }
    }
}

fn preadv(
    calls: &Calls,
    fd: RawFd,
    vector: &[libc::iovec],
    offset: u64,
    flags: libc::c_int,
) -> Result<usize, i32> {
    let (parts, count) = (vector.as_ptr(), vector.len().min(i32::MAX as usize) as libc::c_int);
    if flags == 0 && offset == NO_OFFSET {
        // SAFETY: the operation's contract keeps the parts writable until its outcome.
        return calls.retried(|| unsafe { libc::readv(fd, parts, count) });
    }
    // Offset -1 stands for the file position here as well.
    // SAFETY: as above.
    calls.retried(|| unsafe { libc::preadv2(fd, parts, count, offset as libc::off_t, flags) })
}

fn pwritev(calls: &Calls, fd: RawFd, vector: &[libc::iovec], offset: u64) -> Result<usize, i32> {
    let (parts, count) = (vector.as_ptr(), vector.len().min(i32::MAX as usize) as libc::c_int);
    if offset == NO_OFFSET {
        // SAFETY: the operation's contract keeps the parts readable until its outcome.
        return calls.retried(|| unsafe { libc::writev(fd, parts, count) });
    }
    // SAFETY: as above.
    calls.retried(|| unsafe { libc::pwritev(fd, parts, count, offset as libc::off_t) })
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
                    self.outcomes.push_back(Outcome::plain(tag, result));
                    return Ok(());
                }
                Cached::Missing { done: read } => done = read,
            }
        }
        let work = match operation {
            Operation::Sync { data_only } => Work::Sync { data_only },
            _ => {
                let vector = rest(vector, done, TRANSFER_MAX - done);
                let offset = advance(offset, done);
                if reads { Work::Read { vector, offset } } else { Work::Write { vector, offset } }
            }
        };
        let pushed = entry
            .share()
            .and_then(|file| self.helpers()?.push(Job { tag, object, file, work, done }));
        if let Err(error) = pushed {
            let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
            let result = if done > 0 { done as i32 } else { -errno };
            self.outcomes.push_back(Outcome::plain(tag, result));
        }
        Ok(())
    }
}

fn part(address: *mut u8, bytes: u32) -> libc::iovec {
    libc::iovec { iov_base: address.cast(), iov_len: bytes as usize }
}
