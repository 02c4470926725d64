//! Moves a flow from one epoch to the next: takes over new paths and ends old ones.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use super::core::{Core, Draining, State};
use super::parts::FlowEvent;
use super::path::{End, Path};
use crate::control::mailbox::FlowMessage;
use crate::transport::Record;

impl Core {
    /// Processes the agent's messages, ends and flushes old paths, and reports finished moves.
    #[cold]
    pub(super) fn tend_slowly(&self, state: &mut State) {
        if self.mailbox.wants_attention() {
            for mail in self.mailbox.take() {
                self.take_mail(state, mail);
            }
        }
        self.drain(state);
        self.send_backlog(state);
        self.flush_old(state);
        self.report_moves(state);
        self.is_busy.set(state.has_more_to_do());
    }

    /// Handles messages of the agent.
    pub(super) fn take_mails(&self, mails: VecDeque<FlowMessage>) {
        let mut state = self.state.borrow_mut();
        for mail in mails {
            self.take_mail(&mut state, mail);
        }
        self.tend_slowly(&mut state);
    }

    fn take_mail(&self, state: &mut State, mail: FlowMessage) {
        match mail {
            FlowMessage::Path { epoch, kind, reason, transport, permit } => {
                let path = Rc::new(Path::new(epoch, transport, self.creator, Some(permit)));
                self.adopt(state, path);
                state.note(FlowEvent::Moved { epoch, transport: kind, reason });
            }
            FlowMessage::Failed { kind, reason } => {
                state.note(FlowEvent::MoveFailed { transport: kind, reason });
            }
            FlowMessage::Gone => state.peer_gone = Some(Instant::now() + self.timeouts.grace),
            FlowMessage::Silent => state.peer_gone = Some(Instant::now()),
            FlowMessage::Broken { what } => state.broken = Some(what),
        }
    }

    fn adopt(&self, state: &mut State, path: Rc<Path>) {
        self.stop_watching();
        path.inner.borrow_mut().transport.set_batch(state.batch);
        if !state.read_ended {
            state.ahead.push_back(Rc::clone(&path));
        }
        let now = Instant::now();
        state.moving.push((path.epoch, path.kind, now));
        // After the flow's last record nothing is written: the path remains until all is sent.
        if !state.writing.is_closed.get() {
            let old = std::mem::replace(&mut state.writing, path);
            let deadline = now + self.timeouts.drain;
            state.draining.push_back(Draining { path: old, deadline, is_overdue: false });
        }
    }

    /// Ends old paths, oldest first: reserves room for the end record, and sends it when no buffer
    /// is held or the drain timeout of the held ones has passed.
    fn drain(&self, state: &mut State) {
        for old in &state.draining {
            reserve_end(&old.path);
        }
        let now = Instant::now();
        for old in &mut state.draining {
            old.is_overdue = old.deadline <= now;
        }
        while let Some(old) = state.draining.front() {
            let has_buffers = is_held(&old.path);
            // The late buffers' copies must come before newer buffers that are held; the commit of
            // such a buffer ends the path instead.
            let newer_is_held = state.draining.iter().skip(1).any(|newer| is_held(&newer.path))
                || is_held(&state.writing);
            let may_end = !has_buffers || old.is_overdue && !newer_is_held;
            if !may_end || !self.end_oldest(state) {
                break;
            }
        }
    }

    /// Sends the end record of the oldest path. Returns false if there is no room for it.
    fn end_oldest(&self, state: &mut State) -> bool {
        let Some(old) = state.draining.front() else { return false };
        let next = state.draining.get(1).map_or(&state.writing, |newer| &newer.path).epoch;
        let late = match end_path(&old.path, next) {
            None => return false,
            Some(late) => late,
        };
        state.late += late;
        if let Some(old) = state.draining.pop_front() {
            state.flushing.push(old.path);
        }
        true
    }

    fn send_backlog(&self, state: &mut State) {
        while !state.backlog.is_empty() {
            if !self.end_older(state, None) {
                return;
            }
            let Some((bytes, _)) = state.backlog.front() else { return };
            let mut inner = state.writing.inner.borrow_mut();
            let Ok(Some(mut slot)) = inner.transport.acquire_write(bytes.len()) else { return };
            let Some((bytes, record)) = state.backlog.pop_front() else { return };
            slot.copy_from_slice(&bytes);
            if record == Record::EndOfFlow {
                inner.pass_over_outstanding();
                state.writing.is_closed.set(true);
            }
            let done = inner.transport.commit(slot, bytes.len(), record);
            if record == Record::EndOfFlow && done.is_ok() {
                // No later record would push it out of the transport's batch.
                let _ = inner.transport.flush();
            }
        }
    }

    /// Sends the end records of all paths older than this epoch, or than the newest. Returns false
    /// if there is no room for one.
    pub(super) fn end_older(&self, state: &mut State, than: Option<u32>) -> bool {
        let epoch = than.unwrap_or(state.writing.epoch);
        while state.draining.front().is_some_and(|old| old.path.epoch < epoch) {
            if !self.end_oldest(state) {
                return false;
            }
        }
        true
    }

    fn flush_old(&self, state: &mut State) {
        let before = state.flushing.len();
        // A path that fails is one that the peer has left.
        state
            .flushing
            .retain(|path| matches!(path.inner.borrow_mut().transport.flush(), Ok(false)));
        if state.flushing.len() != before {
            self.stop_watching();
        }
    }

    fn report_moves(&self, state: &mut State) {
        let can_send = |path: &Rc<Path>| !matches!(path.inner.borrow().end, End::Open);
        if state.moving.is_empty() || !state.draining.iter().all(|old| can_send(&old.path)) {
            return;
        }
        for (epoch, kind, since) in state.moving.drain(..) {
            let pause_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.counters.moved(epoch, pause_ns);
            if let Some((shared, _)) = &self.control {
                shared.tell_epoch(epoch, kind);
                shared.reporter.moved(self.id, epoch, kind, pause_ns);
            }
        }
    }
}

fn is_held(path: &Rc<Path>) -> bool {
    !path.inner.borrow().outstanding.is_empty()
}

/// Reserves room for the record that ends the path.
fn reserve_end(path: &Path) {
    let mut inner = path.inner.borrow_mut();
    if !matches!(inner.end, End::Open) {
        return;
    }
    match inner.transport.acquire_write(size_of::<u32>()) {
        Ok(Some(slot)) => inner.end = End::Reserved(slot),
        Ok(None) => {}
        // The peer has left the path and reads no end record.
        Err(_) => inner.end = End::Sent,
    }
}

/// Commits the record that ends the path. Returns how many held buffers are now late, or `None` if
/// there is no room.
fn end_path(path: &Path, next: u32) -> Option<usize> {
    let mut inner = path.inner.borrow_mut();
    if matches!(inner.end, End::Open) {
        return None;
    }
    // First: the record wakes the peer, which would stop at a slot that is still held.
    let late = inner.pass_over_outstanding();
    path.is_closed.set(true);
    if let End::Reserved(mut slot) = std::mem::replace(&mut inner.end, End::Sent) {
        slot.copy_from_slice(&next.to_le_bytes());
        // A path that fails here is one that the peer has left; a later call reports that.
        let _ = inner.transport.commit(slot, size_of::<u32>(), Record::EndOfEpoch);
        let _ = inner.transport.flush();
    }
    Some(late)
}
