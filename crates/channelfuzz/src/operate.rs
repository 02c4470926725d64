//! Executes the operations of a script on the channel and on the peer.

use crate::rules::Rule;
use crate::run::{Call, Checked, Owner, Run};
use crate::script::{LinkKind, Op, Verb};
use crate::semantics::{Ending, What};
use fuzzkit::Failure;
use megapipe::{Accept, Address, Direction, Error, Handle, Message, Rejected, Repeat};
use std::net::Shutdown;
use std::time::Duration;

/// Bytes in front of the bytes that are read; they identify the request.
pub(crate) const MARK_BYTES: usize = 8;

impl Run<'_> {
    /// Executes an operation of the script.
    pub(crate) fn operate(&mut self, op: Op) -> Checked<Call> {
        match op.verb {
            Verb::Flush => return self.plain(|run| run.channel.flush()),
            Verb::Dispatch => {
                for _ in 0..op.a {
                    let wait = Duration::from_millis(op.b.into());
                    let Some(done) = self.dispatch(wait)? else { break };
                    self.arrive(done)?;
                }
                return Ok(Call::Done);
            }
            Verb::Quiesce => return self.quiesce().map(|()| Call::Done),
            Verb::Hold => {
                self.holds = op.a == 1;
                if !self.holds {
                    self.leases.clear();
                }
                return Ok(Call::Done);
            }
            Verb::Join => return self.join(op.member),
            Verb::PeerConnect => return self.peer_connect(op.member / 2),
            Verb::PeerDrain => return self.peer_drain(op.member / 2),
            Verb::ConnectTo => return Ok(self.connect_to(op)),
            _ => {}
        }
        if let Some(call) = self.operate_peer(op)? {
            return Ok(call);
        }
        match self.members[op.member].handle {
            Some(handle) => self.operate_member(op, handle),
            None => match self.members[op.member].closing {
                Some(handle) if op.verb == Verb::Abort => self.overtake(op.member, handle),
                _ => Ok(Call::Skipped),
            },
        }
    }

    fn plain(&mut self, call: impl FnOnce(&mut Self) -> megapipe::Result<()>) -> Checked<Call> {
        let result = call(self);
        Ok(called(result.err()))
    }

    fn operate_peer(&mut self, op: Op) -> Checked<Option<Call>> {
        let link = &mut self.links[op.member / 2];
        match op.verb {
            Verb::PeerWrite => _ = link.peer_write(op.a as usize),
            Verb::PeerRead => _ = link.peer_read(op.a as usize),
            Verb::PeerEnd => link.peer_end(),
            Verb::PeerClose => link.peer_close(),
            Verb::PeerReset => link.peer_reset(),
            Verb::PeerWake => {
                if let Some(waker) = &link.waker {
                    (0..op.a).for_each(|_| waker.wake());
                    link.wakes += u64::from(op.a);
                }
            }
            _ => return Ok(None),
        }
        Ok(Some(Call::Done))
    }

    /// Lets the peer read all bytes, and those that arrive because there is room now.
    fn peer_drain(&mut self, link: usize) -> Checked<Call> {
        let is_for_stack =
            self.links[link].addresses.is_for_stack && self.links[link].kind.is_tcp();
        while self.links[link].peer_drain() > 0 && is_for_stack {
            let flushed = self.channel.flush();
            flushed.map_err(|error| Failure::new("flush", error.to_string()))?;
            if self.target.has_thread {
                std::thread::sleep(self.pace.quiet);
            }
        }
        Ok(Call::Done)
    }

    fn peer_connect(&mut self, link: usize) -> Checked<Call> {
        if self.links[link].state.channel_gone {
            return Ok(Call::Skipped);
        }
        self.connect_client(link).map(|()| Call::Done)
    }

    /// Registers a kept descriptor again, or a duplicate.
    fn join(&mut self, member: usize) -> Checked<Call> {
        if self.members[member].handle.is_some() {
            return Ok(Call::Skipped);
        }
        if let Some(descriptor) = self.members[member].descriptor.take() {
            return self.register(member, descriptor);
        }
        let first = &self.members[member & !1];
        let link = &self.links[member / 2];
        if link.addresses.is_for_stack && link.kind.is_inet_stream() {
            return Ok(Call::Skipped);
        }
        if member.is_multiple_of(2) || self.links[member / 2].kind.is_timer() {
            return Ok(Call::Skipped);
        }
        let duplicate = match (first.handle, &first.descriptor) {
            (Some(handle), _) => match self.channel.descriptor(handle) {
                Ok(descriptor) => descriptor,
                Err(error) => return Err(Failure::new("descriptor", error.to_string())),
            },
            (None, Some(descriptor)) => descriptor
                .try_clone()
                .map_err(|error| Failure::new("setup", format!("no duplicate: {error}")))?,
            (None, None) => return Ok(Call::Skipped),
        };
        self.links[member / 2].shares_file = true;
        self.register(member, duplicate)
    }

    fn operate_member(&mut self, op: Op, handle: Handle) -> Checked<Call> {
        let repeat = |flag: u32| if flag == 1 { Repeat::UntilCancelled } else { Repeat::Once };
        match op.verb {
            Verb::Read | Verb::Peek | Verb::ReadVectored | Verb::ReceiveMessage | Verb::ReadAt => {
                Ok(self.read(op, handle))
            }
            Verb::Write
            | Verb::WriteMore
            | Verb::WriteVectored
            | Verb::WriteLease
            | Verb::SendTo
            | Verb::SendMessage
            | Verb::WriteAt => Ok(self.write(op, handle)),
            Verb::SendFile => Ok(self.send_file(op, handle)),
            Verb::Receive => {
                let result = self.channel.receive(handle, repeat(op.a));
                Ok(self.after(op, What::Receive, op.a == 1, result))
            }
            Verb::ReceiveFrom => {
                let result = self.channel.receive_from(handle, repeat(op.a));
                Ok(self.after(op, What::ReceiveFrom, op.a == 1, result))
            }
            Verb::Watch => {
                let result = self.channel.watch(handle, repeat(op.a));
                Ok(self.after(op, What::Watch, op.a == 1, result))
            }
            Verb::Poll => {
                let result = self.channel.poll(handle, op.a, repeat(op.b));
                let call = self.after(op, What::Poll, op.b == 1, result);
                if call == Call::Done
                    && let Some(request) = self.requests.last_mut()
                {
                    request.room = op.a as usize;
                }
                Ok(call)
            }
            Verb::Sync => {
                let result = self.channel.sync(handle);
                Ok(self.after(op, What::Sync, false, result))
            }
            Verb::PeerAddress => {
                let result = self.channel.request_peer_address(handle);
                Ok(self.after(op, What::PeerAddress, false, result))
            }
            Verb::Connect => Ok(self.connect(op, handle)),
            Verb::Accept => Ok(self.accept(op, handle)),
            Verb::Disconnect => Ok(self.disconnect(op, handle)),
            _ => self.operate_membership(op, handle),
        }
    }

    /// Executes an operation on the member as a whole.
    fn operate_membership(&mut self, op: Op, handle: Handle) -> Checked<Call> {
        match op.verb {
            Verb::Cancel => {
                self.cancel_pending(op.member, |_| true);
                self.plain(|run| run.channel.cancel(handle))
            }
            Verb::CancelDirection => {
                let direction = if op.a == 0 { Direction::Inbound } else { Direction::Outbound };
                self.cancel_pending(op.member, |what| what.is_in_direction(op.a == 0));
                self.plain(|run| run.channel.cancel_direction(handle, direction))
            }
            Verb::Descriptor => match self.channel.descriptor(handle) {
                Ok(descriptor) => {
                    drop(descriptor);
                    Ok(Call::Done)
                }
                Err(error) => Ok(called(Some(error))),
            },
            Verb::SetOption | Verb::GetOption => Ok(self.use_option(op, handle)),
            Verb::Unregister => self.unregister(op.member, handle),
            Verb::Close => self.end(op.member, handle, Ending::Close),
            Verb::Abort => self.end(op.member, handle, Ending::Abort),
            _ => Ok(Call::Skipped),
        }
    }

    pub(crate) fn unregister(&mut self, member: usize, handle: Handle) -> Checked<Call> {
        self.owners.remove(&handle);
        self.members[member].handle = None;
        self.withdraw(member, Ending::Unregister);
        let remains = self.channel.unregister(handle);
        let remains = remains.map_err(|error| Failure::new("unregister", error.to_string()))?;
        if remains.cookie != member {
            let text = format!("the cookie of member {member} is {}", remains.cookie);
            return Err(Failure::new("cookie", text));
        }
        self.accepted[member / 2] += remains.connections.len() as u64;
        let link = &self.links[member / 2];
        // A connection of the stack ends with its handle, so the kernel's has to end, too.
        let is_kept = !(link.addresses.is_for_stack && link.kind.is_inet_stream());
        self.members[member].descriptor = remains.descriptor.filter(|_| is_kept);
        self.note_gone(member / 2);
        Ok(Call::Done)
    }

    /// Closes or aborts, and ensures that pending requests take no more data.
    fn end(&mut self, member: usize, handle: Handle, ending: Ending) -> Checked<Call> {
        let pending = &self.members[member].pending;
        let receives = pending.iter().any(|id| self.requests[*id].what.takes_data());
        let call = self.close(member, handle, ending)?;
        if receives && self.links[member / 2].shares_file {
            self.rules.used(Rule::DeferredClose);
            let result = self.channel.flush();
            result.map_err(|error| Failure::new("flush", error.to_string()))?;
        }
        Ok(call)
    }

    pub(crate) fn close(&mut self, member: usize, handle: Handle, ending: Ending) -> Checked<Call> {
        let result = match ending {
            Ending::Abort => self.channel.abort(handle).map(drop),
            _ => self.channel.close(handle).map(drop),
        };
        if result.is_err() {
            return Ok(called(result.err()));
        }
        self.links[member / 2].state.is_aborted |= ending == Ending::Abort;
        self.members[member].handle = None;
        self.withdraw(member, ending);
        self.members[member].closing = Some(handle);
        self.owners.insert(handle, Owner::Closing(self.requests.len()));
        let op = Op { verb: Verb::Close, member, a: 0, b: 0 };
        self.filed(op, What::Close, |_| {});
        self.members[member].pending.pop();
        self.note_gone(member / 2);
        Ok(Call::Done)
    }

    /// Aborts a handle that is being closed.
    fn overtake(&mut self, member: usize, handle: Handle) -> Checked<Call> {
        let result = self.channel.abort(handle).map(drop);
        self.links[member / 2].state.is_aborted = true;
        self.give_up_writes(member);
        Ok(called(result.err()))
    }

    /// Records a request without a buffer.
    pub(crate) fn after(
        &mut self,
        op: Op,
        what: What,
        repeats: bool,
        result: megapipe::Result<()>,
    ) -> Call {
        if result.is_ok() {
            self.filed(op, what, |request| request.repeats = repeats);
        }
        called(result.err())
    }

    fn connect(&mut self, op: Op, handle: Handle) -> Call {
        let Some(target) = self.target(op) else { return Call::Skipped };
        let result = self.channel.connect(handle, target);
        self.after(op, What::Connect, false, result)
    }

    /// Returns the address to which the channel connects.
    fn target(&self, op: Op) -> Option<Address> {
        let link = &self.links[op.member / 2];
        let heard = link.target.as_ref().map(|(address, _)| address);
        let unheard = link.unheard.as_ref().map(|(address, _)| address);
        let target = if op.a == 1 { unheard } else { heard };
        target.filter(|_| link.kind.is_connecting()).cloned()
    }

    /// Makes the link's only connection.
    fn connect_to(&mut self, op: Op) -> Call {
        let link = &self.links[op.member / 2];
        let suits =
            link.kind == LinkKind::Outgoing && !link.is_begun && op.member.is_multiple_of(2);
        let Some(target) = self.target(op).filter(|_| suits) else { return Call::Skipped };
        match self.channel.connect_to(target, op.member) {
            Ok(handle) => {
                self.links[op.member / 2].is_begun = true;
                self.adopt(op.member, handle);
                self.after(op, What::Connect, false, Ok(()))
            }
            Err(error) => called(Some(error)),
        }
    }

    fn accept(&mut self, op: Op, handle: Handle) -> Call {
        let wish = if op.b & 1 == 1 { Accept::lightweight() } else { Accept::descriptors() };
        let with_peer = op.b & 2 == 2;
        let wish = if with_peer { wish.with_peer_address() } else { wish };
        let wish = if op.a == 0 { wish } else { wish.count(op.a) };
        if let Err(error) = self.channel.accept(handle, wish) {
            return called(Some(error));
        }
        // The counts of several calls add up to one request.
        let pending = self.members[op.member].pending.iter();
        let live = pending.copied().find(|id| {
            let request = &self.requests[*id];
            request.what == What::Accept && !request.is_cancelled
        });
        if live.is_none() {
            self.filed(op, What::Accept, |request| {
                (request.repeats, request.room) = (true, usize::from(with_peer));
            });
        }
        Call::Done
    }

    fn disconnect(&mut self, op: Op, handle: Handle) -> Call {
        let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both][op.a as usize % 3];
        let result = self.channel.disconnect(handle, how);
        let call = self.after(op, What::Disconnect, false, result);
        if call == Call::Done {
            let state = &mut self.links[op.member / 2].state;
            state.own_read_ended |= how != Shutdown::Write;
            state.own_write_ended |= how != Shutdown::Read;
        }
        call
    }

    fn read(&mut self, op: Op, handle: Handle) -> Call {
        let is_file = self.links[op.member / 2].kind == LinkKind::File;
        let mut pending = self.members[op.member].pending.iter();
        // A read and a write at the position of a file are executed at the same time.
        let is_writing = pending.any(|id| self.requests[*id].what.writes());
        if is_file && op.verb != Verb::ReadAt && is_writing {
            return Call::Skipped;
        }
        let mark = self.requests.len() as u64;
        let mut first = Vec::with_capacity(MARK_BYTES + op.a as usize);
        first.extend_from_slice(&mark.to_le_bytes());
        let mut room = first.capacity() - first.len();
        let (what, error) = match op.verb {
            Verb::Read => {
                let result = self.channel.read(handle, first);
                (What::Read, refusal(result))
            }
            Verb::Peek => {
                let result = self.channel.peek(handle, first);
                (What::Peek, refusal(result))
            }
            Verb::ReceiveMessage => {
                let result = self.channel.receive_message(handle, Message::new(first));
                (What::ReceiveMessage, refusal(result))
            }
            Verb::ReadAt => {
                let result = self.channel.read_at(handle, first, op.b.into());
                (What::ReadAt, refusal(result))
            }
            _ => {
                let more = (1..op.b).map(|_| Vec::with_capacity(op.a as usize));
                let buffers: Vec<Vec<u8>> = std::iter::once(first).chain(more).collect();
                room = buffers.iter().map(|one| one.capacity() - one.len()).sum();
                let result = self.channel.read_vectored(handle, buffers);
                (What::ReadVectored, refusal(result))
            }
        };
        if error.is_none() {
            self.filed(op, what, |request| {
                (request.mark, request.room, request.offset) = (mark, room, op.b.into());
            });
        }
        called(error)
    }
}

/// Returns the error of a refused request.
pub(crate) fn refusal<B>(result: Result<(), Rejected<B>>) -> Option<Error> {
    result.err().map(|rejected| rejected.error)
}

/// Returns the result of a call without an output.
pub(crate) fn called(error: Option<Error>) -> Call {
    match error {
        None => Call::Done,
        Some(Error::TooManyRequests { .. } | Error::QueueFull | Error::TooManyHandles { .. }) => {
            Call::NoRoom
        }
        Some(error) => Call::Refused(error.to_string()),
    }
}
