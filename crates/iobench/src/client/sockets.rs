//! The sockets of a stack of this process, as the client's connections use them: both ends of the
//! path can then do without the kernel's TCP.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use mtcp::{Context, Descriptor, EpollControl, EpollEvent, Events, Family, Flags};

use crate::client::connection::{Event, Sockets};
use crate::error::Result;
use crate::stack::failed;

const EVENTS_PER_WAIT: usize = 256;
/// After so long without a packet the server has nothing to say about connections that have ended.
const QUIET: Duration = Duration::from_millis(20);
/// So many times at most this is waited for.
const MOST_WAITS: usize = 50;

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Closing {
    /// By RST, as the client with the kernel's sockets does it, so that no port waits in TIME_WAIT
    Reset,
    /// By FIN from both sides
    Orderly,
}

/// One thread's stack and its sockets.
pub(crate) struct StackSockets {
    sockets: Context,
    epoll: Descriptor,
    server: SocketAddr,
    closing: Closing,
    events: Vec<EpollEvent>,
    /// The device has gone: nothing more will happen.
    failure: Option<i32>,
}

impl StackSockets {
    pub(crate) fn new(mut sockets: Context, closing: Closing) -> Result<StackSockets> {
        let epoll = sockets.epoll_create().map_err(failed("make an epoll"))?;
        Ok(StackSockets {
            sockets,
            epoll,
            server: ([0, 0, 0, 0], 0).into(),
            closing,
            events: vec![EpollEvent::default(); EVENTS_PER_WAIT],
            failure: None,
        })
    }

    fn wait_within(&mut self, timeout: Option<Duration>) -> usize {
        match self.sockets.epoll_wait(self.epoll, &mut self.events, timeout) {
            Ok(count) => count,
            Err(error) => {
                self.failure = Some(errno(error));
                0
            }
        }
    }
}

impl Sockets for StackSockets {
    type Socket = Descriptor;
    /// The stack only moves when the thread waits.
    const SENDS_AFTER_CONNECT: bool = false;
    const SKIPS_WITHOUT_ROOM: bool = false;

    fn direct(&mut self, server: SocketAddr) {
        self.server = server;
    }

    fn open(&mut self) -> Result<Descriptor, i32> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let family = if self.server.is_ipv4() { Family::V4 } else { Family::V6 };
        let socket = self.sockets.socket(family).map_err(errno)?;
        self.sockets.set_nonblocking(socket, true).map_err(errno)?;
        Ok(socket)
    }

    fn connect(&mut self, socket: Descriptor) -> Result<(), i32> {
        match self.sockets.connect(socket, self.server).map_err(errno) {
            Err(libc::EINPROGRESS) => Ok(()),
            other => other,
        }
    }

    fn renew(&mut self, socket: Descriptor) -> Result<(Descriptor, bool), i32> {
        self.close(socket);
        self.open().map(|socket| (socket, false))
    }

    fn watch(
        &mut self,
        socket: Descriptor,
        token: u64,
        output: bool,
        again: bool,
    ) -> Result<(), i32> {
        let mut events = Events::IN | Events::READ_HANG_UP | Events::EDGE;
        if output {
            events |= Events::OUT;
        }
        let event = EpollEvent { events, data: token };
        let control = if again { EpollControl::Modify(event) } else { EpollControl::Add(event) };
        self.sockets.epoll_ctl(self.epoll, socket, control).map_err(errno)
    }

    fn send(&mut self, socket: Descriptor, bytes: &[u8]) -> Result<usize, i32> {
        self.sockets.send(socket, bytes, Flags::DONT_WAIT).map_err(errno)
    }

    fn receive(&mut self, socket: Descriptor, room: &mut [u8]) -> Result<usize, i32> {
        self.sockets.recv(socket, room, Flags::DONT_WAIT).map_err(errno)
    }

    fn skip(&mut self, socket: Descriptor, most: usize, room: &mut [u8]) -> Result<usize, i32> {
        self.receive(socket, &mut room[..most])
    }

    fn close(&mut self, socket: Descriptor) {
        // The descriptor is ours, so this cannot fail but for the device, which the next turn tells
        // of.
        let _ = match self.closing {
            Closing::Reset => self.sockets.abort(socket),
            Closing::Orderly => self.sockets.close(socket),
        };
    }

    /// A reset that is not where the server expects it is asked about first (RFC 5961, section 3),
    /// and only who moves the stack can answer.
    fn settle(&mut self) {
        for _ in 0..MOST_WAITS {
            let before = self.sockets.counters().packets_received;
            self.wait_within(Some(QUIET));
            if self.failure.is_some() || self.sockets.counters().packets_received == before {
                break;
            }
        }
    }

    fn wait(&mut self, timeout_ms: i32) -> usize {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        if self.failure.is_some() {
            std::thread::sleep(timeout.unwrap_or_default());
            return 0;
        }
        self.wait_within(timeout)
    }

    fn event(&self, position: usize) -> Event {
        let EpollEvent { events, data } = self.events[position];
        let ended = Events::READ_HANG_UP | Events::HANG_UP | Events::ERROR;
        Event {
            token: data,
            readable: events.intersects(Events::IN),
            ended: events.intersects(ended),
        }
    }

    fn failure(&self) -> Option<String> {
        let error = io::Error::from_raw_os_error(self.failure?);
        Some(format!("the clients' stack has failed: {error}"))
    }
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
