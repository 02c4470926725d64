//! Moves a flow from one epoch to the next: takes over new paths and ends old ones.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use super::core::{Core, State};
use super::parts::FlowEvent;
use super::path::Path;
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
        self.end_old(state);
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
        state.moving.push((path.epoch, path.kind, Instant::now()));
        // After the flow's last record nothing is written: the path remains until all is sent.
        if !state.writing.is_closed.get() {
            let old = std::mem::replace(&mut state.writing, path);
            state.ending.push_back(old);
        }
    }

    /// Ends old paths, oldest first, as far as there is room for their end records. Buffers of them
    /// that are held are late: they are copied.
    fn end_old(&self, state: &mut State) {
        while let Some(old) = state.ending.front() {
            let next = state.ending.get(1).unwrap_or(&state.writing).epoch;
            let Some(late) = end_path(old, next) else { return };
            state.late += late;
            state.flushing.extend(state.ending.pop_front());
        }
    }

    fn send_backlog(&self, state: &mut State) {
        while state.ending.is_empty() {
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
        if !state.ending.is_empty() {
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

/// Commits the record that ends the path. Returns how many held buffers are now late, or `None` if
/// there is no room.
fn end_path(path: &Path, next: u32) -> Option<usize> {
    let mut inner = path.inner.borrow_mut();
    let slot = match inner.transport.acquire_write(size_of::<u32>()) {
        Ok(None) => return None,
        Ok(slot) => slot,
        // The peer has left the path and reads no end record.
        Err(_) => None,
    };
    // First: the record wakes the peer, which would stop at a slot that is still held.
    let late = inner.pass_over_outstanding();
    path.is_closed.set(true);
    if let Some(mut slot) = slot {
        slot.copy_from_slice(&next.to_le_bytes());
        // A path that fails here is one that the peer has left; a later call reports that.
        let _ = inner.transport.commit(slot, size_of::<u32>(), Record::EndOfEpoch);
        let _ = inner.transport.flush();
    }
    Some(late)
}
