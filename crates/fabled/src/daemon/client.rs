//! A connection: who is behind it, and what it has not read yet.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use fable::packet::{self, Packet};
use fable::protocol::{PACKET_BYTES_MAX, ToProcess};
use rustix::event::epoll::{self, EventFlags};

use super::limits;
use crate::process::Process;
use crate::registry::ClientId;

/// Marks the key of a client's process in the loop, beside that of its connection.
pub(super) const DEATH: u64 = 1 << 63;

/// A connection.
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) process: Rc<Process>,
    /// Whether it has said hello.
    pub(super) greeted: bool,
    /// What it understands, see [`fable::protocol::REVISION`].
    pub(super) revision: u32,
    /// Under which number it wants to hear of events.
    pub(super) events: Option<u64>,
    pub(super) names: usize,
    /// Flows that it made.
    pub(super) flows: usize,
    socket: OwnedFd,
    queue: VecDeque<(Vec<u8>, Vec<Rc<OwnedFd>>)>,
    allowance: u32,
    interest: EventFlags,
    doom: Option<String>,
}

impl Client {
    pub(super) fn new(
        id: ClientId,
        socket: OwnedFd,
        process: Process,
        epoll: &OwnedFd,
    ) -> rustix::io::Result<Client> {
        let interest = EventFlags::IN;
        epoll::add(epoll, &socket, epoll::EventData::new_u64(id.0), interest)?;
        if let Some(handle) = process.handle() {
            let key = epoll::EventData::new_u64(id.0 | DEATH);
            // Once: flows may keep the handle longer than this.
            epoll::add(epoll, handle, key, EventFlags::IN | EventFlags::ONESHOT)?;
        }
        Ok(Client {
            id,
            process: Rc::new(process),
            greeted: false,
            revision: 1,
            events: None,
            names: 0,
            flows: 0,
            socket,
            queue: VecDeque::new(),
            allowance: limits::PACKETS_PER_TICK,
            interest,
            doom: None,
        })
    }

    /// The next packet, if there is one and this client may be listened to now. A client that
    /// breaks the rules, or is gone, is doomed.
    pub(super) fn receive(&mut self) -> Option<Packet> {
        if !self.is_heard() {
            return None;
        }
        match packet::receive(self.socket.as_fd()) {
            Ok(Some(packet)) if packet.has_lost_descriptors => {
                self.expel(
                    "a packet came with more than 8 descriptors, or there was no room for them",
                );
                None
            }
            Ok(Some(packet)) => {
                self.allowance -= 1;
                Some(packet)
            }
            Ok(None) => {
                self.end("it has closed the connection");
                None
            }
            Err(error) => {
                match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                    io::ErrorKind::InvalidData => {
                        self.expel("a packet has at most 131072 bytes");
                    }
                    _ => self.end(&format!("its connection failed: {error}")),
                }
                None
            }
        }
    }

    /// Sends a message now or later. Who lets too much pile up is doomed.
    pub(super) fn send(&mut self, message: &ToProcess, descriptors: &[Rc<OwnedFd>]) {
        if self.doom.is_some() {
            return;
        }
        let bytes = match serde_json::to_vec(message) {
            Ok(bytes) if bytes.len() <= PACKET_BYTES_MAX => bytes,
            _ => return self.end("there is a message for it that fits no packet"),
        };
        self.queue.push_back((bytes, descriptors.to_vec()));
        self.flush();
        if self.queue.len() > limits::QUEUE_MAX {
            tracing::warn!(pid = self.process.peer.pid, "a process does not read what it is sent");
            self.end("it does not read what it is sent");
        }
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self) {
        while let Some((bytes, descriptors)) = self.queue.front() {
            let descriptors: Vec<BorrowedFd<'_>> =
                descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
            match packet::send(self.socket.as_fd(), bytes, &descriptors) {
                Ok(()) => {
                    self.queue.pop_front();
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => {}
                    _ => return self.end(&format!("its connection failed: {error}")),
                },
            }
        }
    }

    /// Takes the process out of the loop; the connection goes with its socket.
    pub(super) fn stop_watching(&self, epoll: &OwnedFd) {
        if let Some(handle) = self.process.handle() {
            // One that is not there is what we want.
            let _ = epoll::delete(epoll, handle);
        }
    }

    /// How many packets wait for it.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// How many bytes wait for it.
    pub(super) fn queued_bytes(&self) -> usize {
        self.queue.iter().map(|(bytes, _)| bytes.len()).sum()
    }

    /// A new period begins.
    pub(super) fn refill(&mut self) {
        self.allowance = limits::PACKETS_PER_TICK;
    }

    fn is_heard(&self) -> bool {
        self.doom.is_none() && self.allowance > 0 && self.queue.len() < limits::QUEUE_TO_PAUSE
    }

    /// Tells the kernel what to wait for, if that has changed.
    pub(super) fn update_interest(&mut self, epoll: &OwnedFd) {
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, self.is_heard());
        wanted.set(EventFlags::OUT, !self.queue.is_empty());
        if wanted == self.interest {
            return;
        }
        let key = epoll::EventData::new_u64(self.id.0);
        match epoll::modify(epoll, &self.socket, key, wanted) {
            Ok(()) => self.interest = wanted,
            Err(errno) => self.end(&format!("it cannot be watched: {errno}")),
        }
    }

    /// The connection is to be ended for breaking the rules; the process is told why.
    pub(super) fn expel(&mut self, why: &str) {
        let reason = format!("the daemon closes this connection: {why}");
        self.send(&ToProcess::Refused { request: 0, reason }, &[]);
        tracing::warn!(pid = self.process.peer.pid, "a process breaks the rules: {why}");
        self.end(&format!("it broke the rules: {why}"));
    }

    /// The connection is to be ended.
    pub(super) fn end(&mut self, why: &str) {
        self.doom.get_or_insert_with(|| why.to_owned());
    }

    /// Why the connection is to be ended, if it is.
    pub(super) fn doom(&self) -> Option<&str> {
        self.doom.as_deref()
    }
}

/// Says no to a connection that is not taken.
pub(super) fn refuse_at_the_door(socket: &OwnedFd, why: &str) {
    let refusal = ToProcess::Refused { request: 0, reason: why.to_owned() };
    if let Ok(bytes) = serde_json::to_vec(&refusal) {
        // Who cannot be told will see the end.
        let _ = packet::send(socket.as_fd(), &bytes, &[]);
    }
}
