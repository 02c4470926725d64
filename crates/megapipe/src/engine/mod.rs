//! Implements the channel without the type of the application's cookies: handles, requests and
//! their order.

mod cancel;
mod complete;
mod connections;
mod deadlines;
mod discard;
mod leaving;
mod listener;
mod member;
mod outgoing;
mod output;
mod peer;
mod readiness;
mod request;
mod send_file;
mod setup;
mod share;
mod starved;

pub(crate) use self::listener::AcceptWish;
pub(crate) use self::member::Member;
pub(crate) use self::request::{
    AddressedBuffer, Command, Envelope, FilePart, FileStep, Lane, RawMemory, Request, Vector,
};

use self::connections::Connections;
use self::deadlines::Deadlines;
use self::member::Listener;
use self::request::Sink;
use self::starved::Starved;
use crate::completion::{Completion, Handle};
use crate::config::{Config, DriverReport};
use crate::counters::Counters;
use crate::driver::{
    ANCILLARY_BUFFER_BYTES, Driver, Full, Object, Outcome, Pools, Unattached, Wake,
};
use crate::error::Error;
use crate::fork::CreatorProcess;
use crate::partition::Mailbox;
use crate::slab::{Key, Slab};
use crate::source::{Endpoint, Kind, Source, set_timer};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a dropped channel waits for the kernel to release its memory.
const SHUT_DOWN: Duration = Duration::from_secs(2);

/// How long a dropped channel lets closing handles write their queued output.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// How long it waits once more after that, because the thread may have had no CPU in the meantime.
const SECOND_LOOK: Duration = Duration::from_millis(100);

/// Time-outs from here on count as infinite, because sums with them would overflow in the kernel.
const FOREVER: Duration = Duration::from_secs(1 << 32);

/// The reason why a request was refused, and its memory.
pub(crate) type Refusal = (Error, Command);

/// The channel without the cookies; see the [module](self).
pub(crate) struct Engine {
    /// Distinguishes the handles of this channel from those of others in the process.
    id: u32,
    /// Leaked, not dropped, while the kernel may still write into its memory.
    driver: ManuallyDrop<Box<dyn Driver>>,
    report: DriverReport,
    config: Config,
    pools: Pools,
    members: Slab<Member>,
    requests: Slab<Request>,
    /// Outcomes of the driver that are not processed yet.
    ready: VecDeque<Outcome>,
    /// Receives that wait for a buffer, and requests for which the driver had no room.
    starved: Starved,
    stalled: VecDeque<Key>,
    /// The buffer for discarded input; allocated at the first use.
    sink: Option<Sink>,
    /// Members that listen, and the mailbox in which other channels leave accept queues.
    listeners: Vec<Key>,
    connections: Connections,
    deadlines: Deadlines,
    mailbox: Option<(Arc<Mailbox>, Key)>,
    counters: Counters,
    creator: CreatorProcess,
}

impl Engine {
    pub(crate) fn handle(&self, key: Key) -> Handle {
        self.numbered(key.index, key.generation.get())
    }

    /// Returns the handle with these numbers, whether it exists or not.
    pub(crate) fn numbered(&self, index: u32, generation: u32) -> Handle {
        Handle { index, generation, channel: self.id }
    }

    /// Returns the key of a handle; fails if the handle belongs to another channel, or is no member
    /// of the application.
    pub(crate) fn key(&self, handle: Handle) -> Result<Key, Error> {
        if handle.channel != self.id {
            return Err(Error::UnknownHandle);
        }
        let key = Key::new(handle.index, handle.generation).ok_or(Error::UnknownHandle)?;
        if self.is_mailbox(key) { Err(Error::UnknownHandle) } else { Ok(key) }
    }

    /// Returns whether this is the channel's own member.
    pub(crate) fn is_mailbox(&self, key: Key) -> bool {
        self.mailbox.as_ref().is_some_and(|(_, mailbox)| *mailbox == key)
    }

