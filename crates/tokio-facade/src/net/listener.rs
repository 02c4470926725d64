//! Listeners.

use super::stream::{Stream, TcpStream, UnixStream};
use super::unix::{SocketAddr as UnixAddress, abstract_address};
use crate::{Local, lacks, poll_once};
use megapipe_rt::{Bound, BoundUnix};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::net as std_unix;
use std::path::Path;
use std::task::{Context, Poll, ready};

/// A listener of TCP connections.
#[derive(Debug)]
pub struct TcpListener(Local<RefCell<megapipe_rt::TcpListener>>);

impl TcpListener {
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        megapipe_rt::TcpListener::bind(address).map(TcpListener::new)
    }

    fn new(listener: megapipe_rt::TcpListener) -> TcpListener {
        TcpListener(Local::new(RefCell::new(listener)))
    }

    pub fn from_std(socket: std::net::TcpListener) -> io::Result<TcpListener> {
        Bound::from(socket).listen().map(TcpListener::new)
    }

    pub fn into_std(self) -> io::Result<std::net::TcpListener> {
        lacks("way back from a listener to a socket of the standard library")
    }

    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let stream = ready!(poll_once(context, self.0.borrow_mut().accept()))?;
        let address = stream.peer_addr()?;
        Poll::Ready(Ok((Stream::new(stream), address)))
    }

    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.borrow().local_addr()
    }
}

/// A listener of connections over UNIX sockets.
#[derive(Debug)]
pub struct UnixListener(Local<RefCell<megapipe_rt::UnixListener>>);

impl UnixListener {
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        let listener = match abstract_address(path.as_ref())? {
            Some(address) => megapipe_rt::UnixListener::bind_addr(&address),
            None => megapipe_rt::UnixListener::bind(path),
        };
        listener.map(UnixListener::new)
    }

    pub fn bind_addr(address: &UnixAddress) -> io::Result<UnixListener> {
        megapipe_rt::UnixListener::bind_addr(&address.0).map(UnixListener::new)
    }

    fn new(listener: megapipe_rt::UnixListener) -> UnixListener {
        UnixListener(Local::new(RefCell::new(listener)))
    }

    pub fn from_std(socket: std_unix::UnixListener) -> io::Result<UnixListener> {
        BoundUnix::from(socket).listen().map(UnixListener::new)
    }

    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(UnixStream, UnixAddress)>> {
        let stream = ready!(poll_once(context, self.0.borrow_mut().accept()))?;
        let address = stream.peer_addr()?;
        Poll::Ready(Ok((Stream::new(stream), UnixAddress(address))))
    }

    pub async fn accept(&self) -> io::Result<(UnixStream, UnixAddress)> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    pub fn local_addr(&self) -> io::Result<UnixAddress> {
        self.0.borrow().local_addr().map(UnixAddress)
    }
}
