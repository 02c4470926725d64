//! The kernel's sockets, as the client's connections use them.
//!
//! A place keeps its socket from one connection to the next, which then costs two calls of connect,
//! one to end the old connection by RST: half the calls of a new socket. Answers of which only the
//! size is known are never copied out of the kernel.

use std::net::SocketAddr;
use std::os::fd::{IntoRawFd, RawFd};

use crate::client::connection::{Event, SINGLE_SEGMENT_BYTES, Sockets, Workload};
use crate::error::Result;
use crate::sys::epoll::{Epoll, event_buffer};
use crate::sys::socket::{self, CongestionControl, RawAddress};

const EVENTS_PER_WAIT: usize = 256;

/// Marks of an event after which no further one may come.
const ENDED: libc::c_int = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;

/// One thread's sockets.
pub(super) struct KernelSockets {
    server: RawAddress,
    epoll: Epoll,
    events: Vec<libc::epoll_event>,
    congestion: CongestionControl,
    no_delay: bool,
}

impl KernelSockets {
    pub(super) fn new(workload: &Workload) -> Result<KernelSockets> {
        Ok(KernelSockets {
            server: RawAddress::new(([127, 0, 0, 1], 0).into()),
            epoll: Epoll::new()?,
            events: event_buffer(EVENTS_PER_WAIT),
            congestion: workload.congestion.clone(),
            no_delay: workload.exchange.request_bytes > SINGLE_SEGMENT_BYTES,
        })
    }

    fn set_up(&self, fd: RawFd) -> std::io::Result<()> {
        socket::set_close_by_reset(fd)?;
        socket::set_congestion_control(fd, &self.congestion)?;
        if self.no_delay { socket::set_no_delay(fd) } else { Ok(()) }
    }
}

impl Sockets for KernelSockets {
    type Socket = RawFd;
    /// On the loopback device the handshake is over by then.
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

    /// By RST.
    fn close(&mut self, fd: RawFd) {
        // SAFETY: the descriptor is one of ours and nobody uses it afterwards.
        unsafe { libc::close(fd) };
    }

    fn settle(&mut self) -> bool {
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
