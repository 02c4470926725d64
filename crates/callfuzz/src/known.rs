//! Recognizes differences that TCP's holding back explains, and the documented limits of the
//! library.

use crate::model::{Connection, Model};
use crate::plan::{Plan, how, peeks, read_flags, takes_flags};
use crate::protocol::{Answer, Reply, SLOW_US};
use crate::rules::Rule;
use crate::script::Verb;
use crate::stack;

/// Events that report data.
const DATA: i64 = (libc::POLLIN | libc::POLLRDNORM) as i64;
/// Events that report a broken connection.
const BROKEN: i64 = (libc::POLLERR | libc::POLLHUP) as i64;

/// Returns the rule that explains a difference, if there is one. Plain processes have no limits of
/// a library.
pub(crate) fn explain(
    model: &Model,
    plan: &Plan,
    expected: &Reply,
    actual: &Reply,
) -> Option<Rule> {
    if is_held_back(model, plan, expected, actual) {
        return Some(Rule::HeldBack);
    }
    if is_error_taken(model, plan, expected, actual) {
        return Some(Rule::ErrorTaken);
    }
    if is_data_taken(model, plan, expected, actual) {
        return Some(Rule::DataTaken);
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
        (Reply::Done(wanted), Reply::Pending(_)) if plan.op.verb == Verb::Read => {
            (plan.op.a == 0 && wanted.result == 0).then_some(Rule::ReadOfNothing)
        }
        (Reply::Done(wanted), Reply::Done(found)) if is_refused_early(model, plan, found) => {
            (wanted.result > 0).then_some(Rule::WriteToKilled)
        }
        (_, Reply::Done(found)) if tells_broken(plan, found) => lost(model, plan, expected, found),
        (Reply::Done(wanted), Reply::Done(found)) if plan.op.verb == Verb::Write => {
            let is_killed = plan.end.is_some_and(|end| model.was_killed(end.0, 1 - end.1));
            (is_killed && is_broken(plan, wanted) && found.result >= 0)
                .then_some(Rule::WriteToKilled)
        }
        _ => None,
    }
}

/// Returns whether a call that waited for events differs only in an error that a reader which
/// waited on the same end has returned, or is returning.
fn is_error_taken(model: &Model, plan: &Plan, expected: &Reply, actual: &Reply) -> bool {
    let (Reply::Done(wanted), Reply::Done(found)) = (expected, actual) else { return false };
    let waits = matches!(plan.op.verb, Verb::Poll | Verb::EpollWait) && plan.request.threaded;
    let (wanted, found) = (model.events(plan, wanted), model.events(plan, found));
    let is_taken = |((file, wanted), (other, found)): (&(usize, i64), &(usize, i64))| {
        let is_told = model.end(*file).is_some_and(|(connection, side)| {
            let incoming = &model.connections[connection].directions[1 - side];
            incoming.was_reset || incoming.has_reader
        });
        let differs = wanted ^ found;
        file == other && (differs == 0 || (is_told && differs == i64::from(libc::POLLERR)))
    };
    waits && wanted.len() == found.len() && wanted.iter().zip(&found).all(is_taken)
}

/// Returns whether a call that waited for events differs only in data, or a connection, that a read
/// or an accept which waited on the same file has taken, or is taking.
fn is_data_taken(model: &Model, plan: &Plan, expected: &Reply, actual: &Reply) -> bool {
    let waits = matches!(plan.op.verb, Verb::Poll | Verb::EpollWait) && plan.request.threaded;
    let events = |reply: &Reply| match reply {
        Reply::Pending(_) => Some(Vec::new()),
        Reply::Done(answer) => (answer.result >= 0).then(|| model.events(plan, answer)),
    };
    let (Some(wanted), Some(found)) = (events(expected), events(actual)) else { return false };
    let of = |events: &[(usize, i64)], file: usize| {
        events.iter().find(|(of, _)| *of == file).map_or(0, |(_, events)| *events)
    };
    let is_taken = |(file, _): &(usize, i64)| {
        let differs = of(&wanted, *file) ^ of(&found, *file);
        let has_reader = model.end(*file).is_some_and(|(connection, side)| {
            let incoming = &model.connections[connection].directions[1 - side];
            incoming.has_reader || incoming.had_reader
        });
        differs == 0 || ((has_reader || model.has_accept(*file)) && differs & !DATA == 0)
    };
    waits && wanted != found && wanted.iter().chain(&found).all(is_taken)
}

