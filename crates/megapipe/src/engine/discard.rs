//! Discards what a peer still sends to a stream socket whose close waits for its output.
//!
//! Two ends that both close with more queued output than the kernel has room for would wait for
//! each other to read. And closing a TCP socket with unread input resets the connection (RFC 1122,
//! section 4.2.2.13; RFC 2525, section 2.17), which destroys output that the peer has not read yet.
//! So a member that has waited for its output for [`BEGIN_AFTER`] reads and discards input until
//! all output is written. If any input came, it then ends its direction by shutdown(2). It
//! continues to discard until the peer ends its own direction or is silent for [`SILENCE`], for
//! [`LINGER_TIME`] and [`LINGER_BYTES`] at most. Apache httpd does the same with the same times,
//! and nginx (`lingering_close`) with 5 s and 30 s. A segment that is lost and sent again more than
//! once costs a second or more, so a bound on the total time alone would reset connections on which
//! data still arrive.
//!
//! A close that does not wait that long costs no further operation and discards nothing: then
//! unread input resets the connection. So if both ends close within that time of each other, the
//! one that discards first may let the other end its wait too early, and see a reset. Members with
//! a second descriptor from the channel ([`Channel::descriptor`](crate::Channel::descriptor))
//! discard nothing either, because the input and the direction belong to that descriptor, too.

use super::deadlines::Purpose;
use super::member::Phase;
use super::{Command, Engine, Lane, Request};
use crate::completion::Completion;
use crate::slab::Key;
use crate::source::Kind;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a close waits for its output before it discards input.
pub(super) const BEGIN_AFTER: Duration = Duration::from_millis(5);

/// Limits of discarding input after all output is written: time without input, total time, and
/// bytes.
const SILENCE: Duration = Duration::from_secs(2);
const LINGER_TIME: Duration = Duration::from_secs(30);
const LINGER_BYTES: usize = 64 << 20;

/// Bytes that are discarded at once.
const SINK_BYTES: usize = 64 << 10;

impl Engine {
    /// Starts to discard the input of a member that waits for its output. Returns whether the
    /// caller has to try again, because the driver still has a cancelled request.
    pub(super) fn begin_discarding(&mut self, key: Key) -> bool {
        let Some(member) = self.members.get_mut(key) else { return false };
        let Some(leaving) = member.leaving.as_deref_mut() else { return false };
        let is_possible = member.kind == Kind::Stream && !member.has_duplicate;
        // A connecting member has no input; this is called again after the connect has ended.
        if !is_possible || member.connecting || leaving.input.has_begun() {
            return false;
        }
        if member.active[Lane::Inbound as usize].is_some() {
            return true;
        }
        let sink = self.sink.get_or_insert_with(|| Rc::from(vec![Cell::new(0); SINK_BYTES]));
        let mut request = Request::new(Command::Discard(Rc::clone(sink)), Lane::Inbound);
        request.handle = key;
        // These requests are limited by the number of members.
        let id = self.requests.insert_beyond(request);
        member.active[Lane::Inbound as usize] = Some(id);
        leaving.input.phase = Phase::Discarded;
        if let Some(limits) = member.limits_mut() {
            limits.remove(Lane::Inbound);
        }
        self.start_or_stall(id);
        false
    }

    /// Handles the result of a discarding read.
    pub(super) fn complete_discard(&mut self, id: Key, result: i32) -> Option<Completion> {
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
        self.report_closed(key)
    }

    /// Returns whether a member whose output is written discards more input before it is closed.
    /// The first call shuts its output down.
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
        let mut request = Request::new(command, Lane::Outbound);
        request.handle = key;
        // These requests are limited by the number of members.
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
