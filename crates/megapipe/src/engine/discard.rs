//! Discards what a peer still sends to a stream socket whose close waits for its output.
//!
//! Two ends that both close with more queued than the kernel has room for would wait for each other
//! to read. And closing a TCP socket with unread input resets the connection (RFC 1122, section
//! 4.2.2.13; RFC 2525, section 2.17), which destroys output that the peer has not read yet. So a
//! member that has waited for its output for [`BEGIN_AFTER`] reads and discards until all is
//! written. If anything came, it then ends its direction by shutdown(2) and goes on discarding
//! until the peer ends its own, is silent for [`SILENCE`], or [`LINGER_TIME`] or [`LINGER_BYTES`] is
//! reached. Apache httpd does the same with the same times, and nginx (`lingering_close`) with 5 s
//! and 30 s. A segment that is lost and sent again more than once costs a second or more, so a
//! bound on the whole time alone would reset connections on which data still arrive.
//!
//! A close that does not wait that long costs no operation more, and discards nothing: unread input
//! resets the connection then. Members with a second descriptor from the channel
//! ([`Channel::descriptor`](crate::Channel::descriptor)) discard nothing either, since the input
//! and the direction are the other descriptor's, too.

use super::deadlines::Purpose;
use super::{Command, Engine, Lane, Payload, Request};
use crate::completion::Completion;
use crate::slab::Key;
use crate::source::Kind;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a close waits for its output before it discards input.
pub(super) const BEGIN_AFTER: Duration = Duration::from_millis(5);

/// How long input is discarded after all is written: without any, in all, and for how many bytes.
const SILENCE: Duration = Duration::from_secs(2);
const LINGER_TIME: Duration = Duration::from_secs(30);
const LINGER_BYTES: usize = 64 << 20;

/// Bytes that are discarded at once.
const SINK_BYTES: usize = 64 << 10;

/// Memory into which input is discarded, the same for all members of a channel. Nothing reads it,
/// so that several operations may write to it at a time.
pub(crate) type Sink = Rc<[Cell<u8>]>;

/// What becomes of the input of a member that is leaving.
#[derive(Default)]
pub(super) struct Input {
    phase: Phase,
    /// Whether something was discarded.
    has_come: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// It stays unread.
    #[default]
    Left,
    /// It is discarded while output waits.
    Discarded,
    /// It is discarded up to so many bytes and this time; all output is written.
    Lingers { left: usize, until: Instant },
    /// There is none any more, or the bounds are reached.
    Ended { lingered: bool },
}

impl Input {
    /// Whether any was to be discarded so far.
    pub(super) fn has_begun(&self) -> bool {
        self.phase != Phase::Left
    }

    /// Whether it is, or was, discarded after all output had been written.
    pub(super) fn is_lingering(&self) -> bool {
        matches!(self.phase, Phase::Lingers { .. } | Phase::Ended { lingered: true })
    }

    /// When input has to have come again, if it comes now and is discarded after all output.
    fn silent_at(&self, now: Instant, silence: Duration) -> Option<Instant> {
        match self.phase {
            Phase::Lingers { until, .. } => Some(until.min(now + silence)),
            Phase::Left | Phase::Discarded | Phase::Ended { .. } => None,
        }
    }

    /// Notes that no more is to be discarded.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Ended { lingered: self.is_lingering() };
    }

    /// Notes the result of a read; whether there is to be another.
    fn goes_on_after(&mut self, result: i32) -> bool {
        if result == -libc::EAGAIN || result == -libc::EINTR {
            return true;
        }
        self.has_come |= result > 0;
        match &mut self.phase {
            Phase::Lingers { left, .. } => *left = left.saturating_sub(result.max(0) as usize),
            Phase::Left | Phase::Discarded | Phase::Ended { .. } => {}
        }
        let goes_on = match self.phase {
            Phase::Discarded => result > 0,
            Phase::Lingers { left, .. } => result > 0 && left > 0,
            Phase::Left | Phase::Ended { .. } => false,
        };
        if !goes_on {
            self.end();
        }
        goes_on
    }
}

