//! Turns the outcomes of a driver into completions for the application.

use super::request::{RawMemory, peer_address_bytes};
use super::{Command, Engine, Lane, Request};
use crate::address::RawAddress;
use crate::completion::{Completion, Datagram, Event, SignalInfo};
use crate::driver::{NO_OFFSET, Object, Operation, Outcome, Output};
use crate::message::DescriptorsLost;
use crate::pool::Lease;
use crate::raw::Transferred;
use crate::slab::Key;
use crate::source::Kind;
use crate::sys::{pending_events, result_of};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

/// Number of consecutive receives that fill a small buffer before a stream gets large ones, and
/// that would fit into a small one before it gets small ones again.
const FULL_STREAK: u8 = 2;
const SPARSE_STREAK: u8 = 32;

/// Maximum number of consecutive retries of a poll that the kernel rejects as invalid.
const INVALID_MAX: u8 = 8;

impl Engine {
    /// Creates a completion for the application.
    pub(super) fn completed(&self, key: Key, more: bool, event: Event) -> Completion {
        Completion { handle: self.handle(key), more, event, written: 0 }
    }

    /// Creates the completion of a request that completes once and that has ended.
    pub(super) fn completed_once(
        &self,
        key: Key,
        request: Request,
        result: i32,
    ) -> Option<Completion> {
        let (writes, written) = (request.writes(), request.progress);
        let event = event_of(request, result, writes)?;
        Some(Completion { written, ..self.completed(key, false, event) })
    }

    /// Processes an outcome; returns the completion, if there is one for the application.
    pub(super) fn complete(&mut self, mut outcome: Outcome) -> Option<Completion> {
        let id = Key::from_tag(outcome.tag)?;
        let mut request = self.requests.get(id)?;
        if request.takes_of_file() && !request.polling {
            outcome.result = self.judge_file_part(id, outcome.result);
            request = self.requests.get(id)?;
        }
        if let Command::Close = request.command {
            return self.complete_close(id, outcome.result);
        }
        match self.members.get(request.handle) {
            None => {
                // The handle was unregistered: the outcome is dropped with its output.
                self.counters.cancelled += 1;
                if !outcome.more {
                    self.requests.remove(id);
                }
                return None;
            }
            Some(_) if request.polling => return self.complete_polling(id, outcome),
            Some(member) if member.leaving.is_some() => return self.complete_leaving(id, outcome),
            Some(_) => {}
        }
        match request.command {
            Command::Accept => self.complete_accept(id, outcome),
            Command::Receive | Command::ReceiveFrom { .. } => self.complete_receive(id, outcome),
            Command::Watch(_) => self.complete_watch(id, outcome.result),
            Command::Poll { .. } => self.complete_poll(id, outcome),
            Command::PeerAddress(_) => self.complete_peer_address(id, outcome.result),
            _ => self.complete_once(id, outcome.result),
        }
    }

    /// Ends a request and starts the next one of its lane.
    pub(super) fn finish(&mut self, id: Key) -> Option<Request> {
        self.clear_in_flight(id);
        let request = self.requests.remove(id)?;
        if request.lane != Lane::None {
            self.release_lane(request.handle, request.lane);
            self.advance(request.handle, request.lane);
        }
        Some(request)
    }

    /// Marks a request as no longer in flight, before it is restarted or ended.
    pub(super) fn clear_in_flight(&mut self, id: Key) {
        let Some(request) = self.requests.get_mut(id) else { return };
        if !std::mem::take(&mut request.in_flight) {
            return;
        }
        if let Some(member) = self.members.get_mut(request.handle) {
            member.in_flight -= 1;
            member.loose -= u32::from(request.lane == Lane::None && member.loose > 0);
        }
    }

    fn restart(&mut self, id: Key) {
        self.clear_in_flight(id);
        self.start_or_stall(id);
    }

