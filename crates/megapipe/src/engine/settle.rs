//! From a driver's outcome to the application's completion.

use super::request::peer_address_bytes;
use super::{Command, Engine, Lane, Payload, Request};
use crate::address::RawAddress;
use crate::buffer::Buffer;
use crate::completion::{Completion, Datagram, Event, SignalInfo};
use crate::driver::{NO_OFFSET, Outcome, Output};
use crate::pool::Lease;
use crate::raw::Transferred;
use crate::slab::Key;
use crate::source::Kind;
use crate::sys::result_of;
use std::io;

/// Receives in a row that fill a small buffer before a stream gets large ones, and that would have
/// fitted into a small one before it goes back.
const FULL_STREAK: u8 = 2;
const SPARSE_STREAK: u8 = 32;

impl Engine {
    pub(super) fn completed(&self, key: Key, more: bool, event: Event) -> Completion {
        Completion { handle: self.handle(key), more, event }
    }

    /// Does what an outcome entails; gives the completion, if the application is to see one.
    pub(super) fn settle(&mut self, outcome: Outcome) -> Option<Completion> {
        let id = Key::from_tag(outcome.tag);
        let request = self.requests.get(id)?;
        let (key, command) = (request.handle, request.command);
        if command == Command::Close {
            self.requests.remove(id);
            let event = Event::Close(result_of(outcome.result).map(drop));
            return Some(self.completed(key, false, event));
        }
        if self.members.get(key).is_none() {
            // The handle was unregistered: what came with the outcome goes with it.
            self.counters.cancelled += 1;
            if !outcome.more {
                self.requests.remove(id);
            }
            return None;
        }
        match command {
            Command::Accept => self.settle_accept(id, outcome),
            Command::Receive | Command::ReceiveFrom => self.settle_receive(id, outcome),
            Command::Watch => self.settle_watch(id, outcome.result),
            Command::Poll { .. } => self.settle_poll(id, outcome),
            Command::PeerAddress => self.settle_peer_address(id, outcome.result),
            _ => self.settle_once(id, outcome.result),
        }
    }

    /// Ends a request and starts the next one of its lane.
    fn finish(&mut self, id: Key) -> Option<Request> {
        let request = self.requests.remove(id)?;
        if let Some(member) = self.members.get_mut(request.handle) {
            member.in_flight -= u32::from(request.in_flight);
        }
        if request.lane != Lane::None {
            self.release_lane(request.handle, request.lane);
            self.advance(request.handle, request.lane);
        }
        Some(request)
    }

    /// Takes a request back from the driver, to start it again.
    fn land(&mut self, id: Key) {
        let Some(request) = self.requests.get_mut(id) else { return };
        request.in_flight = false;
        if let Some(member) = self.members.get_mut(request.handle) {
            member.in_flight -= 1;
        }
    }

    fn restart(&mut self, id: Key) {
        self.land(id);
        self.start_or_stall(id);
    }

    fn settle_receive(&mut self, id: Key, outcome: Outcome) -> Option<Completion> {
        let Outcome { more, output, .. } = outcome;
        let request = self.requests.get_mut(id)?;
        let result = request.result_to_tell(outcome.result);
        let (handle, repeat) = (request.handle, request.repeat && !request.cancelled);
        let switching = request.switching && !request.cancelled;
        let datagrams = request.command == Command::ReceiveFrom;
        let received = match output {
            Output::Lease(lease) => lease,
            output => match -result {
                libc::ENOBUFS if matches!(output, Output::Starved) => {
                    request.switching = false;
                    self.land(id);
                    self.starved.push(id);
                    self.counters.buffer_waits += u64::from(!self.has_buffers(id));
                    return None;
                }
                libc::ECANCELED if switching => {
                    request.switching = false;
                    self.restart(id);
                    return None;
                }
                libc::EAGAIN | libc::EINTR => {
                    self.restart(id);
                    return None;
                }
                _ => {
                    // The end of the stream, or an error.
                    self.finish(id)?;
                    let end = result_of(result).map(|_| Lease::empty());
                    return Some(self.completed(handle, false, receive_event(datagrams, end)));
                }
            },
        };
        self.adapt_buffers(id, received.len());
        let goes_on = more || repeat;
        if !goes_on {
            self.finish(id)?;
        } else if !more {
            if let Some(request) = self.requests.get_mut(id) {
                request.switching = false;
            }
            self.restart(id);
        }
        Some(self.completed(handle, goes_on, receive_event(datagrams, Ok(received))))
    }

    /// Moves a stream that keeps filling small buffers to large ones, and back.
    fn adapt_buffers(&mut self, id: Key, received: usize) {
        let Some(request) = self.requests.get_mut(id) else { return };
        let Some(member) = self.members.get_mut(request.handle) else { return };
        if request.command == Command::ReceiveFrom || request.switching {
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
            // It goes on with the other class as soon as the driver lets go of it.
            request.switching = true;
            self.driver.cancel(id.tag(), member.object);
        }
    }

