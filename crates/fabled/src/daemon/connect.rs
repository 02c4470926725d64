//! New flows.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use fable::orders::Orders;
use fable::packet;
use fable::page::{self, Page};
use fable::protocol::{FlowId, ToProcess, Trust, kind_of};
use fable::{Kind, Name};

use super::names::{admits, who};
use super::{Daemon, limits};
use crate::cluster_link::{RemoteName, Ticket};
use crate::flows::{End, Flow, Meter, Outcome, Pending};
use crate::policy::steady::Steady;
use crate::policy::{Verdict, choose, permitted};
use crate::process::Process;
use crate::registry::{ClientId, Registration};

/// What the client wants, as far as it was understood.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) request: u64,
    pub(super) trust: Trust,
    pub(super) insisted: Option<Kind>,
}

impl Daemon {
    pub(super) fn connect(
        &mut self,
        id: ClientId,
        request: u64,
        name: &Name,
        trust: Trust,
        transport: Option<&str>,
    ) {
        let Some(client) = self.clients.get(&id) else { return };
        if client.flows >= limits::FLOWS_OF_CLIENT_MAX {
            let most = limits::FLOWS_OF_CLIENT_MAX;
            let reason = format!("one process makes at most {most} flows: end some first");
            return self.refuse(id, request, reason);
        }
        if self.flows.len() >= limits::FLOWS_MAX {
            return self.refuse(id, request, "this host has as many flows as it may have");
        }
        let insisted = match transport.map(kind_of).transpose() {
            Ok(kind) => kind,
            Err(unknown) => return self.refuse(id, request, unknown.to_string()),
        };
        self.connect_wanted(id, name, Wanted { request, trust, insisted });
    }

    pub(super) fn connect_wanted(&mut self, id: ClientId, name: &Name, wanted: Wanted) {
        let Some(client) = self.clients.get(&id) else { return };
        let request = wanted.request;
        let (process, access) = (Rc::clone(&client.process), self.policy.access);
        let admits = |found: &Registration| admits(found, &process.peer, &process.groups, access);
        let result = match self.names.pick(name, admits) {
            Ok(found) => self.connect_here(id, &wanted, &found),
            Err(refused) => match self.pick_elsewhere(name) {
                Some(found) => self.connect_elsewhere(id, &wanted, &found),
                None if refused.is_none() && self.returning.keep(id, name, &wanted) => Ok(()),
                None => Err(refused.unwrap_or_else(|| unknown(name))),
            },
        };
        if let Err(reason) = result {
            self.refuse(id, request, reason);
        }
    }

    fn connect_here(
        &mut self,
        id: ClientId,
        wanted: &Wanted,
        found: &Registration,
    ) -> Result<(), String> {
        let (Some(leader), Some(follower)) =
            (self.clients.get(&found.owner), self.clients.get(&id))
        else {
            return Err(unknown(&found.name));
        };
        // Whoever connects too often must not get the listener disconnected.
        if leader.queued() >= limits::QUEUE_FOR_INCOMING {
            return Err(format!("{} does not keep up with its connections: try later", found.name));
        }
        let ends = [(leader, found.trust), (follower, wanted.trust)].map(|(client, trust)| End {
            peer: client.process.peer.clone(),
            client: Some(client.id),
            process: Some(Rc::clone(&client.process)),
            trust,
        });
        let (mut flow, memory) = self.new_flow(&found.name, ends).map_err(no_memory)?;
        flow.local = true;
        flow.insisted = wanted.insisted;
        let verdict = self.first_choice(&mut flow)?;
        let pair = packet::pair().map_err(|error| {
            format!("the daemon cannot make a pair of sockets: {error}; are there too many flows?")
        })?;
        let (leading, following) = (Rc::new(pair.0), Rc::new(pair.1));
        let (transport, reason) = (verdict.kind.to_string(), verdict.reason);
        let (request, name, id_of_flow) = (wanted.request, found.name.clone(), flow.id);
        let incoming = ToProcess::Incoming {
            flow: flow.id,
            name: name.clone(),
            peer: flow.ends[1].peer.clone(),
            trust: wanted.trust,
            local: true,
            protected: flow.protected,
            transport: transport.clone(),
            reason: reason.clone(),
        };
        let peer = flow.ends[0].peer.clone();
        let what = format!(
            "flow {}: {} connects to {name} over {transport}: {reason}",
            flow.id,
            who(&flow.ends[1].peer)
        );
        let processes = flow.ends.each_ref().map(|end| end.process.clone());
        self.keep(flow, id);
        let [leader, follower] = processes;
        let given = self.with_process(found.owner, vec![leading, Rc::clone(&memory)], follower);
        self.send(found.owner, &incoming, &given);
        let connected =
            ToProcess::Connected { request, flow: id_of_flow, name, peer, transport, reason };
        let given = self.with_process(id, vec![following, memory], leader);
        self.send(id, &connected, &given);
        self.event(Some(id_of_flow), &what);
        Ok(())
    }

    /// The descriptors for an end, and the peer's pidfd if the end understands that.
    fn with_process(
        &self,
        to: ClientId,
        mut descriptors: Vec<Rc<OwnedFd>>,
        peer: Option<Rc<Process>>,
    ) -> Vec<Rc<OwnedFd>> {
        let understands = self.clients.get(&to).is_some_and(|client| client.revision >= 2);
        let handle = peer.as_ref().and_then(|process| process.handle());
        descriptors.extend(handle.filter(|_| understands).cloned());
        descriptors
    }

