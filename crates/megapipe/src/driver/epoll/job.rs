//! Runs operations on disk files in helper threads. A job runs to its end and may sleep.

use super::calls::Calls;
use super::vector::{consume, total};
use crate::driver::{NO_OFFSET, Object};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// First pause for a file that reports readiness wrongly. Pauses double up to the last one.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(32);

/// The work of a helper thread.
pub(super) struct Job {
    pub(super) tag: u64,
    pub(super) object: Object,
    pub(super) file: Arc<OwnedFd>,
    pub(super) work: Work,
}

/// The remaining work of an operation.
pub(super) enum Work {
    /// `done` bytes, which precede the vector, have been read already.
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
    /// Runs the job to its end, and drops its reference to the file.
    pub(super) fn run(self, calls: &Calls) -> i32 {
        self.work.run(self.file.as_raw_fd(), calls)
    }
}

impl Work {
    /// Executes the work to its end; may sleep.
    pub(super) fn run(self, fd: RawFd, calls: &Calls) -> i32 {
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

    /// Returns the result if the work is cancelled before it starts.
    pub(super) fn cancelled(&self) -> i32 {
        match self {
            Work::Read { done: done @ 1.., .. } => *done as i32,
            _ => -libc::ECANCELED,
        }
    }
}

/// Pauses for files such as `/proc/kmsg` that have readiness and do not block: trying again at once
/// would waste a CPU.
struct Pause {
    fd: RawFd,
    events: i16,
    next: Option<Duration>,
}

impl Pause {
    fn new(fd: RawFd, events: i16) -> Pause {
        Pause { fd, events, next: None }
    }

    /// Sleeps until the file is ready; longer if it was not ready although it was reported to be.
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

/// Returns the offset at which a transfer continues after `done` bytes.
pub(super) fn advance(offset: u64, done: usize) -> u64 {
    if offset == NO_OFFSET { NO_OFFSET } else { offset.saturating_add(done as u64) }
}

/// Repeats `call` until everything is transferred, the file ends, or an error occurs. After some
/// progress it leaves the error to the next operation. It repeats a call that returns `None`.
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

pub(super) fn preadv(
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
    let offset = offset as libc::off_t;
    // Offset -1 stands for the file position here as well.
    // SAFETY: the operation's contract keeps the parts writable until its outcome.
    match calls.retried(|| unsafe { libc::preadv2(fd, parts, count, offset, flags) }) {
        Err(errno) if flags == 0 && sys::is_refusal(errno) => {
            // SAFETY: as above.
            calls.retried(|| unsafe { libc::preadv(fd, parts, count, offset) })
        }
        result => result,
    }
}

fn pwritev(calls: &Calls, fd: RawFd, vector: &[libc::iovec], offset: u64) -> Result<usize, i32> {
    let (parts, count) = (vector.as_ptr(), vector.len().min(i32::MAX as usize) as libc::c_int);
    if offset == NO_OFFSET {
        // SAFETY: the operation's contract keeps the parts readable until its outcome.
        return calls.retried(|| unsafe { libc::writev(fd, parts, count) });
    }
    // SAFETY: the operation's contract keeps the parts readable until its outcome.
    calls.retried(|| unsafe { libc::pwritev(fd, parts, count, offset as libc::off_t) })
}
