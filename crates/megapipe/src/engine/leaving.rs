//! Closes handles: writes the queued output first, unless the handle is aborted.
//!
//! The application cannot use a leaving member; the only further completion of the handle is one
//! [`Event::Close`]. The member's inbound requests are cancelled, its outbound ones continue in
//! order, until one fails, which aborts the member. When the last of them is complete, the endpoint
//! is closed; when the driver has released everything, the event is delivered. So the event also
//! means that the memory of all requests is free. Input that arrives while a stream socket has to
//! wait for its output is discarded, see [`discard`](super::discard).

use super::deadlines::Purpose;
use super::discard::BEGIN_AFTER;
use super::member::{Closing, Input, Leaving};
use super::{Command, Engine, LAST_WRITES, Lane, Member, Request};
use crate::completion::{Completion, Event};
use crate::driver::{Object, Outcome};
use crate::error::Error;
use crate::slab::Key;
use crate::source::{Kind, Source};
use crate::sys::result_of;
use std::time::{Duration, Instant};

impl Engine {
    /// Closes a member after its queued output is written.
    pub(crate) fn close(&mut self, key: Key) -> Result<(), Error> {
        self.member(key)?;
        self.begin_leaving(key, true);
        self.counters.requests += 1;
        Ok(())
    }

    /// Closes a member at once, even one that is being closed; resets a TCP connection.
    pub(crate) fn abort(&mut self, key: Key) -> Result<(), Error> {
        self.check_process()?;
        let member = self.members.get(key).ok_or(Error::UnknownHandle)?;
        match &member.leaving {
            None => {
                self.mark_leaving(key, true);
                self.counters.requests += 1;
            }
            // The handle was unregistered.
            Some(leaving) if leaving.request.is_none() => return Err(Error::UnknownHandle),
            Some(_) => {}
        }
        self.abort_leaving(key, None);
        Ok(())
    }

    /// Closes a member that has no descriptor to return, after its queued output is written,
    /// without an event.
    pub(super) fn close_silently(&mut self, key: Key) {
        self.begin_leaving(key, false);
    }

    fn begin_leaving(&mut self, key: Key, tells: bool) {
        self.mark_leaving(key, tells);
        if self.members.get(key).is_some_and(Member::is_cut) {
            self.abort_leaving(key, None);
            return;
        }
        let timeout = self.config.close_timeout;
        let Some(member) = self.members.get_mut(key) else { return };
        if member.active[Lane::Outbound as usize].is_some()
            && let Some(leaving) = &mut member.leaving
        {
            let now = Instant::now();
            leaving.overdue = now.checked_add(timeout);
            self.plan(now + timeout.min(BEGIN_AFTER), key, Purpose::Leave);
        }
        // A connect is useless if no output is queued behind it.
        let Some(member) = self.members.get(key) else { return };
        let object = member.object;
        if member.connecting
            && !member.has_waiting(Lane::Outbound)
            && let Some(id) = self.empty_lane(key, Lane::Outbound)
        {
            self.driver.cancel(id.tag(), object);
        }
        self.proceed(key);
    }

    /// Marks a member as leaving, and cancels its inbound requests.
    fn mark_leaving(&mut self, key: Key, tells: bool) {
        let request = tells.then(|| {
            let mut request = Request::new(Command::Close, Lane::None);
            request.handle = key;
            // These requests are limited by the number of members.
            self.requests.insert_beyond(request)
        });
        let connections = self.leave(key);
        self.report_orphans(connections.len());
        drop(connections);
        self.listeners.retain(|listener| *listener != key);
        self.unpair(key);
        let Some(member) = self.members.get_mut(key) else { return };
        member.leaving = Some(Box::new(Leaving {
            request,
            failure: None,
            aborted: false,
            closing: Closing::NotYet,
            overdue: None,
            input: Input::default(),
        }));
        for lane in [Lane::Inbound, Lane::Readiness] {
            self.drop_lane(key, lane);
            self.cancel_active(key, lane);
        }
    }

    /// Discards the queued output, and closes the endpoint although the driver still has operations
    /// of it.
    fn abort_leaving(&mut self, key: Key, failure: Option<i32>) {
        let Some(member) = self.members.get_mut(key) else { return };
        let (object, kind) = (member.object, member.kind);
        let Some(leaving) = &mut member.leaving else { return };
        leaving.aborted = true;
        leaving.failure = leaving.failure.or(failure);
        if leaving.is_closing() {
            return;
        }
        if kind == Kind::Stream {
            self.make_close_reset(object);
        }
        self.discard_output(key);
        self.cancel_active(key, Lane::Outbound);
        self.proceed(key);
    }

    /// Closes a connection that is no member, and resets it.
    pub(crate) fn refuse(&mut self, source: Source) -> Result<(), Error> {
        self.check_process()?;
        let kind = source.kind().map_err(Error::system("fstat"))?;
        let attached = self.driver.attach(source.endpoint, kind);
        let object = attached.map_err(|left| Error::system("attach")(left.error))?;
        self.make_close_reset(object);
        drop(self.driver.detach(object, &[]));
        Ok(())
    }

