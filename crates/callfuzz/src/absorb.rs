//! Updates the controller's model with the result of a call, and checks the bytes.

use crate::model::{Checked, Kind, Member, Model, Open, Slot};
use crate::plan::{Plan, how, peeks, read_flags, takes_flags};
use crate::protocol::Answer;
use crate::script::{REFUSED, SLOTS, Verb};

impl Model {
    /// Updates the model after a call has returned.
    pub(crate) fn absorb(&mut self, plan: &Plan, answer: &Answer) -> Checked {
        let op = plan.op;
        self.absorb_error(plan, answer);
        match op.verb {
            Verb::Read => return self.absorb_read(plan, answer),
            Verb::Write => self.absorb_write(plan, answer),
            Verb::Execute => return self.absorb_execute(plan, answer),
            // The connect may be in progress.
            Verb::Connect if answer.result == 0 || answer.errno == i64::from(libc::EINPROGRESS) => {
                let target = self.slot((op.a as usize / SLOTS) % 2, op.a as usize % SLOTS);
                let own = self.slot(op.process, op.slot);
                if let (Some(own), Some(target)) = (own, target)
                    && (op.a as usize) < REFUSED
                {
                    self.connect(own.file, target.file);
                }
            }
            _ if answer.result < 0 => {}
            Verb::Socket => {
                let is_nonblocking = op.a & 1 != 0;
                let open = Open { kind: Kind::Fresh, is_nonblocking };
                self.place(op.process, op.slot, answer.result, open);
                self.closes_on_exec(op.process, op.slot, op.a & 2 != 0);
            }
            Verb::EpollCreate => {
                let open = Open { kind: Kind::Set(Default::default()), is_nonblocking: false };
                self.place(op.process, op.slot, answer.result, open);
            }
            Verb::Accept => self.absorb_accept(plan, answer),
            Verb::Shutdown => {
                if let Some(end) = plan.end {
                    self.incoming(end).is_shut |= op.a != 1;
                    self.outgoing(end).is_ended |= op.a != 0;
                } else if op.a != 1
                    && let Some(slot) = self.slot(op.process, op.slot)
                    && let Kind::Listener { .. } = self.open(slot).kind
                {
                    // The socket no longer listens, and connections in its queue are reset.
                    self.files[slot.file].kind = Kind::Fresh;
                }
            }
            Verb::Close => self.processes[op.process].slots[op.slot] = None,
            Verb::Duplicate => self.absorb_duplicate(plan, answer),
            Verb::Nonblock => {
                if let Some(slot) = self.slot(op.process, op.slot) {
                    self.files[slot.file].is_nonblocking = op.a == 1;
                }
            }
            Verb::EpollAdd | Verb::EpollModify | Verb::EpollDelete => {
                let set = self.slot(op.process, op.slot).map(|slot| slot.file);
                let fd = self.slot(op.process, op.a as usize % SLOTS).map_or(-1, |slot| slot.fd);
                if let (Some(set), Some(member)) = (set, plan.files.first())
                    && let Kind::Set(members) = &mut self.files[set].kind
                {
                    if op.verb == Verb::EpollDelete {
                        members.remove(member);
                    } else {
                        members
                            .entry(*member)
                            .or_insert(Member { events: 0, fd, told: 0 })
                            .events = op.b;
                    }
                }
            }
            Verb::EpollWait => self.absorb_events(plan, answer),
            _ => {}
        }
        Ok(())
    }

    /// Records the reported events of ends whose sending side was shut down.
    fn absorb_events(&mut self, plan: &Plan, answer: &Answer) {
        for pair in answer.more.chunks_exact(2) {
            let file = pair[0] as usize;
            let is_ended = self
                .end(file)
                .is_some_and(|(of, side)| self.connections[of].directions[side].is_ended);
            if let (true, Some(set)) = (is_ended, plan.files.first())
                && let Kind::Set(members) = &mut self.files[*set].kind
                && let Some(member) = members.get_mut(&file)
            {
                member.told |= pair[1];
            }
        }
    }

    /// Records what matters for later operations.
    pub(crate) fn note_course(&mut self, plan: &Plan) {
        let op = plan.op;
        if op.verb == Verb::Kill {
            self.note_killed(op.process);
        }
        if matches!(op.verb, Verb::Exit | Verb::Kill) {
            self.note_ended(op.process);
        }
        // A program inherits all descriptors without close-on-exec.
        if matches!(op.verb, Verb::Again | Verb::Execute) {
            let slots = self.processes[op.process].slots;
            let given = slots.iter().flatten().filter(|slot| !slot.closes_on_exec);
            for end in given.filter_map(|slot| self.end(slot.file)).collect::<Vec<_>>() {
                self.note_given(end);
            }
        }
        let Some(end) = plan.end else { return };
        match op.verb {
            Verb::Pass => self.note_given(end),
            Verb::Shutdown => {
                let is_shut = op.a != 1 || self.incoming(end).is_shut;
                let is_ended = op.a != 0 || self.outgoing(end).is_ended;
                let connection = &mut self.connections[end.0];
                connection.lacks_shut |= is_shut && is_ended && connection.is_owed[end.1];
            }
            Verb::SetOption if op.a == 6 => {
                self.connections[end.0].is_corked[end.1] = op.b != 0;
            }
            Verb::Write => {
                let corked = self.connections[end.0].is_corked[end.1];
                let may_lag = self.may_lag(end);
                let direction = self.outgoing(end);
                direction.is_held |= corked || (takes_flags(op) && op.b & 32 != 0);
                direction.may_lag |= may_lag;
            }
            _ => {}
        }
        if matches!(op.verb, Verb::Read | Verb::Write | Verb::Shutdown | Verb::Close) {
            self.connections[end.0].is_owed[1 - end.1] = false;
        }
    }

