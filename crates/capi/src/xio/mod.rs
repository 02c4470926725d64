//! Flows for C: `include/xio.h`, after Table 2 of the paper.
//!
//! What this layer adds to the crate `fable`: numbers for what Rust owns. Flows and buffers are in
//! a table of their thread, end-points and listeners in one of the process (`shared`). A flow's
//! serial number is given once in a process, so that another thread's is unknown here and never
//! means something else; a buffer is checked against the flow that it says it is of.

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

/// What a thread has, in the order in which it goes.
pub(crate) struct Table {
    buffers: Slots<buffers::Held>,
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
    "the handle is of no listener, and of no flow of this thread (any more): use a flow in the \
     thread that connected or accepted it, and not after xio_close",
);
const FULL: Failure = Failure::own(
    libc::EMFILE,
    "there are a million flows in this thread, or end-points or listeners, the limit: close some",
);

/// Runs a call on this thread's table. While the thread ends there is none.
#[inline]
fn on_table<T>(body: impl FnOnce(&mut Table) -> Result<T, Failure>) -> Result<T, Failure> {
    TABLE.try_with(|own| own.enter(body)).unwrap_or(Err(NO_HANDLE))
}

/// Runs a call on a flow, with the buffers of the thread.
#[inline]
fn on_flow<T>(
    handle: xio_handle,
    body: impl FnOnce(&Flow, &mut Slots<buffers::Held>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    on_table(|table| match table.flows.get(handle) {
        Some(flow) => body(flow, &mut table.buffers),
        None => Err(no_flow(handle)),
    })
}

/// Why a handle is not that of a flow.
#[cold]
fn no_flow(handle: xio_handle) -> Failure {
    match shared::listener(handle) {
        Ok(_) => Failure::own(
            libc::EOPNOTSUPP,
            "the handle is a listener's, and the call is for flows: use one that xio_accept gave",
        ),
        Err(failure) => failure,
    }
}

/// A new serial number.
fn serial() -> u64 {
    SERIAL.fetch_add(1, Ordering::Relaxed) + 1
}

impl Table {
    /// Opens a flow, if there is room for it.
    fn add(&mut self, open: impl FnOnce() -> fable::Result<Flow>) -> Result<xio_handle, Failure> {
        if self.flows.is_full() {
            return Err(FULL);
        }
        let flow = open()?;
        Ok(self.flows.keep_as(serial(), flow))
    }
}
