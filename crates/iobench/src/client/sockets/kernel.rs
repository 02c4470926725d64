//! The kernel's sockets as the client's connections use them.
//!
//! A connection that ends by RST leaves its socket to the next one, which then costs two calls of
//! connect(2): half the calls of a new socket. Bytes that need not be examined are never copied out
//! of the kernel.

use std::net::SocketAddr;
use std::os::fd::{IntoRawFd, RawFd};

use crate::client::sockets::{Ending, Event, Sockets};
use crate::error::Result;
use crate::sys::epoll::{Epoll, event_buffer};
use crate::sys::socket::{self, CongestionControl, RawAddress};

const EVENTS_PER_WAIT: usize = 256;

/// Epoll flags after which no further event follows.
const ENDED: libc::c_int = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;

/// Options of all sockets of a client.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) ending: Ending,
    pub(crate) congestion: CongestionControl,
    /// TCP_NODELAY.
    pub(crate) no_delay: bool,
}

impl Options {
    /// Options for requests that are sent in one piece each.
    pub(crate) fn for_short_requests(ending: Ending) -> Options {
        Options { ending, congestion: CongestionControl::pick(), no_delay: false }
    }
}

/// One thread's sockets.
pub(crate) struct KernelSockets {
    server: RawAddress,
    epoll: Epoll,
    events: Vec<libc::epoll_event>,
    options: Options,
}

impl KernelSockets {
    pub(crate) fn new(options: Options) -> Result<KernelSockets> {
        Ok(KernelSockets {
            server: RawAddress::new(([127, 0, 0, 1], 0).into()),
            epoll: Epoll::new()?,
            events: event_buffer(EVENTS_PER_WAIT),
            options,
        })
    }

    fn set_up(&self, fd: RawFd) -> std::io::Result<()> {
        if self.options.ending == Ending::Reset {
            socket::set_close_by_reset(fd)?;
        }
        socket::set_congestion_control(fd, &self.options.congestion)?;
        if self.options.no_delay { socket::set_no_delay(fd) } else { Ok(()) }
    }
}

impl Sockets for KernelSockets {
    type Socket = RawFd;
    /// On the loopback device the handshake is complete when connect(2) returns.
    const SENDS_AFTER_CONNECT: bool = true;
    const SKIPS_WITHOUT_ROOM: bool = true;

    fn direct(&mut self, server: SocketAddr) {
        self.server = RawAddress::new(server);
    }

    fn open(&mut self) -> Result<RawFd, i32> {
        let socket = socket::new_tcp(self.server.family()).map_err(errno)?;
        let fd = socket.into_raw_fd();
        match self.set_up(fd) {
            Ok(()) => Ok(fd),
            Err(error) => {
                self.close(fd);
                Err(errno(error))
            }
        }
    }

    fn connect(&mut self, fd: RawFd) -> Result<(), i32> {
        match self.server.connect(fd).map_err(errno) {
            Err(libc::EINPROGRESS) => Ok(()),
            other => other,
        }
    }

    fn renew(&mut self, fd: RawFd) -> Result<(RawFd, bool), i32> {
        if self.options.ending == Ending::Fin {
            self.close(fd);
            return self.open().map(|fd| (fd, false));
        }
        match socket::disconnect(fd) {
            Ok(()) => Ok((fd, true)),
            Err(error) => {
                self.close(fd);
                Err(errno(error))
            }
        }
    }

    fn watch(&mut self, fd: RawFd, token: u64, output: bool, again: bool) -> Result<(), i32> {
        let output = if output { libc::EPOLLOUT } else { 0 };
        let interest = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET | output;
        let watched = if again {
            self.epoll.modify(fd, token, interest)
        } else {
            self.epoll.add(fd, token, interest)
        };
        watched.map_err(errno)
    }

    fn send(&mut self, fd: RawFd, bytes: &[u8]) -> Result<usize, i32> {
        // ENOTCONN cannot happen after connect(); EAGAIN also means "still connecting".
        socket::send(fd, bytes)
    }

    fn receive(&mut self, fd: RawFd, room: &mut [u8]) -> Result<usize, i32> {
        socket::receive(fd, room)
    }

    fn skip(&mut self, fd: RawFd, most: usize, _room: &mut [u8]) -> Result<usize, i32> {
        socket::receive_unseen(fd, most)
    }

    /// Closes by FIN or RST, as the socket is configured.
    fn close(&mut self, fd: RawFd) {
        // SAFETY: the descriptor belongs to these sockets and is not used afterwards.
        unsafe { libc::close(fd) };
    }

    fn progress_closes(&mut self) -> bool {
        false
    }

    fn wait(&mut self, timeout_ms: i32) -> usize {
        self.epoll.wait(&mut self.events, timeout_ms)
    }

    fn event(&self, position: usize) -> Event {
        let event = self.events[position];
        Event {
            token: event.u64,
            readable: event.events & libc::EPOLLIN as u32 != 0,
            ended: event.events & ENDED as u32 != 0,
        }
    }

    fn failure(&self) -> Option<String> {
        None
    }
}

fn errno(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
