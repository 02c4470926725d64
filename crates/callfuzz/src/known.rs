//! Recognizes the known faults of the library, and what TCP's holding back explains.

use crate::model::Model;
use crate::plan::{Plan, peeks, takes_flags};
use crate::protocol::{Answer, Reply};
use crate::rules::Rule;
use crate::script::Verb;

/// The rule that explains a difference, if there is one.
pub(crate) fn explain(
    model: &Model,
    plan: &Plan,
    expected: &Reply,
    actual: &Reply,
) -> Option<Rule> {
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
    if plan.op.verb == Verb::Read && takes_flags(plan.op) && plan.op.a == 0 {
        return Some(Rule::KnownFaultEmptyReceive);
    }
    match (expected, actual) {
        (Reply::Done(wanted), Reply::Done(found)) => explain_answer(model, plan, wanted, found),
        (Reply::Done(wanted), Reply::Pending(_)) => explain_block(model, plan, wanted),
        (Reply::Pending(_), Reply::Done(found)) if is_broken(plan, found) => {
            explain_reset(model, end)
        }
        _ => None,
    }
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
    let writes = plan.op.verb == Verb::Write || (plan.op.verb == Verb::Execute && plan.op.a > 0);
    if finds_broken && !wants_broken && writes && peer_gone {
        return Some(Rule::KnownFaultWriteAfterClose);
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
    Some(if connection.was_passed {
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
    let mut rule = None;
    for file in files {
        let end = model.end(file)?;
        let connection = &model.connections[end.0];
        let is_ending = model.ends(end.0).iter().any(Option::is_none)
            || connection.directions.iter().any(|of| of.is_ended || of.is_shut);
        rule = Some(if connection.holds {
            Rule::HeldBack
        } else if is_ending {
            Rule::KnownFaultF3
        } else {
            return None;
        });
    }
    rule
}