impl Engine {
    /// Begins to discard the input of a member that waits for its output. Whether that has to be
    /// tried again, because the driver still has a cancelled request.
    pub(super) fn begin_discarding(&mut self, key: Key) -> bool {
        let Some(member) = self.members.get_mut(key) else { return false };
        let Some(leaving) = member.leaving.as_deref_mut() else { return false };
        let is_possible = member.kind == Kind::Stream && !member.has_duplicate;
        // What connects has no input; it is looked after again when that is over.
        if !is_possible || member.connecting || leaving.input.has_begun() {
            return false;
        }
        if member.active[Lane::Inbound as usize].is_some() {
            return true;
        }
        let sink = self.sink.get_or_insert_with(|| Rc::from(vec![Cell::new(0); SINK_BYTES]));
        let payload = Payload::Sink(Rc::clone(sink));
        let mut request = Request::new(Command::Discard, Lane::Inbound, payload);
        request.handle = key;
        // As many as there are members at most.
        let id = self.requests.insert_beyond(request);
        member.active[Lane::Inbound as usize] = Some(id);
        leaving.input.phase = Phase::Discarded;
        if let Some(limits) = member.limits_mut() {
            limits.remove(Lane::Inbound);
        }
        self.start_or_stall(id);
        false
    }

    /// Input was discarded, or has ended.
    pub(super) fn settle_discard(&mut self, id: Key, result: i32) -> Option<Completion> {
        let key = self.requests.get(id)?.handle;
        let silence = self.silence();
        let leaving = self.leaving(key)?;
        if leaving.is_writing() && leaving.input.goes_on_after(result) {
            if result > 0 && leaving.input.is_lingering() {
                leaving.overdue = leaving.input.silent_at(Instant::now(), silence);
            }
            self.go_on(id, result);
            return None;
        }
        self.finish(id);
        self.proceed(key);
        self.tell_closed(key)
    }

    /// Whether a member whose output is written discards more input before it is closed. The first
    /// time, ends the direction of its output.
    pub(super) fn lingers(&mut self, key: Key) -> bool {
        let (silence, time) = (self.silence(), self.config.close_timeout.min(LINGER_TIME));
        let Some(leaving) = self.leaving(key) else { return false };
        match leaving.input.phase {
            Phase::Lingers { .. } => return true,
            Phase::Discarded if leaving.input.has_come && !leaving.has_failed() => {}
            Phase::Left | Phase::Discarded | Phase::Ended { .. } => return false,
        }
        let now = Instant::now();
        leaving.input.phase = Phase::Lingers { left: LINGER_BYTES, until: now + time };
        leaving.overdue = Some(now + silence);
        self.plan(now + silence, key, Purpose::Leave);
        let command = Command::Disconnect { how: libc::SHUT_WR };
        let mut request = Request::new(command, Lane::Outbound, Payload::None);
        request.handle = key;
        // As above.
        let id = self.requests.insert_beyond(request);
        if let Some(member) = self.members.get_mut(key) {
            member.active[Lane::Outbound as usize] = Some(id);
        }
        self.start_or_stall(id);
        true
    }

    fn silence(&self) -> Duration {
        self.config.close_timeout.min(SILENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(phase: Phase) -> Input {
        Input { phase, has_come: false }
    }

    #[test]
    fn input_is_discarded_without_bound_while_output_waits() {
        let mut input = input(Phase::Discarded);
        for _ in 0..100 {
            assert!(input.goes_on_after(i32::MAX) && input.goes_on_after(-libc::EAGAIN));
        }
        assert!(input.has_come && !input.is_lingering());
        assert!(!input.goes_on_after(0));
        assert!(input.phase == Phase::Ended { lingered: false } && input.has_begun());
    }

    #[test]
    fn input_is_discarded_up_to_a_bound_when_all_is_written() {
        let now = Instant::now();
        let mut input = input(Phase::Lingers { left: LINGER_BYTES, until: now + LINGER_TIME });
        assert_eq!(input.silent_at(now, SILENCE), Some(now + SILENCE));
        let late = now + LINGER_TIME - Duration::from_millis(1);
        assert_eq!(input.silent_at(late, SILENCE), Some(now + LINGER_TIME));
        assert!(input.goes_on_after(LINGER_BYTES as i32 - 1) && input.goes_on_after(-libc::EINTR));
        assert!(!input.goes_on_after(1));
        assert!(input.phase == Phase::Ended { lingered: true } && input.is_lingering());
        assert!(!input.goes_on_after(1), "it has ended");
        assert_eq!(input.silent_at(now, SILENCE), None);
    }

    #[test]
    fn an_error_ends_the_input() {
        let mut input = input(Phase::Discarded);
        assert!(!input.goes_on_after(-libc::ECONNRESET) && !input.has_come);
    }
}
