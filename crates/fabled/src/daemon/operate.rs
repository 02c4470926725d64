//! Operators' questions and orders.
//!
//! Names are public. A flow is seen by the users of its ends, by root and by the user who runs the
//! daemon; the same may move it. To others it does not exist.

use fable::{Kind, Name};
use std::collections::HashMap;

use fable::protocol::{Answer, Decision, FlowId, NameEntry, Operation, ToProcess, kind_of};

use super::client::Client;
use super::{Daemon, limits};
use crate::flows::{Flow, Pending, wall_time_s};
use crate::policy::{Urgency, Verdict, best_form, choose, permitted};
use crate::registry::ClientId;

/// Entries of a list in one packet; the longest entry has less than a kilobyte.
const ENTRIES_PER_PACKET: usize = 64;

impl Daemon {
    pub(super) fn operate(&mut self, id: ClientId, request: u64, operation: Operation) {
        let is_list = matches!(operation, Operation::Names | Operation::Flows);
        let queued: usize = match is_list {
            true => self.clients.values().map(Client::queued_bytes).sum(),
            false => 0,
        };
        if queued > limits::QUEUED_BYTES_FOR_LISTS {
            let reason = "too many answers wait for those who asked: try again later";
            return self.refuse(id, request, reason);
        }
        match operation {
            Operation::Names => self.list_names(id, request),
            Operation::Flows => self.list_flows(id, request),
            Operation::Move { flow, transport } => {
                if let Err(reason) = self.order_by_operator(id, request, flow, &transport) {
                    self.refuse(id, request, reason);
                }
            }
            Operation::Why { flow } => match self.explain(id, flow) {
                Ok(answer) => self.answer(id, request, answer),
                Err(reason) => self.refuse(id, request, reason),
            },
            Operation::Protect { flow, protected } => match self.protect(id, flow, protected) {
                Ok(what) => self.answer(id, request, Answer::Done { what }),
                Err(reason) => self.refuse(id, request, reason),
            },
            Operation::Events => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.events = Some(request);
                }
            }
            _ => self.refuse(id, request, "this daemon does not know that operation"),
        }
    }

    fn list_names(&mut self, id: ClientId, request: u64) {
        let mut flows: HashMap<&Name, usize> = HashMap::new();
        for flow in self.flows.values() {
            *flows.entry(&flow.name).or_default() += 1;
        }
        let count = |name: &Name| flows.get(name).copied().unwrap_or(0);
        let mut names: Vec<NameEntry> = Vec::new();
        for found in self.names.iter() {
            let Some(owner) = self.clients.get(&found.owner) else { continue };
            names.push(NameEntry {
                name: found.name.clone(),
                owner: owner.process.peer.clone(),
                epoch: found.epoch,
                flows: count(&found.name),
            });
        }
        names.extend(self.cluster.names().into_iter().map(|found| NameEntry {
            flows: count(&found.name),
            name: found.name,
            owner: found.owner,
            epoch: Some(found.epoch),
        }));
        self.answer_in_parts(id, request, names, |names, more| Answer::Names { names, more });
    }

    fn list_flows(&mut self, id: ClientId, request: u64) {
        let now_ns = self.now_ns();
        let mut flows: Vec<_> = self
            .flows
            .values()
            .filter(|flow| self.may(id, flow))
            .map(|flow| flow.entry(now_ns))
            .collect();
        flows.sort_by_key(|entry| entry.flow);
        self.answer_in_parts(id, request, flows, |flows, more| Answer::Flows { flows, more });
    }

    /// A list that may be longer than a packet.
    fn answer_in_parts<T>(
        &mut self,
        id: ClientId,
        request: u64,
        mut entries: Vec<T>,
        answer: impl Fn(Vec<T>, bool) -> Answer,
    ) {
        loop {
            let rest = entries.split_off(entries.len().min(ENTRIES_PER_PACKET));
            let more = !rest.is_empty();
            self.answer(id, request, answer(entries, more));
            if !more {
                return;
            }
            entries = rest;
        }
    }

    /// Whether the client may see and change the flow.
    fn may(&self, id: ClientId, flow: &Flow) -> bool {
        let uid = self.clients.get(&id).map(|client| client.process.peer.uid);
        self.is_operator(id) || uid.is_some_and(|uid| flow.belongs_to(uid, self.cluster.host()))
    }

    fn visible(&self, id: ClientId, flow: FlowId) -> Result<&Flow, String> {
        self.flows.get(&flow).filter(|known| self.may(id, known)).ok_or_else(|| {
            format!(
                "there is no flow {:016x} that you may see: `fable top` shows those that you may",
                flow.0
            )
        })
    }

    fn order_by_operator(
        &mut self,
        id: ClientId,
        request: u64,
        flow: FlowId,
        transport: &str,
    ) -> Result<(), String> {
        let known = self.visible(id, flow)?;
        if transport == "auto" {
            self.unpin(flow);
            let what = format!("the policy chooses the transport of flow {:016x} again", flow.0);
            self.event(Some(flow), &what);
            self.answer(id, request, Answer::Done { what });
            return Ok(());
        }
        let facts = self.facts(known);
        let kind = ordered_kind(transport, |kind| best_form(kind, &facts))?;
        permitted(kind, &facts, &self.policy)?;
        let (current, pinned_before) = (known.current, known.pinned);
        if known.mover().is_none() || current.is_none() {
            return Err(format!("flow {:016x} is only just being made: try again", flow.0));
        }
        let uid = self.clients.get(&id).map_or(u32::MAX, |client| client.process.peer.uid);
        let overtaken = self.flows.get_mut(&flow).and_then(|known| {
            known.pinned = Some(kind);
            known.pending.take()
        });
        if let Some((operator, number)) = overtaken.and_then(|pending| pending.operator) {
            self.refuse(operator, number, "another operator's order has overtaken this one");
        }
        if current == Some(kind) {
            let what = format!("flow {:016x} is on {kind} already, and stays there", flow.0);
            self.event(Some(flow), &what);
            self.answer(id, request, Answer::Done { what });
            return Ok(());
        }
        let reason = format!("user {uid} ordered it");
        let verdict = Verdict { kind, reason, urgency: Urgency::Must };
        let since_ns = self.now_ns();
        let pending = Pending { kind, since_ns, operator: Some((id, request)), pinned_before };
        self.order(flow, &verdict, pending);
        Ok(())
    }

    fn unpin(&mut self, flow: FlowId) {
        if let Some(known) = self.flows.get_mut(&flow) {
            known.pinned = None;
        }
        self.reconsider(flow);
    }

    fn explain(&self, id: ClientId, flow: FlowId) -> Result<Answer, String> {
        let known = self.visible(id, flow)?;
        let verdict = choose(&self.facts(known), &self.policy);
        let outcome = match known.current {
            Some(kind) if kind == verdict.kind => "the choice now".to_owned(),
            _ if known.pending.is_some() => "the choice now; a move is under way".to_owned(),
            _ if verdict.urgency == Urgency::Must => "the choice now, not yet possible".to_owned(),
            _ => "the choice now, if it stays so for a while".to_owned(),
        };
        let mut decisions: Vec<_> = known.history.iter().cloned().collect();
        decisions.push(Decision {
            time_s: wall_time_s(),
            transport: verdict.kind.to_string(),
            reason: verdict.reason,
            outcome,
        });
        Ok(Answer::Why { flow: Box::new(known.entry(self.now_ns())), decisions })
    }

    fn protect(&mut self, id: ClientId, flow: FlowId, on: bool) -> Result<String, String> {
        let known = self.visible(id, flow)?;
        let one_user = known.ends[0].peer.uid == known.ends[1].peer.uid;
        if !on && !one_user && !self.is_operator(id) {
            return Err("the ends belong to two users: only an operator may take the protection \
                 from both"
                .to_owned());
        }
        if !on && !known.local && !known.trusted_network {
            return Err("the flow leaves this host over a network that is not in the policy's \
                 trusted_networks, so it stays protected"
                .to_owned());
        }
        let ends = known.ends.iter().filter_map(|end| end.client);
        let mut clients: Vec<ClientId> = ends.collect();
        clients.dedup();
        if let Some(known) = self.flows.get_mut(&flow) {
            known.protected = on;
        }
        for client in clients {
            self.send(client, &ToProcess::Protect { flow, protected: on }, &[]);
        }
        let state = if on { "must be protected" } else { "need not be protected" };
        let what = format!("flow {:016x} {state} beyond this host", flow.0);
        self.event(Some(flow), &what);
        self.reconsider(flow);
        Ok(what)
    }
}

/// The kind that an operator names. Without a form it means the best that is allowed.
fn ordered_kind(name: &str, best: impl Fn(Kind) -> Kind) -> Result<Kind, String> {
    let kind = kind_of(name).map_err(|unknown| format!("{unknown}, and auto"))?;
    let without_form = kind.form().is_some() && kind.base_name() == name;
    Ok(if without_form { best(kind) } else { kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fable::Form;

    #[test]
    fn a_kind_without_form_means_the_best_one() {
        let best = |kind| match kind {
            Kind::MempipeSpin(_) => Kind::MempipeSpin(Form::Unsafe),
            other => other,
        };
        assert_eq!(ordered_kind("mempipe-spin", best), Ok(Kind::MempipeSpin(Form::Unsafe)));
        assert_eq!(ordered_kind("mempipe-spin-safe", best), Ok(Kind::MempipeSpin(Form::Safe)));
        assert_eq!(ordered_kind("unix", best), Ok(Kind::Unix));
        assert!(ordered_kind("pigeon", best).unwrap_err().contains("auto"));
    }
}
