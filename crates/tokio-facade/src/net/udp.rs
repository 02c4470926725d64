//! UDP sockets.

use super::receiver::Receiver;
use crate::{Local, lacks, poll_once, try_now};
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll, ready};
use tokio::io::{Interest, ReadBuf, Ready};

/// A UDP socket.
pub struct UdpSocket(Local<Receiver<SocketAddr>>);

/// Copies as much of a datagram as there is room for.
pub(super) fn copy(bytes: &[u8], room: &mut [u8]) -> usize {
    let count = bytes.len().min(room.len());
    room[..count].copy_from_slice(&bytes[..count]);
    count
}

fn first(address: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    address.to_socket_addrs()?.next().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl UdpSocket {
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        megapipe_rt::UdpSocket::bind(address).map(UdpSocket::new)
    }

    fn new(socket: megapipe_rt::UdpSocket) -> UdpSocket {
        UdpSocket(Local::new(Receiver::new(socket)))
    }

    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<UdpSocket> {
        megapipe_rt::UdpSocket::from_std(socket).map(UdpSocket::new)
    }

    pub async fn connect(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        self.0.socket.connect(first(address)?)
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket.local_addr()
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        lacks("UdpSocket::peer_addr")
    }

    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.socket.send(bytes.to_vec()).await.map(|()| bytes.len())
    }

    pub async fn send_to(&self, bytes: &[u8], address: impl ToSocketAddrs) -> io::Result<usize> {
        self.0.socket.send_to(bytes.to_vec(), first(address)?).await.map(|()| bytes.len())
    }

    pub fn poll_send(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        poll_once(context, self.send(bytes))
    }

    pub fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
        address: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        poll_once(context, self.send_to(bytes, address))
    }

    pub fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        try_now(self.send(bytes))
    }

    pub fn try_send_to(&self, bytes: &[u8], address: SocketAddr) -> io::Result<usize> {
        try_now(self.send_to(bytes, address))
    }

    pub async fn recv_from(&self, room: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let datagram = self.0.socket.recv_from().await?;
        Ok((copy(&datagram, room), datagram.address()))
    }

    pub async fn recv(&self, room: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(room).await?.0)
    }

    pub async fn recv_buf_from(&self, buffer: &mut Vec<u8>) -> io::Result<(usize, SocketAddr)> {
        let datagram = self.0.socket.recv_from().await?;
        let count = datagram.len().min(buffer.capacity() - buffer.len());
        buffer.extend_from_slice(&datagram[..count]);
        Ok((count, datagram.address()))
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

    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let datagram = ready!(self.0.poll(context))?;
        let count = datagram.len().min(buffer.remaining());
        buffer.put_slice(&datagram[..count]);
        Poll::Ready(Ok(datagram.address()))
    }

    pub fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_recv_from(context, buffer).map_ok(|_| ())
    }

    pub async fn readable(&self) -> io::Result<()> {
        self.0.socket.readable().await
    }

    pub async fn writable(&self) -> io::Result<()> {
        // The sender of a datagram waits in `send`.
        Ok(())
    }

    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        if interest.is_writable() {
            return Ok(Ready::WRITABLE);
        }
        self.readable().await.map(|()| Ready::READABLE)
    }

    pub fn poll_recv_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        lacks("UdpSocket::poll_recv_ready")
    }

    pub fn poll_send_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        lacks("UdpSocket::poll_send_ready")
    }

    pub fn try_io<T>(&self, _: Interest, _: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        lacks("descriptor to call the kernel with beside the channel")
    }

    pub async fn async_io<T>(
        &self,
        _: Interest,
        _: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        lacks("descriptor to call the kernel with beside the channel")
    }

    pub async fn peek(&self, _: &mut [u8]) -> io::Result<usize> {
        lacks("peek for datagrams")
    }

    pub async fn peek_from(&self, _: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        lacks("peek for datagrams")
    }

    pub fn try_peek_from(&self, _: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        lacks("peek for datagrams")
    }

    pub fn poll_peek_from(
        &self,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        lacks("peek for datagrams")
    }

    pub async fn peek_sender(&self) -> io::Result<SocketAddr> {
        lacks("peek for datagrams")
    }

    pub fn try_peek_sender(&self) -> io::Result<SocketAddr> {
        lacks("peek for datagrams")
    }

    pub fn poll_peek_sender(&self, _: &mut Context<'_>) -> Poll<io::Result<SocketAddr>> {
        lacks("peek for datagrams")
    }
}

/// Makes a method that reads an option and one that sets it.
macro_rules! options {
    ($($get:ident, $set:ident: $type:ty, $level:ident, $name:ident;)+) => {
        impl UdpSocket {
            $(pub fn $get(&self) -> io::Result<$type> {
                let mut value = [0; 4];
                self.0.socket.socket_option(libc::$level, libc::$name, &mut value)?;
                <$type>::of(i32::from_ne_bytes(value))
            }

            pub fn $set(&self, value: $type) -> io::Result<()> {
                let value = i32::try_from(value).map_err(io::Error::other)?.to_ne_bytes();
                self.0.socket.set_socket_option(libc::$level, libc::$name, &value)
            })+
        }
    };
}

options! {
    broadcast, set_broadcast: bool, SOL_SOCKET, SO_BROADCAST;
    multicast_loop_v4, set_multicast_loop_v4: bool, IPPROTO_IP, IP_MULTICAST_LOOP;
    multicast_loop_v6, set_multicast_loop_v6: bool, IPPROTO_IPV6, IPV6_MULTICAST_LOOP;
    multicast_ttl_v4, set_multicast_ttl_v4: u32, IPPROTO_IP, IP_MULTICAST_TTL;
    tclass_v6, set_tclass_v6: u32, IPPROTO_IPV6, IPV6_TCLASS;
    tos_v4, set_tos_v4: u32, IPPROTO_IP, IP_TOS;
    ttl, set_ttl: u32, IPPROTO_IP, IP_TTL;
}

/// A value of an option.
trait Value: Sized {
    fn of(value: i32) -> io::Result<Self>;
}

impl Value for bool {
    fn of(value: i32) -> io::Result<bool> {
        Ok(value != 0)
    }
}

impl Value for u32 {
    fn of(value: i32) -> io::Result<u32> {
        value.try_into().map_err(io::Error::other)
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.socket.fmt(out)
    }
}
