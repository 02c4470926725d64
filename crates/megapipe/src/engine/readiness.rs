//! Restarts requests that a driver ended before they were complete: after a partial write, or once
//! the endpoint is ready.

use super::deadlines::Purpose;
use super::{Engine, Lane};
use crate::completion::Completion;
use crate::driver::{Operation, Outcome};
use crate::slab::Key;
use crate::source::Kind;
use std::time::{Duration, Instant};

/// First pause before another attempt; pauses double up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const PAUSE_DOUBLINGS: u32 = 5;

impl Engine {
    /// Restarts a request that a driver has ended before it was complete: after a partial write,
    /// after a signal (`EINTR`), or, once the endpoint is ready, after `EAGAIN`.
    pub(super) fn go_on(&mut self, id: Key, result: i32) {
        self.clear_in_flight(id);
        if result != -libc::EAGAIN || !(self.pause(id) || self.poll_first(id)) {
            self.start_or_stall(id);
        }
    }

    /// Makes a message or a connect wait that its socket has refused more than once. A socket that
    /// is not connected reports room although the queue of the receiver is full. Returns false for
    /// other requests, and after the first refusal.
    fn pause(&mut self, id: Key) -> bool {
        let Some(request) = self.requests.get_mut(id) else { return true };
        let Some(member) = self.members.get(request.handle) else { return true };
        let may_pause = member.kind.keeps_bounds() || request.connects();
        if request.lane != Lane::Outbound || !may_pause {
            return false;
        }
        request.refusals += 1;
        let Some(pauses) = request.refusals.checked_sub(2) else { return false };
        let (key, pause) = (request.handle, FIRST_PAUSE * (1 << pauses.min(PAUSE_DOUBLINGS)));
        self.plan(Instant::now() + pause, key, Purpose::TryAgain(id));
        true
    }

    /// Restarts a request whose pause is over, unless it has ended.
    pub(super) fn try_again(&mut self, id: Key) {
        let request = self.requests.get(id);
        if request.is_some_and(|request| !request.in_flight && !request.cancelled) {
            self.start_or_stall(id);
        }
    }

    /// Polls with the tag of the request until the endpoint is ready; returns false if that is
    /// impossible.
    fn poll_first(&mut self, id: Key) -> bool {
        let Some(request) = self.requests.get_mut(id) else { return true };
        let Some(member) = self.members.get_mut(request.handle) else { return true };
        let events = match request.lane {
            Lane::Outbound => libc::POLLOUT,
            _ => libc::POLLIN,
        };
        // A disk file is always ready.
        if member.kind == Kind::File {
            return false;
        }
        let operation = Operation::Poll { events: events as u32, repeat: false };
        if self.driver.submit(id.tag(), member.object, operation).is_err() {
            return false;
        }
        request.polling = true;
        request.in_flight = true;
        member.in_flight += 1;
        member.loose += u32::from(request.lane == Lane::None);
        true
    }

    /// Retries a request whose endpoint has become ready; ends it if it was cancelled.
    pub(super) fn complete_polling(&mut self, id: Key, outcome: Outcome) -> Option<Completion> {
        let request = self.requests.get_mut(id)?;
        request.polling = false;
        let ends = request.cancelled || outcome.result == -libc::ECANCELED;
        let recalled = std::mem::take(&mut request.recalled);
        if ends && !recalled {
            return self.complete(Outcome::plain(outcome.tag, -libc::ECANCELED));
        }
        self.go_on(id, 0);
        None
    }
}
