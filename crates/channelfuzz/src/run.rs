//! Runs one script over one driver: the state of the run and its results for the comparison.

use crate::link::{self, Link};
use crate::model::Delivery;
use crate::rules::Rule;
use crate::script::{LinkKind, Op, Script, Verb};
use crate::semantics::{self, Ending, What};
use crate::target::TestTarget;
use fuzzkit::{Failure, RuleCounts, Watch};
use megapipe::{BufferClass, Channel, Config, Handle, Lease};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The time limits of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// How long no completion may arrive before the channel counts as quiet.
    pub(crate) quiet: Duration,
    /// How long a required completion may take.
    pub(crate) time_limit: Duration,
}

impl Pace {
    pub(crate) const FAST: Pace =
        Pace { quiet: Duration::from_micros(200), time_limit: Duration::from_secs(1) };
    /// Slow limits, to see whether a difference is one of timing.
    pub(crate) const SLOW: Pace =
        Pace { quiet: Duration::from_millis(15), time_limit: Duration::from_secs(5) };

    /// Returns the limits for a driver that answers from another thread, or for one whose hangs are
    /// faults however seldom they occur.
    fn of(self, target: &TestTarget) -> Pace {
        let quiet = if target.has_thread { 4 * self.quiet } else { self.quiet };
        let time_limit =
            if target.addresses.is_for_stack { 5 * self.time_limit } else { self.time_limit };
        Pace { quiet, time_limit }
    }
}

/// More consecutive completions than all data of a script can cause.
const STORM: u32 = 20_000;

pub(crate) type Checked<T = ()> = Result<T, Failure>;

/// The result of a call on the channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// No call was made: the member is not registered, or the operation does not fit.
    Skipped,
    Done,
    /// Refused for lack of room.
    NoRoom,
    Refused(String),
    /// The number and the value of an option.
    Told(i32, Vec<u8>),
}

impl Call {
    /// Returns whether it was refused because the source does not support it.
    pub(crate) fn is_unsupported(&self) -> bool {
        let errno = format!("(os error {})", libc::EOPNOTSUPP);
        matches!(self, Call::Refused(text) if text.ends_with(&errno))
    }
}

/// A request and its results.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The operation of the script that submitted it; `usize::MAX` for those of the end of a run.
    pub(crate) op: usize,
    pub(crate) member: usize,
    pub(crate) what: What,
    pub(crate) repeats: bool,
    pub(crate) is_cancelled: bool,
    /// Whether the end of the run cancelled it, and not an operation of the script.
    pub(crate) is_ended_late: bool,
    /// Whether it waits for others of its kind that were pending when it was submitted.
    pub(crate) is_behind: bool,
    /// Whether it was submitted while the link was not connected.
    pub(crate) is_early: bool,
    /// Whether its handle ended before it was complete.
    pub(crate) is_withdrawn: bool,
    pub(crate) completions: u32,
    /// Bytes, events or counts that it returned.
    pub(crate) brought: u64,
    /// The last completion's result.
    pub(crate) last: Option<Result<u64, i32>>,
    /// Distinguishes it from others of its kind: an address or a number in its buffer.
    pub(crate) mark: u64,
    /// Room for a read, bytes of a write, events of a poll; for an accept, 1 with peers' addresses.
    pub(crate) room: usize,
    pub(crate) offset: u64,
    /// The segment of a write.
    pub(crate) segment: Option<usize>,
    /// The file that is sent.
    pub(crate) file: Option<Handle>,
}

/// A member of the channel.
#[derive(Debug, Default)]
pub(crate) struct Member {
    pub(crate) handle: Option<Handle>,
    /// The descriptor that an unregistration returned.
    pub(crate) descriptor: Option<OwnedFd>,
    /// The handle that is being closed.
    pub(crate) closing: Option<Handle>,
    /// The requests that are not complete, in the order of submission.
    pub(crate) pending: Vec<usize>,
    /// The last message that came.
    pub(crate) last_message: Option<u32>,
    /// The first end of the input: 0 or an error.
    pub(crate) end: Option<Result<u64, i32>>,
}

/// A connection that a listener accepted and that the channel serves.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) link: usize,
    pub(crate) is_greeted: bool,
    pub(crate) is_closed: bool,
}

/// The owner of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Member(usize),
    Served(usize),
    Closing(usize),
}

/// The results of a run.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) calls: Vec<Call>,
    pub(crate) requests: Vec<Request>,
    pub(crate) ends: Vec<Option<Result<u64, i32>>>,
    /// How the peer's reading of each link has ended.
    pub(crate) peer_ends: Vec<Option<Result<u64, i32>>>,
    /// How the reading of each listener's clients has ended.
    pub(crate) client_ends: Vec<Vec<Option<Result<u64, i32>>>>,
    /// Whether each link was closed with unread input.
    pub(crate) closed_unread: Vec<bool>,
    pub(crate) rules: RuleCounts<Rule>,
    pub(crate) operations: u64,
}