    /// Fails if the caller is a forked child of the process that created the channel.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.creator.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    pub(crate) fn report(&self) -> &DriverReport {
        &self.report
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.counters;
        self.driver.count(&mut counters);
        counters
    }

    /// Returns the number of requests of the application without their last completion.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.len() - usize::from(self.mailbox.is_some())
    }

    /// Returns a member; fails if it is leaving.
    pub(crate) fn member(&self, key: Key) -> Result<&Member, Error> {
        self.check_process()?;
        let member = self.members.get(key).filter(|member| member.leaving.is_none());
        member.ok_or(Error::UnknownHandle)
    }

    /// Iterates over the handles of the members that are not leaving, in index order.
    pub(crate) fn handles(&self) -> impl Iterator<Item = Handle> + '_ {
        let is_listed = |key: &Key| self.member(*key).is_ok() && !self.is_mailbox(*key);
        self.members.keys().filter(is_listed).map(|key| self.handle(key))
    }

    /// Registers a source. On failure returns it, unless it belongs to another channel.
    pub(crate) fn register(&mut self, source: Source) -> Result<Key, (Error, Option<Source>)> {
        let kind = match self.admit(&source) {
            Ok(kind) => kind,
            Err(error) => return Err((error, Some(source))),
        };
        let frames = source.reads_frames(kind);
        let packets = kind == Kind::Listener && source.receives_packets();
        let lightweight = !matches!(source.endpoint, Endpoint::Descriptor(_));
        let Source { endpoint, kind: known, blocked, counted } = source;
        let object = match self.driver.attach(endpoint, kind) {
            Ok(object) => object,
            Err(Unattached { error, endpoint }) => {
                let source =
                    endpoint.map(|endpoint| Source { endpoint, kind: known, blocked, counted });
                return Err((Error::system("attach")(error), source));
            }
        };
        let mut member = Member::new(object, kind);
        (member.frames, member.large, member.lightweight) = (frames, frames, lightweight);
        member.accepted = counted.is_some();
        if kind == Kind::Listener {
            member = member.listening(Listener::alone(object, packets));
        }
        if let Some(blocked) = blocked {
            member = member.blocking(blocked);
        }
        // There is room: `admit` has checked it.
        self.enroll(member).map_err(|error| (error, None))
    }

    /// Determines the kind of a source and whether it may be registered.
    fn admit(&mut self, source: &Source) -> Result<Kind, Error> {
        self.check_process()?;
        let members = self.members.len() - usize::from(self.mailbox.is_some());
        if members >= self.config.max_handles as usize {
            self.counters.refused += 1;
            return Err(Error::TooManyHandles { limit: self.config.max_handles });
        }
        source.kind().map_err(Error::system("fstat"))
    }

    fn enroll(&mut self, member: Member) -> Result<Key, Error> {
        let (listens, accepted) = (member.listener().is_some(), member.accepted);
        let limit = self.config.max_handles;
        let key = self.members.insert(member).map_err(|member| {
            drop(self.driver.detach(member.object, &[]));
            Error::TooManyHandles { limit }
        })?;
        if listens {
            self.listeners.push(key);
        }
        self.connections.members += u32::from(accepted);
        Ok(key)
    }

    /// Removes a member.
    fn remove_member(&mut self, key: Key) -> Option<Member> {
        let member = self.members.remove(key)?;
        self.connections.members -= u32::from(member.accepted);
        Some(member)
    }

    /// Submits a request; returns its memory if it is refused.
    pub(crate) fn file(&mut self, key: Key, mut request: Request) -> Result<(), Refusal> {
        let refusal = match self.member(key) {
            Ok(member) => member.output().refusal(&request, self.config.output_limit),
            Err(error) => Some(error),
        };
        if let Some(error) = refusal {
            return Err((error, request.command));
        }
        request.handle = key;
        let lane = request.lane;
        let connects = request.connects();
        let id = match self.requests.insert(request) {
            Ok(id) => id,
            Err(request) => {
                self.counters.refused += 1;
                let limit = self.config.max_requests;
                return Err((Error::TooManyRequests { limit }, request.command));
            }
        };
        if self.queue_behind(key, id, lane) {
            self.counters.requests += 1;
            return Ok(());
        }
        if self.start(id).is_err() {
            self.release_lane(key, lane);
            self.counters.refused += 1;
            // The key was made three lines above and nothing has removed it.
            return match self.requests.remove(id) {
                Some(request) => Err((Error::QueueFull, request.command)),
                None => Ok(()),
            };
        }
        if connects && let Some(member) = self.members.get_mut(key) {
            member.connecting = true;
        }
        self.counters.requests += 1;
        Ok(())
    }

    /// Adds the request to its lane; returns true if it has to wait there.
    fn queue_behind(&mut self, key: Key, id: Key, lane: Lane) -> bool {
        let Some(member) = self.members.get_mut(key) else { return false };
        if lane == Lane::None {
            return false;
        }
        let is_free = member.active[lane as usize].is_none() && !member.has_waiting(lane);
        if is_free && !member.connecting {
            if lane == Lane::Outbound
                && let Some(extras) = member.extras.as_deref_mut()
            {
                extras.stopped = false;
            }
            member.active[lane as usize] = Some(id);
            return false;
        }
        if let Some(last) = member.append_waiting(lane, id)
            && let Some(request) = self.requests.get_mut(last)
        {
            request.next = Some(id);
        }
        if lane == Lane::Outbound {
            self.note_waiting(key, id);
        }
        true
    }

    fn release_lane(&mut self, key: Key, lane: Lane) {
        if lane != Lane::None
            && let Some(member) = self.members.get_mut(key)
        {
            member.active[lane as usize] = None;
        }
    }

    /// Hands a request to the driver.
    fn start(&mut self, id: Key) -> Result<(), Full> {
        let Some(request) = self.requests.get(id) else { return Ok(()) };
        if request.takes_of_file() {
            return self.start_file_part(id);
        }
        let parked = request.is_pausable() && self.holds_receives(request.handle);
        let Some(request) = self.requests.get_mut(id) else { return Ok(()) };
        let Some(member) = self.members.get_mut(request.handle) else {
            // The handle ended while the request waited.
            self.requests.remove(id);
            return Ok(());
        };
        request.parked = parked;
        if parked {
            return Ok(());
        }
        let operation = request.operation(member.kind, member.large);
        self.driver.submit(id.tag(), member.object, operation)?;
        member.note_begun(request);
        self.counters.operations += 1;
        // A message that is sent again has made no progress.
        if member.has_limits() && request.refusals == 0 {
            let (key, lane) = (request.handle, request.lane);
            self.extend_deadline(key, lane);
        }
        Ok(())
    }

    /// Starts a request that must not be lost; if the driver is full, it is started later.
    fn start_or_stall(&mut self, id: Key) {
        if self.start(id).is_err() {
            self.stalled.push_back(id);
        }
    }

    /// Starts the next request of a lane, if none is in flight.
    fn advance(&mut self, key: Key, lane: Lane) {
        if lane == Lane::None {
            return;
        }
        let Some(member) = self.members.get_mut(key) else { return };
        let Some(id) = member.first_waiting(lane) else { return };
        if member.connecting || member.active[lane as usize].is_some() {
            return;
        }
        let Some(request) = self.requests.get_mut(id) else { return };
        member.shift_waiting(lane, request.next.take());
        member.active[lane as usize] = Some(id);
        member.connecting = request.connects();
        if lane == Lane::Outbound {
            self.note_started(key, id);
        }
        self.start_or_stall(id);
    }

    /// Delivers the next completion; waits for `timeout` at most.
    pub(crate) fn dispatch(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Option<Completion>, Error> {
        self.check_process()?;
        if let Some(done) = self.next_ready() {
            return Ok(Some(done));
        }
        let timeout = timeout.filter(|timeout| *timeout < FOREVER);
        let waits = |timeout: &Duration| !timeout.is_zero();
        let until = timeout.filter(waits).and_then(|timeout| Instant::now().checked_add(timeout));
        let mut left = timeout;
        loop {
            let goes_on = self.restart_waiting();
            let limit = self.sleep_limit(left);
            let limit = if goes_on { Some(Duration::ZERO) } else { limit };
            if let Some(done) = self.next_ready() {
                return Ok(Some(done));
            }
            let before = self.ready.len();
            let collected = self.driver.collect(&mut self.ready, limit);
            let wake = collected.map_err(Error::system("wait for completions"))?;
            match wake {
                Wake::Outcomes => self.count_accepted(before),
                Wake::Signal => return Ok(None),
                Wake::TimeUp if goes_on => {}
                Wake::TimeUp if limit == left => {
                    self.expire();
                    return Ok(self.next_ready());
                }
                Wake::TimeUp => self.steal(),
            }
            if let Some(done) = self.next_ready() {
                return Ok(Some(done));
            }
            // Only internal outcomes came, so the channel waits for the rest of the time.
            if let Some(until) = until {
                left = Some(until.saturating_duration_since(Instant::now()));
            }
            if left == Some(Duration::ZERO) && !(goes_on && wake == Wake::TimeUp) {
                return Ok(None);
            }
        }
    }

    /// Executes expired deadlines; returns how long the channel may sleep, at most `left`.
    fn sleep_limit(&mut self, left: Option<Duration>) -> Option<Duration> {
        let limit = self.steal_limit(left);
        if self.deadlines.is_empty() {
            return limit;
        }
        let Some(next) = self.expire() else { return limit };
        Some(limit.map_or(next, |limit| limit.min(next)))
    }

    /// Returns the next completion, without waiting.
    pub(crate) fn next_ready(&mut self) -> Option<Completion> {
        while let Some(outcome) = self.ready.pop_front() {
            if let Some(completion) = self.complete(outcome) {
                self.counters.completions += 1;
                return Some(completion);
            }
        }
        None
    }

    /// Restarts requests that waited for a buffer or for room in the driver. Returns whether there
    /// may be more to restart after the driver has been polled.
    fn restart_waiting(&mut self) -> bool {
        for at in 0..self.listeners.len() {
            self.resume_accepts(self.listeners[at]);
        }
        for _ in 0..self.stalled.len() {
            let Some(id) = self.stalled.pop_front() else { break };
            if self.start(id).is_err() {
                self.stalled.push_front(id);
                break;
            }
        }
        self.restart_starved()
    }

    /// Submits all collected requests to the kernel.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.check_process()?;
        self.restart_waiting();
        self.driver.flush().map_err(Error::system("submit"))
    }

    pub(crate) fn descriptor(&mut self, key: Key) -> Result<std::os::fd::OwnedFd, Error> {
        let object = self.member(key)?.object;
        let descriptor = self.driver.descriptor(object).map_err(Error::system("descriptor"))?;
        if let Some(member) = self.members.get_mut(key) {
            member.has_duplicate = true;
        }
        Ok(descriptor)
    }

    /// Sets a registered timer.
    pub(crate) fn set_timer(
        &mut self,
        key: Key,
        after: Option<Duration>,
        every: Duration,
    ) -> Result<(), Error> {
        let member = self.member(key)?;
        if member.kind != Kind::Timer {
            return Err(Error::WrongKind { request: "setting a time", kind: member.kind.name() });
        }
        let object = member.object;
        let timer = self.driver.raw_descriptor(object).ok_or(Error::UnknownHandle)?;
        set_timer(timer, after, every).map_err(Error::system("timerfd_settime"))
    }

    /// Returns the domain of a socket (`AF_INET`, …); `AF_UNSPEC` for a connection of an installed
    /// driver that does not report it. Determined once.
    pub(crate) fn domain(&mut self, key: Key) -> Result<i32, Error> {
        let Member { object, domain, .. } = *self.member(key)?;
        if let Some(domain) = domain {
            return Ok(i32::from(domain.get()));
        }
        let mut value = [0; 4];
        match self.get_option(key, libc::SOL_SOCKET, libc::SO_DOMAIN, &mut value) {
            Err(_) if object.0 >= Object::INSTALLED => return Ok(libc::AF_UNSPEC),
            told => told?,
        };
        let domain = i32::from_ne_bytes(value);
        if let Some(member) = self.members.get_mut(key) {
            member.domain = u16::try_from(domain).ok().and_then(NonZeroU16::new);
        }
        Ok(domain)
    }

    /// Reserves room for ancillary data in the receives of datagrams that are submitted from now
    /// on.
    pub(crate) fn expect_ancillary(&mut self, key: Key) {
        if let Some(member) = self.members.get_mut(key) {
            member.extras().ancillary = true;
        }
    }

    /// Returns whether a receive of datagrams reserves room for ancillary data.
    pub(crate) fn expects_ancillary(&self, key: Key) -> bool {
        let expects = |member: &Member| member.extras.as_deref().is_some_and(|it| it.ancillary);
        self.config.large_buffers.bytes >= ANCILLARY_BUFFER_BYTES
            && self.members.get(key).is_some_and(expects)
    }

    pub(crate) fn set_option(
        &mut self,
        key: Key,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<(), Error> {
        let object = self.member(key)?.object;
        self.driver.set_option(object, level, name, value).map_err(Error::system("setsockopt"))
    }

    pub(crate) fn get_option(
        &mut self,
        key: Key,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize, Error> {
        let object = self.member(key)?.object;
        self.driver.get_option(object, level, name, value).map_err(Error::system("getsockopt"))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.creator.is_here() {
            // The rings belong to the parent process: using them would disturb it.
            self.leak();
            return;
        }
        self.linger(LAST_WRITES);
        for key in std::mem::take(&mut self.listeners) {
            let orphans = self.leave(key);
            self.report_orphans(orphans.len());
        }
        self.reset_unwritten();
        let keys: Vec<Key> = self.members.keys().collect();
        for key in &keys {
            self.cancel_pending(*key);
        }
        let quiet = self.driver.shut_down(SHUT_DOWN) || self.driver.shut_down(SECOND_LOOK);
        for member in keys.into_iter().filter_map(|key| self.members.remove(key)) {
            if !member.leaving.is_some_and(|leaving| leaving.is_closing()) {
                drop(self.driver.detach(member.object, &[]));
            }
        }
        let _ = self.driver.flush();
        if quiet {
            // SAFETY: the driver is not used after this, neither here nor by a holder of `self`.
            unsafe { ManuallyDrop::drop(&mut self.driver) };
        } else {
            tracing::warn!("the kernel still uses memory of a dropped channel: it is leaked");
            self.leak();
        }
    }
}

impl Engine {
    /// Leaks the memory that the kernel (or the parent process) may still use.
    fn leak(&mut self) {
        std::mem::forget(std::mem::replace(&mut self.requests, Slab::new(0)));
        std::mem::forget(self.pools.clone());
    }
}
