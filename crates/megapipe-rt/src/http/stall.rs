//! Ends connections whose clients take nothing.

use super::BoxError;
use super::account::Account;
use super::progress::Progress;
use crate::time::{Elapsed, Sleep, sleep};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Watches a connection in both ways in which a client can take nothing.
pub(super) struct Stalls {
    limit: Option<Duration>,
    /// The stream takes no bytes.
    stream: Stall,
    /// Bodies of answers are not written, although the stream may be: HTTP/2's windows are full.
    bodies: Stall,
}

/// One way.
#[derive(Default)]
struct Stall {
    timer: Option<Sleep>,
    /// What had moved when the timer was set. It is not moved each time.
    seen: u64,
}

impl Stalls {
    pub(super) fn new(limit: Option<Duration>) -> Stalls {
        Stalls { limit, stream: Stall::default(), bodies: Stall::default() }
    }

    /// Waits until the connection has to end, because of what it holds or because its client has
    /// taken nothing for the time limit; called after each poll of the connection. What the stream
    /// has not taken of an answer is then discarded.
    pub(super) fn poll(
        &mut self,
        progress: Progress,
        account: &Account,
        context: &mut Context<'_>,
    ) -> Poll<BoxError> {
        if let Poll::Ready(full) = account.poll_ended(context) {
            return Poll::Ready(full.into());
        }
        let elapsed = ready!(self.poll_elapsed(progress, account, context));
        if progress.is_write_blocked() || account.bytes() > 0 {
            account.end();
        }
        Poll::Ready(elapsed.into())
    }

    fn poll_elapsed(
        &mut self,
        progress: Progress,
        account: &Account,
        context: &mut Context<'_>,
    ) -> Poll<Elapsed> {
        let Some(limit) = self.limit else { return Poll::Pending };
        let stream = progress.is_blocked().then(|| progress.written());
        if self.stream.poll(limit, stream, context).is_ready() {
            return Poll::Ready(Elapsed(limit));
        }
        let bodies = (account.bytes() > 0).then(|| account.moved());
        self.bodies.poll(limit, bodies, context).map(|()| Elapsed(limit))
    }
}

impl Stall {
    /// `moved` is what has moved, `None` if there is nothing to move.
    fn poll(&mut self, limit: Duration, moved: Option<u64>, context: &mut Context<'_>) -> Poll<()> {
        let Some(moved) = moved else {
            self.timer = None;
            return Poll::Pending;
        };
        loop {
            if self.timer.is_none() {
                self.seen = moved;
            }
            ready!(Pin::new(self.timer.get_or_insert_with(|| sleep(limit))).poll(context));
            if self.seen == moved {
                return Poll::Ready(());
            }
            self.timer = None;
        }
    }
}
