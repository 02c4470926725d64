//! The two directions of a connection.

use super::stream::Stream;
use crate::{Local, poll_once};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The reading direction of a borrowed stream.
pub struct Read<'a, F>(pub(super) &'a Stream<F>);

/// The writing direction of a borrowed stream.
pub struct Write<'a, F>(pub(super) &'a Stream<F>);

/// The reading direction of a stream that was split.
pub struct OwnedRead<F>(Local<megapipe_rt::ReadHalf<F>>);

/// The writing direction of a stream that was split.
pub struct OwnedWrite<F>(Local<megapipe_rt::WriteHalf<F>>);

/// Two halves that are not of one stream.
pub struct ReuniteError<F>(pub OwnedRead<F>, pub OwnedWrite<F>);

impl<F> fmt::Debug for ReuniteError<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ReuniteError")
    }
}

impl<F> fmt::Display for ReuniteError<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the halves are of two streams")
    }
}

impl<F> std::error::Error for ReuniteError<F> {}

impl<F> Stream<F> {
    pub fn split(&mut self) -> (Read<'_, F>, Write<'_, F>) {
        (Read(self), Write(self))
    }

    pub fn into_split(self) -> (OwnedRead<F>, OwnedWrite<F>) {
        let (reader, writer) = self.into_inner().split();
        (OwnedRead::new(reader), OwnedWrite::new(writer))
    }
}

impl<F> Read<'_, F> {
    pub async fn peek(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.peek(room).await
    }

    pub async fn readable(&self) -> io::Result<()> {
        self.0.readable().await
    }

    pub fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(room)
    }
}

impl<F> Write<'_, F> {
    pub async fn writable(&self) -> io::Result<()> {
        self.0.writable().await
    }

    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }
}

impl<F> OwnedRead<F> {
    pub(super) fn new(half: megapipe_rt::ReadHalf<F>) -> OwnedRead<F> {
        OwnedRead(Local::new(half))
    }

    pub async fn peek(&mut self, room: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| poll_once(context, self.0.peek_slice(room))).await
    }

    pub fn reunite(self, writer: OwnedWrite<F>) -> Result<Stream<F>, ReuniteError<F>> {
        match self.0.take().reunite(writer.0.take()) {
            Ok(stream) => Ok(Stream::new(stream)),
            Err((reader, writer)) => {
                Err(ReuniteError(OwnedRead::new(reader), OwnedWrite::new(writer)))
            }
        }
    }
}

impl<F> OwnedWrite<F> {
    pub(super) fn new(half: megapipe_rt::WriteHalf<F>) -> OwnedWrite<F> {
        OwnedWrite(Local::new(half))
    }

    pub fn reunite(self, reader: OwnedRead<F>) -> Result<Stream<F>, ReuniteError<F>> {
        reader.reunite(self)
    }

    /// Leaves the direction open.
    pub fn forget(self) {
        drop(self);
    }
}

macro_rules! forwarded {
    ($self:ident: $target:expr, [$($lifetime:lifetime)?], $reader:ty, $writer:ty) => {
        impl<$($lifetime,)? F> AsyncRead for $reader {
            fn poll_read(
                mut $self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new($target).poll_read(context, buffer)
            }
        }

        impl<$($lifetime,)? F> AsyncWrite for $writer {
            fn poll_write(
                mut $self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                Pin::new($target).poll_write(context, bytes)
            }

            fn poll_flush(
                mut $self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new($target).poll_flush(context)
            }

            fn poll_shutdown(
                mut $self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new($target).poll_shutdown(context)
            }
        }
    };
}

forwarded!(self: &mut *self.as_mut().get_mut().0.inner(), ['a], Read<'a, F>, Write<'a, F>);
forwarded!(self: &mut *self.as_mut().get_mut().0, [], OwnedRead<F>, OwnedWrite<F>);
