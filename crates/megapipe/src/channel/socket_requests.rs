//! Submits requests for sockets: connecting a new socket, peeking, sending a part of a file, and
//! writing with MSG_MORE.

use super::Channel;
use super::requests::{BYTES, Rejected, SOCKETS, with_buffer};
use crate::address::{Address, RawAddress};
use crate::buffer::Buffer;
use crate::completion::Handle;
use crate::engine::{Command, FilePart, Lane, Request};
use crate::error::{Error, Result};
use crate::source::Kind;

impl<C> Channel<C> {
    /// Registers a new stream socket of the channel and connects it, TCP or UNIX according to the
    /// address: [`Event::Connect`](crate::Event::Connect). Requests that are submitted meanwhile
    /// wait for the connection.
    ///
    /// The socket is a lightweight socket, like those of [`Accept::lightweight`]. On io_uring it
    /// has no file descriptor and counts against [`Config::max_lightweight`]. On epoll it is a
    /// descriptor that the channel closes. On the `mtcp` driver it is a connection of the stack if
    /// the stack routes the address. It costs one system call: socket(2), or one io_uring_enter(2),
    /// which also hands over the collected requests. To bind a socket or to set options before it
    /// connects, register one and [`connect`](Channel::connect) it.
    ///
    /// Fails with `EINVAL` for an address that cannot be connected to, with [`TooManyLightweight`]
    /// if the file table of the ring is full, and as socket(2) and [`Channel::register`] do; then
    /// nothing stays registered. If the connect itself fails, the handle stays: connect it again or
    /// close it.
    ///
    /// [`Accept::lightweight`]: crate::Accept::lightweight
    /// [`Config::max_lightweight`]: crate::Config::max_lightweight
    /// [`TooManyLightweight`]: crate::TooManyLightweight
    ///
    /// ```
    /// use megapipe::{Channel, Event};
    /// use std::net::TcpListener;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut channel = Channel::new()?;
    /// let handle = channel.connect_to(listener.local_addr()?, "a backend")?;
    /// channel.write(handle, b"hello")?;
    /// let done = channel.dispatch(None)?.expect("the connection");
    /// assert!(matches!(done.event, Event::Connect(Ok(()))));
    /// let done = channel.dispatch(None)?.expect("the write");
    /// assert!(matches!(done.event, Event::Write(Ok(5), _)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect_to(&mut self, address: impl Into<Address>, cookie: C) -> Result<Handle> {
        let address = RawAddress::new(&address.into()).map_err(Error::system("connect"))?;
        let key = self.engine.connect_to(address)?;
        Ok(self.keep(key, cookie))
    }

    /// Copies what waits in a socket into the spare capacity of `buffer`, after its content, and
    /// leaves it in the socket. [`Event::Peek`](crate::Event::Peek) has the number of bytes, 0 at
    /// the end. The next read, receive or peek finds the same bytes.
    ///
    /// The peek waits for the earlier reads of the handle. It completes as soon as any bytes are
    /// there; to wait for more, read. A peek at a socket of datagrams or packets takes one message,
    /// and completes with `EMSGSIZE` and the message's beginning if it is longer than the spare
    /// capacity. Fails for handles that are not sockets.
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
        let (key, buffer) = with_buffer(self.check(handle, "a peek", SOCKETS), buffer)?;
        self.file_read(key, buffer, |buffer| Request::new(Command::Peek(buffer), Lane::Inbound))
    }

    /// Sends `bytes` bytes of a registered disk file, from `offset` on, over a stream socket, after
    /// the earlier writes of `handle`. [`Event::SendFile`](crate::Event::SendFile) reports that all
    /// were sent, or an error. The position of the file does not matter and does not change.
    ///
    /// What is in the page cache is sent by sendfile(2), without a copy, if the socket is
    /// non-blocking, as connections of [`Channel::accept`] and [`Channel::connect_to`] are. Set
    /// `O_NONBLOCK` of others before you register them. For all else, and on connections of the
    /// `mtcp` driver, the channel alternates read(2) and send(2) in pieces of 128 KiB, with one
    /// buffer of that size for each request in flight. Either way no disk blocks the thread, and
    /// there is no `SIGPIPE`. Where the kernel does not tell which pages are cached (before Linux
    /// 6.5; from 6.14 on also for files that the process neither owns nor may write to), one byte
    /// in 64 KiB is looked for, and a page that is missing in between does delay the thread. A
    /// lightweight socket of io_uring has a descriptor during each call of sendfile(2).
    ///
    /// The file may be sent to any number of handles at once. It must stay registered: the channel
    /// does not send what it has not taken when the file's handle ends (`EBADF`). Counts in full in
    /// [`Channel::queued_bytes`].
    ///
    /// ```
    /// use megapipe::{Channel, Event};
    /// use std::io::Read;
    /// use std::os::unix::net::UnixStream;
    /// let mut channel = Channel::new()?;
    /// let page = channel.register(std::fs::File::open("/etc/passwd")?, ())?;
    /// let (mut peer, ours) = UnixStream::pair()?;
    /// let handle = channel.register(ours, ())?;
    /// channel.send_file(handle, page, 0, 5)?;
    /// let done = channel.dispatch(None)?.expect("all is sent");
    /// assert!(matches!(done.event, Event::SendFile(Ok(5))));
    /// let mut found = [0; 5];
    /// peer.read_exact(&mut found)?;
    /// assert_eq!(&found, b"root:");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send_file(
        &mut self,
        handle: Handle,
        file: Handle,
        offset: u64,
        bytes: usize,
    ) -> Result<()> {
        let key = self.check(handle, "the sending of a file", &[Kind::Stream])?;
        let file = self.check(file, "being sent as a file", &[Kind::File])?;
        let end = u64::try_from(bytes).ok().and_then(|bytes| offset.checked_add(bytes));
        if end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(Error::Invalid("a file ends at an offset of at most 2⁶³ - 1"));
        }
        let command = Command::SendFile(FilePart::new(file, offset, bytes));
        self.file(key, Request::new(command, Lane::Outbound))
    }

    /// Writes all of a buffer as [`Channel::write`] does, and tells the kernel that a further write
    /// follows at once (`MSG_MORE` of send(2)): [`Event::Write`](crate::Event::Write).
    ///
    /// TCP delays a segment that is not full until that write, for 200 ms at most. So a header and
    /// a body share a segment even with [`Channel::set_nodelay`]. End with a
    /// [`write`](Channel::write), [`disconnect`](Channel::disconnect) or [`close`](Channel::close),
    /// each of which sends all. For sources other than stream sockets, and with the `mtcp` driver,
    /// this is a plain write: datagrams are not joined.
    pub fn write_more(
        &mut self,
        handle: Handle,
        buffer: impl Into<Buffer>,
    ) -> Result<(), Rejected<Buffer>> {
        let (key, buffer) = with_buffer(self.check(handle, "a write", BYTES), buffer.into())?;
        self.file_write(key, buffer, |buffer| {
            Request::new(Command::WriteMore(buffer), Lane::Outbound)
        })
    }
}
