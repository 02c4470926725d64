//! Makes connections that the channel accepts itself, and clients that connect during a run.

use crate::link::Link;
use crate::run::{Checked, Run};
use fuzzkit::Failure;
use megapipe::{Accept, Event, Socket, Source};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The cookie of a listener for a single connection.
const LISTENER_COOKIE: usize = 999_999;
/// Time limit of one dispatch.
const LOOK: Duration = Duration::from_millis(1);

impl Run<'_> {
    /// Lets the channel accept the connection of a `tcp` link.
    pub(crate) fn accept_one(&mut self, link: &mut Link, listener: Source) -> Checked<Socket> {
        let broken = |text: String| Failure::new("setup", text);
        let listener = self.channel.register(listener, LISTENER_COOKIE);
        let listener = listener.map_err(|error| broken(error.to_string()))?;
        let asked = self.channel.accept(listener, Accept::lightweight().count(1));
        asked.map_err(|error| broken(error.to_string()))?;
        link.add_client().map_err(|error| broken(format!("no client: {error}")))?;
        let (mut socket, mut is_closed) = (None, false);
        let until = Instant::now() + self.pace.time_limit;
        while !is_closed {
            if Instant::now() > until {
                return Err(broken("no connection for a tcp link".to_string()));
            }
            match self.dispatch(LOOK)?.map(|done| done.event) {
                Some(Event::Accept(Ok(accepted))) => {
                    socket = Some(accepted.socket);
                    let closing = self.channel.close(listener);
                    closing.map_err(|error| broken(error.to_string()))?;
                }
                Some(Event::Close(Ok(()))) => is_closed = true,
                Some(other) => return Err(broken(format!("a listener completes {other:?}"))),
                None => {}
            }
        }
        let client = link.clients.pop().ok_or_else(|| broken("no client".to_string()))?;
        let peer = TcpStream::from(client.socket);
        prepare_peer(&peer).map_err(|error| broken(error.to_string()))?;
        (link.peer, link.target) = (Some(OwnedFd::from(peer)), None);
        socket.ok_or_else(|| broken("no socket".to_string()))
    }

    /// Connects a new client to a listener; its connection is complete when this returns.
    pub(crate) fn connect_client(&mut self, number: usize) -> Checked {
        let broken = |text: String| Failure::new("setup", format!("no client: {text}"));
        self.links[number].add_client().map_err(|error| broken(error.to_string()))?;
        if !self.links[number].addresses.is_for_stack {
            return Ok(());
        }
        let until = Instant::now() + self.pace.time_limit;
        loop {
            self.channel.flush().map_err(|error| broken(error.to_string()))?;
            if is_connected(&self.links[number]).map_err(|error| broken(error.to_string()))? {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(broken("the listener does not answer".to_string()));
            }
        }
    }
}

/// Sets large buffers, so that the peer's end takes all bytes, whenever the channel reads them.
pub(crate) fn prepare_peer(peer: &TcpStream) -> std::io::Result<()> {
    const BUFFER_BYTES: usize = 4 << 20;
    peer.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_send_buffer_size_force(peer, BUFFER_BYTES)?;
    Ok(())
}

/// Returns whether the last client's connection is complete.
fn is_connected(link: &Link) -> std::io::Result<bool> {
    let Some(client) = link.clients.last() else { return Ok(true) };
    let mut look = [PollFd::new(&client.socket, PollFlags::OUT)];
    let wait = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    if poll(&mut look, Some(&wait))? == 0 {
        return Ok(false);
    }
    match SockRef::from(&client.socket).take_error()? {
        Some(error) => Err(error),
        None => Ok(true),
    }
}
