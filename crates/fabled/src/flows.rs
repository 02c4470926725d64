//! The flows of this host, as the daemon knows them.

mod history;
mod sample;

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use fable::orders::{Demand, Encryption, Order, Orders};
use fable::page::Page;
use fable::protocol::{Decision, FlowEntry, FlowId, Peer, Role, Trust};
use fable::{Kind, Name};

use crate::policy::steady::Steady;
use crate::policy::{Urgency, Verdict};
use crate::process::Process;
use crate::registry::ClientId;

pub(crate) use history::{Outcome, wall_time_s};
pub(crate) use sample::{Meter, Sample};

/// How long an end may take to carry out a move.
pub(crate) const MOVE_PATIENCE: Duration = Duration::from_secs(10);

/// One end.
#[derive(Debug)]
pub(crate) struct End {
    /// Who it is: from the kernel if `process` is there, else what the other end or the other
    /// host's daemon says.
    pub(crate) peer: Peer,
    /// Its connection, if it is a process of this host that is connected now.
    pub(crate) client: Option<ClientId>,
    /// Its process, likewise; stays when the connection is lost.
    pub(crate) process: Option<Rc<Process>>,
    /// Whether it trusts the other end.
    pub(crate) trust: Trust,
}

/// A move that was ordered and not yet reported.
#[derive(Debug)]
pub(crate) struct Pending {
    /// What was ordered.
    pub(crate) kind: Kind,
    /// When, in nanoseconds of the daemon's clock.
    pub(crate) since_ns: u64,
    /// The epoch at which the daemon chose by itself: ends that have moved since do not carry it
    /// out.
    pub(crate) chosen_at: Option<u32>,
    /// The operator who waits for the outcome, and the question's number.
    pub(crate) operator: Option<(ClientId, u64)>,
    /// What was ordered before, to go back to if an operator's order fails.
    pub(crate) before: Option<Box<Orders>>,
}

/// A flow.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Its number.
    pub(crate) id: FlowId,
    /// The endpoint's full name.
    pub(crate) name: Name,
    /// Leader and follower.
    pub(crate) ends: [End; 2],
    /// The connection among whose flows it counts.
    pub(crate) maker: Option<ClientId>,
    /// Whether both ends are on this host.
    pub(crate) local: bool,
    /// For a flow to another host: whether the network between is trusted.
    pub(crate) trusted_network: bool,
    /// Whether it must be protected beyond the host.
    pub(crate) protected: bool,
    /// What is ordered, the same with the other host's daemon.
    pub(crate) orders: Orders,
    /// What the application insisted on when it connected, or where an end went that does not say
    /// who wanted it.
    pub(crate) insisted: Option<Kind>,
    /// Where orders would have led that others have overtaken, each transport once: an end may
    /// carry them out yet.
    pub(crate) overtaken: Vec<Kind>,
    /// In use; `None` before the first path.
    pub(crate) current: Option<Kind>,
    /// Its epoch; 0 before the first path.
    pub(crate) epoch: u32,
    /// When it began or was announced, in nanoseconds of the daemon's clock.
    pub(crate) since_ns: u64,
    /// Its counters.
    pub(crate) page: Page,
    /// The memory of the page: which file system and file.
    pub(crate) page_identity: (u64, u64),
    /// What was read of them.
    pub(crate) meter: Meter,
    /// What keeps it from changing too often.
    pub(crate) steady: Steady,
    /// A move under way.
    pub(crate) pending: Option<Pending>,
    /// What failed, and until when it is not tried again.
    pub(crate) failed: Vec<(Kind, u64)>,
    /// The latest decisions, oldest first.
    pub(crate) history: VecDeque<Decision>,
}

impl Flow {
    /// What an operator ordered, if it is in force.
    pub(crate) fn pinned(&self) -> Option<Kind> {
        self.orders.operator.as_ref()?.transport.as_deref()?.parse().ok()
    }

    /// Where the application wants to be.
    pub(crate) fn insisted(&self) -> Option<Kind> {
        let told = self.orders.application.as_ref().and_then(|order| order.transport.as_deref());
        told.and_then(|transport| transport.parse().ok()).or(self.insisted)
    }

    /// On whose side this host's operators are. On a flow within the host there is but one side.
    pub(crate) fn own_side(&self) -> Role {
        self.only_end().unwrap_or(Role::Leader)
    }