    fn complete_receive(&mut self, id: Key, mut outcome: Outcome) -> Option<Completion> {
        let request = self.requests.get_mut(id)?;
        let (handle, cancelled) = (request.handle, request.cancelled);
        if matches!(outcome.output, Output::Readable) {
            request.fetches = true;
            // A cancelled request leaves the datagram in the socket.
            let object = self.members.get(handle)?.object;
            let ancillary = matches!(request.command, Command::ReceiveFrom { ancillary: true });
            outcome = match cancelled {
                true => Outcome::plain(outcome.tag, -libc::ECANCELED),
                false => self.driver.fetch_datagram(outcome.tag, object, ancillary),
            };
        }
        let Outcome { result, more, output, .. } = outcome;
        let received = match output {
            Output::Lease(lease) => lease,
            Output::Starved if !cancelled => {
                self.starve(id);
                return None;
            }
            Output::Starved => return self.complete_receive_end(id, -libc::ECANCELED),
            _ => return self.complete_receive_end(id, result),
        };
        let request = self.requests.get_mut(id)?;
        let goes_on = more || (request.repeat && !cancelled);
        if !more {
            request.recalled = false;
        }
        let event = match self.receive_event(id, received) {
            Some(event) => event,
            None => return self.complete_receive_end(id, 0),
        };
        if !goes_on {
            self.finish(id)?;
        } else if !more {
            self.restart(id);
        } else if self.members.get(handle)?.has_limits() {
            self.extend_deadline(handle, Lane::Inbound);
        }
        Some(self.completed(handle, goes_on, event))
    }

    /// Handles a receive without data: the end of the stream, an error, or a reason to restart.
    fn complete_receive_end(&mut self, id: Key, result: i32) -> Option<Completion> {
        let request = self.requests.get_mut(id)?;
        let (handle, cancelled) = (request.handle, request.cancelled);
        let datagrams = matches!(request.command, Command::ReceiveFrom { .. });
        let recalled = std::mem::take(&mut request.recalled);
        match -result {
            libc::ECANCELED if recalled && !cancelled => {
                self.restart(id);
                return None;
            }
            libc::EAGAIN | libc::EINTR if !cancelled => {
                self.go_on(id, result);
                return None;
            }
            _ => {}
        }
        let result = request.result_to_tell(result);
        let result = self.end_of_stream(handle, result);
        self.finish(id)?;
        let end = result_of(result).map(|_| Lease::empty());
        let event = match datagrams {
            true => Event::ReceiveFrom(end.and_then(|end| Datagram::parse(end, false))),
            false => Event::Receive(end),
        };
        Some(self.completed(handle, false, event))
    }

    /// Corrects the result of an inbound operation on a stream: the kernel reports a reset to one
    /// operation only, and an end of the stream to all others.
    fn end_of_stream(&mut self, handle: Key, result: i32) -> i32 {
        let Some(member) = self.members.get_mut(handle) else { return result };
        if member.kind == Kind::Stream {
            // The kernel may have reported the reset to a write whose outcome has not arrived yet.
            let write = member.active[Lane::Outbound as usize].filter(|_| result == 0);
            let is_reset = |outcome: &Outcome| {
                outcome.result == -libc::ECONNRESET
                    && write.is_some_and(|write| write.tag() == outcome.tag)
            };
            member.reset |=
                result == -libc::ECONNRESET || (write.is_some() && self.ready.iter().any(is_reset));
        }
        if result == 0 && member.reset { -libc::ECONNRESET } else { result }
    }

    /// Returns the event of a receive; `None` at the end of a packet connection.
    fn receive_event(&mut self, id: Key, received: Lease) -> Option<Event> {
        let request = self.requests.get(id)?;
        let member = self.members.get(request.handle)?;
        let object = member.object;
        if let Command::ReceiveFrom { ancillary } = request.command {
            return Some(Event::ReceiveFrom(Datagram::parse(received, ancillary)));
        }
        if member.kind != Kind::Packet {
            self.adapt_buffers(id, received.len());
            return Some(Event::Receive(Ok(received)));
        }
        Some(Event::Receive(match Datagram::parse(received, false) {
            Ok(packet) if packet.is_truncated() => {
                Err(io::Error::from_raw_os_error(libc::EMSGSIZE))
            }
            Ok(packet) if packet.is_empty() && self.has_peer_ended(object) => return None,
            other => other.map(Datagram::into_lease),
        }))
    }

