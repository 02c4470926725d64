//! `AsyncRead` and `AsyncWrite` of the crate futures-io, by the feature `futures-io`.
//!
//! `poll_flush` waits until the kernel has taken all that was written; `poll_close` shuts down
//! writing.

use crate::net::{ReadHalf, Stream, WriteHalf};
use futures_io::{AsyncRead, AsyncWrite};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

macro_rules! read_for {
    ($($type:ty),+) => {
        $(impl<F> AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                self.connection.poll_copy_into(context, buffer)
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

            fn poll_flush(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                self.connection.poll_flush(context)
            }

            fn poll_close(
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
