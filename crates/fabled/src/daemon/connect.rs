//! Makes new flows.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use fable::orders::Orders;
use fable::packet;
use fable::page::{self, Page};
use fable::protocol::{FlowId, ToProcess, Trust, kind_of};
use fable::{Kind, Name};

use super::names::{Caller, Refusal, admits, who};
use super::{Daemon, limits};
use crate::cluster_link::{RemoteName, Ticket};
use crate::flows::{End, Flow, Meter, Outcome, Pending};
use crate::policy::steady::Steady;
use crate::policy::{Verdict, choose, permitted};
use crate::process::Process;
use crate::quota::{self, Charge};
use crate::registry::{ClientId, Registration};

/// The parameters of a connection request, checked.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) request: u64,
    pub(super) trust: Trust,
    pub(super) insisted: Option<Kind>,
    /// As whom the other end must run.
    pub(super) owner: Option<u32>,
}

impl Daemon {
    /// Handles `Connect`.
    pub(super) fn connect(
        &mut self,
        id: ClientId,
        name: &Name,
        wanted: Wanted,
        transport: Option<&str>,
    ) {
        let request = wanted.request;
        let Some(client) = self.clients.get(&id) else { return };
        if client.flows >= limits::FLOWS_OF_CLIENT_MAX {
            let most = limits::FLOWS_OF_CLIENT_MAX;
            let reason = format!("one process makes at most {most} flows: end some first");
            return self.refuse_and_count(id, request, reason);
        }
        let insisted = match transport.map(kind_of).transpose() {
            Ok(kind) => kind,
            Err(unknown) => return self.refuse(id, request, unknown.to_string()),
        };
        self.connect_wanted(id, name, Wanted { insisted, ..wanted });
    }

    /// Connects a client to a name of this host or of another one, or lets it wait for the name.
    pub(super) fn connect_wanted(&mut self, id: ClientId, name: &Name, wanted: Wanted) {
        let Some(client) = self.clients.get(&id) else { return };
        let request = wanted.request;
        let process = Rc::clone(&client.process);
        let charge = match client.holder.charge(quota::flow()) {
            Ok(charge) => charge,
            Err(reason) => return self.refuse(id, request, reason),
        };
        let caller = Caller {
            peer: &process.peer,
            groups: &process.groups,
            by_default: self.policy.access,
            owner: self.owner_of(name),
            expected: wanted.owner,
        };
        let result = match self.names.pick(name, |found| admits(found, &caller)) {
            Ok(found) => self.connect_here(id, &wanted, &found, charge),
            Err(refused) => match self.pick_elsewhere(name, &caller) {
                Ok(found) => self.connect_elsewhere(id, &wanted, &found, charge),
                Err(other) => match refused.or(other) {
                    Some(refusal) => return self.refuse_connect(id, request, name, refusal),
                    None if self.returning.keep(id, process.peer.uid, name, &wanted) => Ok(()),
                    None => Err(unknown(name)),
                },
            },
        };
        if let Err(reason) = result {
            self.refuse(id, request, reason);
        }
    }

    fn refuse_connect(&mut self, id: ClientId, request: u64, name: &Name, refusal: Refusal) {
        match refusal.other_owner {
            Some(owner) => {
                let name = name.clone();
                self.send(id, &ToProcess::OtherOwner { request, name, owner }, &[]);
            }
            None => self.refuse(id, request, refusal.reason),
        }
    }

    fn connect_here(
        &mut self,
        id: ClientId,
        wanted: &Wanted,
        found: &Registration,
        charge: Charge,
    ) -> Result<(), String> {
        let (Some(leader), Some(follower)) =
            (self.clients.get(&found.owner), self.clients.get(&id))
        else {
            return Err(unknown(&found.name));
        };
        // Too many connections to a name must not get its listener disconnected.
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
        self.keep(flow, id, charge);
        let [leader, follower] = processes;
        let given = with_process([leading, Rc::clone(&memory)], follower.as_deref());
        self.send(found.owner, &incoming, &given);
        let connected =
            ToProcess::Connected { request, flow: id_of_flow, name, peer, transport, reason };
        let given = with_process([following, memory], leader.as_deref());
        self.send(id, &connected, &given);
        self.event(Some(id_of_flow), &what);
        Ok(())
    }

    /// Picks an instance of the name on another host, at random. Fails with the reason why the last
    /// one is no choice, or without one if there is none.
    fn pick_elsewhere(
        &self,
        name: &Name,
        caller: &Caller<'_>,
    ) -> Result<RemoteName, Option<Refusal>> {
        let (mut found, mut refused) = (self.cluster.find(name), None);
        found.retain(|found| match caller.check_owner(&found.name, found.owner.uid) {
            Ok(()) => true,
            Err(refusal) => {
                refused = Some(refusal);
                false
            }
        });
        if found.is_empty() {
            return Err(refused);
        }
        let number = random().map_err(|error| Some(Refusal::from(error.to_string())))?;
        let turn = usize::try_from(number).unwrap_or(0) % found.len();
        Ok(found.swap_remove(turn))
    }

    fn connect_elsewhere(
        &mut self,
        id: ClientId,
        wanted: &Wanted,
        found: &RemoteName,
        charge: Charge,
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
        self.keep(flow, id, charge);
        self.send(id, &elsewhere, &[memory]);
        self.event(Some(id_of_flow), &what);
        Ok(())
    }

    /// Makes a flow without a path, and the memory of its page.
    pub(super) fn new_flow(
        &self,
        name: &Name,
        ends: [End; 2],
    ) -> Result<(Flow, Rc<OwnedFd>), io::Error> {
        let id = loop {
            let id = FlowId(random()?);
            if !self.flows.contains_key(&id) {
                break id;
            }
        };
        let memory = page::create_for(id).map_err(io::Error::other)?;
        Ok((self.flow_with(id, name, ends, &memory)?, Rc::new(memory)))
    }

    /// Makes a flow with this number and this page.
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
            charge: None,
            local: false,
            trusted_network: false,
            protected: false,
            orders: Orders::default(),
            insisted: None,
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

    /// Returns the transport that the leader is to offer first. Refuses an application that
    /// requests a transport which is not permitted.
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

    /// Adds a flow to the table.
    pub(super) fn keep(&mut self, mut flow: Flow, maker: ClientId, charge: Charge) {
        flow.maker = Some(maker);
        flow.charge = Some(charge);
        if let Some(client) = self.clients.get_mut(&maker) {
            client.flows += 1;
        }
        self.flows.insert(flow.id, flow);
    }
}

/// Returns the descriptors for an end: link, page, and the peer's pidfd if there is one.
fn with_process(given: [Rc<OwnedFd>; 2], peer: Option<&Process>) -> Vec<Rc<OwnedFd>> {
    let handle = peer.and_then(Process::handle);
    given.into_iter().chain(handle.cloned()).collect()
}

fn unknown(name: &Name) -> String {
    format!("nobody has registered {name}: start the server first; `fable ls` shows what there is")
}

fn no_memory(error: io::Error) -> String {
    format!("the daemon cannot make a page for the flow: {error}")
}

/// Returns a number that cannot be guessed.
fn random() -> io::Result<u64> {
    sys::random::bytes().map(u64::from_ne_bytes)
}

/// Returns the file system and inode of a file.
pub(super) fn identity(file: &OwnedFd) -> io::Result<(u64, u64)> {
    let status = rustix::fs::fstat(file)?;
    Ok((status.st_dev, status.st_ino))
}
