//! Checks completions as they arrive: their request, whether they are allowed, and their content.

use crate::event::{Arrival, Contents, take_apart};
use crate::link::FILE_BYTES;
use crate::model::{Delivery, Sent};
use crate::rules::Rule;
use crate::run::{Checked, Owner, Request, Run};
use crate::script::LinkKind;
use crate::semantics::{self, What};
use fuzzkit::{Failure, pattern};
use megapipe::{Address, Completion, Event, Handle, Socket};

/// The mark of a request whose buffer may come back as another one, because a lease is copied.
pub(crate) const NO_MARK: u64 = u64::MAX;
/// The first cookie of served connections.
const SERVED_COOKIES: usize = 1000;
/// The message that a served connection sends.
pub(crate) const GREETING: &[u8] = b"greeting";

impl Run<'_> {
    /// Checks and records a completion.
    pub(crate) fn arrive(&mut self, done: Completion) -> Checked {
        let Completion { handle, more, event, written } = done;
        if let Event::Write(Ok(count), _)
        | Event::WriteAt(Ok(count), ..)
        | Event::WriteVectored(Ok(count), _)
        | Event::SendFile(Ok(count)) = &event
            && *count != written
        {
            let text = format!("{written} bytes were written, of which {event:?} knows {count}");
            return Err(Failure::new("written", text));
        }
        let Some(owner) = self.owners.get(&handle).copied() else {
            let text = format!("a completion for a handle that is gone: {event:?}");
            return Err(Failure::new("stray", text));
        };
        self.watch.note(|| format!("    {owner:?} <- {event:?}{}", if more { " ..." } else { "" }));
        match owner {
            Owner::Closing(id) => self.closed(id, handle, more, event),
            Owner::Served(number) => self.serve(number, handle, event),
            Owner::Member(member) => {
                if self.channel.cookie(handle) != Some(&member) {
                    let text = format!("{} has lost its cookie", self.name(member));
                    return Err(Failure::new("cookie", text));
                }
                self.came(member, more, event)
            }
        }
    }

    fn closed(&mut self, id: usize, handle: Handle, more: bool, event: Event) -> Checked {
        let arrival = take_apart(event);
        let member = self.requests[id].member;
        if !semantics::may_complete_after_close(arrival.what) || more {
            let text = format!("{}: {:?} after its close", self.name(member), arrival.what);
            return Err(Failure::new("stray after close", text));
        }
        let link = &self.links[member / 2];
        if let Err(errno) = arrival.result
            && !semantics::may_fail(link.kind, What::Write, &link.state, errno)
            && !(link.kind.is_connecting()
                && semantics::may_fail(link.kind, What::Connect, &link.state, errno))
            && !self.requests.iter().any(|request| {
                request.member == member && request.is_withdrawn && self.lacks_file(request, errno)
            })
        {
            let text = format!("{}: its close failed with errno {errno}", self.name(member));
            return Err(Failure::new("close failed", text));
        }
        self.owners.remove(&handle);
        self.members[member].closing.take_if(|closing| *closing == handle);
        if arrival.result.is_err() {
            self.give_up_writes(member);
        }
        self.requests[id].last = Some(arrival.result);
        self.requests[id].completions += 1;
        Ok(())
    }

    /// Records that some of the writes that were queued at the close have failed.
    pub(crate) fn give_up_writes(&mut self, member: usize) {
        let outbound = &mut self.links[member / 2].outbound;
        let withdrawn = self.requests.iter().filter(|one| one.member == member && one.is_withdrawn);
        for segment in withdrawn.filter_map(|request| request.segment) {
            outbound.segments[segment].delivery = Delivery::Unknown;
        }
    }

    /// Handles a completion of a connection that a listener accepted: its greeting, then its close.
    fn serve(&mut self, number: usize, handle: Handle, event: Event) -> Checked {
        match event {
            Event::Write(result, _) if !self.served[number].is_greeted => {
                let link = self.served[number].link;
                let is_whole = matches!(result, Ok(count) if count == GREETING.len());
                if !is_whole {
                    let kind = self.links[link].kind.text();
                    let text = format!("a connection of {kind} takes no greeting: {result:?}");
                    return Err(Failure::new("greeting", text));
                }
                self.served[number].is_greeted = true;
                self.leave_served(number, handle);
                Ok(())
            }
            Event::Close(Ok(())) if self.served[number].is_greeted => {
                self.owners.remove(&handle);
                self.served[number].is_closed = true;
                Ok(())
            }
            other => {
                let text = format!("served connection {number} completes {other:?}");
                Err(Failure::new("stray of a served connection", text))
            }
        }
    }

    fn leave_served(&mut self, number: usize, handle: Handle) {
        // If there is no room for a close, the connection is unregistered and dropped.
        if self.channel.close(handle).is_err() {
            self.owners.remove(&handle);
            self.served[number].is_closed = true;
            drop(self.channel.unregister(handle));
        }
    }

    fn came(&mut self, member: usize, more: bool, event: Event) -> Checked {
        let arrival = take_apart(event);
        let id = self.find(member, &arrival)?;
        self.check_order(member, id, &arrival)?;
        let request = &mut self.requests[id];
        if more && !request.repeats {
            let text = format!("{:?} announces more", request.what);
            return Err(self.failure(id, "more of a single request", text));
        }
        request.completions += 1;
        if !more {
            request.last = Some(arrival.result);
            self.members[member].pending.retain(|pending| *pending != id);
        }
        match arrival.result {
            Ok(count) => {
                self.requests[id].brought += count;
                self.succeeded(id, count, arrival.contents)
            }
            Err(libc::EMSGSIZE) if self.takes_messages(id) => self.too_long(id, &arrival.contents),
            Err(errno) => self.failed(id, more, errno),
        }
    }

    /// Returns the request of a completion.
    fn find(&mut self, member: usize, arrival: &Arrival) -> Checked<usize> {
        let pending = &self.members[member].pending;
        let fits = |id: &&usize| {
            let request = &self.requests[**id];
            request.what == arrival.what
                && arrival.mark.is_none_or(|mark| [mark, NO_MARK].contains(&request.mark))
                && (arrival.result != Err(libc::ECANCELED) || request.is_cancelled)
        };
        // A copied lease has no mark: any other request of the mark comes first.
        let exact = |id: &&usize| fits(id) && Some(self.requests[**id].mark) == arrival.mark;
        if let Some(id) = pending.iter().find(exact) {
            return Ok(*id);
        }
        let same = |id: &&usize| self.requests[**id].what == arrival.what;
        // Waiting requests end before the one in flight.
        let is_cancelled = arrival.result == Err(libc::ECANCELED);
        let mut fitting = pending.iter().filter(fits);
        let first = fitting.next();
        if let Some(id) = fitting.next().filter(|_| is_cancelled).or(first) {
            return Ok(*id);
        }
        let (name, what) = (self.name(member), arrival.what);
        let first = pending.iter().copied().find(|id| same(&id));
        // A connection for a later accept may arrive before the end of an earlier, cancelled one,
        // because their completions look the same.
        let is_swapped = |request: &Request| {
            let accepts = request.member == member && request.what == What::Accept;
            accepts && request.is_cancelled && matches!(request.last, Some(Ok(_)))
        };
        if let Some(id) = first.filter(|_| is_cancelled && arrival.what == What::Accept)
            && self.requests.iter().any(is_swapped)
        {
            self.rules.used(Rule::CancelRace);
            return Ok(id);
        }
        if first.is_some() && is_cancelled {
            let text = format!("{name}: a {what:?} that the application did not cancel");
            return Err(Failure::new(format!("cancelled unasked: {what:?}"), text));
        }
        let text = format!("{name}: {what:?} {:?} without a request for it", arrival.result);
        Err(Failure::new(format!("too many completions: {what:?}"), text))
    }

    /// Checks that requests of one lane end in the order of submission, except cancelled ones.
    fn check_order(&self, member: usize, id: usize, arrival: &Arrival) -> Checked {
        let same_lane = |what: What| {
            (0..2).any(|inbound| {
                let inbound = inbound == 1;
                what.is_in_direction(inbound) && arrival.what.is_in_direction(inbound)
            })
        };
        let passed = self.members[member].pending.iter().find(|other| {
            let request = &self.requests[**other];
            **other < id && !request.is_cancelled && same_lane(request.what)
        });
        match passed {
            Some(other) if !self.requests[id].is_cancelled => {
                let what = self.requests[*other].what;
                let text = format!("{:?} ends before an earlier {what:?}", arrival.what);
                Err(self.failure(id, "order of completions", text))
            }
            _ => Ok(()),
        }
    }

    fn failed(&mut self, id: usize, more: bool, errno: i32) -> Checked {
        let (member, what) = (self.requests[id].member, self.requests[id].what);
        if more {
            return Err(self.failure(id, "more after an error", format!("errno {errno}")));
        }
        if errno == libc::ECANCELED {
            self.set_delivery(id, Delivery::Known(0));
            return Ok(());
        }
        self.set_delivery(id, semantics::delivery_of_failed_write());
        if what.reads() {
            self.members[member].end.get_or_insert(Err(errno));
        }
        if self.lacks_file(&self.requests[id], errno) {
            // What waits behind a part is not begun.
            for other in &self.members[member].pending {
                let request = &mut self.requests[*other];
                request.is_cancelled |= request.what.is_in_direction(false);
            }
            return Ok(());
        }
        let is_early = self.requests[id].is_early && errno == libc::ENOTCONN;
        let link = &mut self.links[member / 2];
        if !is_early && !semantics::may_fail(link.kind, what, &link.state, errno) {
            let class = format!("unexpected errno {errno} of {what:?} on {}", link.kind.text());
            let text = format!("state {:?}", link.state);
            return Err(self.failure(id, &class, text));
        }
        link.state.error_told = true;
        Ok(())
    }

    /// Returns whether the file that is sent was too short, or its handle has ended.
    fn lacks_file(&self, request: &Request, errno: i32) -> bool {
        match (request.file, errno) {
            (Some(_), libc::ENODATA) => request.offset as usize + request.room > FILE_BYTES,
            (Some(file), libc::EBADF) => !matches!(self.owners.get(&file), Some(Owner::Member(_))),
            _ => false,
        }
    }

    fn takes_messages(&self, id: usize) -> bool {
        let request = &self.requests[id];
        request.what.reads() && self.links[request.member / 2].kind.is_messages()
    }

    /// Checks a message that was longer than its room; a read has its beginning, a receive nothing.
    fn too_long(&mut self, id: usize, contents: &Contents) -> Checked {
        let (member, room) = (self.requests[id].member, self.room_for_message(id));
        let inbound = &mut self.links[member / 2].inbound;
        if let Contents::Bytes(found) = contents {
            let is_cut =
                pattern::message_header(found).is_some_and(|(_, bytes)| bytes > found.len());
            let came = match self.requests[id].what {
                What::Peek => inbound.saw_message(found, room),
                _ => inbound.came_message(found, room),
            };
            let came = came.and_then(|_| is_cut.then_some(()).ok_or("it is whole".to_string()));
            return came.map_err(|text| self.failure(id, "EMSGSIZE", text));
        }
        let messages = &mut inbound.messages;
        let is_it =
            |sent: &&mut Sent| !sent.is_delivered && (sent.may_be_lost || sent.bytes > room);
        match messages.iter_mut().find(is_it) {
            Some(sent) => {
                sent.may_be_lost = true;
                sent.is_delivered |= sent.bytes > room;
                Ok(())
            }
            None => {
                let text = format!("no message is longer than {room} bytes");
                Err(self.failure(id, "EMSGSIZE", text))
            }
        }
    }

    /// Returns the length of the longest message that a request receives completely.
    fn room_for_message(&self, id: usize) -> usize {
        match self.requests[id].what {
            What::Receive | What::ReceiveFrom => {
                self.script.settings.large.1 as usize - semantics::DATAGRAM_HEADER_BYTES
            }
            _ => self.requests[id].room,
        }
    }

    fn succeeded(&mut self, id: usize, count: u64, contents: Contents) -> Checked {
        let what = self.requests[id].what;
        let member = self.requests[id].member;
        match contents {
            Contents::Bytes(bytes) if what == What::ReadAt => {
                self.check_file(id, self.requests[id].offset, &bytes)
            }
            Contents::Bytes(bytes) if what == What::Peek => self.seen(id, &bytes),
            Contents::Bytes(bytes) => self.data(id, &bytes, None),
            Contents::Lease(lease) => {
                self.data(id, &lease, None)?;
                if self.holds && !lease.is_empty() {
                    self.leases.push(lease);
                }
                Ok(())
            }
            Contents::Datagram(datagram) => {
                let is_cut = Some(datagram.is_truncated());
                self.data(id, &datagram, is_cut)
            }
            Contents::Connection(accepted) => {
                self.check_peer(id, accepted.peer.as_ref())?;
                self.greet(member, accepted.socket)
            }
            Contents::None if what.writes() || what == What::WriteAt => self.wrote(id, count),
            Contents::None => self.told(id, count),
        }
    }

    fn wrote(&mut self, id: usize, count: u64) -> Checked {
        let request = &self.requests[id];
        let link = &mut self.links[request.member / 2];
        let all = request.room as u64;
        let is_short = count < all;
        let may_be_short = semantics::may_be_short(request.is_cancelled);
        if count > all || (is_short && !may_be_short) {
            let text = format!("{count} of {all} bytes were written");
            let class = format!("short write on {}", link.kind.text());
            return Err(self.failure(id, &class, text));
        }
        if link.kind == LinkKind::File && request.what != What::WriteAt {
            link.position = link.position.map(|position| position + count);
        }
        self.set_delivery(id, Delivery::Known(count as usize));
        Ok(())
    }

    /// Checks a completion with a number.
    fn told(&mut self, id: usize, count: u64) -> Checked {
        let request = &self.requests[id];
        let link = &mut self.links[request.member / 2];
        match request.what {
            What::Connect => link.state.is_connected = true,
            What::Poll => {
                let unasked = count as u32 & !(request.room as u32 | semantics::POLL_ALWAYS);
                if unasked != 0 || count == 0 {
                    let class = format!("poll tells {unasked:#x} unasked");
                    let text = format!("asked for {:#x}, told {count:#x}", request.room);
                    return Err(self.failure(id, &class, text));
                }
            }
            What::Watch if link.kind == LinkKind::Wake => {
                if count == 0 || count > link.wakes {
                    let text = format!("{count} wakes of {} were told", link.wakes);
                    return Err(self.failure(id, "wakes", text));
                }
                link.wakes -= count;
            }
            What::Watch if count == 0 => {
                return Err(self.failure(id, "expiries", "no expiry was told".to_string()));
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that the bytes of a peek are those that the next read will return.
    fn seen(&mut self, id: usize, found: &[u8]) -> Checked {
        if found.is_empty() {
            return self.ended(id);
        }
        let member = self.requests[id].member;
        let link = &self.links[member / 2];
        let class = format!("peek at {}", link.kind.text());
        if !link.kind.is_messages() {
            let saw = link.inbound.saw(found).map(drop);
            return saw.map_err(|text| self.failure(id, &class, text));
        }
        let number = link.inbound.saw_message(found, self.requests[id].room);
        let number = number.map_err(|text| self.failure(id, &class, text))?;
        let last = self.members[member].last_message;
        if last >= Some(number) {
            let text = format!("message {number} was seen after {last:?} had come");
            return Err(self.failure(id, &class, text));
        }
        Ok(())
    }

    /// Checks received data, or the end.
    fn data(&mut self, id: usize, found: &[u8], is_cut: Option<bool>) -> Checked {
        let member = self.requests[id].member;
        let kind = self.links[member / 2].kind;
        if found.is_empty() {
            return self.ended(id);
        }
        if kind == LinkKind::File {
            let position = self.links[member / 2].position;
            let Some(position) = position else { return Ok(()) };
            self.links[member / 2].position = Some(position + found.len() as u64);
            return self.check_file(id, position, found);
        }
        let inbound = &mut self.links[member / 2].inbound;
        if !kind.is_messages() {
            let came = inbound.came(found);
            let class = format!("contents of {}", kind.text());
            return came.map_err(|text| self.failure(id, &class, text));
        }
        let room = self.room_for_message(id);
        let whole = pattern::message_header(found).map_or(0, |(_, bytes)| bytes);
        if is_cut.is_some_and(|is_cut| is_cut != (whole > found.len())) {
            let text = format!("{} of {whole} bytes, cut: {is_cut:?}", found.len());
            return Err(self.failure(id, "is_truncated", text));
        }
        if is_cut.is_none() && whole > found.len() {
            let text = format!("{} of {whole} bytes without a word", found.len());
            return Err(self.failure(id, "message cut", text));
        }
        let inbound = &mut self.links[member / 2].inbound;
        let number = inbound.came_message(found, room);
        let class = format!("messages of {}", kind.text());
        let number = number.map_err(|text| self.failure(id, &class, text))?;
        let last = self.members[member].last_message.replace(number);
        if last >= Some(number) {
            let text = format!("message {number} after {last:?}");
            return Err(self.failure(id, "order of messages", text));
        }
        Ok(())
    }

    fn check_file(&self, id: usize, position: u64, found: &[u8]) -> Checked {
        let inbound = &self.links[self.requests[id].member / 2].inbound;
        let is_end = position >= inbound.written;
        if found.is_empty() && !is_end && self.requests[id].last == Some(Ok(0)) {
            return Err(self.failure(id, "end of a file", format!("at {position}")));
        }
        match pattern::mismatch(inbound.stream, position, found) {
            Some(wrong) => Err(self.failure(id, "contents of a file", format!("byte {wrong}"))),
            None => Ok(()),
        }
    }

    fn ended(&mut self, id: usize) -> Checked {
        let member = self.requests[id].member;
        let link = &self.links[member / 2];
        if !semantics::may_end(link.kind, &link.state) {
            let class = format!("end of {} unasked", link.kind.text());
            return Err(self.failure(id, &class, format!("state {:?}", link.state)));
        }
        if semantics::hides_reset(link.kind, &link.state) {
            let text = "a reset connection looks like one that has ended".to_string();
            return Err(self.failure(id, "hidden reset", text));
        }
        let missing = link.inbound.missing();
        let is_clean = !semantics::may_lose_inbound(link.kind, &link.state);
        if missing > 0 && is_clean && link.kind.is_stream() {
            let class = format!("end of {} before its data", link.kind.text());
            return Err(self.failure(id, &class, format!("{missing} bytes are missing")));
        }
        self.members[member].end.get_or_insert(Ok(0));
        Ok(())
    }

    /// Checks that a connection has the address of one of the clients if that was requested.
    fn check_peer(&mut self, id: usize, peer: Option<&Address>) -> Checked {
        let member = self.requests[id].member;
        // A connection may arrive for an accept while a cancelled one has not ended.
        let may_be = |request: &&Request| {
            let is_over = request.last.is_some() && !request.is_cancelled;
            request.member == member && request.what == What::Accept && !is_over
        };
        let mut others = self.requests.iter().filter(may_be);
        let is_asked = self.requests[id].room == 1;
        if others.any(|other| (other.room == 1) != is_asked) && peer.is_some() != is_asked {
            return Ok(());
        }
        let is_right = match peer {
            Some(address) => is_asked && self.links[member / 2].name_client(address),
            None => !is_asked,
        };
        if is_right {
            return Ok(());
        }
        let text = format!("asked for: {is_asked}, told: {peer:?}");
        Err(self.failure(id, "address of a peer", text))
    }

    /// Serves a connection: sends a greeting, then closes.
    fn greet(&mut self, member: usize, socket: Socket) -> Checked {
        let link = member / 2;
        self.accepted[link] += 1;
        let number = self.served.len();
        let Ok(handle) = self.channel.register(socket, SERVED_COOKIES + number) else {
            // There is no room: the channel has closed it.
            return Ok(());
        };
        self.owners.insert(handle, Owner::Served(number));
        self.served.push(crate::run::Served { link, is_greeted: false, is_closed: false });
        if self.channel.write(handle, GREETING).is_err() {
            self.owners.remove(&handle);
            self.served[number].is_closed = true;
            drop(self.channel.unregister(handle));
        }
        Ok(())
    }

    pub(crate) fn failure(&self, id: usize, class: &str, text: String) -> Failure {
        let request = &self.requests[id];
        let name = self.name(request.member);
        Failure::new(class, format!("{name}, {:?} of step {}: {text}", request.what, request.op))
    }
}
