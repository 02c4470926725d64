//! Ends a run: waits for everything that has to arrive, and checks that everything is released.

use crate::arrive::GREETING;
use crate::link::{Client, Link, make};
use crate::model::Delivery;
use crate::peer::{Got, read_once};
use crate::rules::Rule;
use crate::run::{Call, Checked, Run};
use crate::script::{LinkKind, Op, Verb};
use crate::semantics::{self, Ending, What};
use crate::target::TestAddresses;
use fuzzkit::Failure;
use megapipe::{Event, Repeat};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Time limit of one dispatch.
const LOOK: Duration = Duration::from_millis(1);

impl Run<'_> {
    /// Ends a run.
    pub(crate) fn finish(&mut self) -> Checked {
        self.leases.clear();
        self.holds = false;
        self.until("a write that ends", Run::pump_writes, |run| {
            !run.is_pending(|what| what.writes() || what == What::WriteAt)
        })?;
        self.until("what the peer wrote", Run::pump_reads, |run| {
            (0..run.links.len()).all(|link| run.has_all(link))
        })?;
        self.check_listeners()?;
        self.cancel_everything()?;
        self.leave_everything()?;
        self.drain_peers();
        self.check_served()?;
        self.check_descriptors()?;
        self.check_peers()?;
        self.check_outbound()?;
        self.check_channel()
    }

    /// Dispatches until a condition holds.
    fn until(
        &mut self,
        what: &str,
        mut step: impl FnMut(&mut Self) -> Checked,
        is_so: impl Fn(&Self) -> bool,
    ) -> Checked {
        let until = Instant::now() + self.pace.time_limit;
        loop {
            step(self)?;
            if is_so(self) {
                return Ok(());
            }
            if let Some(done) = self.dispatch(LOOK)? {
                self.arrive(done)?;
                while let Some(done) = self.dispatch(Duration::ZERO)? {
                    self.arrive(done)?;
                }
            }
            if Instant::now() > until {
                let pending = self.describe_pending();
                let (outstanding, counters) = (self.channel.outstanding(), self.channel.counters());
                let state = format!("{outstanding} outstanding, pending: {pending}; {counters:?}");
                let text = format!("{what} does not come; {state}");
                let class = format!("hang: {what}: {}", self.pending_kinds());
                return Err(Failure::new(class, text));
            }
        }
    }

    fn describe_pending(&self) -> String {
        let ids = self.members.iter().flat_map(|member| &member.pending);
        let describe = |id: &usize| {
            let request = &self.requests[*id];
            format!("{:?} of step {} on {}", request.what, request.op, self.name(request.member))
        };
        let mut all: Vec<String> = ids.map(describe).collect();
        let missing = self.links.iter().filter(|link| link.inbound.missing() > 0);
        all.extend(missing.map(|link| format!("{} has data", link.kind.text())));
        all.join(", ")
    }

    fn pending_kinds(&self) -> String {
        let ids = self.members.iter().flat_map(|member| &member.pending);
        let mut kinds: Vec<String> = ids
            .map(|id| {
                let request = &self.requests[*id];
                format!("{:?} on {}", request.what, self.links[request.member / 2].kind.text())
            })
            .collect();
        kinds.sort();
        kinds.dedup();
        kinds.join(", ")
    }

    fn is_pending(&self, wanted: impl Fn(What) -> bool) -> bool {
        let mut ids = self.members.iter().flat_map(|member| &member.pending);
        ids.any(|id| wanted(self.requests[*id].what))
    }

    fn pump_writes(&mut self) -> Checked {
        self.drain_peers();
        Ok(())
    }

    fn drain_peers(&mut self) {
        for link in &mut self.links {
            link.peer_drain();
        }
    }

    /// Returns whether a link has received all that it should.
    fn has_all(&self, link: usize) -> bool {
        let (kind, state) = (self.links[link].kind, &self.links[link].state);
        let first = &self.members[2 * link];
        let is_in = kind.is_stream() || kind.is_messages();
        let broken = semantics::may_lose_inbound(kind, state);
        // A socket that was never connected ends at once, and the peer may have written nothing.
        let over = !is_in || first.handle.is_none() || broken || first.end.is_some();
        over || self.links[link].inbound.missing() == 0
    }

    fn pump_reads(&mut self) -> Checked {
        for link in 0..self.links.len() {
            let member = 2 * link;
            let Some(handle) = self.members[member].handle.filter(|_| !self.has_all(link)) else {
                continue;
            };
            let receives = self.members[member].pending.iter();
            if receives.clone().any(|id| self.requests[*id].what.takes_data()) {
                continue;
            }
            let op = Op { verb: Verb::Receive, member, a: 0, b: 0 };
            if self.links[link].kind.is_datagrams() {
                let result = self.channel.receive_from(handle, Repeat::Once);
                self.after(op, What::ReceiveFrom, false, result);
            } else {
                let result = self.channel.receive(handle, Repeat::Once);
                self.after(op, What::Receive, false, result);
            }
        }
        // A table that is full of requests that do not end has no room for further ones.
        if self.channel.outstanding() >= self.script.settings.max_requests as usize {
            self.cancel_pending_polls()?;
        }
        Ok(())
    }

    fn cancel_pending_polls(&mut self) -> Checked {
        for member in 0..self.members.len() {
            if let Some(handle) = self.members[member].handle {
                self.cancel_pending(member, |_| true);
                let result = self.channel.cancel(handle);
                result.map_err(|error| Failure::new("cancel", error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Checks that an open listener has accepted every client that connected.
    fn check_listeners(&mut self) -> Checked {
        for link in 0..self.links.len() {
            let member = 2 * link;
            let duplicate = self.members[member + 1].handle.is_some();
            let Some(handle) = self.members[member].handle else { continue };
            if !self.links[link].kind.is_listener() || duplicate {
                continue;
            }
            let clients = self.links[link].clients.len() as u64;
            let request = |run: &mut Self| {
                let wanted = run.members[member].pending.iter();
                let live = wanted.copied().any(|id| {
                    let request = &run.requests[id];
                    request.what == What::Accept && !request.is_cancelled
                });
                if !live && run.accepted[link] < clients {
                    let op = Op { verb: Verb::Accept, member, a: 1, b: 0 };
                    let wish = megapipe::Accept::descriptors().count(1);
                    let result = run.channel.accept(handle, wish);
                    run.after(op, What::Accept, false, result);
                }
                Ok(())
            };
            self.until("a connection", request, |run| run.accepted[link] >= clients)?;
        }
        Ok(())
    }

    /// Cancels everything, and checks that each request has its last completion.
    fn cancel_everything(&mut self) -> Checked {
        self.cancel_pending_polls()?;
        let idle = |run: &Self| run.members.iter().all(|member| member.pending.is_empty());
        self.until("the last completion", |_| Ok(()), idle)
    }

    /// Ends every handle, half of them by close.
    fn leave_everything(&mut self) -> Checked {
        for member in 0..self.members.len() {
            let Some(handle) = self.members[member].handle else { continue };
            let closes = (self.script.seed >> (member % 8)) & 1 == 1;
            if !closes || self.close(member, handle, Ending::Close)? != Call::Done {
                self.unregister(member, handle)?;
            }
        }
        self.until("the event of a close", Run::pump_writes, |run| run.owners.is_empty())?;
        while let Some(done) = self.dispatch(self.pace.quiet)? {
            self.arrive(done)?;
        }
        Ok(())
    }

    /// Checks that the clients of served connections received their greeting and the end.
    fn check_served(&mut self) -> Checked {
        for link in 0..self.links.len() {
            let served = self.served.iter().filter(|served| served.link == link);
            let greeted = served.filter(|served| served.is_greeted).count();
            let until = Instant::now() + self.pace.time_limit;
            loop {
                self.links[link].read_clients();
                let got = |client: &&Client| client.got == GREETING && client.end.is_some();
                let clients = &self.links[link].clients;
                let found = clients.iter().filter(got).count();
                let is_told = clients.iter().all(|client| client.end.is_some());
                if found >= greeted && (is_told || !self.links[link].state.channel_gone) {
                    break;
                }
                if Instant::now() > until {
                    let untold = clients.iter().filter(|client| client.end.is_none()).count();
                    let text = format!(
                        "{greeted} connections were greeted, {found} clients know; {untold} are \
                         not told of the end"
                    );
                    return Err(Failure::new("greeting lost", text));
                }
                if let Some(done) = self.dispatch(LOOK)? {
                    self.arrive(done)?;
                }
            }
        }
        Ok(())
    }

    /// Checks that bytes that were not received are still in the descriptors that were returned.
    fn check_descriptors(&mut self) -> Checked {
        for link in 0..self.links.len() {
            let members = &mut self.members[2 * link..2 * link + 2];
            let descriptors: Vec<OwnedFd> =
                members.iter_mut().filter_map(|member| member.descriptor.take()).collect();
            if let Some(descriptor) = descriptors.first() {
                self.check_descriptor(link, descriptor)?;
            }
            drop(descriptors);
            if !self.links[link].state.channel_gone {
                self.note_gone(link);
            }
        }
        Ok(())
    }

    fn check_descriptor(&mut self, link: usize, descriptor: &OwnedFd) -> Checked {
        let link = &mut self.links[link];
        let lost = semantics::may_lose_inbound(link.kind, &link.state);
        let is_in = link.kind.is_stream() || link.kind.is_messages();
        let is_out = link.kind == LinkKind::PipeOut || !link.state.is_connected;
        if !is_in || is_out || lost || rustix::io::ioctl_fionbio(descriptor, true).is_err() {
            return Ok(());
        }
        // The socket's error is reported before the data behind it.
        let mut errors = 0;
        loop {
            let bytes = match read_once(descriptor, 1 << 16) {
                Got::Bytes(bytes) => bytes,
                Got::Broken(_) if errors < 3 => {
                    errors += 1;
                    continue;
                }
                _ => break,
            };
            let came = if link.kind.is_messages() {
                link.inbound.came_message(&bytes, 1 << 16).map(drop)
            } else {
                link.inbound.came(&bytes)
            };
            let class = format!("contents of {} after unregister", link.kind.text());
            came.map_err(|text| Failure::new(class, text))?;
        }
        let missing = link.inbound.missing();
        if missing > 0 && link.kind == LinkKind::Udp {
            self.rules.used(Rule::DatagramLoss);
        } else if missing > 0 {
            let class = format!("lost after unregister: {}", link.kind.text());
            let text = format!("{missing} bytes or messages are gone; {:?}", link.inbound);
            return Err(Failure::new(class, text));
        }
        Ok(())
    }

    /// Checks that the peer of a TCP connection sees the end after the channel has left it.
    fn check_peers(&mut self) -> Checked {
        let is_told = |link: &Link| {
            let waits = link.kind.is_tcp() && link.peer.is_some();
            !waits || link.peer_end.is_some()
        };
        self.until("the end at the peer", Run::pump_writes, |run| run.links.iter().all(is_told))
    }

    /// Checks that the peer received what was written.
    fn check_outbound(&mut self) -> Checked {
        for link in &mut self.links {
            link.peer_drain();
            let state = &link.state;
            let is_whole = !state.peer_closed && !semantics::may_lose_outbound(link.kind, state);
            let pending = |delivery: Delivery| delivery == Delivery::Pending;
            let segments = &link.outbound.segments;
            if segments.iter().any(|segment| pending(segment.delivery)) {
                let text = format!("a write on {} has no end", link.kind.text());
                return Err(Failure::new("write without end", text));
            }
            let result = if link.kind.is_messages() {
                link.outbound.check_messages(is_whole && link.kind != LinkKind::Udp)
            } else {
                link.outbound.check_stream(is_whole)
            };
            let class = format!("contents of {} at the peer", link.kind.text());
            result.map_err(|text| Failure::new(class, text))?;
        }
        Ok(())
    }

    /// Checks that the channel has released everything: its tables are empty and all buffers can be
    /// leased.
    fn check_channel(&mut self) -> Checked {
        let idle = |run: &Self| run.channel.outstanding() == 0;
        self.until("the end of withdrawn requests", |_| Ok(()), idle)?;
        let settings = &self.script.settings;
        let (small, large) = (settings.small.0, settings.large.0);
        let mut classes = vec![
            (LinkKind::Unix, TestAddresses::LOOPBACK, small, What::Receive),
            (LinkKind::UnixDatagram, TestAddresses::LOOPBACK, large, What::ReceiveFrom),
        ];
        if self.target.addresses.is_for_stack {
            // The stack has buffers of its own.
            classes.push((LinkKind::Tcp, self.target.addresses, small, What::Receive));
        }
        for (kind, addresses, count, what) in classes {
            let leased = self.lease_all(kind, addresses, count.into(), what)?;
            if leased < usize::from(count) {
                let text = format!("{leased} of {count} buffers for {what:?} can be leased");
                return Err(Failure::new(format!("buffers lost: {what:?}"), text));
            }
        }
        Ok(())
    }

    /// Returns how many buffers can be leased at once.
    fn lease_all(
        &mut self,
        kind: LinkKind,
        addresses: TestAddresses,
        count: usize,
        what: What,
    ) -> Checked<usize> {
        let broken = |text: String| Failure::new("setup", text);
        let number = self.links.len() + usize::from(kind == LinkKind::UnixDatagram);
        let (mut link, source) = make(kind, addresses, self.script.seed, number)
            .map_err(|error| broken(error.to_string()))?;
        let mut source = source.ok_or_else(|| broken(format!("{} has no source", kind.text())))?;
        if addresses.is_for_stack {
            source = self.accept_one(&mut link, source)?.into();
        }
        let handle = self.channel.register(source, 0).map_err(|error| broken(error.to_string()))?;
        if what == What::ReceiveFrom {
            let result = self.channel.receive_from(handle, Repeat::UntilCancelled);
            result.map_err(|error| broken(error.to_string()))?;
        }
        let (mut leases, mut datagrams) = (Vec::new(), Vec::new());
        for _ in 0..count {
            link.peer_write(1);
            if what == What::Receive {
                let result = self.channel.receive(handle, Repeat::Once);
                result.map_err(|error| broken(error.to_string()))?;
            }
            match self.dispatch(self.pace.time_limit)?.map(|done| done.event) {
                Some(Event::Receive(Ok(lease))) => leases.push(lease),
                Some(Event::ReceiveFrom(Ok(datagram))) => datagrams.push(datagram),
                Some(other) => return Err(broken(format!("unexpected: {other:?}"))),
                None => break,
            }
        }
        let leased = leases.len() + datagrams.len();
        drop(self.channel.unregister(handle));
        let until = Instant::now() + self.pace.time_limit;
        while self.channel.outstanding() > 0 && Instant::now() < until {
            if let Some(done) = self.dispatch(LOOK)? {
                let owner = self.owners.get(&done.handle).copied();
                let text = format!("{:?} after unregister ({owner:?})", done.event);
                return Err(Failure::new("stray", text));
            }
        }
        Ok(leased)
    }
}
