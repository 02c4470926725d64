//! Registry of the process for all threads: the existing contexts, and the writing ends of their
//! pipes.

use super::{FORKED, NO_CONTEXT};
use crate::failure::Failure;
use channel::fork::CreatorProcess;
use stack::{Descriptor, PipeWriter};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A context that exists.
pub(super) struct Live {
    creator: CreatorProcess,
    writers: BTreeMap<Descriptor, PipeWriter>,
}

/// Held only for a look-up; never while a thread waits. Calls of a context's own thread on a socket
/// do not use it.
static LIVE: Mutex<BTreeMap<i64, Live>> = Mutex::new(BTreeMap::new());

/// The last serial number of a context in the process.
static SERIAL: AtomicU64 = AtomicU64::new(0);

const ANOTHER: Failure = Failure::own(
    libc::EPERM,
    "the context belongs to another thread: call it there, or create one for each thread; only \
     mtcp_write to a pipe may come from elsewhere",
);

fn lock() -> MutexGuard<'static, BTreeMap<i64, Live>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a new serial number.
pub(super) fn serial() -> u64 {
    SERIAL.fetch_add(1, Ordering::Relaxed) + 1
}

pub(super) fn add(number: i64, creator: CreatorProcess) {
    lock().insert(number, Live { creator, writers: BTreeMap::new() });
}

/// Removes a context. Drop the result without the lock.
pub(super) fn remove(number: i64) -> Option<Live> {
    lock().remove(&number)
}

/// Returns the error for a number that is not that of a context of the calling thread.
#[cold]
pub(super) fn why_absent(number: i64) -> Failure {
    match lock().get(&number) {
        Some(live) if live.creator.is_here() => ANOTHER,
        Some(_) => FORKED,
        None => NO_CONTEXT,
    }
}

pub(super) fn add_writer(number: i64, descriptor: Descriptor, writer: PipeWriter) {
    if let Some(live) = lock().get_mut(&number) {
        live.writers.insert(descriptor, writer);
    }
}

/// Removes the writing end of a pipe. Drop the result without the lock.
pub(super) fn remove_writer(number: i64, descriptor: Descriptor) -> Option<PipeWriter> {
    lock().get_mut(&number)?.writers.remove(&descriptor)
}

/// Returns the writing end of a pipe of another thread's context.
pub(super) fn writer(number: i64, descriptor: Descriptor) -> Result<PipeWriter, Failure> {
    let writer = match lock().get(&number) {
        Some(live) if live.creator.is_here() => live.writers.get(&descriptor).cloned(),
        _ => None,
    };
    writer.ok_or_else(|| why_absent(number))
}