    /// Makes closing the endpoint reset the connection: the peer must not take the last written
    /// byte for the end of the stream. Only TCP supports this option; other sources refuse it.
    fn make_close_reset(&mut self, object: Object) {
        let mut linger = [0; 8];
        linger[..4].copy_from_slice(&1i32.to_ne_bytes());
        let _ = self.driver.set_option(object, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    }

    /// Writes the output that needs no wait, and makes closing reset the connections that still
    /// have some, because the channel ends. Drops all other outcomes.
    pub(super) fn reset_unwritten(&mut self) {
        let until = Instant::now() + LAST_WRITES;
        let mut goes_on = true;
        while goes_on && !self.unwritten().is_empty() && Instant::now() < until {
            if self.driver.flush().is_err()
                || self.driver.collect(&mut self.ready, Some(Duration::ZERO)).is_err()
            {
                break;
            }
            goes_on = false;
            for outcome in std::mem::take(&mut self.ready) {
                let request = Key::from_tag(outcome.tag).and_then(|id| self.requests.get(id));
                if request.is_some_and(|request| request.lane == Lane::Outbound) {
                    drop(self.complete(outcome));
                    goes_on = true;
                }
            }
        }
        for object in self.unwritten() {
            self.make_close_reset(object);
        }
    }

    /// Returns the streams that have output left, or whose output failed part-way.
    fn unwritten(&self) -> Vec<Object> {
        let members = self.members.keys().filter_map(|key| self.members.get(key));
        let is_unwritten = |member: &&Member| {
            let active = member.active[Lane::Outbound as usize];
            let writes = active.and_then(|id| self.requests.get(id)).is_some_and(Request::writes);
            let is_closing = member.leaving.as_deref().is_some_and(Leaving::is_closing);
            member.kind == Kind::Stream
                && !is_closing
                && (writes || member.is_cut() || member.has_waiting(Lane::Outbound))
        };
        members.filter(is_unwritten).map(|member| member.object).collect()
    }

    /// Takes the next step of a leaving member when its time has come: discards its input if it has
    /// waited for its output, aborts or closes it at the end of its time, or repeats a
    /// cancellation.
    pub(super) fn look_after_leaving(&mut self, key: Key, now: Instant) {
        let Some(member) = self.members.get_mut(key) else { return };
        let Some(leaving) = member.leaving.as_deref_mut() else { return };
        if leaving.aborted || leaving.is_closing() {
            if member.in_flight > 0 {
                self.cancel_pending(key);
                self.plan(Engine::repeat_after(now), key, Purpose::Leave);
            }
            return;
        }
        let lingers = leaving.input.is_lingering();
        let overdue = leaving.overdue;
        if overdue.is_none_or(|at| at > now) {
            let again = self.begin_discarding(key).then(|| now + BEGIN_AFTER);
            if let Some(at) = again.into_iter().chain(overdue).min() {
                self.plan(at, key, Purpose::Leave);
            }
        } else if lingers {
            leaving.input.end();
            self.proceed(key);
        } else {
            self.abort_leaving(key, Some(libc::ETIMEDOUT));
        }
    }

    /// Gives closing members up to `time` to write their queued output.
    pub(super) fn linger(&mut self, time: Duration) {
        let Some(until) = Instant::now().checked_add(time) else { return };
        let writes = |member: &Member| member.leaving.as_deref().is_some_and(Leaving::is_writing);
        while self.members.keys().any(|key| self.members.get(key).is_some_and(writes)) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.dispatch(Some(left)).is_err() {
                return;
            }
        }
    }

