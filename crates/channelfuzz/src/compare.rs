//! Compares the results of one script over both drivers, request by request.

use crate::link::SOCKET_BUFFER_BYTES;
use crate::options::is_reset_at_close;
use crate::rules::Rule;
use crate::run::{Call, Outcome, Request};
use crate::script::{LinkKind, Op, Script, Verb};
use crate::semantics::What;
use crate::target::TestTarget;
use fuzzkit::{Failure, RuleCounts};
use std::collections::HashMap;

/// Compares two runs; counts allowed differences by rule.
pub(crate) fn compare(
    script: &Script,
    targets: [&TestTarget; 2],
    outcomes: [&Outcome; 2],
    rules: &mut RuleCounts<Rule>,
) -> Result<(), Failure> {
    if !script.settings.lockstep {
        rules.used(Rule::LooseOrder);
        return Ok(());
    }
    let none = vec![false; script.links.len()];
    let (mut broken_write, diverged) = (none.clone(), none.clone());
    let (mut reads, mut shared, mut accepts) = (none.clone(), none.clone(), none.clone());
    let (shut_early, closed_unread) = (none.clone(), none);
    let mut written = vec![0; script.links.len()];
    for request in outcomes.iter().flat_map(|outcome| &outcome.requests) {
        let link = request.member / 2;
        let is_whole = request.last == Some(Ok(request.room as u64));
        broken_write[link] |= request.what.writes() && !is_whole;
        reads[link] |= request.what.takes_data();
        accepts[link] |= request.what == What::Accept;
        written[link] += if request.what.writes() { request.room } else { 0 };
        shared[link] |= request.member % 2 == 1;
    }
    // `written` is the sum over both drivers.
    let crowded = written.iter().map(|bytes| *bytes > 2 * SOCKET_BUFFER_BYTES).collect();
    let mut comparison = Comparison {
        script,
        targets,
        rules,
        diverged,
        broken_write,
        crowded,
        reads,
        shared,
        accepts,
        closed_unread,
        shut_early,
    };
    let [left, right] = outcomes;
    let [theirs, others] = [left, right].map(by_step);
    for at in 0..script.ops.len() {
        comparison.calls(at, &left.calls[at], &right.calls[at])?;
        if let (Some(one), Some(other)) = (theirs.get(&at), others.get(&at)) {
            comparison.requests(at, one, other)?;
        }
    }
    let ends = left.ends.iter().zip(&right.ends);
    ends.enumerate()
        .try_for_each(|(member, (left, right))| comparison.ends("end of", member, *left, *right))?;
    for (link, (left, right)) in left.client_ends.iter().zip(&right.client_ends).enumerate() {
        for (left, right) in left.iter().zip(right) {
            comparison.client_ends(link, *left, *right)?;
        }
    }
    for (link, was) in left.closed_unread.iter().zip(&right.closed_unread).enumerate() {
        comparison.closed_unread[link] = *was.0 || *was.1;
    }
    let ends = left.peer_ends.iter().zip(&right.peer_ends);
    ends.enumerate().try_for_each(|(link, (left, right))| {
        comparison.ends("end at the peer of", 2 * link, *left, *right)
    })
}

/// Returns the requests of a run by the operation that submitted them.
fn by_step(outcome: &Outcome) -> HashMap<usize, &Request> {
    outcome.requests.iter().map(|request| (request.op, request)).collect()
}

struct Comparison<'a> {
    script: &'a Script,
    targets: [&'a TestTarget; 2],
    rules: &'a mut RuleCounts<Rule>,
    /// The links on which an allowed difference was found.
    diverged: Vec<bool>,
    /// The links on which a write was cut off or failed.
    broken_write: Vec<bool>,
    /// The links to which more is written than a socket has room for.
    crowded: Vec<bool>,
    /// The links from which the channel reads.
    reads: Vec<bool>,
    /// The links from which the channel accepts.
    accepts: Vec<bool>,
    /// The links whose open file belongs to two members.
    shared: Vec<bool>,
    /// The links that were closed with unread input.
    closed_unread: Vec<bool>,
    /// The links that were shut down before they were connected.
    shut_early: Vec<bool>,
}

