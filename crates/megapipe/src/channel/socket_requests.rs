//! Filing requests that are meant for sockets: looking without taking, writing in parts.

use super::Channel;
use super::requests::{BYTES, Rejected, SOCKETS};
use crate::buffer::Buffer;
use crate::completion::Handle;
use crate::engine::{Command, Lane, Request};

impl<C> Channel<C> {
    /// Reads into the spare capacity of `buffer`, behind what it contains, what waits in a socket,
    /// and leaves it there: [`Event::Peek`](crate::Event::Peek) with the number of bytes, 0 at the
    /// end. The next read, receive or peek finds the same.
    ///
    /// Takes its turn among the reads of the handle. Completes when something is there, and then at
    /// once: to wait for more than that, read. From a socket of datagrams or packets: one message,
    /// `EMSGSIZE` with its beginning if it is longer than the room. Other than from sockets it is
    /// refused, and `EOPNOTSUPP` for connections of the `mtcp` driver.
    ///
    /// ```
    /// use megapipe::{Channel, Event};
    /// use std::io::Write;
    /// use std::os::unix::net::UnixStream;
    /// let mut channel = Channel::new()?;
    /// let (mut peer, ours) = UnixStream::pair()?;
    /// let handle = channel.register(ours, ())?;
    /// peer.write_all(b"hello")?;
    /// channel.peek(handle, Vec::with_capacity(2))?;
    /// channel.read(handle, Vec::with_capacity(9))?;
    /// let done = channel.dispatch(None)?.expect("the beginning");
    /// assert!(matches!(done.event, Event::Peek(Ok(2), bytes) if bytes == b"he"));
    /// let done = channel.dispatch(None)?.expect("all of it");
    /// assert!(matches!(done.event, Event::Read(Ok(5), bytes) if bytes == b"hello"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peek(&mut self, handle: Handle, buffer: Vec<u8>) -> Result<(), Rejected<Vec<u8>>> {
        match self.check(handle, "a peek", SOCKETS) {
            Ok(key) => self.file_read(key, buffer, |payload| {
                Request::new(Command::Peek, Lane::Inbound, payload)
            }),
            Err(error) => Err(Rejected { error, buffer }),
        }
    }

    /// Writes all of a buffer as [`Channel::write`] does, and tells the kernel that a further write
    /// follows at once (`MSG_MORE` of send(2)): [`Event::Write`](crate::Event::Write).
    ///
    /// TCP holds a segment that is not full back until then, but for 200 ms at most. So a header
    /// and a body share a segment also with [`Channel::set_nodelay`]. End with a
    /// [`write`](Channel::write), [`disconnect`](Channel::disconnect) or [`close`](Channel::close),
    /// each of which sends all. Everything but a stream socket takes it for a plain write, as does
    /// the `mtcp` driver: datagrams are not joined.
    pub fn write_more(
        &mut self,
        handle: Handle,
        buffer: impl Into<Buffer>,
    ) -> Result<(), Rejected<Buffer>> {
        let buffer = buffer.into();
        match self.check(handle, "a write", BYTES) {
            Ok(key) => self.file_write(key, buffer, |payload| {
                Request::new(Command::WriteMore, Lane::Outbound, payload)
            }),
            Err(error) => Err(Rejected { error, buffer }),
        }
    }
}
