//! Recognizes the documented limits of a user-level stack.

use crate::model::{Kind, Model};
use crate::plan::Plan;
use crate::protocol::{Answer, Reply};
use crate::rules::Rule;
use crate::script::{SLOTS, TCP_STATE, Verb};

/// Events that report that a connection is over.
const OVER: i64 = (libc::POLLERR | libc::POLLHUP) as i64;

/// Returns the rule that explains a difference, if there is one; the process `tested` is on the
/// stack.
pub(crate) fn explain(
    model: &Model,
    tested: usize,
    plan: &Plan,
    expected: &Reply,
    actual: &Reply,
) -> Option<Rule> {
    if plan.op.process != tested && is_survivors(model, plan, actual) {
        return Some(Rule::StackSurvivor);
    }
    if is_merged(model, plan, expected, actual) {
        return Some(Rule::MergedEdge);
    }
    let waits = matches!(plan.op.verb, Verb::Poll | Verb::EpollWait);
    let none = Answer::default();
    let (wanted, found) = match (expected, actual) {
        (Reply::Done(wanted), Reply::Done(found)) => (wanted, found),
        // A pending call for events has none.
        (Reply::Pending(_), Reply::Done(found)) if waits && found.result > 0 => (&none, found),
        _ => return None,
    };
    if plan.op.process == tested && is_twin(model, plan, wanted, found) {
        return Some(Rule::StackEpollTwins);
    }
    if plan.op.process == tested {
        return is_other_number(plan, wanted, found).then_some(Rule::StackDescriptors);
    }
    is_without_stack(model, plan, wanted, found).then_some(Rule::StackEnded)
}

/// Returns whether only edges are missing that an end whose sending side was shut down has reported
/// before with the same events, and no readable data has arrived since.
fn is_merged(model: &Model, plan: &Plan, expected: &Reply, actual: &Reply) -> bool {
    let (Verb::EpollWait, Reply::Done(wanted)) = (plan.op.verb, expected) else { return false };
    let found = match actual {
        Reply::Pending(_) => Vec::new(),
        Reply::Done(found) => model.events(plan, found),
    };
    let wanted = model.events(plan, wanted);
    let set = plan.files.first().map(|set| &model.files[*set].kind);
    let Some(Kind::Set(members)) = set else { return false };
    let was_told = |(file, events): &(usize, i64)| {
        let has_told = members.get(file).is_some_and(|member| {
            member.events & (libc::EPOLLET as u32) != 0 && events & !member.told == 0
        });
        has_told
            && model.end(*file).is_some_and(|(connection, side)| {
                let [incoming, outgoing] =
                    [1 - side, side].map(|of| &model.connections[connection].directions[of]);
                let is_read = incoming.read == incoming.written && !incoming.has_writer;
                outgoing.is_ended && is_read
            })
    };
    found.iter().all(|one| wanted.contains(one))
        && wanted.iter().all(|one| found.contains(one) || was_told(one))
}

/// Returns whether a peer of a killed process has accepted a connection that the script has not
/// made.
fn is_survivors(model: &Model, plan: &Plan, actual: &Reply) -> bool {
    let Some(slot) = model.slot(plan.op.process, plan.op.slot) else { return false };
    let is_unknown =
        matches!(&model.open(slot).kind, Kind::Listener { queue, .. } if queue.is_empty());
    let has_come = matches!(actual, Reply::Done(answer) if answer.result >= 0);
    let was_killed = model.connections.iter().any(|of| of.lacks_stack && of.killed != [false; 2]);
    plan.op.verb == Verb::Accept && is_unknown && has_come && was_killed
}

/// Returns whether an epoll set has the socket by another number, which may be closed since, and is
/// asked by one that it does not have.
fn is_twin(model: &Model, plan: &Plan, wanted: &Answer, found: &Answer) -> bool {
    let slot = |slot: usize| model.slot(plan.op.process, slot);
    let (Some(set), Some(own)) = (slot(plan.op.slot), slot(plan.op.a as usize % SLOTS)) else {
        return false;
    };
    let Kind::Set(members) = &model.open(set).kind else { return false };
    let is_twin = members.get(&own.file).is_some_and(|member| member.fd != own.fd);
    match plan.op.verb {
        Verb::EpollAdd => is_twin && wanted.result == 0 && found.fails(libc::EEXIST),
        Verb::EpollModify | Verb::EpollDelete => {
            is_twin && wanted.fails(libc::ENOENT) && found.result == 0
        }
        _ => false,
    }
}

/// Returns whether both got a descriptor, the one on the stack a higher one.
fn is_other_number(plan: &Plan, wanted: &Answer, found: &Answer) -> bool {
    let makes = [Verb::Socket, Verb::Accept, Verb::Duplicate, Verb::EpollCreate];
    let name = |answer: &Answer| (answer.more.first().copied(), answer.more.get(2).copied());
    makes.contains(&plan.op.verb)
        && name(wanted) == name(found)
        && (0..found.result).contains(&wanted.result)
}

/// Returns whether the peer got a reset after the end of the stack, or a write did not get one.
fn is_without_stack(model: &Model, plan: &Plan, wanted: &Answer, found: &Answer) -> bool {
    let lacks = |file: usize| {
        model.end(file).is_some_and(|(connection, _)| model.connections[connection].lacks_stack)
    };
    if matches!(plan.op.verb, Verb::Poll | Verb::EpollWait) {
        let (wanted, found) = (model.events(plan, wanted), model.events(plan, found));
        let is_reset = |(file, events): &(usize, i64)| lacks(*file) && events & OVER != 0;
        let is_same = |(file, events): &(usize, i64)| wanted.contains(&(*file, *events));
        return found.iter().all(|one| is_same(one) || is_reset(one));
    }
    if !plan.end.is_some_and(|(connection, _)| model.connections[connection].lacks_stack) {
        return false;
    }
    let is_broken = |answer: &Answer| {
        [libc::ECONNRESET, libc::EPIPE, libc::ENOTCONN].iter().any(|errno| answer.fails(*errno))
    };
    match plan.op.verb {
        Verb::Write => is_broken(found) || (is_broken(wanted) && found.result >= 0),
        Verb::Read | Verb::Shutdown | Verb::Name => is_broken(found),
        Verb::GetOption => plan.op.a == 0 || plan.op.a == TCP_STATE,
        _ => false,
    }
}