/// Returns whether the kernel refuses a write that a ring cannot carry, because the peer was
/// killed.
fn is_refused_early(model: &Model, plan: &Plan, found: &Answer) -> bool {
    let op = plan.op;
    let is_urgent = takes_flags(op) && op.b & 128 != 0;
    let by_kernel = op.verb == Verb::Write && (matches!(how(op), 6 | 7) || is_urgent);
    let is_killed = plan.end.is_some_and(|end| model.was_killed(end.0, 1 - end.1));
    by_kernel && is_killed && is_broken(plan, found)
}

/// Returns the rule for a connection that was reset because no process could put its unread bytes
/// into TCP.
fn lost(model: &Model, plan: &Plan, expected: &Reply, found: &Answer) -> Option<Rule> {
    let mut connections: Vec<usize> = plan.end.iter().map(|end| end.0).collect();
    if matches!(plan.op.verb, Verb::Poll | Verb::EpollWait) {
        let Reply::Done(wanted) = expected else { return None };
        connections = model.differing(plan, wanted, found)?;
    }
    let all = |lacks: fn(&Connection) -> bool| {
        !connections.is_empty() && connections.iter().all(|at| lacks(&model.connections[*at]))
    };
    if all(|connection| connection.lacks_killed) {
        return Some(Rule::UnreadOfKilled);
    }
    if all(|connection| connection.lacks_shut) {
        return Some(Rule::UnreadOfShut);
    }
    if all(|connection| connection.has_late_bytes) {
        return Some(Rule::WriteToKilled);
    }
    let is_told = connections.iter().all(|at| model.is_told_and_given(*at));
    let has_no_peer = match plan.op.verb {
        Verb::Poll | Verb::EpollWait => model.events(plan, found).iter().all(has_hung_up),
        _ => found.fails(libc::ENOTCONN),
    };
    (is_told && !connections.is_empty() && has_no_peer).then_some(Rule::AfterReset)
}

/// Returns whether a file's events report a socket that is not connected.
fn has_hung_up(event: &(usize, i64)) -> bool {
    event.1 & BROKEN == i64::from(libc::POLLHUP) && event.1 & DATA == 0
}

/// Returns whether a program found less than in plain processes, after the library had waited for a
/// peer that makes no call.
fn waits_for_peer(model: &Model, plan: &Plan, wanted: &Answer, found: &Answer) -> bool {
    let is_less = found.bytes.len() < wanted.bytes.len();
    let waits = plan.end.is_some_and(|end| model.connections[end.0].has_waited);
    let has_waited = waits || found.took_us > SLOW_US;
    plan.op.verb == Verb::Execute && plan.op.a == 0 && is_less && has_waited
}

/// Returns whether the answer reports a broken connection; of a program, that it ended so.
fn is_broken(plan: &Plan, answer: &Answer) -> bool {
    if plan.op.verb == Verb::Execute {
        return answer.result != 0;
    }
    [libc::ECONNRESET, libc::EPIPE, libc::ENOTCONN].into_iter().any(|errno| answer.fails(errno))
}

/// Returns the same as [`is_broken`], also by events or as the socket's error.
fn tells_broken(plan: &Plan, answer: &Answer) -> bool {
    match plan.op.verb {
        Verb::Poll => answer.more.iter().any(|events| events & BROKEN != 0),
        Verb::EpollWait => answer.more.chunks_exact(2).any(|pair| pair[1] & BROKEN != 0),
        Verb::GetOption => plan.op.a == 0 && answer.bytes.iter().any(|byte| *byte != 0),
        _ => is_broken(plan, answer),
    }
}

