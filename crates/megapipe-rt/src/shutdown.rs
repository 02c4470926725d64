//! Waits for the request to end gracefully, and makes it when a signal arrives.

use crate::core::{Core, Sink, WaiterKey, current};
use crate::record::{Reason, note};
use megapipe::{Event, Repeat, Signals};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Waits until the shutdown of the runtime is requested: the future of [`shutdown_requested`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct ShutdownRequested {
    core: Rc<Core>,
    waiter: Option<WaiterKey>,
}

impl std::fmt::Debug for ShutdownRequested {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let requested = self.core.stop.is_requested();
        out.debug_struct("ShutdownRequested").field("requested", &requested).finish()
    }
}

/// Waits until the shutdown of the runtime is requested, by
/// [`Handle::request_shutdown`](crate::Handle::request_shutdown) or
/// [`Runtime::shutdown`](crate::Runtime::shutdown). Then a task should end its connections after
/// their current requests. [`TcpListener::accept`](crate::TcpListener::accept) ends by itself.
///
/// # Panics
/// Outside of a runtime.
#[track_caller]
pub fn shutdown_requested() -> ShutdownRequested {
    ShutdownRequested { core: current("shutdown_requested"), waiter: None }
}

impl Future for ShutdownRequested {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.core.stop.is_requested() {
            return Poll::Ready(());
        }
        self.waiter = Some(self.core.stop.wait(self.waiter, context.waker().clone()));
        note(Reason::SHUTDOWN);
        Poll::Pending
    }
}

impl Drop for ShutdownRequested {
    fn drop(&mut self) {
        if let Some(key) = self.waiter {
            self.core.stop.forget(key);
        }
    }
}

/// Requests the shutdown of all cores when a signal arrives.
struct ShutdownSignals;

impl Sink for ShutdownSignals {
    fn complete(&self, core: &Core, _: megapipe::Handle, event: Event, _: bool) {
        if let Event::Signal(Ok(signal)) = event {
            tracing::info!("signal {} requests the shutdown", signal.signal);
            core.shared().cores.iter().for_each(|core| {
                core.run(|core| core.stop.request());
            });
        }
    }
}

/// Makes a core request the shutdown of its runtime at each of the signals.
pub(crate) fn shut_down_at(core: &Core, signals: Signals) -> io::Result<()> {
    core.with_channel(|channel| {
        let handle = channel.register(signals, Rc::new(ShutdownSignals) as Rc<dyn Sink>)?;
        Ok(channel.watch(handle, Repeat::UntilCancelled)?)
    })
}