impl Comparison<'_> {
    fn kind(&self, member: usize) -> LinkKind {
        self.script.links[member / 2]
    }

    /// Returns whether the application holds leases at some time.
    fn holds(&self) -> bool {
        self.script.ops.iter().any(|op| op.verb == Verb::Hold && op.a == 1)
    }

    /// Uses a rule after which the link's later requests find another state.
    fn diverge(&mut self, member: usize, rule: Rule) {
        self.rules.used(rule);
        self.diverged[member / 2] = true;
    }

    fn calls(&mut self, at: usize, left: &Call, right: &Call) -> Result<(), Failure> {
        let op = self.script.ops[at];
        if left == right {
            return Ok(());
        }
        if *left == Call::NoRoom || *right == Call::NoRoom {
            self.diverge(op.member, Rule::Backpressure);
            return Ok(());
        }
        if op.verb == Verb::Descriptor && left.is_unsupported() && self.is_of_stack(op.member) {
            self.rules.used(Rule::NoDescriptor);
            return Ok(());
        }
        if self.diverged[op.member / 2] || *left == Call::Skipped || *right == Call::Skipped {
            // Which calls are possible (with a held lease, on a closed member) depends on earlier
            // results.
            self.diverge(op.member, Rule::DivergedState);
            return Ok(());
        }
        let [one, other] = self.names();
        let text = format!("step {at}, {op}: {one} gave {left:?}, {other} {right:?}");
        Err(Failure::new(format!("call {}", op.verb.text()), text))
    }

    fn requests(&mut self, at: usize, left: &Request, right: &Request) -> Result<(), Failure> {
        let (member, what) = (left.member, left.what);
        if self.diverged[member / 2] {
            if left.last != right.last {
                self.rules.used(Rule::DivergedState);
            }
            return Ok(());
        }
        if left.is_withdrawn || right.is_withdrawn {
            let same = left.last == right.last && left.brought == right.brought;
            if !same {
                self.diverge(member, Rule::WithdrawnRace);
            }
            return Ok(());
        }
        let (Some(one), Some(other)) = (left.last, right.last) else { return Ok(()) };
        self.note_early_shutdown(left, right);
        let cancelled = Err(libc::ECANCELED);
        let compared = match (one, other) {
            _ if one == other && left.brought == right.brought => Ok(()),
            _ if what.reads() && self.shared[member / 2] => {
                self.diverge(member, Rule::SharedFile);
                Ok(())
            }
            _ if what == What::Poll => self.polls(at, left, right),
            _ if self.is_missed(left, right) => Err(self.difference(at, left, right)),
            _ if (one == cancelled || other == cancelled) && one != other => {
                self.diverge(member, Rule::CancelRace);
                Ok(())
            }
            (Ok(_), Ok(_)) | (Err(_), Err(_)) if one == other || one.is_ok() => {
                self.amounts(at, left, right)
            }
            (Err(libc::EPIPE), Err(libc::ECONNRESET))
            | (Err(libc::ECONNRESET), Err(libc::EPIPE))
                if self.is_reset_either_way(what, member) =>
            {
                self.diverge(member, self.rule_of_reset(member));
                Ok(())
            }
            // With one driver there was room before the peer closed: io_uring tries a write again
            // when the peer ends its direction, which is not an edge for epoll.
            (Ok(_), Err(libc::EPIPE | libc::ECONNRESET))
            | (Err(libc::EPIPE | libc::ECONNRESET), Ok(_))
                if (what.writes() || what == What::Close) && self.crowded[member / 2] =>
            {
                self.diverge(member, Rule::PartialWrite);
                Ok(())
            }
            // Which bytes the peer had not read when it was closed depends on which had arrived by
            // then.
            (Ok(0), Err(libc::ECONNRESET)) | (Err(libc::ECONNRESET), Ok(0))
                if what.reads() && self.closes_amid_output(member) =>
            {
                self.diverge(member, Rule::UnreadReset);
                Ok(())
            }
            // The receive waited for a buffer; the peer's reset comes before the data.
            (Err(libc::ECONNRESET), Ok(_)) if what.reads() && self.holds() => {
                self.diverge(member, Rule::BuffersHeld);
                Ok(())
            }
            _ if what.reads() && self.broken_write[member / 2] && !self.is_of_stack(member) => {
                self.diverge(member, Rule::ErrorToldOnce);
                Ok(())
            }
            _ => Err(self.difference(at, left, right)),
        };
        compared.or_else(|failure| self.of_stack(member, failure))
    }

    /// Allows differences that occur only over the user-level stack.
    fn of_stack(&mut self, member: usize, failure: Failure) -> Result<(), Failure> {
        let rule = match () {
            () if self.shut_early[member / 2] => Rule::ShutBeforeConnect,
            () => return Err(failure),
        };
        self.diverge(member, rule);
        Ok(())
    }

    /// Returns whether only one of the two requests, over the stack or over the kernel, was pending
    /// until the end of the run, which cancelled it.
    fn is_missed(&self, left: &Request, right: &Request) -> bool {
        let waited =
            |request: &Request| request.is_ended_late && request.last == Some(Err(libc::ECANCELED));
        let starved = left.what.reads() && self.holds();
        self.is_of_stack(left.member) && !starved && waited(left) != waited(right)
    }

    fn note_early_shutdown(&mut self, left: &Request, right: &Request) {
        let failed = |request: &Request| request.last == Some(Err(libc::ENOTCONN));
        let is_early = left.what == What::Disconnect && failed(left) && failed(right);
        if is_early && self.is_of_stack(left.member) {
            self.shut_early[left.member / 2] = true;
        }
    }

    /// Returns whether a member belongs to the user-level stack on one way.
    fn is_of_stack(&self, member: usize) -> bool {
        self.targets[0].addresses.is_for_stack && self.kind(member).is_inet_stream()
    }

    /// Returns whether an operation of the member's link satisfies `is_like`.
    fn has(&self, member: usize, is_like: impl Fn(&Op) -> bool) -> bool {
        self.script.ops.iter().any(|op| op.member / 2 == member / 2 && is_like(op))
    }

    /// Returns whether more was written than buffers hold, and then the peer was closed.
    fn closes_amid_output(&self, member: usize) -> bool {
        self.is_of_stack(member)
            && self.crowded[member / 2]
            && self.has(member, |op| op.verb == Verb::PeerClose)
    }

    /// Returns the rule by which a reset may be reported in either way.
    fn rule_of_reset(&self, member: usize) -> Rule {
        if self.is_of_stack(member) { Rule::ResetBehindEnd } else { Rule::ErrorToldOnce }
    }

    /// Returns whether a reset may be reported as EPIPE or as ECONNRESET. To a stack it may if the
    /// peer sends data and closes: its end waits behind the data if the channel does not read this.
    fn is_reset_either_way(&self, what: What, member: usize) -> bool {
        if !self.is_of_stack(member) {
            return what.writes() || what == What::Close;
        }
        what.writes()
            && self.has(member, |op| op.verb == Verb::PeerWrite)
            && self.has(member, |op| op.verb == Verb::PeerClose)
    }

    /// Returns whether more was written than buffers hold, and the close after it resets the
    /// connection.
    fn resets_amid_output(&self, member: usize) -> bool {
        self.is_of_stack(member) && self.crowded[member / 2] && self.has(member, is_reset_at_close)
    }

    fn names(&self) -> [&'static str; 2] {
        self.targets.map(|target| target.name)
    }

    /// Compares two requests that succeeded, or failed in the same way, with different amounts.
    fn amounts(&mut self, at: usize, left: &Request, right: &Request) -> Result<(), Failure> {
        let kind = self.kind(left.member);
        let ends = |request: &Request| request.last == Some(Ok(0));
        let rule = match left.what {
            What::Watch if kind.is_timer() => Rule::TimerExpiries,
            what if what.reads() && kind.is_stream() => {
                if !left.repeats && ends(left) != ends(right) {
                    return Err(self.difference(at, left, right));
                }
                if what == What::Peek {
                    // The difference has changed no state.
                    self.rules.used(Rule::StreamSegments);
                    return Ok(());
                }
                Rule::StreamSegments
            }
            what if what.writes() => Rule::PartialWrite,
            _ if left.is_cancelled || right.is_cancelled => Rule::CancelRace,
            What::Receive | What::ReceiveFrom if left.repeats => Rule::StreamSegments,
            _ => return Err(self.difference(at, left, right)),
        };
        self.diverge(left.member, rule);
        Ok(())
    }

    fn polls(&mut self, at: usize, left: &Request, right: &Request) -> Result<(), Failure> {
        let cancelled = |request: &Request| request.last == Some(Err(libc::ECANCELED));
        let told = |request: &Request| request.brought > 0;
        if left.repeats && (told(left) == told(right) || cancelled(left) != cancelled(right)) {
            self.rules.used(Rule::PollEdges);
            return Ok(());
        }
        if self.reads[left.member / 2] && self.holds() {
            self.diverge(left.member, Rule::BuffersHeld);
            return Ok(());
        }
        if self.accepts[left.member / 2] && (cancelled(left) || cancelled(right)) {
            self.rules.used(Rule::AcceptedAhead);
            return Ok(());
        }
        // A request that waited for another one may begin after the read has taken the data.
        let late = |one: &Request, other: &Request| {
            one.is_behind && other.is_behind && told(one) && cancelled(other)
        };
        let undetermined = told(left) && told(right) || late(left, right) || late(right, left);
        if self.reads[left.member / 2] && undetermined {
            self.rules.used(Rule::PollBesideRead);
            return Ok(());
        }
        let without_error = |request: &Request| {
            request.last.map(|last| last.map(|events| events & !(libc::POLLERR as u64)))
        };
        // A poll that began after the error had been reported continues to wait.
        let only_error = |request: &Request| without_error(request) == Some(Ok(0));
        let missed = only_error(left) && cancelled(right) || only_error(right) && cancelled(left);
        if without_error(left) == without_error(right) || missed {
            self.rules.used(Rule::ErrorToldOnce);
            return Ok(());
        }
        Err(self.difference(at, left, right))
    }

    fn client_ends(
        &mut self,
        link: usize,
        left: Option<Result<u64, i32>>,
        right: Option<Result<u64, i32>>,
    ) -> Result<(), Failure> {
        let (end, reset) = (Some(Ok(0)), Some(Err(libc::ECONNRESET)));
        let ends = [left, right];
        if self.accepts[link] && (ends == [end, reset] || ends == [reset, end]) {
            self.rules.used(Rule::AcceptedAhead);
            return Ok(());
        }
        self.ends("end at a client of", 2 * link, left, right)
    }

    /// Compares how the input of one side ended.
    fn ends(
        &mut self,
        which: &str,
        member: usize,
        left: Option<Result<u64, i32>>,
        right: Option<Result<u64, i32>>,
    ) -> Result<(), Failure> {
        match (left, right) {
            (Some(one), Some(other)) if one != other => {
                let is_broken = self.broken_write[member / 2] && !self.is_of_stack(member);
                if self.diverged[member / 2] || is_broken {
                    self.rules.used(Rule::DivergedState);
                    return Ok(());
                }
                if self.closed_unread[member / 2] && self.crowded[member / 2] {
                    self.rules.used(Rule::DiscardedInput);
                    return Ok(());
                }
                let is_reset = |end| matches!(end, Ok(0) | Err(libc::ECONNRESET));
                if is_reset(one) && is_reset(other) && self.resets_amid_output(member) {
                    self.rules.used(Rule::ResetBehindEnd);
                    return Ok(());
                }
                let kind = self.kind(member).text();
                let [left, right] = self.names();
                let class = format!("{which} {kind}: {left} {one:?}, {right} {other:?}");
                Err(Failure::new(class, format!("of what comes to member {member}")))
            }
            _ => Ok(()),
        }
    }

    fn difference(&self, at: usize, left: &Request, right: &Request) -> Failure {
        let (what, kind) = (left.what, self.kind(left.member).text());
        let describe = |request: &Request| match request.last {
            Some(Err(errno)) => format!("errno {errno}"),
            Some(Ok(0)) => "0".to_string(),
            Some(Ok(_)) => "success".to_string(),
            None => "nothing".to_string(),
        };
        let (one, other) = (describe(left), describe(right));
        let [first, second] = self.names();
        let class = format!("{what:?} on {kind}: {first} {one}, {second} {other}");
        let text = format!(
            "step {at}, {}: {first} {:?} ({} in {}), {second} {:?} ({} in {})",
            self.script.ops[at],
            left.last,
            left.brought,
            left.completions,
            right.last,
            right.brought,
            right.completions,
        );
        Failure::new(class, text)
    }
}