    /// Returns whether the peer of a packet connection has ended it, which reads like an empty
    /// packet.
    fn has_peer_ended(&mut self, object: Object) -> bool {
        let Ok(descriptor) = self.driver.descriptor(object) else { return true };
        let ends = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        pending_events(descriptor.as_raw_fd(), libc::POLLRDHUP) & ends != 0
    }

    /// Changes a stream that keeps filling small buffers to large ones, and back.
    fn adapt_buffers(&mut self, id: Key, received: usize) {
        let Some(request) = self.requests.get_mut(id) else { return };
        let Some(member) = self.members.get_mut(request.handle) else { return };
        if request.recalled || member.frames {
            return;
        }
        let small = self.config.small_buffers.bytes as usize;
        let speaks_for_change = if member.large { received < small } else { received >= small };
        member.streak = if speaks_for_change { member.streak + 1 } else { 0 };
        if member.streak < if member.large { SPARSE_STREAK } else { FULL_STREAK } {
            return;
        }
        member.streak = 0;
        member.large = !member.large;
        if request.repeat && request.in_flight {
            // The receive continues with the other class when the driver has ended the current
            // operation.
            request.recalled = true;
            self.driver.cancel(id.tag(), member.object);
        }
    }

    /// Handles a read of a signal, timer or wake-up.
    fn complete_watch(&mut self, id: Key, result: i32) -> Option<Completion> {
        let request = self.requests.get(id)?;
        let result = request.result_to_tell(result);
        let (handle, repeat) = (request.handle, request.repeat && !request.cancelled);
        if result == -libc::EAGAIN || result == -libc::EINTR {
            self.go_on(id, result);
            return None;
        }
        let Command::Watch(words) = &request.command else { return None };
        if self.is_mailbox(handle) {
            self.restart(id);
            self.process_mailbox();
            return None;
        }
        let count = result_of(result).map(|_| words[0]);
        let event = match self.members.get(handle)?.kind {
            Kind::Signal => Event::Signal(result_of(result).map(|_| signal_of(words))),
            Kind::Timer => Event::Timer(count),
            _ => Event::Wake(count),
        };
        let more = repeat && result > 0;
        if more {
            self.restart(id);
        } else {
            self.finish(id)?;
        }
        Some(self.completed(handle, more, event))
    }

    fn complete_poll(&mut self, id: Key, outcome: Outcome) -> Option<Completion> {
        let request = self.requests.get_mut(id)?;
        let Command::Poll { events } = request.command else { return None };
        let mut result = request.result_to_tell(outcome.result);
        let (handle, repeat) = (request.handle, request.repeat && !request.cancelled);
        if result == -libc::EINVAL && request.invalid < INVALID_MAX {
            // io_uring refuses to poll a terminal at the moment at which data arrives.
            if !request.cancelled {
                request.invalid += 1;
                self.restart(id);
                return None;
            }
            result = -libc::ECANCELED;
        }
        request.invalid = 0;
        if request.recalled {
            // The application has had its event; the request ends when the driver has ended the
            // operation.
            if outcome.more {
                return None;
            }
            result = request.told;
        } else if result > 0 {
            // The kernel adds events that were not requested.
            result &= (events | (libc::POLLERR | libc::POLLHUP) as u32) as i32;
            if result == 0 && outcome.more {
                return None;
            }
            if result == 0 && !request.cancelled {
                // Another poll would report the same state at once, so the request waits for edges.
                request.edges = true;
                self.restart(id);
                return None;
            }
            if result == 0 {
                result = request.result_to_tell(-libc::ECANCELED);
            } else if outcome.more && !request.repeat {
                (request.told, request.recalled) = (result, true);
                let object = self.members.get(handle)?.object;
                self.driver.cancel(id.tag(), object);
                return None;
            }
        }
        let more = outcome.more || (repeat && result >= 0);
        if !more {
            self.finish(id)?;
        } else if !outcome.more {
            let kind = self.members.get(handle)?.kind;
            if request.told == result
                && kind == Kind::Pipe
                && result & i32::from(libc::POLLHUP) != 0
            {
                // A terminal that is hung up has no edges any more: the kernel reports its state at
                // once, each time. The request stays until it is cancelled.
                self.clear_in_flight(id);
                return None;
            }
            // The kernel ends a repeating poll when its completion queue has overflown.
            request.told = result;
            self.restart(id);
        }
        let events = result_of(result).map(|events| events as u32);
        Some(self.completed(handle, more, Event::Poll(events)))
    }

