//! Implements user-level TCP for C: `include/mtcp.h`, the calls of mTCP's paper and of its public
//! header.
//!
//! This layer adds to the crate `mtcp`: contexts in a table of their thread, found by numbers that
//! are never reused in a process (`mctx_t` is such a number and is never dereferenced); the
//! settings and stacks of the process (`lifecycle`); the pipes of a context, which other threads
//! may use (`registry`); and signals that end a wait (`signals`).
//! may use (`registry`); and signals that end a wait (`signals`).

pub(crate) mod epoll;
pub(crate) mod lifecycle;
pub(crate) mod options;
mod registry;
pub(crate) mod settings;
pub(crate) mod signals;
pub(crate) mod sockets;
pub(crate) mod transfers;
pub(crate) mod types;

use crate::failure::Failure;
use crate::guard::OfThread;
use crate::slots::Slots;
use channel::fork::CreatorProcess;
use libc::{c_int, pollfd};
use signals::Waker;
use stack::{Context, Descriptor, EpollEvent};
use std::mem::ManuallyDrop;
use types::mctx_t;

/// A context of this thread.
pub(crate) struct ThreadContext {
    context: ManuallyDrop<Context>,
    /// The context's number, which C has.
    number: i64,
    creator: CreatorProcess,
    waker: Waker,
    /// The descriptors that a waiting call polls: those of the context, and last the waker's.
    polls: Vec<pollfd>,
    /// Buffer for events before they are copied to C.
    events: Vec<EpollEvent>,
    /// Open writing ends of pipes, which other threads may use as well.
    writers: Vec<Descriptor>,
}

impl Drop for ThreadContext {
    fn drop(&mut self) {
        drop(registry::remove(self.number));
        // In a forked child the context belongs to the parent, whose connections must not end.
        if self.creator.is_here() {
            // SAFETY: it is dropped once, when the value that contains it is dropped.
            unsafe { ManuallyDrop::drop(&mut self.context) };
        }
    }
}

thread_local! {
    static TABLE: OfThread<Slots<ThreadContext>> = const { OfThread::new(Slots::new()) };
}

const NO_CONTEXT: Failure = Failure::own(
    libc::EINVAL,
    "the context does not exist: use the one that mtcp_create_context returned, and not after \
     mtcp_destroy_context",
);
const FORKED: Failure = Failure::own(
    libc::EPERM,
    "the context was created before a fork, by the parent: call mtcp_destroy, mtcp_init and \
     mtcp_create_context in the child",
);

/// Runs a call with this thread's contexts. There are none while the thread ends.
#[inline]
fn on_table<T>(
    body: impl FnOnce(&mut Slots<ThreadContext>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    TABLE.try_with(|table| table.enter(body)).unwrap_or(Err(NO_CONTEXT))
}

/// Returns the number in C's pointer, which is never dereferenced.
fn number_of(mctx: mctx_t) -> i64 {
    mctx.addr() as i64
}

/// Runs a call with a context.
#[inline]
fn on_context<T>(
    mctx: mctx_t,
    body: impl FnOnce(&mut ThreadContext) -> Result<T, Failure>,
) -> Result<T, Failure> {
    on_context_or(mctx, body, |number| Err(registry::why_absent(number)))
}

/// Runs a call with a context, or the alternative if the context is not one of this thread.
#[inline]
fn on_context_or<T>(
    mctx: mctx_t,
    body: impl FnOnce(&mut ThreadContext) -> Result<T, Failure>,
    absent: impl FnOnce(i64) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let number = number_of(mctx);
    on_table(|table| match table.get(number) {
        Some(held) if held.creator.is_here() => body(held),
        Some(_) => Err(FORKED),
        None => absent(number),
    })
}

/// Runs a call with a socket, an epoll instance or an end of a pipe of a context.
#[inline]
fn on_socket<T>(
    mctx: mctx_t,
    sockid: c_int,
    body: impl FnOnce(&mut Context, Descriptor) -> Result<T, Failure>,
) -> Result<T, Failure> {
    on_context(mctx, |held| body(&mut held.context, descriptor_of(sockid)?))
}

#[inline]
fn descriptor_of(sockid: c_int) -> Result<Descriptor, Failure> {
    const NEGATIVE: Failure = Failure::own(
        libc::EBADF,
        "the socket's number is negative: check what mtcp_socket or mtcp_accept returned before \
         using it",
    );
    u32::try_from(sockid).map(Descriptor).map_err(|_| NEGATIVE)
}

/// Converts a new descriptor to a number for C; tables hold 2²⁴ at most.
fn sockid_of(descriptor: Descriptor) -> c_int {
    descriptor.0 as c_int
}
