//! Runs one script over the agents of one way, in lockstep.
//!
//! The first run, of plain processes, is the reference: a call counts as blocked when its thread
//! sleeps. The second run waits for the results that the reference found.

use crate::host::Request;
use crate::judge::{Verdict, name, short};
use crate::model::{Checked, Kind, Model};
use crate::pair::Pair;
use crate::plan::{Plan, peeks, takes_flags};
use crate::protocol::{Answer, Call, Reply, SLOW_US};
use crate::rules::Rule;
use crate::script::{LISTENER, LinkKind, Op, SLOTS, Script, Verb};
use fuzzkit::{Failure, RuleCounts, RuleSet, Watch};
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time limits of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// How long a thread has to sleep to count as blocked.
    pub(crate) quiet: Duration,
    /// How long the second run waits for a result of the reference.
    pub(crate) limit: Duration,
    /// How long the run waits after each operation for packets between hosts.
    pub(crate) arrival: Duration,
}

impl Pace {
    pub(crate) const FAST: Pace = Pace {
        quiet: Duration::from_micros(300),
        limit: Duration::from_millis(400),
        arrival: Duration::from_millis(1),
    };
    /// Slow limits, to see whether a difference is one of timing.
    pub(crate) const SLOW: Pace = Pace {
        quiet: Duration::from_millis(15),
        limit: Duration::from_millis(2500),
        arrival: Duration::from_millis(25),
    };
}

/// Time after which the peer is made to call something, if an awaited result does not arrive.
const POKE_AFTER: Duration = Duration::from_millis(30);
/// How long a call may take that should return at once.
const AT_ONCE: Duration = Duration::from_micros(300);

/// The results of one operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    /// `None` if no call was made.
    pub(crate) reply: Option<Reply>,
    /// The calls of earlier steps that ended.
    pub(crate) ended: BTreeMap<usize, Answer>,
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) steps: Vec<Step>,
    /// How the input of each side of each connection has ended.
    pub(crate) ends: BTreeMap<(usize, usize), String>,
    /// Those that had ended before the first process closed its descriptors.
    pub(crate) first_ends: Vec<(usize, usize)>,
    pub(crate) rules: RuleCounts<Rule>,
    pub(crate) calls: u64,
    /// The differences that no rule allows, in their order.
    pub(crate) differences: Vec<Failure>,
}

/// A call that has not returned.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) plan: Plan,
    pub(crate) thread: i64,
}

/// One run.
pub(crate) struct Run<'a> {
    pub(crate) script: &'a Script,
    pub(crate) pair: &'a mut Pair,
    pub(crate) expected: Option<&'a Outcome>,
    pub(crate) pace: Pace,
    pub(crate) watch: &'a Watch,
    pub(crate) model: Model,
    /// The pending calls, by the step that made them.
    pub(crate) waiting: BTreeMap<usize, Waiting>,
    pub(crate) outcome: Outcome,
    /// Whether the runs have made different calls; then only bytes are checked.
    pub(crate) has_diverged: bool,
}

/// Runs a script; discards the pair if the run failed.
pub(crate) fn run(
    script: &Script,
    pair: &mut Pair,
    expected: Option<&Outcome>,
    pace: Pace,
    watch: &Watch,
) -> Result<Outcome, Failure> {
    let broken = |error| Failure::new("the agents do not start", format!("{error}"));
    pair.prepare().map_err(broken)?;
    let model = Model::new(script.seed, pair.mode());
    watch.begin(format_args!("{}: {script}", pair.mode().name()));
    let mut run = Run {
        script,
        pair,
        expected,
        pace,
        watch,
        model,
        waiting: BTreeMap::new(),
        outcome: Outcome::default(),
        has_diverged: false,
    };
    for process in &mut run.model.processes[..2] {
        process.is_live = true;
    }
    let mut result = Ok(());
    for op in beginning(script).into_iter().chain(script.ops.iter().copied()) {
        result = run.step(op);
        if result.is_err() {
            break;
        }
    }
    if result.is_ok() {
        result = run.finish();
    }
    let is_broken = result.is_err() || !run.waiting.is_empty();
    let outcome = run.outcome;
    watch.end();
    if is_broken {
        pair.discard().map_err(broken)?;
    }
    result.map(|()| outcome)
}

