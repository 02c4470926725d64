//! Updates the stack after a change of a connection: events, timer, transmit list, accept queue,
//! TIME_WAIT and removal.

use super::Stack;
use super::events::Events;
use super::table::{AdmissionClass, Entry, Stage};
use crate::flow::Flow;
use crate::memory::TimerWheel;
use crate::socket::{Readiness, State};
use crate::tcp::{Failure, Remains};

/// Marks the indices of the flow table that refer to TIME_WAIT records.
pub(super) const IN_TIME_WAIT: u32 = 1 << 31;

impl Stack {
    /// Updates events, timer and lists after a change of a connection. Must be called after each
    /// call that may change one.
    pub(super) fn update_schedule(&mut self, index: u32) {
        let Some(mut entry) = self.table.connection_mut(index) else { return };
        let state = entry.connection.state();
        let turning = matches!(state, State::Closed | State::TimeWait)
            || matches!(entry.stage, Stage::HalfOpen(_) | Stage::Deferred(..));
        if turning {
            if self.has_turned(index, state) {
                return;
            }
            match self.table.connection_mut(index) {
                Some(same) => entry = same,
                None => return,
            }
        }
        notify(&mut self.events, index, entry);
        self.transmit.set(index, &mut entry.listed, entry.connection.wants_output());
        arm(&mut self.wheel, index, entry);
    }

    /// Updates events, timer and lists after a connection has sent all that it can. Sending changes
    /// the readiness, too: the room for the application depends on the congestion window, which
    /// becomes smaller while lost data is sent again. An event that is not known to have ended is
    /// not reported when it begins again.
    pub(super) fn update_schedule_after_turn(&mut self, index: u32) {
        let Some(entry) = self.table.connection_mut(index) else { return };
        if matches!(entry.connection.state(), State::Closed | State::TimeWait) {
            return self.update_schedule(index);
        }
        notify(&mut self.events, index, entry);
        self.transmit.set(index, &mut entry.listed, None);
        arm(&mut self.wheel, index, entry);
    }

    /// Moves a connection to TIME_WAIT or removes it if its state requires that; true if it is no
    /// longer in the table.
    fn has_turned(&mut self, index: u32, state: State) -> bool {
        let over = matches!(state, State::Closed | State::TimeWait);
        if over && self.has_ended(index, state) {
            return true;
        }
        let Some(entry) = self.table.connection(index) else { return true };
        if matches!(entry.stage, Stage::HalfOpen(_) | Stage::Deferred(..)) {
            self.change_owner(index, state);
        }
        false
    }

    /// Detaches an ended connection from its four-tuple; true if it is no longer in the table.
    fn has_ended(&mut self, index: u32, state: State) -> bool {
        let Some(entry) = self.table.connection_mut(index) else { return true };
        if entry.attached {
            let remains = entry.connection.remains();
            if state == State::TimeWait && remains.is_none() {
                return false;
            }
            entry.attached = false;
            let (hash, flow) = (u64::from(entry.hash), *entry.connection.flow());
            self.table.note_change(index);
            let record = remains.and_then(|remains| self.enter_time_wait(flow, &remains));
            match record {
                Some(record) => self.flows.replace(hash, index, record | IN_TIME_WAIT),
                None => self.flows.remove(hash, index),
            };
        }
        let Some(entry) = self.table.connection(index) else { return true };
        match entry.stage {
            Stage::Held => false,
            _ if entry.connection.wants_output().is_some() => {
                self.set_stage(index, Stage::Orphan);
                false
            }
            _ => {
                self.remove(index);
                true
            }
        }
    }

    fn enter_time_wait(&mut self, flow: Flow, remains: &Remains) -> Option<u32> {
        if let Some(oldest) = self.time_wait.surplus() {
            self.forget_time_wait(oldest);
        }
        self.time_wait.insert(flow, remains, self.shared.now)
    }

    pub(super) fn forget_time_wait(&mut self, record: u32) {
        if let Some(flow) = self.time_wait.remove(record) {
            self.flows.remove(flow.hash(self.keys.flow), record | IN_TIME_WAIT);
        }
    }

    /// Moves a listener's connection to its next stage when it is established, has data, or has
    /// waited long enough.
    fn change_owner(&mut self, index: u32, state: State) {
        let Some(entry) = self.table.connection(index) else { return };
        match entry.stage {
            Stage::HalfOpen(listener) if state != State::SynReceived => {
                let defer = self
                    .table
                    .listening(listener)
                    .and_then(|listening| listening.listener.options.defer_accept);
                let silent = !entry.connection.readiness().contains(Readiness::READABLE);
                match defer.filter(|_| silent) {
                    Some(wait) => {
                        self.set_stage(index, Stage::Deferred(listener, self.shared.now + wait));
                    }
                    None => self.offer(index, listener),
                }
            }
            Stage::Deferred(listener, until)
                if until <= self.shared.now
                    || entry.connection.readiness().contains(Readiness::READABLE) =>
            {
                self.offer(index, listener);
            }
            _ => {}
        }
    }

    /// Puts a connection into the accept queue and reports the event.
    fn offer(&mut self, index: u32, listener: u32) {
        self.set_stage(index, Stage::Waiting(listener));
        if let Some(listening) = self.table.listening_mut(listener) {
            listening.listener.arrivals = listening.listener.arrivals.wrapping_add(1);
        }
        self.notice_listener(listener);
    }

