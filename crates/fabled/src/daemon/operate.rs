//! Handles requests of operators.
//!
//! All users can see all names. A flow can be seen and moved by the users of its ends, by root and
//! by the user who runs the daemon. For other users it does not exist.

use fable::Name;
use std::collections::HashMap;

use fable::protocol::{Answer, Decision, FlowId, NameEntry, Operation};

use super::client::Client;
use super::{Daemon, limits};
use crate::flows::{Flow, wall_time_s};
use crate::policy::{Urgency, choose};
use crate::registry::ClientId;

/// The most entries of a list in one packet; the longest entry has less than a kilobyte.
const ENTRIES_PER_PACKET: usize = 64;

impl Daemon {
    /// Handles `Operate`.
    pub(super) fn operate(&mut self, id: ClientId, request: u64, operation: Operation) {
        let is_list = matches!(operation, Operation::Names | Operation::Flows | Operation::Users);
        if is_list && self.queued_bytes_of_user(id) > limits::QUEUED_BYTES_FOR_LISTS {
            let reason = "too many answers wait for processes of your user: let them read first";
            return self.refuse_and_count(id, request, reason);
        }
        match operation {
            Operation::Names => self.list_names(id, request),
            Operation::Flows => self.list_flows(id, request),
            Operation::Users => self.list_users(id, request),
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

    fn queued_bytes_of_user(&self, id: ClientId) -> usize {
        let Some(account) = self.clients.get(&id).map(|client| client.holder.account()) else {
            return 0;
        };
        let own = self.clients.values().filter(|client| client.holder.account() == account);
        own.map(Client::queued_bytes).sum()
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
                is_gone: !owner.process.is_alive(),
                service_owner: None,
            });
        }
        names.extend(self.cluster.names().into_iter().map(|found| NameEntry {
            flows: count(&found.name),
            name: found.name,
            owner: found.owner,
            epoch: Some(found.epoch),
            is_gone: false,
            service_owner: None,
        }));
        let mut owners: HashMap<String, Option<u32>> = HashMap::new();
        for entry in &mut names {
            let Name::Fable { service, .. } = &entry.name else { continue };
            let owner = owners.entry(service.clone());
            let find = || self.owner_of(&entry.name).map(|owner| owner.uid);
            entry.service_owner = *owner.or_insert_with(find);
        }
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

    /// Sends a list in several answers if it does not fit into one packet.
    pub(super) fn answer_in_parts<T>(
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

    /// Returns whether the client may see and change the flow.
    fn may(&self, id: ClientId, flow: &Flow) -> bool {
        let uid = self.clients.get(&id).map(|client| client.process.peer.uid);
        self.is_operator(id) || uid.is_some_and(|uid| flow.belongs_to(uid, self.cluster.host()))
    }

    /// Returns a flow that this client may see, or the text of a refusal.
    pub(super) fn visible(&self, id: ClientId, flow: FlowId) -> Result<&Flow, String> {
        self.flows.get(&flow).filter(|known| self.may(id, known)).ok_or_else(|| {
            format!(
                "there is no flow {flow} that you may see: `fable top` shows those that you may"
            )
        })
    }

    fn explain(&self, id: ClientId, flow: FlowId) -> Result<Answer, String> {
        let known = self.visible(id, flow)?;
        let verdict = choose(&self.facts(known), &self.policy);
        let outcome = match known.current {
            Some(kind) if kind == verdict.kind => "the choice now".to_owned(),
            _ if known.pending.is_some() => "the choice now; a move is under way".to_owned(),
            _ if !known.may_choose(&verdict) => {
                format!(
                    "the choice now, but that is up to the daemon of {}",
                    known.ends[0].peer.host
                )
            }
            _ if verdict.urgency != Urgency::Better => {
                "the choice now, not yet possible".to_owned()
            }
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
}
