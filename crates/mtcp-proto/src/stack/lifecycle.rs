//! What follows from a change of a connection: events, timers, turns, its next owner, its end.

use super::Stack;
use super::table::{Entry, Newcomer, Stage};
use crate::flow::Flow;
use crate::memory::TimerWheel;
use crate::socket::{Readiness, State};
use crate::tcp::{Failure, Remains};

/// Marks the indices of the flow table that lead to TIME_WAIT.
pub(super) const IN_TIME_WAIT: u32 = 1 << 31;

impl Stack {
    /// Draws the consequences of whatever has happened to a connection. To be called after each
    /// call of it that may change it.
    pub(super) fn settle(&mut self, index: u32) {
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
        let connection = &entry.connection;
        if entry.stage == Stage::Held
            && entry.notice.update(connection.readiness(), connection.arrivals())
        {
            self.events.queue(index);
        }
        self.transmit.set(index, &mut entry.listed, connection.wants_output());
        arm(&mut self.wheel, index, entry);
    }

    /// Draws the consequences of a turn to send after which there is no more: nothing that an
    /// application sees changes by that.
    pub(super) fn settle_after_turn(&mut self, index: u32) {
        let Some(entry) = self.table.connection_mut(index) else { return };
        if matches!(entry.connection.state(), State::Closed | State::TimeWait) {
            return self.settle(index);
        }
        self.transmit.set(index, &mut entry.listed, None);
        arm(&mut self.wheel, index, entry);
    }

    /// Lets a connection go where it belongs now; true if nothing of it remains in the table.
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

    /// Takes a connection that is over from its flow; true if nothing of it remains in the table.
    fn has_ended(&mut self, index: u32, state: State) -> bool {
        let Some(entry) = self.table.connection_mut(index) else { return true };
        if entry.attached {
            let remains = entry.connection.remains();
            if state == State::TimeWait && remains.is_none() {
                return false;
            }
            entry.attached = false;
            let (hash, flow) = (u64::from(entry.hash), *entry.connection.flow());
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

    /// Moves a listener's connection on when it is established, has data, or has waited enough.
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

    /// Puts a connection into the accept queue, and tells of it.
    fn offer(&mut self, index: u32, listener: u32) {
        self.set_stage(index, Stage::Waiting(listener));
        if let Some(listening) = self.table.listening_mut(listener) {
            listening.listener.arrivals = listening.listener.arrivals.wrapping_add(1);
        }
        self.notice_listener(listener);
    }

    pub(super) fn notice_listener(&mut self, index: u32) {
        if let Some(listening) = self.table.listening_mut(index) {
            let (readiness, arrivals) = (listening.readiness(), listening.listener.arrivals);
            if listening.notice.update(readiness, arrivals) {
                self.events.queue(index);
            }
        }
    }

    pub(super) fn set_stage(&mut self, index: u32, stage: Stage) {
        let Some(entry) = self.table.connection(index) else { return };
        let before = entry.stage;
        if before == stage {
            return;
        }
        self.table.set_stage(index, stage);
        self.left(before);
    }

    /// Counts a connection out of what it has left.
    fn left(&mut self, stage: Stage) {
        match stage {
            Stage::HalfOpen(_) => self.half_open -= 1,
            Stage::Waiting(listener) => self.notice_listener(listener),
            _ => {}
        }
    }

    /// Forgets a connection with all that belongs to it.
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
        self.table.delist(index, stage);
        self.table.remove(index);
        self.left(stage);
    }

    /// Makes room for one more socket, if need be at the cost of another. False if there is none
    /// that may go for this newcomer.
    pub(super) fn make_room(&mut self, newcomer: Newcomer) -> bool {
        if !self.table.is_full() {
            return true;
        }
        let expendable = self.expendable(newcomer);
        if let Some(index) = expendable {
            self.remove(index);
        }
        expendable.is_some()
    }

    /// Whose place a newcomer gets in a full table. First goes an orphan that has nothing left to
    /// say. For one who has proven himself then goes the oldest connection in SYN-RECEIVED, whose
    /// peer has proven nothing (RFC 4987, section 3.5), once it has left an answer of ours without
    /// one: of those that are younger, most are genuine. An orphan that still has data or its end
    /// to deliver goes only for our own applications: otherwise a flood of SYNs, or of cookies,
    /// could cut off what others were sent.
    pub(super) fn expendable(&self, newcomer: Newcomer) -> Option<u32> {
        let finished = self.table.finished_orphan();
        if finished.is_some() || newcomer == Newcomer::Syn {
            return finished;
        }
        let half_open = self.oldest_half_open();
        if newcomer == Newcomer::Peer {
            return half_open.filter(|&index| {
                let entry = self.table.connection(index);
                entry.is_some_and(|entry| entry.connection.has_asked_again())
            });
        }
        half_open.or_else(|| self.table.oldest_orphan())
    }

    /// The first in SYN-RECEIVED of the listener that has most of them.
    fn oldest_half_open(&self) -> Option<u32> {
        let lists = self.listeners.indices().filter_map(|index| {
            self.table.listening(index).map(|listening| &listening.listener.half_open)
        });
        lists.max_by_key(|list| list.len())?.first()
    }

    /// Gives up a listener with all its connections.
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

    /// Resets a connection, whosever it is.
    pub(super) fn abort_at(&mut self, index: u32) {
        if let Some(entry) = self.table.connection_mut(index) {
            entry.connection.abort(Failure::Aborted, &mut self.shared.context());
        }
        self.settle(index);
    }
}

/// Sets a connection's timer to what is due first.
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
