//! Tells whether hyper's HTTP/1 connection is idle, which hyper does not tell itself: it begins its
//! timer for a request's header when all of the answer before is in its buffer, and drops it when
//! the header is complete.

use crate::hyper::Timer;
use crate::time::{Sleep, sleep_until};
use hyper::rt;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// What a connection did when it was polled last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// It waits for a request, of which nothing was read.
    awaits_request: bool,
    /// The stream has taken everything that was written.
    is_flushed: bool,
    /// The stream takes no bytes at present.
    is_write_blocked: bool,
    /// The stream does not get rid of the bytes that it has taken.
    is_flush_blocked: bool,
    /// The number of bytes that the stream has taken.
    written: u64,
}

thread_local! {
    /// The progress of the connection that is being polled.
    static CURRENT: Cell<Progress> = const { Cell::new(Progress::NEW) };
}

impl Progress {
    pub(super) const NEW: Progress = Progress {
        awaits_request: false,
        is_flushed: true,
        is_write_blocked: false,
        is_flush_blocked: false,
        written: 0,
    };

    /// Returns whether there is no request, no part of one, and no part of an answer.
    pub(super) fn is_idle(self) -> bool {
        self.awaits_request && self.is_flushed
    }

    /// Returns whether the stream makes the connection wait.
    pub(super) fn is_blocked(self) -> bool {
        self.is_write_blocked || self.is_flush_blocked
    }

    /// Returns whether the stream has not yet taken all of what was to be written.
    pub(super) fn is_write_blocked(self) -> bool {
        self.is_write_blocked
    }

    /// Returns the number of bytes that the stream has taken.
    pub(super) fn written(self) -> u64 {
        self.written
    }

    /// Polls the connection and notes what it does.
    pub(super) fn watch<T>(&mut self, poll: impl FnOnce() -> T) -> T {
        // Another connection may be polled within a handler of this one.
        let outer = CURRENT.replace(*self);
        let polled = poll();
        *self = CURRENT.replace(outer);
        polled
    }
}

fn change(change: impl FnOnce(&mut Progress)) {
    let mut progress = CURRENT.get();
    change(&mut progress);
    CURRENT.set(progress);
}

/// Notes that bytes, or the end of the stream, were read.
pub(super) fn note_read() {
    change(|progress| progress.awaits_request = false);
}

pub(super) fn note_written(polled: &Poll<io::Result<usize>>) {
    change(|progress| {
        progress.is_flushed = false;
        progress.is_write_blocked = polled.is_pending();
        if let Poll::Ready(Ok(bytes)) = polled {
            progress.written += *bytes as u64;
        }
    });
}

pub(super) fn note_flushed(is_flushed: bool) {
    change(|progress| {
        progress.is_flushed = is_flushed;
        progress.is_flush_blocked = !is_flushed;
    });
}

/// hyper's timer for headers.
pub(super) struct HeaderTimer;

impl rt::Timer for HeaderTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Timer.sleep(duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        change(|progress| progress.awaits_request = true);
        Box::pin(HeaderSleep(sleep_until(deadline)))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, deadline: Instant) {
        *sleep = self.sleep_until(deadline);
        // The drop of the former one has noted the contrary.
        change(|progress| progress.awaits_request = true);
    }
}

/// Lives while hyper waits for a header.
struct HeaderSleep(Sleep);

impl rt::Sleep for HeaderSleep {}

impl Future for HeaderSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl Drop for HeaderSleep {
    fn drop(&mut self) {
        note_read();
    }
}
