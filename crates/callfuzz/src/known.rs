//! Recognizes what TCP's holding back explains, and the documented limits of the library.

use crate::judge::SLOW_US;
use crate::model::Model;
use crate::plan::{Plan, peeks, read_flags, takes_flags};
use crate::protocol::{Answer, Reply};
use crate::rules::Rule;
use crate::script::Verb;
use crate::stack;

/// Events that tell of data.
const DATA: i64 = (libc::POLLIN | libc::POLLRDNORM) as i64;

/// The rule that explains a difference, if there is one. Plain processes have no limits of a
/// library.
pub(crate) fn explain(
    model: &Model,
    plan: &Plan,
    expected: &Reply,
    actual: &Reply,
) -> Option<Rule> {
    if is_held_back(model, plan, expected, actual) {
        return Some(Rule::HeldBack);
    }
    if let Some(tested) = model.tested {
        return stack::explain(model, tested, plan, expected, actual);
    }
    if model.is_plain {
        return None;
    }
    match (expected, actual) {
        (Reply::Done(wanted), Reply::Done(found)) if plan.op.verb == Verb::Descriptors => {
            (found.result > wanted.result).then_some(Rule::LibraryDescriptors)
        }
        (Reply::Done(wanted), Reply::Done(found)) if waits_for_peer(model, plan, wanted, found) => {
            Some(Rule::IdlePeer)
        }
        (_, Reply::Done(found)) if is_broken(plan, found) && lacks_killed(model, plan) => {
            Some(Rule::UnreadOfKilled)
        }
        (Reply::Done(wanted), Reply::Done(found)) if plan.op.verb == Verb::Write => {
            let is_killed = plan.end.is_some_and(|end| model.was_killed(end.0, 1 - end.1));
            let is_told = found.result >= 0 || is_broken(plan, found);
            (is_killed && is_broken(plan, wanted) && is_told).then_some(Rule::WriteToKilled)
        }
        _ => None,
    }
}

/// Whether a program found less than plainly, after the library had waited for a peer that makes
/// no call.
fn waits_for_peer(model: &Model, plan: &Plan, wanted: &Answer, found: &Answer) -> bool {
    let is_less = found.bytes.len() < wanted.bytes.len();
    let waits = plan.end.is_some_and(|end| model.connections[end.0].has_waited);
    let has_waited = waits || found.took_us > SLOW_US;
    plan.op.verb == Verb::Execute && plan.op.a == 0 && is_less && has_waited
}

/// Whether the connection was given away, and the peer was killed.
fn lacks_killed(model: &Model, plan: &Plan) -> bool {
    plan.end.is_some_and(|end| model.lacks_killed(end))
}

/// Whether the answer tells of a broken connection; of a program, that it ended so.
fn is_broken(plan: &Plan, answer: &Answer) -> bool {
    if plan.op.verb == Verb::Execute {
        return answer.result != 0;
    }
    [libc::ECONNRESET, libc::EPIPE, libc::ENOTCONN].into_iter().any(|errno| fails(answer, errno))
}

/// Whether only data differ that wait for an acknowledgement (Nagle's algorithm), or that MSG_MORE
/// or TCP_CORK holds back. That they are the right ones is checked by position.
fn is_held_back(model: &Model, plan: &Plan, expected: &Reply, actual: &Reply) -> bool {
    let op = plan.op;
    // Whether an end is closed with bytes unread depends on whether they have come.
    if plan.end.is_some_and(|end| model.holds_at_end(end.0)) {
        return true;
    }
    match op.verb {
        Verb::Poll | Verb::EpollWait => are_data_held_back(model, plan, expected, actual),
        Verb::Read | Verb::Unread => {
            let Some(end) = plan.end else { return false };
            let is_less = |one: &Reply, other: &Reply| is_less(model, plan, one, other);
            let holds = model.connections[end.0].holds;
            is_less(expected, actual) || (holds && is_less(actual, expected))
        }
        Verb::Execute if op.a == 0 => {
            let is_ahead = match (expected, actual) {
                (Reply::Done(wanted), Reply::Done(found)) => {
                    wanted.result == found.result && wanted.bytes.len() < found.bytes.len()
                }
                _ => false,
            };
            // It ends by itself at its time limit (SO_RCVTIMEO), which begins when it reads.
            is_ahead || plan.end.is_some_and(|end| model.connections[end.0].holds)
        }
        _ => false,
    }
}

/// Whether less had come for one than for the other, which got nothing but data.
fn is_less(model: &Model, plan: &Plan, one: &Reply, other: &Reply) -> bool {
    let Reply::Done(more) = other else { return false };
    if plan.op.verb == Verb::Unread {
        return matches!(one, Reply::Done(less) if less.more < more.more);
    }
    let lacks = match one {
        Reply::Pending(_) => true,
        Reply::Done(less) if less.result == -1 => less.errno == i64::from(libc::EAGAIN),
        Reply::Done(less) => 0 < less.result && less.result < more.result,
    };
    let is_whole = !waits_for_all(model, plan) || more.result == i64::from(plan.op.a);
    // Into no room comes nothing, but it waits for data all the same.
    let has_come = more.result > 0 || (plan.op.a == 0 && more.result == 0);
    has_come && lacks && is_whole
}

fn waits_for_all(model: &Model, plan: &Plan) -> bool {
    let op = plan.op;
    let takes = op.verb == Verb::Read && takes_flags(op) && !peeks(op);
    let slot = model.slot(op.process, op.slot);
    let waits = op.b & 16 == 0 && slot.is_some_and(|slot| !model.open(slot).is_nonblocking);
    takes && waits && read_flags(op) & libc::MSG_WAITALL != 0
}

/// Whether the events differ only in data of connections whose data may be held back.
fn are_data_held_back(model: &Model, plan: &Plan, expected: &Reply, actual: &Reply) -> bool {
    let (Reply::Done(wanted), Reply::Done(found)) = (expected, actual) else { return false };
    let (wanted, found) = (model.events(plan, wanted), model.events(plan, found));
    let of = |events: &[(usize, i64)], file: usize| {
        events.iter().find(|(of, _)| *of == file).map_or(0, |(_, events)| *events)
    };
    let is_held = |file: usize| {
        let (wanted, found) = (of(&wanted, file), of(&found, file));
        let Some(end) = model.end(file) else { return wanted == found };
        let connection = &model.connections[end.0];
        let incoming = &connection.directions[1 - end.1];
        // Nagle's algorithm holds back without a flag.
        let is_ahead = found & DATA != 0 && wanted & DATA == 0 && incoming.read < incoming.written;
        let may_differ = connection.holds || is_ahead;
        wanted == found
            || model.holds_at_end(end.0)
            || (may_differ && (wanted ^ found) & !DATA == 0)
    };
    wanted.iter().chain(&found).all(|(file, _)| is_held(*file))
}

/// What a call gave, in the words of the rules.
pub(crate) fn fails(answer: &Answer, errno: i32) -> bool {
    answer.result == -1 && answer.errno == i64::from(errno)
}