/// Returns the operations that make the links.
fn beginning(script: &Script) -> Vec<Op> {
    let op = |verb, process, slot, a: usize| Op { verb, process, slot, a: a as u32, b: 0 };
    let mut ops = vec![
        op(Verb::Socket, 1, LISTENER, 0),
        op(Verb::Bind, 1, LISTENER, 0),
        op(Verb::Listen, 1, LISTENER, 8),
    ];
    for (slot, link) in script.links.iter().enumerate() {
        ops.push(op(Verb::Socket, 0, slot, 0));
        ops.push(op(Verb::Connect, 0, slot, SLOTS + LISTENER));
        ops.push(op(Verb::Accept, 1, LISTENER, slot));
        if *link == LinkKind::Nonblocking {
            ops.push(op(Verb::Nonblock, 0, slot, 1));
            ops.push(op(Verb::Nonblock, 1, slot, 1));
        }
    }
    ops
}

impl Run<'_> {
    pub(crate) fn family(&self) -> i32 {
        if self.script.is_six { libc::AF_INET6 } else { libc::AF_INET }
    }

    fn step(&mut self, op: Op) -> Checked {
        let at = self.outcome.steps.len();
        self.outcome.steps.push(Step::default());
        let mut plan = self.model.plan(op, self.family());
        if let Some(expected) = self.expected
            && expected.steps[at].reply.is_none() != plan.is_none()
        {
            self.has_diverged = true;
            plan = None;
        }
        if let Some(mut plan) = plan {
            plan.request.id = at as i64;
            if let Some(reply) = self.carry_out(at, &plan)? {
                self.outcome.calls += 1;
                self.watch.note(|| format!("{at} {op}: {}", describe(&plan, &reply)));
                self.outcome.steps[at].reply = Some(reply);
            }
            if self.model.has_hosts && sends(op.verb) {
                sleep(self.pace.arrival);
            }
        }
        self.collect(at)
    }

    /// Returns the result of the reference in a step, as long as it is compared.
    fn reference(&self, at: usize) -> Option<Reply> {
        if self.has_diverged {
            return None;
        }
        self.expected?.steps.get(at)?.reply.clone()
    }

    fn carry_out(&mut self, at: usize, plan: &Plan) -> Checked<Option<Reply>> {
        let expected = self.reference(at);
        if let (Verb::Write, Some(end)) = (plan.op.verb, plan.end) {
            self.model.note_room(end.0, plan.request.bytes.len() as u64);
        }
        self.model.note_course(plan);
        let reply = match plan.op.verb {
            Verb::Exit | Verb::Kill | Verb::Again | Verb::Interrupt | Verb::Fork | Verb::Pass => {
                self.process(plan)?
            }
            _ => Some(self.call(plan, expected.as_ref())?),
        };
        let Some(mut reply) = reply else { return Ok(None) };
        if let (Some(Reply::Done(wanted)), Reply::Done(found)) = (&expected, &reply) {
            let awaited = self.await_same(plan, wanted, found.clone())?;
            reply = Reply::Done(awaited);
        }
        if let Some(expected) = &expected {
            self.note_slow(plan, expected, &reply);
            self.compare(plan, expected, &reply, "");
        }
        match &reply {
            Reply::Done(answer) => self.done(plan, answer)?,
            Reply::Pending(thread) => {
                self.occupy(plan, true);
                self.waiting.insert(at, Waiting { plan: plan.clone(), thread: *thread });
            }
        }
        Ok(Some(reply))
    }

    /// Records a call that was fast in the reference and slow here: it has waited for the peer.
    fn note_slow(&mut self, plan: &Plan, expected: &Reply, actual: &Reply) {
        let (Reply::Done(wanted), Reply::Done(found)) = (expected, actual) else { return };
        let is_slow = wanted.took_us < SLOW_US / 2 && found.took_us > SLOW_US;
        if !is_slow || self.model.is_plain {
            return;
        }
        self.outcome.rules.used(Rule::WaitsForPeer);
        for (at, connection) in self.model.connections.iter_mut().enumerate() {
            connection.has_waited |= plan.end.is_none_or(|end| end.0 == at);
        }
    }

    /// Returns the rule for a call that found its result late: only a library needs the peer's
    /// call.
    fn why_late(&self, has_poked: bool) -> Rule {
        if has_poked && !self.model.is_plain { Rule::IdlePeer } else { Rule::Late }
    }

    /// Handles a call that has returned: checks its bytes, and updates the model.
    fn done(&mut self, plan: &Plan, answer: &Answer) -> Checked {
        let result = self.model.absorb(plan, answer);
        self.place(result, &plan.op.to_string())?;
        let target = self.model.slot(plan.op.process, plan.op.a as usize % SLOTS);
        if plan.op.verb == Verb::Accept && answer.result >= 0 && target.is_none() {
            // A connection that the script has not made.
            self.pair.ask(plan.op.process, &Request::new(Call::Reset, &[answer.result]))?;
        }
        if plan.op.verb == Verb::Listen && answer.result == 0 {
            self.note_port(plan)?;
        }
        Ok(())
    }

    /// Adds to a failure in which way and where the bytes were wrong.
    pub(crate) fn place(&self, result: Checked, place: &str) -> Checked {
        let name = self.pair.mode().name();
        result.map_err(|failure| {
            let text = format!("{place}: {}", failure.text);
            Failure::new(format!("{name}: {}", failure.class), text)
        })
    }

    fn note_port(&mut self, plan: &Plan) -> Checked {
        let Some(slot) = self.model.slot(plan.op.process, plan.op.slot) else { return Ok(()) };
        let request = Request::new(Call::Name, &[slot.fd, 0]);
        if let Reply::Done(answer) = self.pair.ask(plan.op.process, &request)? {
            let port = answer.more.get(1).copied().unwrap_or(0);
            self.model.files[slot.file].kind = Kind::Listener { port, queue: Default::default() };
        }
        Ok(())
    }

    /// Records that a call is pending in its direction, or no longer is.
    pub(crate) fn occupy(&mut self, plan: &Plan, is_pending: bool) {
        if matches!(plan.op.verb, Verb::Poll | Verb::EpollWait | Verb::Accept) {
            let awaited = match plan.op.verb {
                Verb::Accept => &mut self.model.accepting,
                _ => &mut self.model.awaited,
            };
            for file in &plan.files {
                if is_pending {
                    awaited.push(*file);
                } else if let Some(at) = awaited.iter().position(|awaited| awaited == file) {
                    awaited.swap_remove(at);
                }
            }
            return;
        }
        let Some(end) = plan.end else { return };
        if plan.op.verb == Verb::Execute {
            self.model.processes[plan.op.process].is_executing = is_pending;
        }
        let reads = plan.op.verb == Verb::Read || plan.request.arguments.get(1) == Some(&1);
        if plan.op.verb == Verb::Read || (plan.op.verb == Verb::Execute && reads) {
            self.model.incoming(end).has_reader = is_pending;
        } else if matches!(plan.op.verb, Verb::Write | Verb::Execute) {
            self.model.outgoing(end).has_writer = is_pending;
            self.model.note_room(end.0, plan.request.bytes.len() as u64);
        }
    }

    /// Makes the call; in the reference, waits until it has returned or its thread sleeps.
    fn call(&mut self, plan: &Plan, expected: Option<&Reply>) -> Checked<Reply> {
        let process = plan.op.process;
        let mut request = plan.request.clone();
        request.wait = match expected {
            None => AT_ONCE,
            Some(Reply::Pending(_)) => self.pace.quiet * 10,
            // A call that moves connections back to TCP may wait for a second for each.
            Some(Reply::Done(_)) => {
                let count = self.model.connections.len().max(1) as u32;
                self.pace.limit + count * Duration::from_millis(1200)
            }
        };
        let reply = self.pair.ask(process, &request)?;
        match reply {
            Reply::Pending(_) if matches!(expected, Some(Reply::Done(_))) => {
                self.collect_wanted(plan, request.id as usize)
            }
            // If the call had not begun, the following operations could close its descriptor.
            Reply::Pending(thread) => self.until_asleep(process, request.id, thread),
            reply => Ok(reply),
        }
    }

    /// Waits until a call has returned or its thread sleeps.
    fn until_asleep(&mut self, process: usize, id: i64, thread: i64) -> Checked<Reply> {
        let until = Instant::now() + self.pace.limit;
        loop {
            let sleeps = |run: &Self| {
                run.pair.agents[process].as_ref().is_some_and(|agent| agent.sleeps(thread))
            };
            let was_asleep = sleeps(self);
            sleep(self.pace.quiet);
            let is_asleep = was_asleep && sleeps(self);
            let reply = self.collect_one(process, id, Duration::ZERO)?;
            if is_asleep || matches!(reply, Reply::Done(_)) || Instant::now() > until {
                return Ok(reply);
            }
        }
    }

    fn collect_one(&mut self, process: usize, id: i64, limit: Duration) -> Checked<Reply> {
        let mut request = Request::new(Call::Collect, &[id, limit.as_micros() as i64]);
        request.wait = limit;
        self.pair.ask(process, &request)
    }

    /// Repeats a call that found less than the reference, until it finds the same.
    fn await_same(&mut self, plan: &Plan, wanted: &Answer, mut found: Answer) -> Checked<Answer> {
        let begin = Instant::now();
        let is_compared = !plan.end.is_some_and(|(of, _)| self.model.connections[of].has_diverged);
        let (mut is_early, mut has_poked) = (false, false);
        while is_compared
            && self.model.is_early(plan, wanted, &found)
            && begin.elapsed() < self.pace.limit
        {
            is_early = true;
            sleep(Duration::from_micros(200));
            if begin.elapsed() > POKE_AFTER && !has_poked {
                has_poked = true;
                self.poke(plan)?;
            }
            found = self.repeat(plan, wanted, found)?;
        }
        if is_early && !self.model.is_early(plan, wanted, &found) {
            let rule = self.why_late(has_poked);
            self.outcome.rules.used(rule);
        }
        Ok(found)
    }

    /// Makes the owner of the other end of the connection ask for its events.
    fn poke(&mut self, plan: &Plan) -> Checked {
        // Only a library that moves connections to memory may need it.
        if self.model.is_plain {
            return Ok(());
        }
        let mut connections: Vec<usize> = plan.end.map(|(of, _)| of).into_iter().collect();
        connections
            .extend(plan.files.iter().filter_map(|file| self.model.end(*file)).map(|at| at.0));
        if plan.op.verb == Verb::EpollWait {
            connections = (0..self.model.connections.len()).collect();
        }
        for connection in connections {
            let ends = self.model.ends(connection).into_iter().flatten();
            let own = (plan.op.process, plan.op.slot);
            for place in ends.filter(|place| *place != own) {
                let Some(slot) = self.model.slot(place.0, place.1) else { continue };
                let request = Request::new(Call::Poll, &[0, 0, slot.fd, 0]);
                self.pair.ask(place.0, &request)?;
            }
        }
        Ok(())
    }

    fn repeat(&mut self, plan: &Plan, wanted: &Answer, found: Answer) -> Checked<Answer> {
        let mut request = plan.request.clone();
        (request.threaded, request.wait) = (false, Duration::ZERO);
        if matches!(plan.op.verb, Verb::Poll | Verb::EpollWait) {
            request.arguments[1] = 0;
        }
        let continues = plan.op.verb == Verb::Read && found.result > 0 && !peeks(plan.op);
        if continues {
            // Only a function with flags can be made non-blocking.
            let flags = if takes_flags(plan.op) { request.arguments[3] } else { 0 };
            request.arguments[1] = wanted.result - found.result;
            request.arguments[2] = 1;
            request.arguments[3] = flags | i64::from(libc::MSG_DONTWAIT);
        } else if plan.op.verb == Verb::Read && takes_flags(plan.op) {
            request.arguments[3] |= i64::from(libc::MSG_DONTWAIT);
        }
        let Reply::Done(mut again) = self.pair.ask(plan.op.process, &request)? else {
            return Ok(found);
        };
        again.signals += found.signals;
        if continues {
            if again.result <= 0 {
                self.model.absorb_error(plan, &again);
                return Ok(found);
            }
            self.outcome.rules.used(Rule::StreamSegments);
            again.result += found.result;
            again.bytes = [found.bytes, again.bytes].concat();
            again.more = found.more;
        } else if plan.op.verb == Verb::EpollWait {
            again.more = merged(&found.more, &again.more);
            again.result = again.more.len() as i64 / 2;
        }
        Ok(again)
    }

    /// Compares, and records allowed differences and failures.
    pub(crate) fn compare(&mut self, plan: &Plan, expected: &Reply, actual: &Reply, when: &str) {
        if self.has_diverged {
            self.outcome.rules.used(Rule::DivergedState);
            return;
        }
        let (rule, diverges) = match self.model.judge(plan, expected, actual) {
            Verdict::Same => return,
            Verdict::Allowed(rule) => (Some(rule), false),
            Verdict::Diverged(rule) => (Some(rule), true),
            Verdict::Different(mut failure) => {
                failure.class = format!("{when}{}", failure.class);
                self.watch.note(|| format!("DIFFERENT {}: {}", failure.class, failure.text));
                self.outcome.differences.push(failure);
                (None, true)
            }
        };
        if let Some(rule) = rule {
            let text = self.model.difference(plan, expected, actual).text;
            self.watch.note(|| format!("{} {when}{text}", rule.text().0));
            self.outcome.rules.used(rule);
        }
        if rule == Some(Rule::DataTaken) {
            self.model.note_raced(&plan.files);
        }
        if diverges {
            self.diverge(plan);
        }
    }

    fn diverge(&mut self, plan: &Plan) {
        let ends = plan.files.iter().filter_map(|file| self.model.end(*file)).map(|end| end.0);
        let mut connections: Vec<usize> = ends.chain(plan.end.map(|end| end.0)).collect();
        if connections.is_empty() {
            connections = (0..self.model.connections.len()).collect();
        }
        for connection in connections {
            self.model.connections[connection].has_diverged = true;
        }
    }

    /// Checks which pending calls have returned.
    pub(crate) fn collect(&mut self, at: usize) -> Checked {
        self.model.note_readers(true);
        let result = self.collect_all(at);
        self.model.note_readers(false);
        result
    }

    fn collect_all(&mut self, at: usize) -> Checked {
        for id in self.waiting.keys().copied().collect::<Vec<_>>() {
            let Some(waiting) = self.waiting.get(&id).cloned() else { continue };
            let (plan, process) = (&waiting.plan, waiting.plan.op.process);
            let expected = self.expected.map(|expected| expected.steps[at].ended.get(&id).cloned());
            let reply = match &expected {
                None => self.until_asleep(process, id as i64, waiting.thread)?,
                Some(None) => {
                    let limit =
                        if self.pace.quiet > AT_ONCE { self.pace.quiet } else { Duration::ZERO };
                    self.collect_one(process, id as i64, limit)?
                }
                Some(Some(_)) => self.collect_wanted(plan, id)?,
            };
            let when = format!("pending after {}: ", self.verb_of(at));
            match (expected.flatten(), &reply) {
                (None, Reply::Pending(_)) => {}
                (None, Reply::Done(_)) if self.expected.is_none() => {}
                // Its continuation was compared when it had returned in the reference.
                (None, Reply::Done(_)) if self.had_returned(id, at) => {}
                (None, Reply::Done(_)) => {
                    self.compare(plan, &Reply::Pending(0), &reply, &when);
                }
                (Some(wanted), _) => self.compare(plan, &Reply::Done(wanted), &reply, &when),
            }
            if let Reply::Done(answer) = reply {
                self.waiting.remove(&id);
                self.occupy(plan, false);
                self.watch.note(|| {
                    format!("{id} ended: {}", describe(plan, &Reply::Done(answer.clone())))
                });
                self.done(plan, &answer)?;
                self.outcome.steps[at].ended.insert(id, answer);
            }
        }
        Ok(())
    }

    /// Returns whether a call of the step `id` had returned in the reference before the step `at`.
    fn had_returned(&self, id: usize, at: usize) -> bool {
        let Some(expected) = self.expected else { return false };
        let is_done = |step: &Step| matches!(step.reply, Some(Reply::Done(_)));
        expected.steps.get(id).is_some_and(is_done)
            || expected.steps.iter().take(at).any(|step| step.ended.contains_key(&id))
    }

    fn verb_of(&self, at: usize) -> String {
        let beginning = beginning(self.script);
        let op = at.checked_sub(beginning.len()).and_then(|at| self.script.ops.get(at));
        op.map_or("the end", |op| op.verb.text()).to_string()
    }

    /// Returns the oldest waiting call of a process: the one that was the oldest in the reference.
    pub(crate) fn oldest(&self, process: usize) -> Option<usize> {
        let expected = self.expected.filter(|_| !self.has_diverged);
        let Some(expected) = expected else {
            let mut waiting = self.waiting.iter();
            return waiting.find(|(_, at)| at.plan.op.process == process).map(|(id, _)| *id);
        };
        let now = self.outcome.steps.len() - 1;
        let ops = beginning(self.script).into_iter().chain(self.script.ops.iter().copied());
        let mut calls = ops.zip(&expected.steps).take(now).enumerate();
        let waits = |id: usize, step: &Step| {
            matches!(step.reply, Some(Reply::Pending(_))) && !self.had_returned(id, now)
        };
        let oldest = calls.find(|(id, (op, step))| op.process == process && waits(*id, step));
        oldest.map(|(id, _)| id).filter(|id| self.waiting.contains_key(id))
    }

    /// Waits for a call that returned at this step in the reference.
    fn collect_wanted(&mut self, plan: &Plan, id: usize) -> Checked<Reply> {
        let process = plan.op.process;
        let reply = self.collect_one(process, id as i64, POKE_AFTER)?;
        if matches!(reply, Reply::Done(_)) {
            return Ok(reply);
        }
        self.poke(plan)?;
        let reply = self.collect_one(process, id as i64, self.pace.limit)?;
        if matches!(reply, Reply::Done(_)) {
            let rule = self.why_late(true);
            self.outcome.rules.used(rule);
        }
        Ok(reply)
    }
}

/// Returns whether an operation makes a host send something that can affect another operation.
fn sends(verb: Verb) -> bool {
    use Verb::{Accept, Close, Connect, Duplicate, Exit, Kill, Read, SetOption, Shutdown, Write};
    matches!(
        verb,
        Accept | Close | Connect | Duplicate | Exit | Kill | Read | SetOption | Shutdown | Write
    )
}

/// Merges two lists of data and events, with the events of equal data together.
fn merged(one: &[i64], other: &[i64]) -> Vec<i64> {
    let mut all: BTreeMap<i64, i64> = BTreeMap::new();
    for pair in one.chunks_exact(2).chain(other.chunks_exact(2)) {
        *all.entry(pair[0]).or_default() |= pair[1];
    }
    all.into_iter().flat_map(|(data, events)| [data, events]).collect()
}

fn describe(plan: &Plan, reply: &Reply) -> String {
    let more = match reply {
        Reply::Done(answer) => format!("{} {:?} {} us", answer.result, answer.more, answer.took_us),
        Reply::Pending(_) => String::new(),
    };
    format!("{}: {} {more}", name(plan), short(plan, reply))
}
