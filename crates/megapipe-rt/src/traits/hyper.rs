//! The runtime traits of hyper 1, by the feature `hyper`.
//!
//! - `hyper::rt::Read` and `Write` for [`Stream`](crate::Stream) and its halves.
//! - [`LocalExecutor`]: `hyper::rt::Executor`, which starts tasks on the calling core.
//! - [`Timer`]: `hyper::rt::Timer`, on the core's timing wheel.
//!
//! `poll_flush` does not wait: what was written is submitted when the task's poll ends. A write
//! that fails later is an error of a later call.

use crate::net::{ReadHalf, Stream, WriteHalf};
use crate::spawn::spawn_local;
use crate::time::{Sleep, sleep_until};
use ::hyper::rt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

macro_rules! read_for {
    ($($type:ty),+) => {
        $(impl<F> rt::Read for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                mut buffer: rt::ReadBufCursor<'_>,
            ) -> Poll<io::Result<()>> {
                let copied = self.connection.poll_copy(context, |bytes| {
                    let count = bytes.len().min(buffer.remaining());
                    buffer.put_slice(&bytes[..count]);
                    count
                });
                copied.map_ok(|_| ())
            }
        })+
    };
}

macro_rules! write_for {
    ($($type:ty),+) => {
        $(impl<F> rt::Write for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.connection.poll_write_copy(context, std::iter::once(bytes))
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.connection.poll_write_copy(context, slices.iter().map(|slice| &**slice))
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                self.connection.poll_shutdown(context)
            }
        })+
    };
}

read_for!(Stream<F>, ReadHalf<F>);
write_for!(Stream<F>, WriteHalf<F>);

/// Starts hyper's tasks on the calling core. Their futures need not be `Send`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalExecutor;

impl<F> rt::Executor<F> for LocalExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    /// # Panics
    /// Outside of a runtime.
    fn execute(&self, future: F) {
        // The task goes on without its handle.
        drop(spawn_local(future));
    }
}

/// Makes hyper's time limits work, such as that for a request's header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timer;

impl rt::Sleep for Sleep {}

impl rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(crate::time::sleep(duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(sleep_until(deadline))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Sleep>() {
            Some(own) => own.get_mut().reset(new_deadline),
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}
