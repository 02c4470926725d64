//! The body of a request, which fails if the client stops to send it.

use super::BoxError;
use crate::core::with_current;
use crate::time::{Elapsed, Sleep, sleep};
use ::hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// The body of a request, as a service gets it.
///
/// It fails with [`Elapsed`](crate::Elapsed) if no piece arrives for
/// [`Limits::body`](super::Limits::body), while the service waits for one and has not answered.
/// After the answer, both directions may be silent, as with streams of gRPC.
#[derive(Debug)]
pub struct RequestBody {
    incoming: Incoming,
    limit: Option<Duration>,
    timer: Option<Sleep>,
    /// `None` if there is no body.
    answered: Option<Answered>,
}

/// Whether the service has answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Answered(Arc<AtomicBool>);

impl Answered {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    /// Also returns the flag to set when the service has answered, if it is read.
    pub(super) fn new(
        incoming: Incoming,
        limit: Option<Duration>,
    ) -> (RequestBody, Option<Answered>) {
        let has_limit = limit.is_some() && !incoming.is_end_stream();
        let answered = has_limit.then(Answered::default);
        (RequestBody { incoming, limit, timer: None, answered: answered.clone() }, answered)
    }

    /// Waits until the time is over; called when there is nothing of the body.
    fn poll_elapsed(&mut self, context: &mut Context<'_>) -> Poll<Elapsed> {
        let (Some(limit), Some(answered)) = (self.limit, &self.answered) else {
            return Poll::Pending;
        };
        // A service may read the body on a thread that has no timers.
        if answered.is_set() || with_current(|_| ()).is_none() {
            self.timer = None;
            return Poll::Pending;
        }
        ready!(Pin::new(self.timer.get_or_insert_with(|| sleep(limit))).poll(context));
        Poll::Ready(Elapsed(limit))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(context) {
            self.timer = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let elapsed = ready!(self.poll_elapsed(context));
        Poll::Ready(Some(Err(elapsed.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
