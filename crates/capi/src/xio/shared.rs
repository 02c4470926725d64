//! Stores the objects that all threads of the process share: end-points and listeners.

use super::types::{xio_context, xio_handle};
use super::{FULL, NO_HANDLE, serial};
use crate::failure::Failure;
use crate::slots::Slots;
use fable::{Endpoint, Listener};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct Shared {
    contexts: Slots<Arc<Endpoint>>,
    listeners: Slots<Arc<Listener>>,
}

/// Held only for a look-up; never while a thread waits.
static SHARED: Mutex<Shared> =
    Mutex::new(Shared { contexts: Slots::new(), listeners: Slots::new() });

const NO_CONTEXT: Failure = Failure::own(
    libc::EBADF,
    "the end-point does not exist: use the pointer that xio_register_name returned, and not after \
     xio_unregister_name",
);

fn lock() -> MutexGuard<'static, Shared> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep<T>(slots: &mut Slots<T>, thing: T) -> Result<i64, Failure> {
    if slots.is_full() { Err(FULL) } else { Ok(slots.keep_as(serial(), thing)) }
}

/// Returns the number in C's pointer, which is never dereferenced.
fn number_of(context: *const xio_context) -> Result<i64, Failure> {
    if context.is_null() { Err(Failure::NULL) } else { Ok(context.addr() as i64) }
}

pub(super) fn add_context(endpoint: Endpoint) -> Result<*mut xio_context, Failure> {
    let number = keep(&mut lock().contexts, Arc::new(endpoint))?;
    Ok(ptr::without_provenance_mut(number as usize))
}

pub(super) fn context(context: *const xio_context) -> Result<Arc<Endpoint>, Failure> {
    let number = number_of(context)?;
    lock().contexts.get(number).map(|endpoint| Arc::clone(endpoint)).ok_or(NO_CONTEXT)
}

pub(super) fn take_context(context: *const xio_context) -> Result<Arc<Endpoint>, Failure> {
    let number = number_of(context)?;
    lock().contexts.take(number).ok_or(NO_CONTEXT)
}

pub(super) fn add_listener(listener: Listener) -> Result<xio_handle, Failure> {
    keep(&mut lock().listeners, Arc::new(listener))
}

pub(super) fn listener(handle: xio_handle) -> Result<Arc<Listener>, Failure> {
    lock().listeners.get(handle).map(|listener| Arc::clone(listener)).ok_or(NO_HANDLE)
}

pub(super) fn take_listener(handle: xio_handle) -> Result<Arc<Listener>, Failure> {
    lock().listeners.take(handle).ok_or(NO_HANDLE)
}