    fn complete_peer_address(&mut self, id: Key, result: i32) -> Option<Completion> {
        let request = self.requests.get_mut(id)?;
        let handle = request.handle;
        let Command::PeerAddress(address) = &mut request.command else { return None };
        let longer = result >= 0 && peer_address_bytes(address) > result as u32;
        if longer {
            self.restart(id);
            return None;
        }
        let bytes = address.as_bytes(result.max(0) as u32);
        let mut answer = result_of(result).and_then(|_| RawAddress::parse(bytes));
        self.finish(id)?;
        if answer.is_err() && result != -libc::ECANCELED {
            // Reads the address by the call that supports every family and kernel.
            let object = self.members.get(handle)?.object;
            answer = self.peer_address(object);
        }
        Some(self.completed(handle, false, Event::PeerAddress(answer)))
    }

    /// Handles requests that complete once.
    fn complete_once(&mut self, id: Key, result: i32) -> Option<Completion> {
        let request = self.requests.get_mut(id)?;
        let member = self.members.get_mut(request.handle)?;
        let (handle, cancelled) = (request.handle, request.cancelled);
        let writes = request.writes();
        let mut result = result;
        if result == -libc::ECANCELED && !cancelled && request.may_run_inline(member.kind) {
            // The kernel had no thread to run it in.
            let operation = request.operation(member.kind, member.large);
            result = self.driver.run_inline(member.object, &operation);
        }
        let mut result = request.result_to_tell(result);
        if result == -libc::EINTR || (result == -libc::EAGAIN && request.can_wait(member.kind)) {
            self.go_on(id, result);
            return None;
        }
        let mut is_short = result == -libc::ECANCELED && request.progress > 0;
        if result >= 0 && writes {
            is_short = request.has_rest(result as usize, member.kind);
            if is_short {
                if !cancelled {
                    self.go_on(id, result);
                    return None;
                }
                if request.overdue {
                    result = -libc::ETIMEDOUT;
                }
            }
        } else if result >= 0 {
            let room = request.room();
            request.commit(room.min(result as usize));
            if result as usize > room {
                result = -libc::EMSGSIZE;
            }
        }
        if request.connects() {
            member.connecting = false;
            if member.kind == Kind::Stream && is_failed_attempt(result) {
                // io_uring takes the error from the socket, which then still counts as connecting:
                // reads would find an end, and the next connect would fail. connect(2) with
                // AF_UNSPEC makes it unconnected.
                let none = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
                let bytes = std::mem::size_of_val(&none) as libc::socklen_t;
                let forget = Operation::Connect { address: &raw const none, bytes };
                let _ = self.driver.run_inline(member.object, &forget);
            }
        }
        if member.kind == Kind::Stream && (result == -libc::ECONNRESET || request.reads()) {
            result = self.end_of_stream(handle, result);
        }
        let request = self.requests.get(id)?;
        let member = self.members.get_mut(handle)?;
        let is_bytes = matches!(member.kind, Kind::Stream | Kind::Pipe);
        if is_bytes && writes && cancelled && is_short && request.progress > 0 {
            member.extras().stopped = true;
        }
        if is_bytes && request.ends_part_way(result) {
            member.extras().cut = true;
            let object = member.object;
            self.release_lane(handle, Lane::Outbound);
            self.empty_lane(handle, Lane::Outbound);
            // Bytes that were written with `MSG_MORE` would wait 200 ms for the rest.
            let push = 0i32.to_ne_bytes();
            let _ = self.driver.set_option(object, libc::IPPROTO_TCP, libc::TCP_CORK, &push);
        }
        let request = self.finish(id)?;
        if request.connects() {
            self.advance(handle, Lane::Inbound);
            self.advance(handle, Lane::Readiness);
        }
        self.completed_once(handle, request, result)
    }
}

