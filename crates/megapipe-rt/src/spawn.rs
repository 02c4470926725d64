//! Functions for tasks: starting others, and letting others run.

use crate::core::current;
use crate::handle::Handle;
use crate::task::{Finisher, JoinHandle, Outcome};
use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Runs a future on the calling core, as a task of its own.
///
/// # Panics
/// Outside of a runtime.
#[track_caller]
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    current("spawn_local").spawn(future)
}

/// Runs the future that the closure makes on another core of this runtime; see
/// [`Handle::spawn_on`].
///
/// # Panics
/// Outside of a runtime, and if there is no such core.
#[track_caller]
pub fn spawn_on<M, F>(core: usize, make: M) -> JoinHandle<F::Output>
where
    M: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send + 'static,
{
    Handle::current().spawn_on(core, make)
}

/// Runs a closure that blocks (file systems, compression, other libraries) on a thread of the
/// runtime's pool, so that this core goes on. The pool has at most
/// [`Builder::blocking_threads`](crate::Builder::blocking_threads) threads; more calls wait.
///
/// [`JoinHandle::abort`] ends a call that has not begun. The end of the runtime does not wait for
/// calls: those that have not begun are dropped, the others go on without it.
///
/// ```
/// let runtime = megapipe_rt::Runtime::builder().cores(1).build()?;
/// let text = runtime.block_on(async {
///     megapipe_rt::spawn_blocking(|| std::fs::read_to_string("/proc/version")).await
/// });
/// assert!(text.unwrap()?.starts_with("Linux"));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// Outside of a runtime.
#[track_caller]
pub fn spawn_blocking<T, C>(call: C) -> JoinHandle<T>
where
    C: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let outcome = Outcome::new();
    current("spawn_blocking").shared().pool.run(call, Finisher::new(&outcome));
    JoinHandle::of_blocking_call(outcome)
}

/// Returns the addresses of a host and port, such as `"example.org:80"`, by the system's resolver
/// on a thread of the pool of [`spawn_blocking`].
///
/// # Panics
/// Outside of a runtime.
pub async fn lookup_host(host_and_port: impl Into<String>) -> io::Result<Vec<SocketAddr>> {
    let name = host_and_port.into();
    spawn_blocking(move || Ok(name.to_socket_addrs()?.collect())).await?
}

/// Returns the number of the calling core, from 0 on.
///
/// # Panics
/// Outside of a runtime.
#[track_caller]
pub fn core_index() -> usize {
    current("core_index").index
}

/// Lets the other ready tasks and the channel's completions go first: for tasks that compute for
/// long.
pub fn yield_now() -> YieldNow {
    YieldNow { yielded: false }
}

/// The future of [`yield_now`].
#[must_use = "a future does nothing unless it is awaited"]
#[derive(Debug)]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