    /// Signals, timers and wake-ups: a number or a description that was read.
    fn settle_watch(&mut self, id: Key, result: i32) -> Option<Completion> {
        let request = self.requests.get(id)?;
        let result = request.result_to_tell(result);
        let (handle, repeat) = (request.handle, request.repeat && !request.cancelled);
        if result == -libc::EAGAIN || result == -libc::EINTR {
            self.restart(id);
            return None;
        }
        let Payload::Words(words) = &request.payload else { return None };
        if self.letter_box.as_ref().is_some_and(|(_, key)| *key == handle) {
            self.restart(id);
            self.open_letters();
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

    fn settle_poll(&mut self, id: Key, outcome: Outcome) -> Option<Completion> {
        let request = self.requests.get(id)?;
        let result = request.result_to_tell(outcome.result);
        let (handle, repeat) = (request.handle, request.repeat && !request.cancelled);
        let more = outcome.more || (repeat && result >= 0);
        if !more {
            self.finish(id)?;
        } else if !outcome.more {
            // The kernel ends a poll of many edges when its completion queue has overflown.
            self.restart(id);
        }
        let events = result_of(result).map(|events| events as u32);
        Some(self.completed(handle, more, Event::Poll(events)))
    }

    fn settle_peer_address(&mut self, id: Key, result: i32) -> Option<Completion> {
        let request = self.requests.get_mut(id)?;
        let handle = request.handle;
        let Payload::Address(address) = &mut request.payload else { return None };
        let longer = result >= 0 && peer_address_bytes(address) > result as u32;
        if longer {
            self.restart(id);
            return None;
        }
        let bytes = address.as_bytes(result.max(0) as u32);
        let mut answer = result_of(result).and_then(|_| RawAddress::parse(bytes));
        self.finish(id)?;
        if answer.is_err() && result != -libc::ECANCELED {
            // The way that knows every family and kernel.
            let object = self.members.get(handle)?.object;
            answer = self.peer_address(object);
        }
        Some(self.completed(handle, false, Event::PeerAddress(answer)))
    }

    /// Everything that completes once.
    fn settle_once(&mut self, id: Key, result: i32) -> Option<Completion> {
        let request = self.requests.get_mut(id)?;
        let member = self.members.get_mut(request.handle)?;
        let (handle, cancelled) = (request.handle, request.cancelled);
        let result = request.result_to_tell(result);
        let writes = request.writes();
        if result == -libc::EINTR
            || (result == -libc::EAGAIN && request.command != Command::Connect)
        {
            self.restart(id);
            return None;
        }
        if result >= 0 {
            if writes && request.has_rest(result as usize, member.kind) && !cancelled {
                self.restart(id);
                return None;
            }
            request.commit(result as usize);
        }
        if request.command == Command::Connect {
            member.connecting = false;
        }
        let request = self.finish(id)?;
        if request.command == Command::Connect {
            self.advance(handle, Lane::Inbound);
            self.advance(handle, Lane::Readiness);
        }
        let event = event_of(request, result, writes);
        Some(self.completed(handle, false, event))
    }
}

fn receive_event(datagrams: bool, received: io::Result<Lease>) -> Event {
    if datagrams {
        Event::ReceiveFrom(received.and_then(Datagram::parse))
    } else {
        Event::Receive(received)
    }
}

fn event_of(request: Request, result: i32, writes: bool) -> Event {
    // Bytes that were written before the peer failed count; the next write tells of the failure.
    let count =
        if writes && request.progress > 0 { Ok(request.progress) } else { result_of(result) };
    match (request.command, request.payload) {
        (Command::Raw(command), payload) => {
            let address = match payload {
                Payload::Raw { address, .. } => address,
                _ => std::ptr::null_mut(),
            };
            let offset = (request.offset != NO_OFFSET).then_some(request.offset);
            Event::Transfer(Transferred { command, bytes: count, address, offset })
        }
        (Command::Read, Payload::Bytes(bytes)) => Event::Read(count, bytes),
        (Command::ReadAt, Payload::Bytes(bytes)) => Event::ReadAt(count, bytes, request.offset),
        (Command::WriteAt, Payload::Buffer(buffer)) => {
            Event::WriteAt(count, buffer, request.offset)
        }
        (Command::ReadVectored, Payload::Vector(vector)) => {
            Event::ReadVectored(count, vector.reads)
        }
        (Command::Write, Payload::Buffer(buffer)) => Event::Write(count, buffer),
        (Command::WriteVectored, Payload::Vector(vector)) => {
            Event::WriteVectored(count, vector.writes)
        }
        (Command::SendTo, Payload::Message(message)) => Event::SendTo(count, message.buffer),
        (Command::Connect, _) => Event::Connect(count.map(drop)),
        (Command::Sync { .. }, _) => Event::Sync(count.map(drop)),
        (Command::Disconnect { .. }, _) => Event::Disconnect(count.map(drop)),
        // A request is only ever made with the payload of its command.
        (_, _) => Event::Write(count, Buffer::Static(&[])),
    }
}

/// Reads a `signalfd_siginfo` of 128 bytes.
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
