//! The two directions of a connection, for two tasks.

use super::connection::Connection;
use super::received::Received;
use megapipe::Buffer;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;

/// The reading direction of a stream; from [`TcpStream::split`](crate::TcpStream::split). The
/// connection is closed when both halves are dropped.
pub struct ReadHalf {
    pub(crate) connection: Rc<Connection>,
}

/// The writing direction of a stream; from [`TcpStream::split`](crate::TcpStream::split). The
/// connection is closed when both halves are dropped; [`shutdown`](WriteHalf::shutdown) ends this
/// direction before.
pub struct WriteHalf {
    pub(crate) connection: Rc<Connection>,
}

impl ReadHalf {
    /// See [`TcpStream::read`](crate::TcpStream::read).
    pub async fn read(&mut self) -> io::Result<Option<Received>> {
        poll_fn(|context| self.connection.poll_read(context)).await
    }

    /// See [`TcpStream::read_slice`](crate::TcpStream::read_slice).
    pub async fn read_slice(&mut self, room: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.connection.poll_copy_into(context, room)).await
    }
}

impl WriteHalf {
    /// See [`TcpStream::write`](crate::TcpStream::write).
    pub async fn write(&mut self, buffer: impl Into<Buffer>) -> io::Result<()> {
        let mut buffer = Some(buffer.into());
        poll_fn(|context| self.connection.poll_write(context, &mut buffer)).await
    }

    /// See [`TcpStream::write_slice`](crate::TcpStream::write_slice).
    pub async fn write_slice(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| self.connection.poll_write_copy(context, [bytes].into_iter())).await
    }

    /// See [`TcpStream::flush`](crate::TcpStream::flush).
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| self.connection.poll_flush(context)).await
    }

    /// See [`TcpStream::shutdown`](crate::TcpStream::shutdown).
    pub async fn shutdown(&mut self) -> io::Result<()> {
        poll_fn(|context| self.connection.poll_shutdown(context)).await
    }
}

impl fmt::Debug for ReadHalf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ReadHalf").finish_non_exhaustive()
    }
}

impl fmt::Debug for WriteHalf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = self.connection.queued_bytes();
        out.debug_struct("WriteHalf").field("queued_bytes", &queued).finish_non_exhaustive()
    }
}
