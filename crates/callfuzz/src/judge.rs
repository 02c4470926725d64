//! Compares the result of a call with its result in plain processes.

use crate::known::explain;
use crate::model::{Kind, Model};
use crate::plan::{Plan, how, peeks, read_flags, takes_flags};
use crate::protocol::{Answer, Reply};
use crate::rules::Rule;
use crate::script::{TCP_STATE, Verb};
use fuzzkit::Failure;

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Same,
    /// It differs, which is allowed; the connection is still compared.
    Allowed(Rule),
    /// It differs, which is allowed; the connections are no longer compared.
    Diverged(Rule),
    Different(Failure),
}

/// Returns a short text for the result of a call: equal for results of the same kind.
pub(crate) fn short(plan: &Plan, reply: &Reply) -> String {
    let answer = match reply {
        Reply::Pending(_) => return "blocked".to_string(),
        Reply::Done(answer) => answer,
    };
    let signals = if answer.signals > 0 { " with SIGPIPE" } else { "" };
    let text = match answer.result {
        -1 => errno(answer.errno),
        1.. if matches!(plan.op.verb, Verb::Read | Verb::Write) => "bytes".to_string(),
        result => result.to_string(),
    };
    format!("{text}{signals}")
}

fn errno(errno: i64) -> String {
    let known = [
        (libc::EAGAIN, "EAGAIN"),
        (libc::EPIPE, "EPIPE"),
        (libc::ECONNRESET, "ECONNRESET"),
        (libc::ENOTCONN, "ENOTCONN"),
        (libc::EINVAL, "EINVAL"),
        (libc::EBADF, "EBADF"),
        (libc::EINTR, "EINTR"),
        (libc::EINPROGRESS, "EINPROGRESS"),
        (libc::ECONNREFUSED, "ECONNREFUSED"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EFAULT, "EFAULT"),
        (libc::EADDRNOTAVAIL, "EADDRNOTAVAIL"),
    ];
    let name = known.iter().find(|(known, _)| i64::from(*known) == errno);
    name.map_or(format!("errno {errno}"), |(_, name)| (*name).to_string())
}

