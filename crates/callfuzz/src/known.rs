//! Recognizes the known faults of the library, and what TCP's holding back explains.

use crate::model::Model;
use crate::plan::{Plan, how, peeks, read_flags, takes_flags};
use crate::protocol::{Answer, Reply};
use crate::rules::Rule;
use crate::script::Verb;

/// The rule that explains a difference, if there is one. Plain processes have no known faults.
pub(crate) fn explain(
    model: &Model,
    plan: &Plan,
    expected: &Reply,
    actual: &Reply,
) -> Option<Rule> {
    let rule = explain_any(model, plan, expected, actual);
    rule.filter(|rule| !model.is_plain || *rule == Rule::HeldBack)
}

fn explain_any(model: &Model, plan: &Plan, expected: &Reply, actual: &Reply) -> Option<Rule> {
    if plan.op.verb == Verb::Descriptors {
        return Some(Rule::KnownFaultF7);
    }
    if matches!(plan.op.verb, Verb::Poll | Verb::EpollWait) {
        return explain_events(model, plan, expected, actual);
    }
    let end = plan.end?;
    if model.connections[end.0].holds {
        return Some(Rule::HeldBack);
    }
    if is_ahead(plan, expected, actual) {
        return Some(Rule::HeldBack);
    }
    if model.connections[end.0].was_closed_under {
        return Some(Rule::KnownFaultCloseUnderCall);
    }
    let moves = matches!(plan.op.verb, Verb::Read | Verb::Write);
    if moves && takes_flags(plan.op) && plan.op.a == 0 {
        return Some(Rule::KnownFaultEmptyTransfer);
    }
    match (expected, actual) {
        (Reply::Done(wanted), Reply::Done(found)) => explain_answer(model, plan, wanted, found),
        (Reply::Done(wanted), Reply::Pending(_)) => explain_block(model, plan, wanted),
        (Reply::Pending(_), Reply::Done(found)) if is_broken(plan, found) => {
            explain_reset(model, end)
        }
        (Reply::Pending(_), Reply::Done(found)) if fails(found, libc::EAGAIN) => {
            Some(Rule::KnownFaultNonblockUnderCall)
        }
        (Reply::Pending(_), Reply::Done(found)) if found.result > 0 && waits_for_all(plan) => {
            Some(Rule::KnownFaultShortWaitAll)
        }
        (Reply::Pending(_), Reply::Done(found)) if is_end(plan, found) => explain_end(model, end),
        _ => None,
    }
}

/// Whether nothing is told of the file, while events of another connection are told.
fn is_starved(model: &Model, plan: &Plan, found: &[(usize, i64)], file: usize) -> bool {
    let of = |file: usize| found.iter().any(|(other, _)| *other == file);
    let other = |other: &&usize| **other != file && (of(**other) || model.end(**other).is_none());
    plan.op.verb == Verb::Poll && !of(file) && plan.files.iter().any(|file| other(&file))
}

/// Whether the side has shut down its sending.
fn directions_end(model: &Model, end: (usize, usize)) -> bool {
    model.connections[end.0].directions[end.1].is_ended
}

fn waits_for_all(plan: &Plan) -> bool {
    let takes = plan.op.verb == Verb::Read && takes_flags(plan.op);
    takes && read_flags(plan.op) & libc::MSG_WAITALL != 0
}

/// Whether more bytes had come than in the reference, where they may wait for an acknowledgement
/// (Nagle's algorithm); that they are the right ones is checked by position.
fn is_ahead(plan: &Plan, expected: &Reply, actual: &Reply) -> bool {
    let Reply::Done(found) = actual else { return false };
    let waits = waits_for_all(plan);
    let lacks = match expected {
        Reply::Pending(_) => true,
        Reply::Done(wanted) if wanted.result == -1 => fails(wanted, libc::EAGAIN),
        Reply::Done(wanted) => wanted.result > 0 && wanted.result < found.result,
    };
    let is_whole = !waits || found.result == i64::from(plan.op.a);
    if plan.op.verb == Verb::Unread {
        return matches!(expected, Reply::Done(wanted) if wanted.more < found.more);
    }
    plan.op.verb == Verb::Read && found.result > 0 && lacks && is_whole
}

/// Whether a read found the end of the stream.
fn is_end(plan: &Plan, answer: &Answer) -> bool {
    plan.op.verb == Verb::Read && answer.result == 0 && plan.op.a > 0
}

/// Why there is an end that no one has made.
fn explain_end(model: &Model, end: (usize, usize)) -> Option<Rule> {
    model.connections[end.0].was_passed.then_some(Rule::KnownFaultFalseEnd)
}

fn fails(answer: &Answer, errno: i32) -> bool {
    answer.result == -1 && answer.errno == i64::from(errno)
}

/// Whether the answer tells of a broken connection; of a program, that it ended so.
fn is_broken(plan: &Plan, answer: &Answer) -> bool {
    if plan.op.verb == Verb::Execute {
        return answer.result != 0;
    }
    [libc::ECONNRESET, libc::EPIPE, libc::ENOTCONN].into_iter().any(|errno| fails(answer, errno))
}