/// Returns whether only data differ that wait for an acknowledgement (Nagle's algorithm), or that
/// MSG_MORE or TCP_CORK holds back. The position check ensures that they are the right ones.
fn is_held_back(model: &Model, plan: &Plan, expected: &Reply, actual: &Reply) -> bool {
    let op = plan.op;
    // Whether an end is closed with unread bytes, or bytes arrive at one that is shut, depends on
    // when they arrive.
    let tells = |reply: &Reply| matches!(reply, Reply::Done(answer) if tells_broken(plan, answer));
    if let Some(end) = plan.end {
        let is_late = tells(expected) && model.lags_at_shut(end.0);
        if is_late || (model.holds_at_end(end.0) && (tells(expected) || tells(actual))) {
            return true;
        }
    }
    match op.verb {
        Verb::Poll | Verb::EpollWait => are_data_held_back(model, plan, expected, actual),
        Verb::Read | Verb::Unread => {
            let Some(end) = plan.end else { return false };
            let is_less = |one: &Reply, other: &Reply| is_less(model, plan, one, other);
            let incoming = &model.connections[end.0].directions[1 - end.1];
            // Waiting bytes are lost with a writer that resets, and a reader does not wait for them
            // after SHUT_RD.
            let has_come = matches!(actual, Reply::Done(found) if found.result > 0);
            let is_gone = matches!(expected, Reply::Done(wanted)
                if is_broken(plan, wanted) || (incoming.is_shut && wanted.result == 0));
            is_less(expected, actual)
                || (incoming.is_held && is_less(actual, expected))
                || ((incoming.is_held || incoming.may_lag) && is_gone && has_come)
        }
        Verb::Execute if op.a == 0 => {
            let is_ahead = match (expected, actual) {
                (Reply::Done(wanted), Reply::Done(found)) => {
                    // A reset by a peer that writes discards the bytes that were not read by then.
                    let is_cut = wanted.result != 0
                        && plan.end.is_some_and(|end| {
                            let incoming = &model.connections[end.0].directions[1 - end.1];
                            incoming.has_writer || incoming.is_uncertain
                        });
                    let is_less = wanted.bytes.len() < found.bytes.len();
                    wanted.result == found.result && (is_less || is_cut)
                }
                _ => false,
            };
            // It ends by itself at its time limit (SO_RCVTIMEO), which begins when it reads.
            let holds =
                |end: (usize, usize)| model.connections[end.0].directions[1 - end.1].is_held;
            is_ahead || plan.end.is_some_and(holds)
        }
        _ => false,
    }
}

/// Returns whether less had arrived for `one` than for `other`, which got only data.
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
    // A read without room gets no bytes, but waits for data nevertheless.
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

/// Returns whether the events differ only in data of connections whose data may be held back.
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
        // Nagle's algorithm holds bytes back without a flag.
        let is_ahead = found & DATA != 0 && wanted & DATA == 0 && incoming.read < incoming.written;
        let may_differ = incoming.is_held || is_ahead;
        let is_late = wanted & BROKEN != 0 && model.lags_at_shut(end.0);
        wanted == found
            || is_late
            || model.holds_at_end(end.0)
            || (may_differ && (wanted ^ found) & !DATA == 0)
    };
    wanted.iter().chain(&found).all(|(file, _)| is_held(*file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Request;
    use crate::model::{Kind, Open};
    use crate::protocol::Call;
    use crate::run_mode::RunMode;
    use crate::script::Op;

    /// Returns a connection whose side 0 is the file 1.
    fn connected() -> Model {
        let mut model = Model::new(1, &RunMode::Plain);
        let open = |kind| Open { kind, is_nonblocking: false };
        let listener = Kind::Listener { port: 1, queue: Default::default() };
        model.place(1, 7, 3, open(listener));
        model.place(0, 0, 3, open(Kind::Fresh));
        model.connect(1, 0);
        model
    }

    fn waiting() -> Plan {
        let op = Op { verb: Verb::EpollWait, process: 0, slot: 5, a: 1, b: 0 };
        let mut request = Request::new(Call::EpollWait, &[4, -1]);
        request.threaded = true;
        Plan { op, request, end: None, files: vec![2] }
    }

    #[test]
    fn a_reader_takes_data_from_a_call_that_waits_and_nothing_else() {
        let told = |events: i16| {
            Reply::Done(Answer { result: 1, more: vec![1, events.into()], ..Answer::default() })
        };
        let (mut model, plan) = (connected(), waiting());
        let rule = |model: &Model, one: &Reply, other: &Reply| explain(model, &plan, one, other);
        let (data, none) = (told(libc::POLLIN), Reply::Pending(0));
        assert_eq!(rule(&model, &data, &none), None);
        for [has, had] in [[true, false], [false, true]] {
            let incoming = model.incoming((0, 0));
            (incoming.has_reader, incoming.had_reader) = (has, had);
            assert_eq!(rule(&model, &data, &none), Some(Rule::DataTaken));
            assert_eq!(rule(&model, &none, &data), Some(Rule::DataTaken));
            assert_eq!(rule(&model, &told(libc::POLLIN | libc::POLLRDHUP), &none), None);
            let interrupted = Answer { result: -1, errno: libc::EINTR.into(), ..Answer::default() };
            assert_eq!(rule(&model, &none, &Reply::Done(interrupted)), None);
        }
    }
}
