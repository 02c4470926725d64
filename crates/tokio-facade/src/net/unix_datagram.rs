//! UNIX datagram sockets.

use super::receiver::Receiver;
use super::udp::copy;
use super::unix::SocketAddr;
use crate::{Local, lacks, poll_once, try_now};
use std::io;
use std::os::unix::net::{self as std_unix, SocketAddr as StdAddress};
use std::path::Path;
use std::task::{Context, Poll, ready};
use tokio::io::{Interest, ReadBuf};

/// A UNIX datagram socket.
#[derive(Debug)]
pub struct UnixDatagram(Local<Receiver<StdAddress>>);

impl UnixDatagram {
    fn new(socket: megapipe_rt::UnixDatagram) -> UnixDatagram {
        UnixDatagram(Local::new(Receiver::new(socket)))
    }

    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        megapipe_rt::UnixDatagram::bind(path).map(UnixDatagram::new)
    }

    pub fn unbound() -> io::Result<UnixDatagram> {
        megapipe_rt::UnixDatagram::unbound().map(UnixDatagram::new)
    }

    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (left, right) = megapipe_rt::UnixDatagram::pair()?;
        Ok((UnixDatagram::new(left), UnixDatagram::new(right)))
    }

    pub fn from_std(socket: std_unix::UnixDatagram) -> io::Result<UnixDatagram> {
        megapipe_rt::UnixDatagram::from_std(socket).map(UnixDatagram::new)
    }

    pub fn into_std(self) -> io::Result<std_unix::UnixDatagram> {
        lacks("way back from a stream to a socket of the standard library")
    }

    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.0.socket.connect(path)
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket.local_addr().map(SocketAddr)
    }

    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.socket.send(bytes.to_vec()).await.map(|()| bytes.len())
    }

    pub async fn send_to(&self, bytes: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        self.0.socket.send_to_path(bytes.to_vec(), path).await.map(|()| bytes.len())
    }

    pub fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        try_now(self.send(bytes))
    }

    pub fn try_send_to(&self, bytes: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        try_now(self.send_to(bytes, path))
    }

    pub async fn recv_from(&self, room: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let datagram = self.0.socket.recv_from().await?;
        Ok((copy(&datagram, room), SocketAddr(datagram.address())))
    }

    pub async fn recv(&self, room: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(room).await?.0)
    }

    pub async fn recv_buf_from(&self, buffer: &mut Vec<u8>) -> io::Result<(usize, SocketAddr)> {
        let datagram = self.0.socket.recv_from().await?;
        let count = datagram.len().min(buffer.capacity() - buffer.len());
        buffer.extend_from_slice(&datagram[..count]);
        Ok((count, SocketAddr(datagram.address())))
    }

    pub async fn recv_buf(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        Ok(self.recv_buf_from(buffer).await?.0)
    }

    pub fn try_recv_from(&self, room: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        try_now(self.recv_from(room))
    }

    pub fn try_recv(&self, room: &mut [u8]) -> io::Result<usize> {
        try_now(self.recv(room))
    }

    pub fn try_recv_buf(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        try_now(self.recv_buf(buffer))
    }

    pub fn try_recv_buf_from(&self, buffer: &mut Vec<u8>) -> io::Result<(usize, SocketAddr)> {
        try_now(self.recv_buf_from(buffer))
    }

    pub async fn readable(&self) -> io::Result<()> {
        self.0.socket.readable().await
    }

    pub async fn writable(&self) -> io::Result<()> {
        // The sender of a datagram waits in `send`.
        Ok(())
    }

    pub fn poll_recv_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        lacks("UnixDatagram::poll_recv_ready")
    }

    pub fn poll_send_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        lacks("UnixDatagram::poll_send_ready")
    }

    pub fn poll_send(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        poll_once(context, self.send(bytes))
    }

    pub fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
        path: impl AsRef<Path>,
    ) -> Poll<io::Result<usize>> {
        poll_once(context, self.send_to(bytes, path))
    }

    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let datagram = ready!(self.0.poll(context))?;
        let count = datagram.len().min(buffer.remaining());
        buffer.put_slice(&datagram[..count]);
        Poll::Ready(Ok(SocketAddr(datagram.address())))
    }

    pub fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_recv_from(context, buffer).map_ok(|_| ())
    }

    pub fn try_io<T>(&self, _: Interest, _: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        lacks("descriptor to call the kernel with beside the channel")
    }
}