    /// The name on another host: one after the other.
    fn pick_elsewhere(&self, name: &Name) -> Option<RemoteName> {
        let mut found = self.cluster.find(name);
        if found.is_empty() {
            return None;
        }
        let turn = usize::try_from(random().ok()?).unwrap_or(0) % found.len();
        Some(found.swap_remove(turn))
    }

    fn connect_elsewhere(
        &mut self,
        id: ClientId,
        wanted: &Wanted,
        found: &RemoteName,
    ) -> Result<(), String> {
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        if found.addresses.is_empty() {
            return Err(format!(
                "{} is on {}, whose daemon has told no address: start it with --listen",
                found.name, found.owner.host
            ));
        }
        let leader =
            End { peer: found.owner.clone(), client: None, process: None, trust: Trust::Untrusted };
        let follower = End {
            peer: client.process.peer.clone(),
            client: Some(id),
            process: Some(Rc::clone(&client.process)),
            trust: wanted.trust,
        };
        let (mut flow, memory) =
            self.new_flow(&found.name, [leader, follower]).map_err(no_memory)?;
        flow.trusted_network =
            found.addresses.iter().all(|address| self.policy.trusts(address.ip()));
        flow.insisted = wanted.insisted;
        let verdict = self.first_choice(&mut flow)?;
        flow.protected |= !flow.trusted_network;
        let ticket = Ticket {
            flow: flow.id,
            name: found.name.clone(),
            peer: flow.ends[1].peer.clone(),
            trust: wanted.trust,
            protected: flow.protected,
        };
        let host = &found.owner.host;
        let ticket = self.cluster.ticket(&ticket, host).map_err(|error| {
            format!("{} is on {host}, which cannot be reached now: {error}", found.name)
        })?;
        let elsewhere = ToProcess::Elsewhere {
            request: wanted.request,
            flow: flow.id,
            name: found.name.clone(),
            peer: found.owner.clone(),
            addresses: found.addresses.clone(),
            ticket,
            protected: flow.protected,
        };
        let id_of_flow = flow.id;
        let what = format!(
            "flow {id_of_flow}: {} connects to {} on {host} over {}: {}",
            who(&flow.ends[1].peer),
            found.name,
            verdict.kind,
            verdict.reason
        );
        self.keep(flow, id);
        self.send(id, &elsewhere, &[memory]);
        self.event(Some(id_of_flow), &what);
        Ok(())
    }

    /// A flow without a path, and the memory of its page.
    pub(super) fn new_flow(
        &self,
        name: &Name,
        ends: [End; 2],
    ) -> Result<(Flow, Rc<OwnedFd>), io::Error> {
        let memory = page::create().map_err(io::Error::other)?;
        let id = loop {
            let id = FlowId(random()?);
            if !self.flows.contains_key(&id) {
                break id;
            }
        };
        Ok((self.flow_with(id, name, ends, &memory)?, Rc::new(memory)))
    }

    /// A flow of this number with this page.
    pub(super) fn flow_with(
        &self,
        id: FlowId,
        name: &Name,
        ends: [End; 2],
        memory: &OwnedFd,
    ) -> Result<Flow, io::Error> {
        let now_ns = self.now_ns();
        Ok(Flow {
            id,
            name: name.clone(),
            ends,
            maker: None,
            local: false,
            trusted_network: false,
            protected: false,
            orders: Orders::default(),
            insisted: None,
            overtaken: Vec::new(),
            current: None,
            epoch: 0,
            since_ns: now_ns,
            page: Page::open(memory.as_fd()).map_err(io::Error::other)?,
            page_identity: identity(memory)?,
            meter: Meter::default(),
            steady: Steady::new(now_ns, &self.policy.thresholds),
            pending: None,
            failed: Vec::new(),
            history: VecDeque::new(),
        })
    }

    /// What the leader is to offer first; an application that insists on what may not be is
    /// refused rather than surprised.
    pub(super) fn first_choice(&self, flow: &mut Flow) -> Result<Verdict, String> {
        let facts = self.facts(flow);
        flow.protected |= self.policy.protects(&facts);
        if let Some(insisted) = flow.insisted {
            permitted(insisted, &facts, &self.policy)?;
        }
        let verdict = choose(&facts, &self.policy);
        flow.decided(verdict.kind, &verdict.reason, Outcome::Proposed);
        flow.pending = Some(Pending {
            kind: verdict.kind,
            since_ns: self.now_ns(),
            chosen_at: None,
            operator: None,
            before: None,
        });
        Ok(verdict)
    }

    /// Takes a flow into the table.
    pub(super) fn keep(&mut self, mut flow: Flow, maker: ClientId) {
        flow.maker = Some(maker);
        if let Some(client) = self.clients.get_mut(&maker) {
            client.flows += 1;
        }
        self.flows.insert(flow.id, flow);
    }
}

fn unknown(name: &Name) -> String {
    format!("nobody has registered {name}: start the server first; `fable ls` shows what there is")
}

fn no_memory(error: io::Error) -> String {
    format!("the daemon cannot make a page for the flow: {error}")
}

/// A number that nobody can guess.
fn random() -> io::Result<u64> {
    getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
}

/// Which file this is.
pub(super) fn identity(file: &OwnedFd) -> io::Result<(u64, u64)> {
    let status = rustix::fs::fstat(file)?;
    Ok((status.st_dev, status.st_ino))
}
