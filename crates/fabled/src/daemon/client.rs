//! A client connection: its process, its queue of unsent packets, and its limits.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use fable::packet::{self, Packet};
use fable::protocol::{PACKET_BYTES_MAX, ToProcess};
use rustix::event::epoll::{self, EventFlags};

use super::limits;
use crate::log_quota;
use crate::process::Process;
use crate::quota::{self, Charge, Holder};
use crate::registry::ClientId;

/// A bit of the loop's keys: set for a client's process, clear for its connection.
pub(super) const DEATH: u64 = 1 << 63;

/// A packet that the socket has not taken yet.
struct Unsent {
    bytes: Box<[u8]>,
    descriptors: Box<[Rc<OwnedFd>]>,
    /// Of its user, while it is here.
    charge: Option<Charge>,
}

/// A client connection.
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) process: Rc<Process>,
    /// Whether the client has sent `Hello`.
    pub(super) greeted: bool,
    /// The number of its request for events, if it has sent one.
    pub(super) events: Option<u64>,
    pub(super) names: usize,
    /// The number of flows that it made.
    pub(super) flows: usize,
    /// The account of its user.
    pub(super) holder: Rc<Holder>,
    /// Held for its drop.
    _charge: Charge,
    socket: OwnedFd,
    queue: VecDeque<Unsent>,
    queued_bytes: usize,
    allowance: u32,
    interest: EventFlags,
    doom: Option<String>,
}

impl Client {
    /// Wraps a new connection, and registers it and its process with the epoll set.
    pub(super) fn new(
        id: ClientId,
        socket: OwnedFd,
        process: Process,
        charge: (Rc<Holder>, Charge),
        epoll: &OwnedFd,
    ) -> rustix::io::Result<Client> {
        let interest = EventFlags::IN;
        epoll::add(epoll, &socket, epoll::EventData::new_u64(id.0), interest)?;
        if let Some(handle) = process.handle() {
            let key = epoll::EventData::new_u64(id.0 | DEATH);
            // One event, because flows can keep the handle longer than this client.
            epoll::add(epoll, handle, key, EventFlags::IN | EventFlags::ONESHOT)?;
        }
        Ok(Client {
            id,
            process: Rc::new(process),
            greeted: false,
            events: None,
            names: 0,
            flows: 0,
            holder: charge.0,
            _charge: charge.1,
            socket,
            queue: VecDeque::new(),
            queued_bytes: 0,
            allowance: limits::PACKETS_PER_TICK,
            interest,
            doom: None,
        })
    }

    /// Receives the next packet, if there is one and this client may send one now. Marks a client
    /// that breaks the rules, or has closed, to be disconnected.
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

    /// Sends an event to a subscriber. One that has not read earlier events is marked to be
    /// disconnected, long before [`Client::send`] would do it: events have no end.
    pub(super) fn send_event(&mut self, message: &ToProcess) {
        self.send(message, &[]);
        if self.queued_bytes > limits::SUBSCRIBER_UNSENT_BYTES_MAX {
            self.end_deaf("it has subscribed to events and does not read them");
        }
    }

    /// Sends a message now or later. A client whose queue is too long, or whose user exceeds the
    /// quota of memory with it, is marked to be disconnected.
    pub(super) fn send(&mut self, message: &ToProcess, descriptors: &[Rc<OwnedFd>]) {
        if self.doom.is_some() {
            return;
        }
        let bytes = match serde_json::to_vec(message) {
            Ok(bytes) if bytes.len() <= PACKET_BYTES_MAX => bytes,
            _ => return self.end("there is a message for it that fits no packet"),
        };
        let size = bytes.len();
        self.queued_bytes += size + quota::PACKET_BYTES;
        let (bytes, descriptors) = (bytes.into(), descriptors.into());
        self.queue.push_back(Unsent { bytes, descriptors, charge: None });
        self.flush();
        let Some(unsent) = self.queue.back_mut() else { return };
        match self.holder.charge(quota::packet(size, unsent.descriptors.len())) {
            Ok(charge) => unsent.charge = Some(charge),
            Err(why) => return self.end_deaf(&format!("it does not read what it is sent: {why}")),
        }
        if self.queue.len() > limits::QUEUE_MAX {
            self.end_deaf("it does not read what it is sent");
        }
    }

    fn end_deaf(&mut self, why: &str) {
        if self.doom.is_some() {
            return;
        }
        // Whoever causes the packet is not to blame.
        let _acting = log_quota::acting(Some(Rc::clone(&self.holder)));
        tracing::warn!(pid = self.process.peer.pid, "a process is disconnected: {why}");
        self.holder.count_refusal();
        self.end(why);
        self.queue.clear();
        self.queued_bytes = 0;
    }

    /// Sends queued packets, as many as the socket takes.
    pub(super) fn flush(&mut self) {
        while let Some(unsent) = self.queue.front() {
            let descriptors: Vec<BorrowedFd<'_>> =
                unsent.descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
            match packet::send(self.socket.as_fd(), &unsent.bytes, &descriptors) {
                Ok(()) => {
                    self.queued_bytes -= unsent.bytes.len() + quota::PACKET_BYTES;
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

    /// Removes the process from the epoll set; the connection is removed with its socket.
    pub(super) fn stop_watching(&self, epoll: &OwnedFd) {
        if let Some(handle) = self.process.handle() {
            // Fails only if the descriptor is not in the set.
            let _ = epoll::delete(epoll, handle);
        }
    }

    /// Returns how many packets are queued.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns how many bytes of memory the queued packets take.
    pub(super) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Starts a new period: restores the number of packets that the client may send.
    pub(super) fn refill(&mut self) {
        self.allowance = limits::PACKETS_PER_TICK;
    }

    fn is_heard(&self) -> bool {
        self.doom.is_none() && self.allowance > 0 && self.queue.len() < limits::QUEUE_TO_PAUSE
    }

    /// Updates the epoll registration, if what to wait for has changed.
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

    /// Marks the connection to be disconnected for breaking the rules, and sends the reason.
    pub(super) fn expel(&mut self, why: &str) {
        let reason = format!("the daemon closes this connection: {why}");
        self.send(&ToProcess::Refused { request: 0, reason }, &[]);
        tracing::warn!(pid = self.process.peer.pid, "a process breaks the rules: {why}");
        self.end(&format!("it broke the rules: {why}"));
    }

    /// Marks the connection to be disconnected.
    pub(super) fn end(&mut self, why: &str) {
        self.doom.get_or_insert_with(|| why.to_owned());
    }

    /// Returns why the connection is to be disconnected, if it is.
    pub(super) fn doom(&self) -> Option<&str> {
        self.doom.as_deref()
    }
}

/// Sends a refusal to a connection that is not accepted.
pub(super) fn refuse_at_the_door(socket: &OwnedFd, why: &str) {
    let refusal = ToProcess::Refused { request: 0, reason: why.to_owned() };
    if let Ok(bytes) = serde_json::to_vec(&refusal) {
        // A process that does not get the message sees the end of the connection.
        let _ = packet::send(socket.as_fd(), &bytes, &[]);
    }
}
