//! Executes the operations that start, end or change processes, or that need two of them.

use crate::host::{Agent, Request};
use crate::model::Checked;
use crate::plan::Plan;
use crate::protocol::{Answer, Call, Reply};
use crate::run::Run;
use crate::script::{SLOTS, Verb};
use fuzzkit::Failure;

impl Run<'_> {
    /// Executes such an operation; returns `None` if nothing was done.
    pub(crate) fn process(&mut self, plan: &Plan) -> Checked<Option<Reply>> {
        let process = plan.op.process;
        match plan.op.verb {
            Verb::Fork => self.fork(process).map(Some),
            Verb::Pass => self.pass(plan).map(Some),
            Verb::Interrupt => self.interrupt(plan),
            // The bytes that a program with a running cat has read and written would not be known.
            _ if self.executes(process) => Ok(None),
            Verb::Again => self.again(plan).map(Some),
            verb => self.end(process, verb == Verb::Kill).map(Some),
        }
    }

    fn executes(&self, process: usize) -> bool {
        let is_such = |plan: &Plan| plan.op.process == process && plan.op.verb == Verb::Execute;
        self.waiting.values().any(|waiting| is_such(&waiting.plan))
    }

    fn fork(&mut self, process: usize) -> Checked<Reply> {
        let broken = |error| Failure::new("a child does not start", format!("{error}"));
        let (place, pipes) = self.pair.pipes(process + 2).map_err(broken)?;
        let mut request = Request::new(Call::Fork, &[]);
        request.bytes = place.as_os_str().as_encoded_bytes().to_vec();
        let reply = self.pair.ask(process, &request)?;
        if let Reply::Done(answer) = &reply
            && answer.result > 0
        {
            let mut child = Agent::forked(answer.result as i32, pipes).map_err(broken)?;
            let started = child.receive(crate::host::ANSWER_TIME_MAX);
            started.map_err(|lost| broken(std::io::Error::other(format!("{lost:?}"))))?;
            self.pair.agents[process + 2] = Some(child);
            self.model.processes[process + 2] = self.model.processes[process].clone();
        }
        Ok(reply)
    }

    fn pass(&mut self, plan: &Plan) -> Checked<Reply> {
        let op = plan.op;
        let reply = self.pair.ask(op.process, &plan.request)?;
        let Reply::Done(sent) = reply else { return Ok(reply) };
        if sent.result < 0 {
            return Ok(Reply::Done(sent));
        }
        let other = 1 - op.process;
        let reply = self.pair.ask(other, &Request::new(Call::Take, &[]))?;
        let Reply::Done(mut taken) = reply else { return Ok(reply) };
        if let Some(slot) = self.model.slot(op.process, op.slot)
            && taken.result >= 0
        {
            let copy = crate::model::Slot { fd: taken.result, closes_on_exec: false, ..slot };
            self.model.processes[other].slots[op.a as usize % SLOTS] = Some(copy);
        }
        taken.took_us += sent.took_us;
        Ok(Reply::Done(taken))
    }

    fn interrupt(&mut self, plan: &Plan) -> Checked<Option<Reply>> {
        let process = plan.op.process;
        let is_call = |id: &usize| self.waiting[id].plan.op.verb != Verb::Execute;
        let Some(id) = self.oldest(process).filter(is_call) else { return Ok(None) };
        let request = Request::new(Call::Interrupt, &[id as i64]);
        self.pair.ask(process, &request).map(Some)
    }

    /// Forgets the pending calls of a process, which end with it.
    fn forget(&mut self, process: usize) {
        let gone: Vec<usize> = self
            .waiting
            .iter()
            .filter(|at| at.1.plan.op.process == process)
            .map(|at| *at.0)
            .collect();
        for id in gone {
            let Some(waiting) = self.waiting.remove(&id) else { continue };
            self.occupy(&waiting.plan, false);
            let Some(end) = waiting.plan.end else { continue };
            match (waiting.plan.op.verb, waiting.plan.op.a) {
                (Verb::Read, _) | (Verb::Execute, 0) => {
                    self.model.incoming(end).is_unchecked = true;
                }
                (Verb::Write | Verb::Execute, _) => self.model.outgoing(end).is_uncertain = true,
                _ => {}
            }
        }
    }

    fn again(&mut self, plan: &Plan) -> Checked<Reply> {
        let process = plan.op.process;
        let reply = self.pair.ask(process, &plan.request)?;
        self.forget(process);
        for slot in &mut self.model.processes[process].slots {
            if slot.is_some_and(|slot| slot.closes_on_exec) {
                *slot = None;
            }
        }
        Ok(reply)
    }

    pub(crate) fn end(&mut self, process: usize, by_signal: bool) -> Checked<Reply> {
        let name = self.pair.mode().name();
        if let Some(mut agent) = self.pair.agents[process].take() {
            let hangs = |_| Failure::new(format!("{name}: a process does not exit"), "");
            agent.end(by_signal).map_err(hangs)?;
            if let Some(Some(parent)) =
                process.checked_sub(2).and_then(|parent| self.pair.agents.get_mut(parent))
            {
                // The parent may have executed another program, but is still the child's parent.
                let _ = parent.must(Call::Reap, &[i64::from(agent.pid)]);
            }
        }
        self.forget(process);
        self.model.processes[process] = Default::default();
        Ok(Reply::Done(Answer::default()))
    }
}
