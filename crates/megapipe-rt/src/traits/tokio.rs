//! tokio's `AsyncRead` and `AsyncWrite`, by the feature `tokio-io`. tokio's runtime is not needed.
//!
//! `poll_flush` waits until the kernel has taken all that was written.

use crate::net::{ReadHalf, Stream, WriteHalf};
use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

macro_rules! read_for {
    ($($type:ty),+) => {
        $(impl<F> AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
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
        $(impl<F> AsyncWrite for $type {
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

            fn poll_flush(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                self.connection.poll_flush(context)
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