    /// The encryption that a side of a flow between hosts has demanded.
    pub(crate) fn encryption(&self) -> Option<&Demand> {
        if self.local { None } else { self.orders.encryption() }
    }

    /// Whether it must be protected beyond the host.
    pub(crate) fn is_protected(&self) -> bool {
        let demanded = self.encryption().map(|demand| demand.level);
        self.protected || demanded == Some(Encryption::Protected)
    }

    /// Whether this host's daemon carries out a choice of its policy. Between hosts that is for the
    /// leader's, so that two policies do not contradict each other in turn; the follower's enforces
    /// what must be and what its own side has ordered.
    pub(crate) fn may_choose(&self, verdict: &Verdict) -> bool {
        let own = |order: &Option<Order>| {
            order.as_ref().is_some_and(|order| order.side == Role::Follower)
        };
        let wanted = |kind| kind == Some(verdict.kind);
        self.own_side() == Role::Leader
            || verdict.urgency == Urgency::Must
            || (wanted(self.pinned()) && own(&self.orders.operator))
            || (wanted(self.insisted()) && own(&self.orders.application))
    }

    /// The ends stand at this epoch: what was chosen before it they do not carry out any more,
    /// unless they do not know of that rule.
    pub(crate) fn outdated(&mut self, epoch: u32, know_rule: bool) {
        let is_before = |pending: &mut Pending| pending.chosen_at.is_some_and(|at| at < epoch);
        let Some(Pending { kind, .. }) = self.pending.take_if(is_before) else { return };
        self.became(kind, Outcome::Failed("the flow has moved meanwhile".to_owned()));
        if !know_rule && !self.overtaken.contains(&kind) {
            self.overtaken.push(kind);
        }
    }

    /// Whether this client holds an end.
    pub(crate) fn has(&self, client: ClientId) -> bool {
        self.ends.iter().any(|end| end.client == Some(client))
    }

    /// The end that alone writes this host's page, as the other is elsewhere.
    pub(crate) fn only_end(&self) -> Option<Role> {
        if self.local {
            return None;
        }
        let here = |end: &End| end.process.is_some();
        Some(if here(&self.ends[0]) { Role::Leader } else { Role::Follower })
    }

    /// Who carries out moves: the leader if it is here.
    pub(crate) fn mover(&self) -> Option<ClientId> {
        self.ends.iter().find_map(|end| end.client)
    }

    /// Whether both ends are known first-hand, or as much as they can be.
    pub(crate) fn is_complete(&self) -> bool {
        let known = |end: &End| end.client.is_some();
        if self.local { self.ends.iter().all(known) } else { self.ends.iter().any(known) }
    }

    /// Whether this user runs one of the ends.
    pub(crate) fn belongs_to(&self, uid: u32, host: &str) -> bool {
        self.ends.iter().any(|end| end.peer.uid == uid && end.peer.host == host)
    }

    /// Whether both ends trust each other.
    pub(crate) fn both_trust(&self) -> bool {
        self.ends.iter().all(|end| end.trust == Trust::Trusted)
    }

    /// What failed lately.
    pub(crate) fn failed_lately(&self, now_ns: u64) -> Vec<Kind> {
        let lately = self.failed.iter().filter(|(_, until_ns)| *until_ns > now_ns);
        lately.map(|(kind, _)| *kind).collect()
    }

    /// The flow for people.
    pub(crate) fn entry(&self, now_ns: u64) -> FlowEntry {
        let (meter, sample) = (&self.meter, self.meter.latest());
        let known = |value: u64| (value != 0).then_some(value);
        let transport = self.current.map_or_else(|| "none yet".to_owned(), |kind| kind.to_string());
        FlowEntry {
            flow: self.id,
            name: self.name.clone(),
            leader: self.ends[0].peer.clone(),
            follower: self.ends[1].peer.clone(),
            transport,
            epoch: self.epoch,
            age_s: now_ns.saturating_sub(self.since_ns) as f64 / 1e9,
            messages_s: meter.messages_s,
            bytes_s: meter.bytes_s,
            messages: sample.messages,
            latency_ns: sample.latency_ns.map(known),
            cpus: sample.cpus,
            protected: self.is_protected(),
            pinned: self.pinned().is_some(),
            is_flapping: self.steady.is_flapping(now_ns),
            are_gone: self
                .ends
                .each_ref()
                .map(|end| end.process.as_ref().is_some_and(|process| !process.is_alive())),
        }
    }
}
