//! The two directions of a connection, for two tasks, and the two ends of a pipe.

use super::connection::Connection;
use super::family::Tcp;
use super::received::Received;
use megapipe::Buffer;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::marker::PhantomData;
use std::rc::Rc;

/// The reading direction of a stream, from [`Stream::split`](crate::Stream::split); or the reading
/// end of a pipe, [`PipeReader`](crate::PipeReader). The connection is closed when both halves are
/// dropped.
pub struct ReadHalf<F = Tcp> {
    pub(crate) connection: Rc<Connection>,
    family: PhantomData<fn() -> F>,
}

/// The writing direction of a stream, from [`Stream::split`](crate::Stream::split); or the writing
/// end of a pipe, [`PipeWriter`](crate::PipeWriter). The connection is closed when both halves are
/// dropped; [`shutdown`](WriteHalf::shutdown) ends this direction before.
pub struct WriteHalf<F = Tcp> {
    pub(crate) connection: Rc<Connection>,
    family: PhantomData<fn() -> F>,
}

impl<F> ReadHalf<F> {
    pub(super) fn new(connection: Rc<Connection>) -> ReadHalf<F> {
        ReadHalf { connection, family: PhantomData }
    }

    /// See [`Stream::read`](crate::Stream::read).
    pub async fn read(&mut self) -> io::Result<Option<Received>> {
        poll_fn(|context| self.connection.poll_read(context)).await
    }

    /// See [`Stream::read_slice`](crate::Stream::read_slice).
    pub async fn read_slice(&mut self, room: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.connection.poll_copy_into(context, room)).await
    }

    /// See [`Stream::peek_slice`](crate::Stream::peek_slice).
    pub async fn peek_slice(&mut self, room: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.connection.poll_peek(context, room)).await
    }
}

impl<F> WriteHalf<F> {
    pub(super) fn new(connection: Rc<Connection>) -> WriteHalf<F> {
        WriteHalf { connection, family: PhantomData }
    }

    /// See [`Stream::write`](crate::Stream::write).
    pub async fn write(&mut self, buffer: impl Into<Buffer>) -> io::Result<()> {
        let mut buffer = Some(buffer.into());
        poll_fn(|context| self.connection.poll_write(context, &mut buffer)).await
    }

    /// See [`Stream::write_slice`](crate::Stream::write_slice).
    pub async fn write_slice(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| self.connection.poll_write_copy(context, [bytes].into_iter())).await
    }

    /// See [`Stream::flush`](crate::Stream::flush).
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| self.connection.poll_flush(context)).await
    }

    /// See [`Stream::shutdown`](crate::Stream::shutdown). At a pipe it only waits, as
    /// [`flush`](WriteHalf::flush) does: a pipe ends when its writer is dropped.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        poll_fn(|context| self.connection.poll_shutdown(context)).await
    }
}

impl<F> fmt::Debug for ReadHalf<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ReadHalf").finish_non_exhaustive()
    }
}

impl<F> fmt::Debug for WriteHalf<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = self.connection.queued_bytes();
        out.debug_struct("WriteHalf").field("queued_bytes", &queued).finish_non_exhaustive()
    }
}