/// One script over one driver.
pub(crate) struct Run<'a> {
    pub(crate) script: &'a Script,
    pub(crate) target: TestTarget,
    pub(crate) pace: Pace,
    pub(crate) watch: &'a Watch,
    pub(crate) channel: Channel<usize>,
    pub(crate) links: Vec<Link>,
    pub(crate) members: Vec<Member>,
    pub(crate) requests: Vec<Request>,
    pub(crate) owners: HashMap<Handle, Owner>,
    pub(crate) served: Vec<Served>,
    /// Number of connections that each listener accepted.
    pub(crate) accepted: Vec<u64>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) holds: bool,
    pub(crate) rules: RuleCounts<Rule>,
    /// The operation that is being executed.
    pub(crate) at: usize,
}

/// Runs a script over a driver.
pub(crate) fn run(
    script: &Script,
    target: TestTarget,
    pace: Pace,
    watch: &Watch,
) -> Checked<Outcome> {
    watch.begin(format_args!("{}: {script}", target.name));
    let pace = pace.of(&target);
    let before = open_descriptors()?;
    let outcome = Run::new(script, target, pace, watch).and_then(Run::complete);
    watch.end();
    let outcome = outcome?;
    let until = Instant::now() + pace.time_limit;
    // The kernel closes what a ring held a little later.
    while open_descriptors()? != before {
        if Instant::now() > until {
            let after = open_descriptors()?;
            let text =
                format!("{before} descriptors were open before the run and {after} after it");
            return Err(Failure::new("descriptors", text));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(outcome)
}

/// Returns the number of descriptors of the process.
pub(crate) fn open_descriptors() -> Checked<usize> {
    let entries = std::fs::read_dir("/proc/self/fd")
        .map_err(|error| Failure::new("setup", format!("cannot read /proc/self/fd: {error}")))?;
    Ok(entries.count())
}

impl<'a> Run<'a> {
    fn new(
        script: &'a Script,
        target: TestTarget,
        pace: Pace,
        watch: &'a Watch,
    ) -> Checked<Run<'a>> {
        let settings = &script.settings;
        let class = |(count, bytes)| BufferClass { count, bytes };
        let config = Config {
            driver: target.driver,
            batch: settings.batch,
            completions: 64,
            max_handles: settings.max_handles,
            max_requests: settings.max_requests,
            max_lightweight: 64,
            small_buffers: class(settings.small),
            large_buffers: class(settings.large),
            ..Config::default()
        };
        let channel = Channel::with_config(config)
            .map_err(|error| Failure::new("setup", format!("no channel: {error}")))?;
        let mut run = Run {
            script,
            target,
            pace,
            watch,
            channel,
            links: Vec::new(),
            members: Vec::new(),
            requests: Vec::new(),
            owners: HashMap::new(),
            served: Vec::new(),
            accepted: vec![0; script.links.len()],
            leases: Vec::new(),
            holds: false,
            rules: RuleCounts::default(),
            at: usize::MAX,
        };
        for (number, kind) in script.links.iter().enumerate() {
            let made = link::make(*kind, target.addresses, script.seed, number);
            let (mut link, source) = made.map_err(|error| {
                Failure::new("setup", format!("no link {}: {error}", kind.text()))
            })?;
            let source = match source {
                Some(listener) if *kind == LinkKind::Tcp && target.addresses.is_for_stack => {
                    Some(run.accept_one(&mut link, listener)?.into())
                }
                source => source,
            };
            run.links.push(link);
            run.members.extend([Member::default(), Member::default()]);
            if let Some(source) = source {
                run.register(2 * number, source)?;
            }
        }
        Ok(run)
    }

    fn complete(mut self) -> Checked<Outcome> {
        let mut calls = Vec::new();
        for at in 0..self.script.ops.len() {
            self.at = at;
            let op = self.script.ops[at];
            let call = self.operate(op)?;
            self.watch.note(|| format!("{at}: {op} -> {call:?}"));
            calls.push(call);
            if self.script.settings.lockstep && op.verb != Verb::Dispatch {
                self.quiesce()?;
            }
        }
        self.at = usize::MAX;
        self.finish()?;
        let ends = self.members.iter().map(|member| member.end).collect();
        let peer_ends = self.links.iter().map(|link| link.peer_end).collect();
        let ends_of =
            |link: &Link| link.clients.iter().map(|client| client.end).collect::<Vec<_>>();
        let client_ends = self.links.iter().map(ends_of).collect();
        let closed_unread = self.links.iter().map(|link| link.state.closed_unread).collect();
        let Run { requests, rules, links, .. } = self;
        // An end of the stack that still waits for its peer's end would keep the channel waiting.
        drop(links);
        let operations = calls.iter().filter(|call| **call != Call::Skipped).count() as u64;
        Ok(Outcome {
            calls,
            requests,
            ends,
            peer_ends,
            closed_unread,
            client_ends,
            rules,
            operations,
        })
    }

    /// Registers a source as this member.
    pub(crate) fn register(
        &mut self,
        member: usize,
        source: impl Into<megapipe::Source>,
    ) -> Checked<Call> {
        match self.channel.register(source, member) {
            Ok(handle) => {
                self.adopt(member, handle);
                Ok(Call::Done)
            }
            Err(megapipe::Error::TooManyHandles { .. }) => {
                self.note_gone(member / 2);
                Ok(Call::NoRoom)
            }
            Err(error) => Err(Failure::new("register", error.to_string())),
        }
    }

    /// Makes a handle this member.
    pub(crate) fn adopt(&mut self, member: usize, handle: Handle) {
        self.owners.insert(handle, Owner::Member(member));
        self.members[member].handle = Some(handle);
    }

    /// Records a new request of the member.
    pub(crate) fn filed(&mut self, op: Op, what: What, change: impl FnOnce(&mut Request)) {
        let pending = &self.members[op.member].pending;
        let is_behind = pending.iter().any(|id| self.requests[*id].what == what);
        let mut request = Request {
            op: self.at,
            member: op.member,
            what,
            repeats: false,
            is_cancelled: false,
            is_ended_late: false,
            is_behind,
            is_early: !self.links[op.member / 2].state.is_connected,
            is_withdrawn: false,
            completions: 0,
            brought: 0,
            last: None,
            mark: 0,
            room: 0,
            offset: 0,
            segment: None,
            file: None,
        };
        change(&mut request);
        self.members[op.member].pending.push(self.requests.len());
        self.requests.push(request);
    }

    /// Withdraws the pending requests of a member whose handle ends.
    pub(crate) fn withdraw(&mut self, member: usize, ending: Ending) {
        let pending = std::mem::take(&mut self.members[member].pending);
        let link = &mut self.links[member / 2];
        for id in pending {
            let request = &mut self.requests[id];
            request.is_withdrawn = true;
            if request.what.takes_data() {
                link.inbound.withdraw();
                link.position = None;
            }
            if let Some(segment) = request.segment {
                let bytes = link.outbound.segments[segment].bytes.len();
                let is_whole = !request.is_cancelled;
                let ending = if is_whole { ending } else { Ending::Abort };
                link.outbound.segments[segment].delivery =
                    semantics::delivery_of_writes_at_close(&link.state, bytes, ending);
                link.position = None;
            }
        }
    }

    /// Records whether the channel's end of a link is closed now.
    pub(crate) fn note_gone(&mut self, link: usize) {
        let held = |member: &Member| member.handle.is_some() || member.descriptor.is_some();
        if self.members[2 * link..2 * link + 2].iter().any(held) {
            return;
        }
        let link = &mut self.links[link];
        link.state.channel_gone = true;
        let inbound = &link.inbound;
        let unread = inbound.received < inbound.written;
        if unread && link.kind.is_tcp() {
            link.state.closed_unread = true;
            self.rules.used(Rule::UnreadReset);
        }
    }

    /// Dispatches until no completion arrives.
    pub(crate) fn quiesce(&mut self) -> Checked {
        let begin = Instant::now();
        let mut count = 0;
        while let Some(done) = self.dispatch(self.pace.quiet)? {
            count += 1;
            if count > STORM {
                let event = event_name(&done.event);
                let text = format!("{count} completions without a pause, the last one {event}");
                return Err(Failure::new(format!("storm: {event}"), text));
            }
            let member = match self.owners.get(&done.handle) {
                Some(Owner::Member(member)) => self.script.links.get(member / 2).copied(),
                _ => None,
            };
            self.arrive(done)?;
            // A ticker is never quiet.
            if member == Some(LinkKind::Ticker) && begin.elapsed() > 8 * self.pace.quiet {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn dispatch(&mut self, wait: Duration) -> Checked<Option<megapipe::Completion>> {
        self.channel
            .dispatch(wait)
            .map_err(|error| Failure::new("dispatch", format!("dispatch failed: {error}")))
    }

    /// Marks pending requests as cancelled by the application.
    pub(crate) fn cancel_pending(&mut self, member: usize, reaches: impl Fn(What) -> bool) {
        for id in &self.members[member].pending {
            let request = &mut self.requests[*id];
            let is_reached = reaches(request.what);
            request.is_ended_late |= is_reached && !request.is_cancelled && self.at == usize::MAX;
            request.is_cancelled |= is_reached;
        }
    }

    pub(crate) fn name(&self, member: usize) -> String {
        let kind = self.links[member / 2].kind.text();
        format!("{kind} (member {member}, {})", self.target.name)
    }

    /// Sets the delivery of a request's write.
    pub(crate) fn set_delivery(&mut self, id: usize, delivery: Delivery) {
        let request = &self.requests[id];
        if let Some(segment) = request.segment {
            self.links[request.member / 2].outbound.segments[segment].delivery = delivery;
        }
    }
}

/// Returns the first word of an event.
fn event_name(event: &megapipe::Event) -> String {
    let text = format!("{event:?}");
    text.split('(').next().unwrap_or_default().to_string()
}
