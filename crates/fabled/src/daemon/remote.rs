//! Handles events and connections from other hosts.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use fable::protocol::{FlowId, Role, ToProcess};

use super::names::{Caller, admits, who};
use super::{Daemon, limits};
use crate::cluster_link::{ClusterEvent, Ticket};
use crate::flows::End;
use crate::log_quota;
use crate::quota::{self, Account};
use crate::registry::ClientId;

impl Daemon {
    /// Handles the events of the cluster.
    pub(super) fn take_cluster_events(&mut self) {
        for event in self.cluster.take_events() {
            match event {
                ClusterEvent::Connection { stream, ticket } => {
                    let flow = ticket.flow;
                    let account = Account::Host(ticket.peer.host.clone());
                    let _acting = log_quota::acting(Some(self.quotas.holder(&account)));
                    if let Err(why) = self.incoming(stream, &ticket) {
                        let from = format!("{} on {}", who(&ticket.peer), ticket.peer.host);
                        let name = &ticket.name;
                        let what = format!("flow {flow}: {from} may not connect to {name}: {why}");
                        self.event(Some(flow), &what);
                    }
                }
                ClusterEvent::Published { name, epoch } => {
                    if let Some(registration) = self.names.get_mut(&name) {
                        registration.epoch = Some(epoch);
                    }
                    let what = format!("{name} is known to the cluster, with epoch {epoch}");
                    self.event(None, &what);
                }
                ClusterEvent::NameConflict { name, holder } => {
                    if let Some(registration) = self.names.get_mut(&name) {
                        registration.epoch = None;
                    }
                    let what = format!(
                        "{name} stays on this host only: {holder} has it in the cluster; \
                         register it as another instance"
                    );
                    self.event(None, &what);
                }
                ClusterEvent::NameFound { name, host } => {
                    self.event(None, &format!("{name} is on {host}"));
                    self.retry_connects();
                }
                ClusterEvent::NameGone { name } => {
                    self.event(None, &format!("{name} is gone from the cluster"));
                }
                ClusterEvent::Up => self.event(None, "the cluster is reached"),
                ClusterEvent::Down { reason } => {
                    let what =
                        format!("the cluster is out of reach, its names may be old: {reason}");
                    self.event(None, &what);
                }
            }
        }
    }

    /// Handles a process of another host that connects to a name of this host. The other daemon's
    /// ticket identifies the process; this daemon decides whether it may connect.
    fn incoming(&mut self, stream: TcpStream, ticket: &Ticket) -> Result<(), String> {
        if self.flows.contains_key(&ticket.flow) {
            return Err("there is such a flow already".to_owned());
        }
        let account = Account::Host(ticket.peer.host.clone());
        let charge = self.quotas.holder(&account).charge(quota::flow())?;
        let caller = Caller {
            peer: &ticket.peer,
            groups: &[],
            by_default: self.policy.access,
            owner: self.owner_of(&ticket.name),
            expected: None,
        };
        let found = self.names.pick(&ticket.name, |found| admits(found, &caller));
        let found = found.map_err(|refused| match refused {
            Some(refusal) => refusal.reason,
            None => "nobody has registered it".to_owned(),
        })?;
        let Some(leader) = self.clients.get(&found.owner) else {
            return Err("its process is gone".to_owned());
        };
        if leader.queued() >= limits::QUEUE_FOR_INCOMING {
            return Err("it does not keep up with its connections".to_owned());
        }
        let ends = [
            End {
                peer: leader.process.peer.clone(),
                client: Some(leader.id),
                process: Some(Rc::clone(&leader.process)),
                trust: found.trust,
            },
            End { peer: ticket.peer.clone(), client: None, process: None, trust: ticket.trust },
        ];
        let memory = fable::page::create_for(ticket.flow).map_err(|error| error.to_string())?;
        let mut flow = self
            .flow_with(ticket.flow, &found.name, ends, &memory)
            .map_err(|error| error.to_string())?;
        let address = stream.peer_addr().map_err(|error| error.to_string())?;
        flow.trusted_network = self.policy.trusts(address.ip());
        flow.protected = ticket.protected || !flow.trusted_network;
        let verdict = self.first_choice(&mut flow)?;
        let incoming = ToProcess::Incoming {
            flow: flow.id,
            name: found.name.clone(),
            peer: ticket.peer.clone(),
            trust: ticket.trust,
            local: false,
            protected: flow.protected,
            transport: verdict.kind.to_string(),
            reason: verdict.reason.clone(),
        };
        let what = format!(
            "flow {}: {} on {} connects to {} over {}: {}",
            flow.id,
            who(&ticket.peer),
            ticket.peer.host,
            found.name,
            verdict.kind,
            verdict.reason
        );
        self.keep(flow, found.owner, charge);
        let descriptors = [Rc::new(OwnedFd::from(stream)), Rc::new(memory)];
        self.send(found.owner, &incoming, &descriptors);
        self.event(Some(ticket.flow), &what);
        Ok(())
    }

    /// Handles `GetKeys`.
    pub(super) fn get_keys(&mut self, id: ClientId, request: u64, flow: FlowId, role: Role) {
        let Some(known) = self.flows.get(&flow) else {
            return self.refuse(id, request, "there is no such flow");
        };
        if known.ends[role.index()].client != Some(id) {
            return self.refuse(id, request, "this end of the flow is not yours");
        }
        match self.cluster.keys(flow, role) {
            Ok(keys) => self.send(id, &ToProcess::Keys { request, keys }, &[]),
            Err(error) => self.refuse(id, request, error.to_string()),
        }
    }
}
