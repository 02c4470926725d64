//! Sockets of a user-level stack in this process, as the client's connections use them: with them
//! both ends of the path can do without the kernel's TCP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mtcp::{Context, Descriptor, EpollControl, EpollEvent, Events, Family, Flags};

use crate::client::sockets::{Ending, Event, Sockets};
use crate::error::Result;
use crate::stack::{self, Kind, Site, failed};

const EVENTS_PER_WAIT: usize = 256;
/// Duration of one call of `progress_closes`.
const MOMENT: Duration = Duration::from_millis(20);
/// After this many calls without a packet, one second together, neither side has anything to
/// retransmit.
const QUIET_MOMENTS: u32 = 50;

/// Starts a stack at `site` for each of `cpus`; returns the function that makes the sockets of a
/// thread from its number. The device is in the network namespace of the calling thread.
pub(crate) fn on_stacks(
    site: &Site,
    cpus: &[usize],
    ending: Ending,
) -> Result<impl Fn(usize) -> Result<StackSockets> + Clone + Send + use<>> {
    let stacks = Arc::new(stack::start(Kind::USUAL, site, cpus)?);
    Ok(move |index| StackSockets::new(stack::context(&stacks, index)?, ending))
}

/// The stack of one thread and its sockets.
pub(crate) struct StackSockets {
    sockets: Context,
    epoll: Descriptor,
    server: SocketAddr,
    ending: Ending,
    events: Vec<EpollEvent>,
    /// Calls of `progress_closes` since the last packet arrived.
    quiet_moments: u32,
    /// The errno of the device's failure, after which no event follows.
    failure: Option<i32>,
}

impl StackSockets {
    pub(crate) fn new(mut sockets: Context, ending: Ending) -> Result<StackSockets> {
        let epoll = sockets.epoll_create().map_err(failed("make an epoll"))?;
        Ok(StackSockets {
            sockets,
            epoll,
            server: ([0, 0, 0, 0], 0).into(),
            ending,
            events: vec![EpollEvent::default(); EVENTS_PER_WAIT],
            quiet_moments: 0,
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
    /// The stack sends and receives only while the thread waits.
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
        match self.ending {
            // Fails only if the device fails, which the next iteration reports.
            Ending::Reset => drop(self.sockets.abort(socket)),
            Ending::Fin => self.close(socket),
        }
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

    /// Closes by FIN, which is retransmitted until the server has it. A RST is sent once and is
    /// lost if the device cannot take it in the middle of a transfer.
    fn close(&mut self, socket: Descriptor) {
        // The descriptor belongs to this stack, so this fails only if the device fails, which the
        // next iteration reports.
        let _ = self.sockets.close(socket);
        self.quiet_moments = 0;
    }

    /// Runs the stack: only its own thread can retransmit, and answer the server's segments.
    fn progress_closes(&mut self) -> bool {
        let before = self.sockets.counters().packets_received;
        self.wait_within(Some(MOMENT));
        let heard = self.sockets.counters().packets_received != before;
        self.quiet_moments = if heard { 0 } else { self.quiet_moments + 1 };
        self.failure.is_none() && self.quiet_moments < QUIET_MOMENTS
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
