//! The table entry of a flow, as the daemon knows it.

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
use crate::quota::Charge;
use crate::registry::ClientId;

pub(crate) use history::{Outcome, wall_time_s};
pub(crate) use sample::{Meter, Sample};

/// The most time for an end to execute a move.
pub(crate) const MOVE_TIME_LIMIT: Duration = Duration::from_secs(10);

/// One end of a flow.
#[derive(Debug)]
pub(crate) struct End {
    /// The process: reported by the kernel if `process` is set, else by the other end or the other
    /// host's daemon.
    pub(crate) peer: Peer,
    /// Its connection, if it is a process of this host and connected now.
    pub(crate) client: Option<ClientId>,
    /// Its process, if it is one of this host; stays when the connection is lost.
    pub(crate) process: Option<Rc<Process>>,
    /// Whether it trusts the other end.
    pub(crate) trust: Trust,
}

/// A move that was ordered and whose result is not reported yet.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The ordered transport.
    pub(crate) kind: Kind,
    /// The time of the order, in nanoseconds of the daemon's clock.
    pub(crate) since_ns: u64,
    /// The epoch at which the daemon chose by itself: ends that have moved since ignore the order.
    pub(crate) chosen_at: Option<u32>,
    /// The operator who waits for the result, and the request's number.
    pub(crate) operator: Option<(ClientId, u64)>,
    /// The earlier orders, to be restored if an operator's order fails.
    pub(crate) before: Option<Box<Orders>>,
}

/// A flow with its ends, orders, counters and decisions.
#[derive(Debug)]
pub(crate) struct Flow {
    /// The flow's identifier.
    pub(crate) id: FlowId,
    /// The endpoint's full name.
    pub(crate) name: Name,
    /// The leader and the follower.
    pub(crate) ends: [End; 2],
    /// The connection whose limit the flow counts for.
    pub(crate) maker: Option<ClientId>,
    /// What is charged for it; held for its drop.
    pub(crate) charge: Option<Charge>,
    /// Whether both ends are on this host.
    pub(crate) local: bool,
    /// Whether the network between the hosts of the flow is trusted.
    pub(crate) trusted_network: bool,
    /// Whether it must be protected beyond the host.
    pub(crate) protected: bool,
    /// The orders, which the other host's daemon has too.
    pub(crate) orders: Orders,
    /// The transport that the application requested when it connected.
    pub(crate) insisted: Option<Kind>,
    /// The transport in use; `None` before the first path.
    pub(crate) current: Option<Kind>,
    /// Its epoch; 0 before the first path.
    pub(crate) epoch: u32,
    /// When the flow began or was announced, in nanoseconds of the daemon's clock.
    pub(crate) since_ns: u64,
    /// The flow page.
    pub(crate) page: Page,
    /// File system and inode of the page's memory.
    pub(crate) page_identity: (u64, u64),
    /// The rates computed from the page.
    pub(crate) meter: Meter,
    /// Limits how often the policy changes the transport.
    pub(crate) steady: Steady,
    /// The move in progress.
    pub(crate) pending: Option<Pending>,
    /// Transports that failed, and until when they are not tried again.
    pub(crate) failed: Vec<(Kind, u64)>,
    /// The latest decisions, oldest first.
    pub(crate) history: VecDeque<Decision>,
}

impl Flow {
    /// Returns the transport that an operator has ordered, if that order is valid.
    pub(crate) fn pinned(&self) -> Option<Kind> {
        self.orders.operator.as_ref()?.transport.as_deref()?.parse().ok()
    }

    /// Returns the transport that the application requested.
    pub(crate) fn insisted(&self) -> Option<Kind> {
        let told = self.orders.application.as_ref().and_then(|order| order.transport.as_deref());
        told.and_then(|transport| transport.parse().ok()).or(self.insisted)
    }

    /// Returns the side of this host's operators. A flow within the host has only one side.
    pub(crate) fn own_side(&self) -> Role {
        self.only_end().unwrap_or(Role::Leader)
    }

    /// Returns the demand for encryption of a flow between hosts, if a side has one.
    pub(crate) fn encryption(&self) -> Option<&Demand> {
        if self.local { None } else { self.orders.encryption() }
    }

    /// Returns whether the flow must be encrypted between hosts.
    pub(crate) fn is_protected(&self) -> bool {
        let demanded = self.encryption().map(|demand| demand.level);
        self.protected || demanded == Some(Encryption::Protected)
    }

    /// Returns whether this host's daemon executes a choice of its policy. Between hosts the
    /// leader's daemon does, so that two policies do not alternate. The follower's daemon enforces
    /// only requirements and the orders of its own side.
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

    /// Handles an epoch that the ends have reached: cancels a choice that was made before it, which
    /// the ends do not execute either.
    pub(crate) fn outdated(&mut self, epoch: u32) {
        let is_before = |pending: &mut Pending| pending.chosen_at.is_some_and(|at| at < epoch);
        if let Some(Pending { kind, .. }) = self.pending.take_if(is_before) {
            self.became(kind, Outcome::Failed("the flow has moved meanwhile".to_owned()));
        }
    }

    /// Returns whether this client has an end of the flow.
    pub(crate) fn has(&self, client: ClientId) -> bool {
        self.ends.iter().any(|end| end.client == Some(client))
    }

    /// Returns the only end that writes this host's page, if the other end is on another host.
    pub(crate) fn only_end(&self) -> Option<Role> {
        if self.local {
            return None;
        }
        let here = |end: &End| end.process.is_some();
        Some(if here(&self.ends[0]) { Role::Leader } else { Role::Follower })
    }

    /// Returns the client that executes moves: the leader if it is on this host.
    pub(crate) fn mover(&self) -> Option<ClientId> {
        self.ends.iter().find_map(|end| end.client)
    }

    /// Returns whether all ends on this host are connected.
    pub(crate) fn is_complete(&self) -> bool {
        let known = |end: &End| end.client.is_some();
        if self.local { self.ends.iter().all(known) } else { self.ends.iter().any(known) }
    }

    /// Returns whether this user runs one of the ends.
    pub(crate) fn belongs_to(&self, uid: u32, host: &str) -> bool {
        self.ends.iter().any(|end| end.peer.uid == uid && end.peer.host == host)
    }

    /// Returns whether both ends trust each other.
    pub(crate) fn both_trust(&self) -> bool {
        self.ends.iter().all(|end| end.trust == Trust::Trusted)
    }

    /// Returns the transports that failed recently.
    pub(crate) fn failed_lately(&self, now_ns: u64) -> Vec<Kind> {
        let lately = self.failed.iter().filter(|(_, until_ns)| *until_ns > now_ns);
        lately.map(|(kind, _)| *kind).collect()
    }

    /// Returns the flow as `fable` displays it.
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