    /// Handles an outcome of a leaving member.
    pub(super) fn complete_leaving(&mut self, id: Key, outcome: Outcome) -> Option<Completion> {
        let request = self.requests.get_mut(id)?;
        let key = request.handle;
        if let Command::Discard(_) = request.command {
            return self.complete_discard(id, outcome.result);
        }
        let member = self.members.get_mut(key)?;
        let leaving = member.leaving.as_deref_mut()?;
        let is_over = request.cancelled && matches!(-outcome.result, libc::EINTR | libc::EAGAIN);
        let result = if is_over { -libc::ECANCELED } else { outcome.result };
        let mut is_cut = false;
        if leaving.input.is_lingering() {
            // The kernel may have had no thread to shut down writing. The error does not matter,
            // because all output is written.
            let shuts_down = request.lane == Lane::Outbound && leaving.is_writing();
            if shuts_down && result == -libc::ECANCELED {
                let operation = request.operation(member.kind, member.large);
                self.driver.run_inline(member.object, &operation);
            }
        } else if request.lane == Lane::Outbound {
            let again = match result {
                0.. if request.writes() => request.has_rest(result as usize, member.kind),
                _ => result == -libc::EINTR || result == -libc::EAGAIN,
            };
            let aborted = leaving.aborted;
            if result > 0 {
                leaving.note_progress(self.config.close_timeout);
            }
            if again && !aborted {
                self.go_on(id, result);
                return None;
            }
            if result < 0 && result != -libc::ECANCELED && !aborted {
                leaving.failure.get_or_insert(-result);
                is_cut = matches!(member.kind, Kind::Stream | Kind::Pipe) && request.writes();
            }
        }
        if is_cut {
            // The peer would take what is queued behind it for the rest.
            self.discard_output(key);
        }
        let mut told = None;
        if !outcome.more {
            let request = self.requests.get(id)?;
            let member = self.members.get_mut(key)?;
            let (connects, is_output) = (request.connects(), request.is_output());
            if connects {
                member.connecting = false;
            }
            let request = self.finish(id)?;
            if connects {
                self.plan(Instant::now() + BEGIN_AFTER, key, Purpose::Leave);
            }
            if is_output && self.tells_output(key) {
                told = self.completed_once(key, request, result);
            }
        }
        drop(outcome);
        if is_cut {
            self.abort_leaving(key, None);
        }
        self.proceed(key);
        if told.is_some() {
            // The close may have been reported before this outcome: its event comes next.
            if let Some(Leaving {
                request: Some(request), closing: Closing::Done { result }, ..
            }) = self.leaving(key)
            {
                let closed = Outcome::plain(request.tag(), *result);
                self.ready.push_front(closed);
            }
            return told;
        }
        self.report_closed(key)
    }

    /// Returns whether the application wants the events of a leaving member's output.
    fn tells_output(&self, key: Key) -> bool {
        let leaving = self.members.get(key).and_then(|member| member.leaving.as_deref());
        self.config.events_after_close && leaving.is_some_and(|leaving| leaving.request.is_some())
    }

    /// Discards the output that the driver does not have.
    fn discard_output(&mut self, key: Key) {
        if self.tells_output(key) {
            self.empty_lane(key, Lane::Outbound);
        } else {
            self.drop_lane(key, Lane::Outbound);
        }
    }

    /// Closes the endpoint if no output is left to be written and no input to be discarded.
    pub(super) fn proceed(&mut self, key: Key) {
        let Some(member) = self.members.get(key) else { return };
        let Some(leaving) = member.leaving.as_deref() else { return };
        let writes = member.active[Lane::Outbound as usize].is_some();
        let waits = writes || member.has_waiting(Lane::Outbound) || member.loose > 0;
        if leaving.is_closing() || (waits && !leaving.aborted) {
            return;
        }
        let (object, request, aborted) = (member.object, leaving.request, leaving.aborted);
        let listens = member.kind == Kind::Listener;
        let discards = leaving.input.has_begun();
        if !aborted && self.lingers(key) {
            return;
        }
        if discards {
            self.drop_lane(key, Lane::Inbound);
        }
        let pending = self.pending_tags(key);
        if (aborted || discards) && !pending.is_empty() {
            // The cancellations are repeated until each has found its operation.
            self.plan(Engine::repeat_after(Instant::now()), key, Purpose::Leave);
        }
        self.accept_soon();
        let Some(request) = request else {
            // Outcomes that the driver still reports are dropped.
            drop(self.driver.detach(object, &pending));
            self.remove_member(key);
            return;
        };
        // The address of a listener is free when the call returns, to listen there again.
        if listens || self.driver.close(request.tag(), object, &pending).is_err() {
            // Or there is no room for the request: the driver closes the descriptor here, which
            // succeeds.
            drop(self.driver.detach(object, &pending));
            self.ready.push_back(Outcome::plain(request.tag(), 0));
        }
        if let Some(leaving) = self.leaving(key) {
            leaving.closing = Closing::Asked;
        }
    }

    pub(super) fn leaving(&mut self, key: Key) -> Option<&mut Leaving> {
        self.members.get_mut(key)?.leaving.as_deref_mut()
    }

    /// Handles the outcome of closing the endpoint.
    pub(super) fn complete_close(&mut self, id: Key, mut result: i32) -> Option<Completion> {
        let key = self.requests.get(id)?.handle;
        let object = self.members.get(key)?.object;
        if result == -libc::ECANCELED {
            // The kernel had no thread for the close.
            drop(self.driver.detach(object, &[]));
            result = 0;
        }
        self.leaving(key)?.closing = Closing::Done { result };
        self.report_closed(key)
    }

    /// Ends a membership after the endpoint is closed and the driver has no operation of it any
    /// more.
    pub(super) fn report_closed(&mut self, key: Key) -> Option<Completion> {
        let member = self.members.get(key)?;
        let leaving = member.leaving.as_deref()?;
        let Closing::Done { result } = leaving.closing else { return None };
        if member.in_flight > 0 {
            return None;
        }
        let result = leaving.failure.map_or(result, |errno| -errno);
        let request = leaving.request;
        self.remove_member(key);
        self.requests.remove(request?);
        Some(self.completed(key, false, Event::Close(result_of(result).map(drop))))
    }
}