fn explain_answer(model: &Model, plan: &Plan, wanted: &Answer, found: &Answer) -> Option<Rule> {
    let end = plan.end?;
    let peer_gone = model.ends(end.0)[1 - end.1].is_none();
    let (wants_broken, finds_broken) = (is_broken(plan, wanted), is_broken(plan, found));
    let has_descriptor = model
        .slot(plan.op.process, plan.op.slot)
        .is_some_and(|slot| plan.request.arguments.first() == Some(&slot.fd));
    if fails(found, libc::EBADF) && !has_descriptor {
        return Some(Rule::KnownFaultCloseUnderCall);
    }
    if peeks(plan.op) && found.result > 0 && found.result < wanted.result {
        return Some(Rule::KnownFaultShortPeek);
    }
    if fails(wanted, libc::EPIPE) && directions_end(model, end) && how(plan.op) >= 5 {
        return Some(Rule::KnownFaultWriteAfterShutdown);
    }
    let writes = plan.op.verb == Verb::Write || (plan.op.verb == Verb::Execute && plan.op.a > 0);
    // A part was written before it failed.
    let is_cut = found.result > 0 && found.result < wanted.result;
    if (finds_broken || is_cut) && !wants_broken && writes && peer_gone {
        return Some(Rule::KnownFaultWriteAfterClose);
    }
    if fails(found, libc::ENOTCONN) && model.connections[end.0].has_left {
        return Some(Rule::KnownFaultUnconnected);
    }
    let directions = &model.connections[end.0].directions;
    if wants_broken && directions.iter().any(|of| of.is_shut) {
        return Some(Rule::KnownFaultShutBoth);
    }
    if plan.op.verb == Verb::Unread && found.more < wanted.more {
        return Some(Rule::KnownFaultUnread);
    }
    if is_end(plan, found) && !wants_broken && explain_end(model, end).is_some() {
        return explain_end(model, end);
    }
    if wants_broken && peer_gone {
        return Some(Rule::KnownFaultF9);
    }
    if finds_broken { explain_reset(model, end) } else { None }
}

/// Why a connection that went back to TCP was reset.
pub(crate) fn explain_reset(model: &Model, end: (usize, usize)) -> Option<Rule> {
    let connection = &model.connections[end.0];
    if !connection.has_left {
        return None;
    }
    let is_shut = connection.directions.iter().any(|direction| direction.is_ended);
    let has_peer = model.ends(end.0)[1 - end.1].is_some();
    Some(if connection.was_passed || !has_peer {
        Rule::KnownFaultF5
    } else if is_shut {
        Rule::KnownFaultF2
    } else {
        Rule::KnownFaultCrossed
    })
}

fn explain_block(model: &Model, plan: &Plan, wanted: &Answer) -> Option<Rule> {
    let end = plan.end?;
    if plan.op.verb != Verb::Write {
        return None;
    }
    if model.ends(end.0)[1 - end.1].is_none() {
        return Some(Rule::KnownFaultF1);
    }
    let is_cut = wanted.result >= 0 && wanted.result < plan.request.bytes.len() as i64;
    (is_cut || fails(wanted, libc::EINTR)).then_some(Rule::KnownFaultF6)
}

/// The files whose events differ have a connection that is ending, or whose data may be held back.
fn explain_events(model: &Model, plan: &Plan, expected: &Reply, actual: &Reply) -> Option<Rule> {
    let (Reply::Done(wanted), Reply::Done(found)) = (expected, actual) else { return None };
    let (wanted, found) = (model.events(plan, wanted), model.events(plan, found));
    let differ = |file: &usize| {
        let of = |events: &[(usize, i64)]| {
            events.iter().find(|(other, _)| other == file).map_or(0, |(_, events)| *events)
        };
        of(&wanted) != of(&found)
    };
    let mut files: Vec<usize> = wanted.iter().chain(&found).map(|(file, _)| *file).collect();
    files.retain(differ);
    const BROKEN: i64 = (libc::POLLERR | libc::POLLHUP) as i64;
    let breaks = |file: usize| found.iter().any(|(of, events)| *of == file && events & BROKEN != 0);
    let mut rule = None;
    for file in files {
        let end = model.end(file)?;
        if breaks(file) && explain_reset(model, end).is_some() {
            rule = explain_reset(model, end);
            continue;
        }
        let connection = &model.connections[end.0];
        let is_ending = model.ends(end.0).iter().any(Option::is_none)
            || connection.directions.iter().any(|of| of.is_ended || of.is_shut);
        rule = Some(if connection.holds {
            Rule::HeldBack
        } else if is_ending {
            Rule::KnownFaultF3
        } else if plan.files.len() > 1 && is_starved(model, plan, &found, file) {
            Rule::KnownFaultPollStarves
        } else {
            return None;
        });
    }
    rule
}
