//! Implements flows for C: `include/xio.h`, after Table 2 of the paper.
//!
//! This layer adds numbers for the objects of the crate `fable`. Flows and buffers are in a table
//! of their thread; end-points and listeners are in one table of the process (`shared`). A flow's
//! serial number is never reused in a process, so another thread's flow is unknown here and never
//! mistaken for another one. A buffer is checked against the flow that its struct names.

pub(crate) mod buffers;
pub(crate) mod flows;
pub(crate) mod names;
pub(crate) mod options;
mod shared;
pub(crate) mod types;
pub(crate) mod waiting;

use crate::failure::Failure;
use crate::guard::OfThread;
use crate::slots::Slots;
use fable::Flow;
use std::sync::atomic::{AtomicU64, Ordering};
use types::xio_handle;

/// The buffers and flows of a thread; the buffers are dropped first.
pub(crate) struct Table {
    buffers: Slots<buffers::HeldBuffer>,
    flows: Slots<Flow>,
}

thread_local! {
    static TABLE: OfThread<Table> =
        const { OfThread::new(Table { buffers: Slots::new(), flows: Slots::new() }) };
}

/// The last serial number of an end-point, listener or flow in the process.
static SERIAL: AtomicU64 = AtomicU64::new(0);

const NO_HANDLE: Failure = Failure::own(
    libc::EBADF,
    "the handle names no listener and no flow of this thread: use a flow in the thread that \
     connected or accepted it, and not after xio_close",
);
const FULL: Failure = Failure::own(
    libc::EMFILE,
    "this thread has a million flows, end-points or listeners, the limit: close some",
);

/// Runs a call with this thread's table. There is none while the thread ends.
#[inline]
fn on_table<T>(body: impl FnOnce(&mut Table) -> Result<T, Failure>) -> Result<T, Failure> {
    TABLE.try_with(|own| own.enter(body)).unwrap_or(Err(NO_HANDLE))
}

/// Runs a call with a flow and the buffers of the thread.
#[inline]
fn on_flow<T>(
    handle: xio_handle,
    body: impl FnOnce(&Flow, &mut Slots<buffers::HeldBuffer>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    on_table(|table| match table.flows.get(handle) {
        Some(flow) => body(flow, &mut table.buffers),
        None => Err(no_flow(handle)),
    })
}

/// Returns the error for a handle that is not that of a flow.
#[cold]
fn no_flow(handle: xio_handle) -> Failure {
    match shared::listener(handle) {
        Ok(_) => Failure::own(
            libc::EOPNOTSUPP,
            "the handle is a listener's, but the call is for flows: use one that xio_accept \
             returned",
        ),
        Err(failure) => failure,
    }
}

/// Returns a new serial number.
fn serial() -> u64 {
    SERIAL.fetch_add(1, Ordering::Relaxed) + 1
}

impl Table {
    /// Opens a flow, if the table has room for it.
    fn add(&mut self, open: impl FnOnce() -> fable::Result<Flow>) -> Result<xio_handle, Failure> {
        if self.flows.is_full() {
            return Err(FULL);
        }
        let flow = open()?;
        Ok(self.flows.keep_as(serial(), flow))
    }
}
