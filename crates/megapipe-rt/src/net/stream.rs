//! Connections of every family.

use super::connection::Connection;
use super::halves::{ReadHalf, WriteHalf};
use super::received::Received;
use megapipe::Buffer;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::marker::PhantomData;
use std::rc::Rc;

/// A connection of the calling core: [`TcpStream`](crate::TcpStream) for the family
/// [`Tcp`](crate::Tcp), [`UnixStream`](crate::UnixStream) for [`Unix`](crate::Unix).
///
/// The methods use owned buffers: [`read`](Stream::read) returns a buffer of the channel, and
/// [`write`](Stream::write) takes one. With the features `hyper`, `tokio-io` and `futures-io` it
/// also has the traits of these crates, which copy.
///
/// All futures may be dropped at any time, for example by a [`timeout`](crate::timeout): no bytes
/// are lost, and none are written twice or in part.
///
/// Dropping the stream closes it. What was written is sent first, in the background; the channel
/// gives up on a peer that takes nothing for `Config::close_timeout`.
pub struct Stream<F> {
    pub(crate) connection: Rc<Connection>,
    family: PhantomData<fn() -> F>,
}

impl<F> Stream<F> {
    pub(super) fn new(connection: Connection) -> Stream<F> {
        Stream::of(Rc::new(connection))
    }

    pub(super) fn of(connection: Rc<Connection>) -> Stream<F> {
        Stream { connection, family: PhantomData }
    }

    /// Waits for bytes and returns them; `None` is the end of the stream.
    ///
    /// Returns one piece as it arrived, without a copy: up to 4 KiB, or 64 KiB while much arrives.
    /// After the first call, the stream receives without being asked, up to 64 KiB ahead. An error
    /// is returned again by later calls.
    pub async fn read(&mut self) -> io::Result<Option<Received>> {
        poll_fn(|context| self.connection.poll_read(context)).await
    }

    /// Waits for bytes and copies them into `room`; returns their number, which is 0 at the end of
    /// the stream, or if `room` is empty.
    pub async fn read_slice(&mut self, room: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.connection.poll_copy_into(context, room)).await
    }

    /// Waits for bytes and copies them into `room` as [`read_slice`](Stream::read_slice) does, but
    /// leaves them for the next read.
    pub async fn peek_slice(&mut self, room: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.connection.poll_peek(context, room)).await
    }

    /// Submits a write of the whole buffer: a `Vec<u8>`, `&'static [u8]`, `Arc<[u8]>`, or what
    /// [`read`](Stream::read) returned. None of them is copied.
    ///
    /// Waits only while as much output as the high-water mark
    /// ([`set_high_water`](Stream::set_high_water)) is not written yet: back-pressure, and a
    /// bound on the memory of a connection whose peer does not read. Bytes leave in the order of
    /// the calls.
    ///
    /// If the future is dropped before it is complete, nothing of the buffer is written. A write
    /// that fails later is an error of the next `write`, `flush` or `shutdown`.
    pub async fn write(&mut self, buffer: impl Into<Buffer>) -> io::Result<()> {
        let mut buffer = Some(buffer.into());
        poll_fn(|context| self.connection.poll_write(context, &mut buffer)).await
    }

    /// Copies the beginning of `bytes`, at most 64 KiB, and returns the number of these bytes. What
    /// a task writes so before it waits next leaves together, up to 64 KiB in one request.
    /// Otherwise as [`write`](Stream::write).
    pub async fn write_slice(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| self.connection.poll_write_copy(context, [bytes].into_iter())).await
    }

    /// Waits until the kernel has taken all that was written. Dropping the future changes nothing.
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| self.connection.poll_flush(context)).await
    }

    /// Ends the writing direction, after all that was written: the peer reads the end of the
    /// stream. Reading goes on. Waits until the kernel has taken all that was written, so for a
    /// peer that does not read as long as that. The direction ends when the core next looks for
    /// completions, or with the close of a stream that is dropped before. If the future is dropped,
    /// it ends all the same. A later write fails with `EPIPE`.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        poll_fn(|context| self.connection.poll_shutdown(context)).await
    }

    /// Closes the connection at once and resets it; output that is not written yet is discarded.
    pub fn abort(self) {
        self.connection.abort();
    }

    /// Splits the stream into its two directions, for two tasks. [`ReadHalf::reunite`] undoes it.
    pub fn split(self) -> (ReadHalf<F>, WriteHalf<F>) {
        (ReadHalf::new(Rc::clone(&self.connection)), WriteHalf::new(self.connection))
    }

    /// Sets the high-water mark in bytes: while so much output is not written yet, a writer waits,
    /// until half of it is. Default: 64 KiB.
    pub fn set_high_water(&self, bytes: usize) {
        self.connection.set_high_water(bytes);
    }

    /// Returns the number of bytes that were submitted and are not written yet.
    pub fn queued_bytes(&self) -> usize {
        self.connection.queued_bytes()
    }

    /// Sets any option of the levels `SOL_SOCKET` and `IPPROTO_TCP`, see setsockopt(2).
    pub fn set_socket_option(&self, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        self.connection
            .with(|channel, handle| channel.set_socket_option(handle, level, name, value))
    }

    /// Reads an option, see getsockopt(2); returns the length of the value.
    pub fn socket_option(&self, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
        self.connection.with(|channel, handle| channel.socket_option(handle, level, name, value))
    }
}

impl<F> ReadHalf<F> {
    /// Undoes [`Stream::split`](crate::Stream::split). Returns both halves if they are of two
    /// streams.
    pub fn reunite(self, writer: WriteHalf<F>) -> Result<Stream<F>, (ReadHalf<F>, WriteHalf<F>)> {
        match Rc::ptr_eq(&self.connection, &writer.connection) {
            true => Ok(Stream::of(self.connection)),
            false => Err((self, writer)),
        }
    }
}

impl<F> fmt::Debug for Stream<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = self.queued_bytes();
        out.debug_struct("Stream").field("queued_bytes", &queued).finish_non_exhaustive()
    }
}