    /// Records an error. The kernel reports a reset once; after that, the stream seems to end
    /// normally.
    pub(crate) fn absorb_error(&mut self, plan: &Plan, answer: &Answer) {
        let Some(end) = plan.end else { return };
        let is_errno = |errno: i32| answer.result == -1 && answer.errno == i64::from(errno);
        let is_told = plan.op.verb == Verb::GetOption
            && plan.op.a == 0
            && answer.bytes.iter().any(|byte| *byte != 0);
        let is_broken = is_errno(libc::EPIPE) && !self.outgoing(end).is_ended;
        if is_errno(libc::ECONNRESET) || is_broken || is_told {
            self.incoming(end).was_reset = true;
        }
    }

    /// Returns whether the kernel answers bytes to the peer with a reset: the peer has closed the
    /// connection, or has shut reading down.
    fn may_be_reset(&self, (connection, side): (usize, usize)) -> bool {
        let is_closed = self.ends(connection)[1 - side].is_none();
        is_closed || self.connections[connection].directions[side].is_shut
    }

    fn closes_on_exec(&mut self, process: usize, slot: usize, closes: bool) {
        if let Some(slot) = &mut self.processes[process].slots[slot] {
            slot.closes_on_exec = closes;
        }
    }

    fn absorb_accept(&mut self, plan: &Plan, answer: &Answer) {
        let op = plan.op;
        let Some(listener) = self.slot(op.process, op.slot) else { return };
        let Kind::Listener { queue, .. } = &mut self.files[listener.file].kind else { return };
        let Some(connection) = queue.pop_front() else { return };
        let takes = how(op) == 2;
        let open = Open {
            kind: Kind::End { connection, side: 1 },
            is_nonblocking: takes && op.b & 16 != 0,
        };
        let to = op.a as usize % SLOTS;
        self.place(op.process, to, answer.result, open);
        self.closes_on_exec(op.process, to, takes && op.b & 32 != 0);
    }

    fn absorb_duplicate(&mut self, plan: &Plan, answer: &Answer) {
        let op = plan.op;
        let Some(slot) = self.slot(op.process, op.slot) else { return };
        let to = op.a as usize % SLOTS;
        let copy = Slot { fd: answer.result, closes_on_exec: op.b == 4, ..slot };
        if answer.result != slot.fd {
            // A descriptor with this number is replaced.
            let slots = &mut self.processes[op.process].slots;
            for at in slots.iter_mut().filter(|at| at.is_some_and(|at| at.fd == copy.fd)) {
                *at = None;
            }
            slots[to] = Some(copy);
        }
    }

    fn absorb_read(&mut self, plan: &Plan, answer: &Answer) -> Checked {
        let Some(end) = plan.end else { return Ok(()) };
        let op = plan.op;
        let flags = if takes_flags(op) { read_flags(op) } else { 0 };
        let direction = self.incoming(end);
        if flags & libc::MSG_OOB != 0 {
            // The urgent byte is not part of the stream.
            return Ok(());
        }
        if flags & libc::MSG_TRUNC != 0 {
            // Bytes are dropped; which ones is not known if urgent ones are among them.
            if !peeks(op) && answer.result > 0 {
                direction.skip(answer.result as u64);
            }
        } else {
            direction.take(&answer.bytes, peeks(op))?;
        }
        let waits = direction.read < direction.written || direction.has_writer;
        direction.is_held &= waits;
        direction.may_lag &= waits;
        // splice(2) returns 0 before an urgent byte, too.
        let may_be_mark = how(op) == 6 && direction.has_urgent();
        if answer.result == 0 && op.a > 0 && !may_be_mark { direction.end() } else { Ok(()) }
    }

    fn absorb_write(&mut self, plan: &Plan, answer: &Answer) {
        let Some(end) = plan.end else { return };
        let op = plan.op;
        if answer.result <= 0 {
            return;
        }
        let is_short = (answer.result as usize) < plan.request.bytes.len();
        if matches!(how(op), 6 | 7) && is_short && self.may_be_reset(end) {
            // sendfile(2) and splice(2) move the bytes in pieces. An error that ends them after the
            // first piece is lost: the kernel has reported it, and they return the bytes.
            self.incoming(end).was_reset = true;
        }
        if self.was_killed(end.0, 1 - end.1) {
            self.connections[end.0].has_late_bytes = true;
        }
        let direction = self.outgoing(end);
        if takes_flags(op) && op.b & 128 != 0 {
            direction.send_urgent();
        } else {
            direction.written += answer.result as u64;
        }
        self.note_room(end.0, 0);
    }

    fn absorb_execute(&mut self, plan: &Plan, answer: &Answer) -> Checked {
        let Some(end) = plan.end else { return Ok(()) };
        let op = plan.op;
        let is_well = answer.result == 0;
        if op.a > 0 {
            let direction = self.outgoing(end);
            if is_well {
                direction.written += u64::from(op.a);
            } else {
                direction.is_uncertain = true;
                self.incoming(end).was_reset = true;
            }
            self.note_room(end.0, 0);
            return Ok(());
        }
        let direction = self.incoming(end);
        direction.take(&answer.bytes, false)?;
        direction.was_reset |= !is_well;
        if is_well { direction.end() } else { Ok(()) }
    }
}
