//! tokio's names over megapipe-rt, so that the tests that tokio publishes run on it.
//!
//! `cargo xtask suites` builds these tests with this crate in tokio's place. It has what the tests
//! use. Each type is as thin as it can be: a type of megapipe-rt in a wrapper that gives it tokio's
//! signatures, and lets it be `Send`, because tests move sockets into threads. megapipe-rt's
//! sockets stay on their thread, so such a test fails there.
//!
//! - `net`: sockets. What tokio tries without waiting is a future of megapipe-rt here that is
//!   polled once and dropped, which loses nothing.
//! - `runtime`, `task`, `join`, `time`: a runtime always has one core, and `spawn` is
//!   `spawn_local`.
//! - `io`, `sync` and the macros are tokio's own: they need no runtime.
//!
//! What megapipe-rt has no counterpart for panics and says so (`lacks`): only the tests that use
//! it fail.

// tokio documents each of them.
#![allow(missing_docs)]

mod join;
pub mod net;
#[cfg(feature = "quinn")]
pub mod quinn;
pub mod runtime;
pub mod task;
pub mod time;

pub use task::spawn;
pub use tokio::{io, join, main, pin, select, sync, task_local, test, try_join};

use send_wrapper::SendWrapper;
use std::future::Future;
use std::task::{Context, Poll, Waker};

/// What stays on its thread, in a type that is `Send`.
type Local<T> = SendWrapper<T>;

/// Fails a test that needs what megapipe-rt does not have.
#[track_caller]
fn lacks(what: &str) -> ! {
    panic!("megapipe-rt has no {what}")
}

/// Polls a future once. The futures of megapipe-rt may be dropped at any time without loss.
fn poll_once<T>(context: &mut Context<'_>, future: impl Future<Output = T>) -> Poll<T> {
    std::pin::pin!(future).poll(context)
}

/// Returns the result of a future that need not wait; `WouldBlock` if it has to.
fn try_now<T>(future: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    match poll_once(&mut Context::from_waker(Waker::noop()), future) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(std::io::ErrorKind::WouldBlock.into()),
    }
}