/// Returns the operation's name in the class of a difference.
pub(crate) fn name(plan: &Plan) -> String {
    const READS: [&str; 7] = ["read", "read", "read", "read", "read", "SYS_read", "splice from"];
    const WRITES: [&str; 8] =
        ["write", "write", "write", "write", "write", "SYS_write", "sendfile", "splice to"];
    // Operations that are the same function internally give one kind of finding.
    const CLOSES: [&str; 3] = ["close", "SYS_close", "close_range"];
    const POLLS: [&str; 4] = ["poll", "poll", "select", "select"];
    let op = plan.op;
    let at = |names: &[&'static str], index: u32| names.get(index as usize).copied();
    let text = match op.verb {
        Verb::Read => at(&READS, how(op)),
        Verb::Write => at(&WRITES, how(op)),
        Verb::Close => at(&CLOSES, op.b),
        Verb::Poll => at(&POLLS, how(op)),
        _ => None,
    };
    let mut text = text.unwrap_or(op.verb.text()).to_string();
    let flags = [(32, " PEEK"), (64, " WAITALL"), (128, " TRUNC"), (256, " OOB")];
    for (bit, flag) in flags {
        if op.verb == Verb::Read && takes_flags(op) && op.b & bit != 0 {
            text += flag;
        }
    }
    if op.verb == Verb::Write && takes_flags(op) && op.b & 128 != 0 {
        text += " OOB";
    }
    if matches!(op.verb, Verb::SetOption | Verb::GetOption | Verb::Shutdown) {
        text += &format!(" {}", op.a);
    }
    text
}

/// Events that report room or data, which depends on buffers when they are full.
const ROOM: i64 = (libc::POLLIN | libc::POLLOUT) as i64;
/// Events that report an end.
const END: i64 = (libc::POLLRDHUP | libc::POLLHUP) as i64;

/// Returns the reported events of each file.
fn told(plan: &Plan, answer: &Answer) -> Vec<(usize, i64)> {
    if plan.op.verb == Verb::EpollWait {
        return answer.more.chunks_exact(2).map(|pair| (pair[0] as usize, pair[1])).collect();
    }
    plan.files.iter().copied().zip(answer.more.iter().copied()).collect()
}

impl Model {
    /// Returns whether the file's connection, if it is one, or the listener's events are no longer
    /// compared.
    fn has_diverged(&self, file: usize) -> bool {
        self.raced.contains(&file)
            || self.end(file).is_some_and(|(of, _)| self.connections[of].has_diverged)
    }

    fn is_crowded(&self, file: usize) -> bool {
        self.end(file).is_some_and(|(of, _)| self.connections[of].is_crowded)
    }

    /// Returns whether there are events, all of connections that are no longer compared.
    fn are_all_diverged(&self, plan: &Plan, answer: &Answer) -> bool {
        let mut told = told(plan, answer);
        told.retain(|(_, events)| *events != 0);
        !told.is_empty() && told.iter().all(|(file, _)| self.has_diverged(*file))
    }

    /// Returns the events of each file, as far as they can be compared.
    pub(crate) fn events(&self, plan: &Plan, answer: &Answer) -> Vec<(usize, i64)> {
        let pairs = told(plan, answer);
        let counts = |(file, _): &(usize, i64)| !self.has_diverged(*file);
        let masked = |(file, events): (usize, i64)| {
            let crowds_out = |(of, side): (usize, usize)| self.crowds_out_end(of, 1 - side);
            let is_late = self.end(file).is_some_and(crowds_out);
            let room = if self.is_crowded(file) { ROOM } else { 0 };
            (file, events & !room & !(if is_late { END } else { 0 }))
        };
        let is_news = |(_, events): &(usize, i64)| *events != 0;
        pairs.into_iter().filter(counts).map(masked).filter(is_news).collect()
    }

    /// Returns the connections whose events differ; none if another file's do.
    pub(crate) fn differing(
        &self,
        plan: &Plan,
        expected: &Answer,
        actual: &Answer,
    ) -> Option<Vec<usize>> {
        let (wanted, found) = (self.events(plan, expected), self.events(plan, actual));
        let only = |one: &[(usize, i64)], other: &[(usize, i64)]| {
            one.iter().filter(|event| !other.contains(event)).map(|event| event.0).collect()
        };
        let files: [Vec<usize>; 2] = [only(&wanted, &found), only(&found, &wanted)];
        files.iter().flatten().map(|file| self.end(*file).map(|end| end.0)).collect()
    }

    /// Returns whether both are equal as far as they can be compared.
    pub(crate) fn is_same(&self, plan: &Plan, expected: &Answer, actual: &Answer) -> bool {
        let same_call = expected.errno == actual.errno && expected.signals == actual.signals;
        match plan.op.verb {
            Verb::Poll | Verb::EpollWait => {
                same_call && self.events(plan, expected) == self.events(plan, actual)
            }
            // The ports differ.
            Verb::Name | Verb::Accept => {
                let known = |answer: &Answer| {
                    let zero = answer.more.get(1).is_some_and(|port| *port == 0);
                    (answer.result, answer.more.first().copied(), answer.more.get(2).copied(), zero)
                };
                same_call && known(expected) == known(actual)
            }
            Verb::Fork => same_call && (expected.result < 0) == (actual.result < 0),
            // Bytes are checked by their positions.
            Verb::Read => {
                same_call && expected.result == actual.result && expected.more == actual.more
            }
            Verb::Execute => {
                let is_equal = expected.bytes.len() == actual.bytes.len();
                same_call && expected.result == actual.result && is_equal
            }
            _ => {
                same_call
                    && expected.result == actual.result
                    && expected.more == actual.more
                    && expected.bytes == actual.bytes
            }
        }
    }

    /// Returns whether the call may find the same result a moment later.
    pub(crate) fn is_early(&self, plan: &Plan, expected: &Answer, actual: &Answer) -> bool {
        if self.is_same(plan, expected, actual) {
            return false;
        }
        let again = i64::from(libc::EAGAIN);
        let nothing = actual.result == -1 && actual.errno == again;
        match plan.op.verb {
            Verb::Read => {
                let is_less = actual.result > 0 && actual.result < expected.result;
                // After SHUT_RD the kernel returns 0 instead of EAGAIN.
                let is_shut = plan
                    .end
                    .is_some_and(|(of, side)| self.connections[of].directions[1 - side].is_shut);
                let nothing = nothing || (is_shut && actual.result == 0 && expected.result > 0);
                (nothing && !(expected.result == -1 && expected.errno == again)) || is_less
            }
            Verb::Write | Verb::Accept => nothing,
            Verb::Poll | Verb::Unread => true,
            Verb::EpollWait => {
                let found = self.events(plan, actual);
                let has = |(file, events): &(usize, i64)| {
                    found.iter().any(|(other, told)| other == file && told & events == *events)
                };
                !self.events(plan, expected).iter().all(has)
            }
            Verb::GetOption if plan.op.a == TCP_STATE => true,
            Verb::GetOption => plan.op.a == 0 && actual.bytes.iter().all(|byte| *byte == 0),
            _ => false,
        }
    }

    /// Compares the results of a call.
    pub(crate) fn judge(&self, plan: &Plan, expected: &Reply, actual: &Reply) -> Verdict {
        let end = plan.end.map(|(of, _)| &self.connections[of]);
        let is_same = match (expected, actual) {
            (Reply::Pending(_), Reply::Pending(_)) => true,
            (Reply::Done(expected), Reply::Done(actual)) => self.is_same(plan, expected, actual),
            _ => false,
        };
        if is_same {
            return Verdict::Same;
        }
        if end.is_some_and(|end| end.has_diverged) {
            return Verdict::Allowed(Rule::DivergedState);
        }
        // A call that waits for events may have only events of such connections.
        if let (Reply::Done(answer), Reply::Pending(_)) | (Reply::Pending(_), Reply::Done(answer)) =
            (expected, actual)
            && matches!(plan.op.verb, Verb::Poll | Verb::EpollWait)
            && self.are_all_diverged(plan, answer)
        {
            return Verdict::Allowed(Rule::DivergedState);
        }
        if plan.op.verb == Verb::GetOption && is_acknowledged_later(expected, actual) {
            return Verdict::Allowed(Rule::Late);
        }
        if self.is_over_with_room(plan, expected, actual) {
            return Verdict::Diverged(Rule::BufferRoom);
        }
        let moves = matches!(plan.op.verb, Verb::Read | Verb::Write | Verb::Execute | Verb::Unread);
        if moves && end.is_some_and(|end| end.is_crowded) {
            return self.judge_crowded(plan, expected, actual);
        }
        if let (Reply::Done(expected), Reply::Done(actual)) = (expected, actual) {
            if plan.op.verb == Verb::Read && self.is_segment(plan, expected, actual) {
                return Verdict::Diverged(Rule::StreamSegments);
            }
            if plan.op.verb == Verb::EpollWait && self.is_spurious(plan, expected, actual) {
                return Verdict::Allowed(Rule::SpuriousEdge);
            }
        }
        // The same edge wakes a call that waits in plain processes.
        if let (Reply::Pending(_), Reply::Done(actual), Verb::EpollWait) =
            (expected, actual, plan.op.verb)
            && actual.result > 0
            && self.is_spurious(plan, &Answer::default(), actual)
        {
            return Verdict::Diverged(Rule::SpuriousEdge);
        }
        match explain(self, plan, expected, actual) {
            Some(rule) if rule.is_harmless() => Verdict::Allowed(rule),
            Some(rule) => Verdict::Diverged(rule),
            None => Verdict::Different(self.difference(plan, expected, actual)),
        }
    }

    /// Returns whether the result depends on the room in buffers because the connection is over:
    /// both sides have ended, and an end waits behind unread bytes. The state also depends on it if
    /// one side has ended.
    fn is_over_with_room(&self, plan: &Plan, expected: &Reply, actual: &Reply) -> bool {
        let (Reply::Done(expected), Reply::Done(actual)) = (expected, actual) else { return false };
        let Some((of, side)) = plan.end else { return false };
        let has_ended = |side: usize| {
            self.connections[of].directions[side].is_ended || self.ends(of)[side].is_none()
        };
        let waits = [0, 1].into_iter().any(|side| self.crowds_out_end(of, side));
        let is_over = |answer: &Answer| answer.fails(libc::ENOTCONN);
        let differs = match plan.op.verb {
            Verb::Name if plan.op.a == 1 => is_over(expected) != is_over(actual),
            Verb::Shutdown => is_over(expected) != is_over(actual),
            Verb::GetOption => return waits && plan.op.a == TCP_STATE,
            _ => false,
        };
        waits && differs && has_ended(side) && has_ended(1 - side)
    }

    /// Compares with full buffers. Then a call may move more or fewer bytes, or wait; whether it
    /// fails, or the stream ends, is compared. How much has arrived when a writer ended depends on
    /// its buffers, too.
    fn judge_crowded(&self, plan: &Plan, expected: &Reply, actual: &Reply) -> Verdict {
        if let Some(rule) = explain(self, plan, expected, actual) {
            return Verdict::Diverged(rule);
        }
        let is_cut = plan.end.is_some_and(|(of, side)| {
            let incoming = &self.connections[of].directions[1 - side];
            incoming.is_uncertain || incoming.is_ended || self.ends(of)[1 - side].is_none()
        });
        let depends = |reply: &Reply| match reply {
            Reply::Pending(_) => true,
            Reply::Done(answer) if plan.op.verb == Verb::Execute => answer.result == 0,
            Reply::Done(answer) if answer.result == 0 && plan.op.verb == Verb::Read => is_cut,
            Reply::Done(answer) => answer.result >= 0 || answer.fails(libc::EAGAIN),
        };
        if depends(expected) && depends(actual) {
            return Verdict::Diverged(Rule::BufferRoom);
        }
        Verdict::Different(self.difference(plan, expected, actual))
    }

    /// Returns whether both returned bytes, but not equally many.
    fn is_segment(&self, plan: &Plan, expected: &Answer, actual: &Answer) -> bool {
        let is_waiting = takes_flags(plan.op) && read_flags(plan.op) & libc::MSG_WAITALL != 0;
        expected.result > 0 && actual.result > 0 && !is_waiting && !peeks(plan.op)
    }

    /// Returns whether the only difference is additional edges.
    fn is_spurious(&self, plan: &Plan, expected: &Answer, actual: &Answer) -> bool {
        let wanted = self.events(plan, expected);
        let found = self.events(plan, actual);
        let Some(set) = self.slot(plan.op.process, plan.op.slot) else { return false };
        let Kind::Set(members) = &self.open(set).kind else { return false };
        let is_edge = |file: &usize| {
            members.get(file).is_some_and(|member| member.events & (libc::EPOLLET as u32) != 0)
        };
        let has = |of: &[(usize, i64)], (file, events): &(usize, i64)| {
            of.iter().any(|(other, told)| other == file && told & events == *events)
        };
        wanted.iter().all(|one| has(&found, one))
            && found.iter().all(|one| has(&wanted, one) || is_edge(&one.0))
    }

    pub(crate) fn difference(&self, plan: &Plan, expected: &Reply, actual: &Reply) -> Failure {
        let name = name(plan);
        let events = |reply: &Reply| match reply {
            Reply::Done(answer) if matches!(plan.op.verb, Verb::Poll | Verb::EpollWait) => {
                let of = |(file, events): (usize, i64)| {
                    let side = self
                        .end(file)
                        .map_or("other".to_string(), |(_, side)| format!("side {side}"));
                    format!("{side} {events:#x}")
                };
                self.events(plan, answer).into_iter().map(of).collect::<Vec<_>>().join(", ")
            }
            _ => short(plan, reply),
        };
        let (plain, other) = (events(expected), events(actual));
        let class = format!("{name}: plain [{plain}], other [{other}]");
        let full = |reply: &Reply| match reply {
            Reply::Pending(_) => "blocked".to_string(),
            Reply::Done(answer) => format!(
                "{} errno {} {:?} ({} bytes, {} us)",
                answer.result,
                answer.errno,
                answer.more,
                answer.bytes.len(),
                answer.took_us
            ),
        };
        Failure::new(
            class,
            format!("{}: plain {}, other {}", plan.op, full(expected), full(actual)),
        )
    }
}

/// Returns whether the reference read the state of a connection while the acknowledgement of its
/// end was on the way, and the other run after it had arrived.
fn is_acknowledged_later(expected: &Reply, actual: &Reply) -> bool {
    // include/net/tcp_states.h
    const FIN_WAIT1: u8 = 4;
    const FIN_WAIT2: u8 = 5;
    const TIME_WAIT: u8 = 6;
    const CLOSE: u8 = 7;
    const LAST_ACK: u8 = 9;
    const CLOSING: u8 = 11;
    let (Reply::Done(expected), Reply::Done(actual)) = (expected, actual) else { return false };
    matches!(
        (expected.bytes.as_slice(), actual.bytes.as_slice()),
        ([FIN_WAIT1], [FIN_WAIT2 | TIME_WAIT | CLOSE])
            | ([LAST_ACK], [CLOSE])
            | ([CLOSING], [TIME_WAIT | CLOSE])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_may_come_later_in_the_reference_only() {
        let state = |byte| Reply::Done(Answer { bytes: vec![byte], ..Answer::default() });
        let pairs = [(4, 5), (4, 7), (9, 7), (11, 6)];
        for (before, after) in pairs {
            assert!(is_acknowledged_later(&state(before), &state(after)));
            assert!(!is_acknowledged_later(&state(after), &state(before)));
        }
        assert!(!is_acknowledged_later(&state(1), &state(7)));
    }
}
