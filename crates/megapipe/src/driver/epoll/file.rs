//! Disk files: from the page cache at once, else by helper threads, or by the calling thread where
//! there are none.

use super::blocking::Helpers;
use super::calls::{Calls, TRANSFER_MAX};
use super::vector::{consume, rest, total, view};
use super::{EpollDriver, HELPERS};
use crate::driver::{Full, NO_OFFSET, Object, Operation, Outcome};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// The most bytes that a read fetches from the page cache at once: more would delay everything
/// else by the time that copying takes.
const CACHED_MAX: usize = 1 << 20;

/// The bytes that sleeping for a disk is counted as.
const BLOCKING_BYTES: usize = 1 << 20;

/// Pauses of a file that is said to be ready and is not double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(32);

/// What a helper thread is to do.
pub(super) struct Job {
    pub(super) tag: u64,
    pub(super) object: Object,
    pub(super) file: Arc<OwnedFd>,
    pub(super) work: Work,
}

/// What is left to do of an operation.
pub(super) enum Work {
    /// `done` bytes are read already, in front of the vector.
    Read {
        vector: Vec<libc::iovec>,
        offset: u64,
        done: usize,
    },
    Write {
        vector: Vec<libc::iovec>,
        offset: u64,
    },
    Sync {
        data_only: bool,
    },
}

// SAFETY: the vectors point to memory that the operation's submitter keeps alive and does not
// touch until the outcome, so the helper that runs the job is the only one that uses it.
unsafe impl Send for Job {}

impl Job {
    /// Does the job to the end, and lets go of the file.
    pub(super) fn run(self, calls: &Calls) -> i32 {
        self.work.run(self.file.as_raw_fd(), calls)
    }
}

impl Work {
    /// Does the work to the end, for which it may sleep.
    fn run(self, fd: RawFd, calls: &Calls) -> i32 {
        match self {
            Work::Read { vector, offset, done } => {
                let mut pause = Pause::new(fd, libc::POLLIN);
                transfer(vector, offset, done, |vector, offset, done| {
                    match preadv(calls, fd, vector, offset, 0) {
                        Err(libc::EAGAIN) if done == 0 => pause.take(calls),
                        result => result.map(Some),
                    }
                })
            }
            Work::Write { vector, offset } => {
                let mut pause = Pause::new(fd, libc::POLLOUT);
                transfer(vector, offset, 0, |vector, offset, _| {
                    match pwritev(calls, fd, vector, offset) {
                        Err(libc::EAGAIN) => pause.take(calls),
                        result => result.map(Some),
                    }
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

    /// The result if the work is never done.
    pub(super) fn cancelled(&self) -> i32 {
        match self {
            Work::Read { done: done @ 1.., .. } => *done as i32,
            _ => -libc::ECANCELED,
        }
    }
}

/// Waits for files such as `/proc/kmsg` that know readiness and do not block: trying them again at
/// once would use a CPU for nothing.
struct Pause {
    fd: RawFd,
    events: i16,
    next: Option<Duration>,
}

impl Pause {
    fn new(fd: RawFd, events: i16) -> Pause {
        Pause { fd, events, next: None }
    }

    /// Sleeps until the file is ready; a while longer if it was not although it was said to be.
    fn take(&mut self, calls: &Calls) -> Result<Option<usize>, i32> {
        calls.wait(self.fd, self.events)?;
        match self.next {
            Some(pause) => {
                std::thread::sleep(pause);
                self.next = Some((pause * 2).min(LAST_PAUSE));
            }
            None => self.next = Some(FIRST_PAUSE),
        }
        Ok(None)
    }
}

/// Where a transfer goes on after `done` bytes.
fn advance(offset: u64, done: usize) -> u64 {
    if offset == NO_OFFSET { NO_OFFSET } else { offset.saturating_add(done as u64) }
}

/// Repeats `call` until everything has moved, the file ends, or an error stops it; an error after
/// some progress is left to the next operation to meet. A call that gives `None` is made again.
fn transfer(
    mut vector: Vec<libc::iovec>,
    mut offset: u64,
    mut done: usize,
    mut call: impl FnMut(&[libc::iovec], u64, usize) -> Result<Option<usize>, i32>,
) -> i32 {
    loop {
        let left = total(&vector);
        match call(&vector, offset, done) {
            Ok(Some(moved)) => {
                done += moved;
                if moved == 0 || moved >= left {
                    return done as i32;
                }
                consume(&mut vector, moved);
                offset = advance(offset, moved);
            }
            Ok(None) => {}
            Err(_) if done > 0 => return done as i32,
            Err(errno) => return -errno,
        }
    }
}

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
