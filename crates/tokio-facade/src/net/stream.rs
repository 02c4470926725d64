//! Connections.

use super::unix::{SocketAddr as UnixAddress, UCred};
use crate::{Local, lacks, poll_once, try_now};
use megapipe_rt::{Tcp, Unix};
use std::cell::{RefCell, RefMut};
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::net as std_unix;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

/// A connection.
pub struct Stream<F>(Local<RefCell<megapipe_rt::Stream<F>>>);

/// A TCP connection.
pub type TcpStream = Stream<Tcp>;
/// A connection over a UNIX socket.
pub type UnixStream = Stream<Unix>;

impl<F> Stream<F> {
    pub(super) fn new(stream: megapipe_rt::Stream<F>) -> Stream<F> {
        Stream(Local::new(RefCell::new(stream)))
    }

    pub(super) fn inner(&self) -> RefMut<'_, megapipe_rt::Stream<F>> {
        self.0.borrow_mut()
    }

    pub(super) fn into_inner(self) -> megapipe_rt::Stream<F> {
        self.0.take().into_inner()
    }

    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_peek_into(context, &mut [0]).map_ok(|_| ())
    }

    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_once(context, self.inner().write_slice(&[])).map(|_| Ok(()))
    }

    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|context| self.poll_read_ready(context)).await
    }

    pub async fn writable(&self) -> io::Result<()> {
        poll_fn(|context| self.poll_write_ready(context)).await
    }

    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        poll_fn(|context| {
            let mut found = Ready::EMPTY;
            if interest.is_readable()
                && let Poll::Ready(count) = self.poll_peek_into(context, &mut [0])
            {
                let closed = if count? == 0 { Ready::READ_CLOSED } else { Ready::EMPTY };
                found |= Ready::READABLE | closed;
            }
            if interest.is_writable() && self.poll_write_ready(context)?.is_ready() {
                found |= Ready::WRITABLE;
            }
            if found.is_empty() { Poll::Pending } else { Poll::Ready(Ok(found)) }
        })
        .await
    }

    fn poll_peek_into(
        &self,
        context: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        poll_once(context, self.inner().peek_slice(room))
    }

    pub async fn peek(&self, room: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.poll_peek_into(context, room)).await
    }

    pub fn poll_peek(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.poll_peek_into(context, buffer.initialize_unfilled()))?;
        buffer.advance(count);
        Poll::Ready(Ok(count))
    }

    pub fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        try_now(self.inner().read_slice(room))
    }

    pub fn try_read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut total = 0;
        for slice in slices {
            match self.try_read(slice) {
                Ok(count) => total += count,
                Err(_) if total > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }

    pub fn try_read_buf(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let before = buffer.len();
        buffer.resize(buffer.capacity(), 0);
        let result = self.try_read(&mut buffer[before..]);
        buffer.truncate(before + *result.as_ref().unwrap_or(&0));
        result
    }

    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        try_now(self.inner().write_slice(bytes))
    }

    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let write =
            poll_fn(|context| Pin::new(&mut *self.inner()).poll_write_vectored(context, slices));
        try_now(write)
    }

    pub fn try_io<T>(&self, _: Interest, _: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        lacks("descriptor to call the kernel with beside the channel")
    }

    /// Returns an option whose value is a number.
    fn option(&self, level: i32, name: i32) -> io::Result<i32> {
        let mut value = [0; 4];
        self.inner().socket_option(level, name, &mut value)?;
        Ok(i32::from_ne_bytes(value))
    }
}

impl Stream<Tcp> {
    /// Tries each address in turn.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let mut failure = io::ErrorKind::InvalidInput.into();
        for address in address.to_socket_addrs()? {
            match megapipe_rt::TcpStream::connect(address).await {
                Ok(stream) => return Ok(Stream::new(stream)),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    pub fn from_std(socket: std::net::TcpStream) -> io::Result<TcpStream> {
        megapipe_rt::TcpStream::from_std(socket).map(Stream::new)
    }

    pub fn into_std(self) -> io::Result<std::net::TcpStream> {
        lacks("way back from a stream to a socket of the standard library")
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner().peer_addr()
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner().local_addr()
    }

    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.option(libc::IPPROTO_TCP, libc::TCP_NODELAY)? != 0)
    }

    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.inner().set_nodelay(nodelay)
    }

    pub fn linger(&self) -> io::Result<Option<Duration>> {
        let mut value = [0; 8];
        self.inner().socket_option(libc::SOL_SOCKET, libc::SO_LINGER, &mut value)?;
        let [on, seconds] = [0, 4].map(|at| value[at]);
        Ok((on != 0).then(|| Duration::from_secs(seconds.into())))
    }

    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.inner().set_linger(linger)
    }

    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }
}

impl TryFrom<std::net::TcpStream> for TcpStream {
    type Error = io::Error;

    fn try_from(socket: std::net::TcpStream) -> io::Result<TcpStream> {
        TcpStream::from_std(socket)
    }
}

impl Stream<Unix> {
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        let stream = match super::unix::abstract_address(path.as_ref())? {
            Some(address) => megapipe_rt::UnixStream::connect_addr(&address).await,
            None => megapipe_rt::UnixStream::connect(path).await,
        };
        stream.map(Stream::new)
    }

    pub async fn connect_addr(address: &UnixAddress) -> io::Result<UnixStream> {
        megapipe_rt::UnixStream::connect_addr(&address.0).await.map(Stream::new)
    }

    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (left, right) = megapipe_rt::UnixStream::pair()?;
        Ok((Stream::new(left), Stream::new(right)))
    }

    pub fn from_std(socket: std_unix::UnixStream) -> io::Result<UnixStream> {
        megapipe_rt::UnixStream::from_std(socket).map(Stream::new)
    }

    pub fn into_std(self) -> io::Result<std_unix::UnixStream> {
        lacks("way back from a stream to a socket of the standard library")
    }

    pub fn peer_addr(&self) -> io::Result<UnixAddress> {
        self.inner().peer_addr().map(UnixAddress)
    }

    pub fn local_addr(&self) -> io::Result<UnixAddress> {
        self.inner().local_addr().map(UnixAddress)
    }

    pub fn peer_cred(&self) -> io::Result<UCred> {
        self.inner().peer_credentials().map(UCred)
    }
}

impl<F> AsyncRead for Stream<F> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.inner()).poll_read(context, buffer)
    }
}

impl<F> AsyncWrite for Stream<F> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.inner()).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.inner()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.inner()).poll_shutdown(context)
    }
}

impl<F> std::fmt::Debug for Stream<F> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.borrow().fmt(out)
    }
}