    /// Queues an event of a listener if its readiness has changed or connections have arrived.
    pub(super) fn notice_listener(&mut self, index: u32) {
        if let Some(listening) = self.table.listening_mut(index) {
            let (readiness, arrivals) = (listening.readiness(), listening.listener.arrivals);
            if listening.notice.update(readiness, arrivals) {
                self.events.queue(index);
            }
        }
    }

    /// Changes the owner of a connection, its list, and the counters.
    pub(super) fn set_stage(&mut self, index: u32, stage: Stage) {
        let Some(entry) = self.table.connection(index) else { return };
        let before = entry.stage;
        if before == stage {
            return;
        }
        self.table.set_stage(index, stage);
        self.left(before);
    }

    /// Decrements the counter of the stage that a connection has left.
    fn left(&mut self, stage: Stage) {
        match stage {
            Stage::HalfOpen(_) => self.half_open -= 1,
            Stage::Waiting(listener) => self.notice_listener(listener),
            _ => {}
        }
    }

    /// Removes a connection with all its state.
    pub(super) fn remove(&mut self, index: u32) {
        let Some(entry) = self.table.connection_mut(index) else { return };
        entry.connection.release(&mut self.shared.pool);
        self.transmit.set(index, &mut entry.listed, None);
        let stage = entry.stage;
        if entry.attached {
            self.flows.remove(u64::from(entry.hash), index);
        }
        self.wheel.disarm(index);
        self.events.forget(index);
        self.table.unlink_from_listener(index, stage);
        self.table.remove(index);
        self.left(stage);
    }

    /// Makes room for one more socket, if necessary by removing another. False if this admission
    /// class may not remove any.
    pub(super) fn make_room(&mut self, class: AdmissionClass) -> bool {
        if !self.table.is_full() {
            return true;
        }
        let expendable = self.expendable(class);
        if let Some(index) = expendable {
            self.remove(index);
        }
        expendable.is_some()
    }

    /// Selects the connection to remove for a new one in a full table. The first choice is an
    /// orphan that has nothing left to send. If the new peer has proven its address, the next
    /// choice is the oldest connection in SYN-RECEIVED, whose peer has proven nothing (RFC 4987,
    /// section 3.5), once it has left a SYN-ACK unanswered: most younger ones are genuine. An
    /// orphan that still has data or its FIN to deliver is removed only for this stack's own
    /// applications. Otherwise a flood of SYNs, or of cookies, could cut off data of others.
    pub(super) fn expendable(&self, class: AdmissionClass) -> Option<u32> {
        let finished = self.table.finished_orphan();
        if finished.is_some() || class == AdmissionClass::Syn {
            return finished;
        }
        let half_open = self.oldest_half_open();
        if class == AdmissionClass::Peer {
            return half_open.filter(|&index| {
                let entry = self.table.connection(index);
                entry.is_some_and(|entry| entry.connection.has_asked_again())
            });
        }
        half_open.or_else(|| self.table.oldest_orphan())
    }

    /// The first connection in SYN-RECEIVED of the listener that has most of them.
    fn oldest_half_open(&self) -> Option<u32> {
        let lists = self.listeners.indices().filter_map(|index| {
            self.table.listening(index).map(|listening| &listening.listener.half_open)
        });
        lists.max_by_key(|list| list.len())?.first()
    }

    /// Removes a listener with all its connections.
    pub(super) fn remove_listener(&mut self, index: u32) {
        let Some(listening) = self.table.listening(index) else { return };
        let listener = &listening.listener;
        let mut connections = Vec::new();
        for list in [&listener.half_open, &listener.deferred, &listener.waiting] {
            let mut next = list.first();
            while let Some(connection) = next {
                connections.push(connection);
                next = self.table.belonging.next(connection);
            }
        }
        let names = listener.names();
        for connection in connections {
            self.set_stage(connection, Stage::Orphan);
            self.abort_at(connection);
        }
        names.for_each(|name| self.listeners.remove(name, index));
        self.events.forget(index);
        self.table.remove(index);
    }

    /// Resets a connection, whoever owns it: application, listener, or none.
    pub(super) fn abort_at(&mut self, index: u32) {
        if let Some(entry) = self.table.connection_mut(index) {
            entry.connection.abort(Failure::Aborted, &mut self.shared.context());
        }
        self.update_schedule(index);
    }
}

/// Queues the events of a connection that an application holds, if there are new ones.
fn notify(events: &mut Events, index: u32, entry: &mut Entry) {
    let connection = &entry.connection;
    let is_held = entry.stage == Stage::Held;
    if is_held && entry.notice.update(connection.readiness(), connection.arrivals()) {
        events.queue(index);
    }
}

/// Arms a connection's timer for its earliest deadline.
fn arm(wheel: &mut TimerWheel, index: u32, entry: &Entry) {
    let deadline = if entry.attached { entry.connection.deadline() } else { None };
    let deadline = match entry.stage {
        Stage::Deferred(_, until) => Some(deadline.map_or(until, |at| at.min(until))),
        _ => deadline,
    };
    match deadline {
        Some(at) => wheel.arm(index, at),
        None => wheel.disarm(index),
    }
}
