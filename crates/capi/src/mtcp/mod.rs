//! User-level TCP for C: `include/mtcp.h`, the calls of mTCP's paper and of its public header.
//!
//! What this layer adds to the crate `mtcp`: contexts in a table of their thread, found by numbers
//! that are given once in a process (`mctx_t` is such a number and never followed); the settings
//! and stacks of the process (`lifecycle`); what other threads may know of a context, which is its
//! pipes (`registry`); and signals that end a wait (`signals`).

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
use channel::fork::Birth;
use libc::{c_int, pollfd};
use signals::Waker;
use stack::{Context, Descriptor, EpollEvent};
use std::mem::ManuallyDrop;
use types::mctx_t;

/// A context of this thread's.
pub(crate) struct Held {
    context: ManuallyDrop<Context>,
    /// The number by which it is known.
    number: i64,
    birth: Birth,
    waker: Waker,
    /// What a waiting call polls: the context's descriptors, and last the waker's.
    polls: Vec<pollfd>,
    /// Room for events on their way to C.
    events: Vec<EpollEvent>,
    /// Writing ends of pipes that are open, which other threads may use as well.
    writers: Vec<Descriptor>,
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(registry::remove(self.number));
        // In a child after a fork it is the parent's, whose connections must not be ended.
        if self.birth.is_here() {
            // SAFETY: dropped once, in the drop of what it is part of.
            unsafe { ManuallyDrop::drop(&mut self.context) };
        }
    }
}

thread_local! {
    static TABLE: OfThread<Slots<Held>> = const { OfThread::new(Slots::new()) };
}

const NO_CONTEXT: Failure = Failure::own(
    libc::EINVAL,
    "there is no such context (any more): use what mtcp_create_context gave, and not after \
     mtcp_destroy_context",
);
const FORKED: Failure = Failure::own(
    libc::EPERM,
    "the context was created before a fork, by the parent: call mtcp_destroy, mtcp_init and \
     mtcp_create_context in the child",
);

/// Runs a call on this thread's contexts. While the thread ends there are none.
#[inline]
fn on_table<T>(body: impl FnOnce(&mut Slots<Held>) -> Result<T, Failure>) -> Result<T, Failure> {
    TABLE.try_with(|table| table.enter(body)).unwrap_or(Err(NO_CONTEXT))
}

/// C's pointer is a number in the form of one, and is never followed.
fn number_of(mctx: mctx_t) -> i64 {
    mctx.addr() as i64
}

/// Runs a call on a context.
#[inline]
fn on_context<T>(
    mctx: mctx_t,
    body: impl FnOnce(&mut Held) -> Result<T, Failure>,
) -> Result<T, Failure> {
    on_context_or(mctx, body, |number| Err(registry::why_absent(number)))
}

/// Runs a call on a context, or another if it is none of this thread's.
#[inline]
fn on_context_or<T>(
    mctx: mctx_t,
    body: impl FnOnce(&mut Held) -> Result<T, Failure>,
    absent: impl FnOnce(i64) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let number = number_of(mctx);
    on_table(|table| match table.get(number) {
        Some(held) if held.birth.is_here() => body(held),
        Some(_) => Err(FORKED),
        None => absent(number),
    })
}

/// Runs a call on a socket, an epoll or an end of a pipe of a context.
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
        "the socket's number is negative: look at what mtcp_socket or mtcp_accept gave before \
         using it",
    );
    u32::try_from(sockid).map(Descriptor).map_err(|_| NEGATIVE)
}

/// The number of a new descriptor for C; tables hold 2²⁴ at most.
fn sockid_of(descriptor: Descriptor) -> c_int {
    descriptor.0 as c_int
}
