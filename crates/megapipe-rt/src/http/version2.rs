//! Serves a connection of HTTP/2, and ends one that is idle, or whose client takes nothing, for too
//! long, which hyper does not do.

use super::account::Account;
use super::answer::Limited;
use super::progress::Progress;
use super::request::RequestBody;
use super::stall::Stalls;
use super::{BoxError, Limits};
use crate::hyper::Timer;
use crate::shutdown::ShutdownRequested;
use crate::spawn::spawn_local;
use crate::time::{Elapsed, Sleep, sleep};
use ::hyper::body::Body;
use ::hyper::rt::{Executor, Read, Write};
use ::hyper::server::conn::http2;
use ::hyper::{Request, Response};
use pin_project_lite::pin_project;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tower_service::Service;

/// Serves the connection until it ends, or has had no stream for the limit of idle time.
pub(super) async fn serve<I, S, B>(
    stream: I,
    service: Limited<S>,
    limits: Limits,
    account: &Account,
    mut shutdown: ShutdownRequested,
) -> Result<(), BoxError>
where
    I: Read + Write + Unpin + 'static,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + 'static,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let streams = Streams::default();
    let mut builder = http2::Builder::new(streams.clone());
    let mut connection = Box::pin(builder.timer(Timer).serve_connection(stream, service));
    let (mut ending, mut idle) = (false, None);
    let (mut progress, mut stalls) = (Progress::NEW, Stalls::new(limits.send));
    poll_fn(|context| {
        if !ending && Pin::new(&mut shutdown).poll(context).is_ready() {
            ending = true;
            connection.as_mut().graceful_shutdown();
        }
        loop {
            let polled = progress.watch(|| connection.as_mut().poll(context));
            if let Poll::Ready(ended) = polled {
                return Poll::Ready(ended.map_err(BoxError::from));
            }
            if let Poll::Ready(error) = stalls.poll(progress, account, context) {
                return Poll::Ready(Err(error));
            }
            let Some(limit) = limits.idle.filter(|_| streams.poll_none(context).is_ready()) else {
                idle = None;
                return Poll::Pending;
            };
            std::task::ready!(poll_sleep(idle.get_or_insert_with(|| sleep(limit)), context));
            idle = None;
            // The client did not react to the end of the connection that it was told.
            if ending {
                return Poll::Ready(Err(Elapsed(limit).into()));
            }
            ending = true;
            connection.as_mut().graceful_shutdown();
        }
    })
    .await
}

fn poll_sleep(timer: &mut Sleep, context: &mut Context<'_>) -> Poll<()> {
    Pin::new(timer).poll(context)
}

/// Starts the streams of a connection as tasks of the calling core, and counts them.
#[derive(Clone, Default)]
struct Streams(Rc<Open>);

/// The streams of a connection that have not ended.
#[derive(Default)]
struct Open {
    count: Cell<usize>,
    /// Wakes the connection's task at the end of the last one.
    waiter: RefCell<Option<Waker>>,
}

impl Streams {
    /// Waits until there is no stream.
    fn poll_none(&self, context: &Context<'_>) -> Poll<()> {
        if self.0.count.get() == 0 {
            return Poll::Ready(());
        }
        let mut waiter = self.0.waiter.borrow_mut();
        if !waiter.as_ref().is_some_and(|waiter| waiter.will_wake(context.waker())) {
            *waiter = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl<F> Executor<F> for Streams
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        self.0.count.set(self.0.count.get() + 1);
        // The task goes on without its handle.
        drop(spawn_local(Counted { future, _end: End(Rc::clone(&self.0)) }));
    }
}

pin_project! {
    /// A stream's future.
    struct Counted<F> {
        #[pin]
        future: F,
        _end: End,
    }
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(context)
    }
}

/// Counts a stream as ended when it is dropped.
struct End(Rc<Open>);

impl Drop for End {
    fn drop(&mut self) {
        let left = self.0.count.get() - 1;
        self.0.count.set(left);
        if left == 0
            && let Some(waiter) = self.0.waiter.take()
        {
            waiter.wake();
        }
    }
}