/// Returns whether a connect failed with a network error, after which a socket is unconnected;
/// after `EISCONN`, for example, it is not.
fn is_failed_attempt(result: i32) -> bool {
    let errors = [
        libc::ECONNREFUSED,
        libc::ECONNRESET,
        libc::ECONNABORTED,
        libc::EPIPE,
        libc::ETIMEDOUT,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::ENETDOWN,
        libc::ENONET,
        libc::ENOPROTOOPT,
        libc::EPROTO,
    ];
    errors.contains(&-result)
}

/// Returns the event of a command that completes once; `None` for commands handled elsewhere.
fn event_of(request: Request, result: i32, writes: bool) -> Option<Event> {
    // The number of written bytes is reported if the application cancelled the write, but not if
    // the write failed.
    let done = writes && (result >= 0 || result == -libc::ECANCELED && request.progress > 0);
    let count = if done { Ok(request.progress) } else { result_of(result) };
    let offset = request.offset;
    Some(match request.command {
        Command::Raw(command, memory) => {
            let (address, receiver) = match memory {
                RawMemory::Bytes { address, .. } => (address, ptr::null()),
                RawMemory::Vector(_) => (ptr::null_mut(), ptr::null()),
                RawMemory::Message(envelope) => (envelope.raw_header().cast(), ptr::null()),
                RawMemory::Datagram { datagram, receiver } => (datagram.start(), receiver),
            };
            let offset = (offset != NO_OFFSET).then_some(offset);
            Event::Transfer(Transferred { command, bytes: count, address, offset, receiver })
        }
        Command::Read(bytes) => Event::Read(count, bytes),
        Command::Peek(bytes) => Event::Peek(count, bytes),
        Command::ReadAt(bytes) => Event::ReadAt(count, bytes, offset),
        Command::WriteAt(buffer) => Event::WriteAt(count, buffer, offset),
        Command::ReadVectored(vector) => Event::ReadVectored(count, vector.reads),
        Command::Write(buffer) | Command::WriteMore(buffer) => Event::Write(count, buffer),
        Command::WriteVectored(vector) => Event::WriteVectored(count, vector.writes),
        Command::SendTo(datagram) => Event::SendTo(count, datagram.buffer),
        Command::SendMessage(envelope) => Event::SendMessage(count, envelope.into_message()),
        Command::ReceiveMessage(envelope) => {
            let lost = envelope.lost_room().filter(|_| count.is_ok());
            let lost = lost.map(|room| io::Error::other(DescriptorsLost { room }));
            Event::ReceiveMessage(lost.map_or(count, Err), envelope.into_message())
        }
        Command::SendFile(_) => Event::SendFile(count),
        Command::Connect(_) => Event::Connect(count.map(drop)),
        Command::Sync { .. } => Event::Sync(count.map(drop)),
        Command::Disconnect { .. } => Event::Disconnect(count.map(drop)),
        Command::Accept | Command::Receive | Command::ReceiveFrom { .. } => return None,
        Command::Watch(_) | Command::Poll { .. } | Command::PeerAddress(_) => return None,
        Command::Close | Command::Discard(_) => return None,
    })
}

/// Parses a `signalfd_siginfo` of 128 bytes.
fn signal_of(words: &[u64; 16]) -> SignalInfo {
    // ssi_signo, ssi_errno; ssi_code, ssi_pid; ssi_uid, ssi_fd.
    let halves = |word: u64| {
        let bytes = word.to_ne_bytes();
        let half = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        (half(0), half(4))
    };
    let (signal, process, user) = (halves(words[0]).0, halves(words[1]).1, halves(words[2]).0);
    SignalInfo { signal: signal as i32, process, user }
}
