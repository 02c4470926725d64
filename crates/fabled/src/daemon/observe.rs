//! Evaluates the flows periodically, and moves those for which the policy prefers another
//! transport.

use std::rc::Rc;

use fable::protocol::{FlowId, ToProcess};

use super::Daemon;
use super::reports::is_over;
use crate::flows::{Flow, MOVE_TIME_LIMIT, Outcome, Pending, Sample};
use crate::log_quota::{self, Acting};
use crate::policy::{Facts, Reach, Verdict, choose};

impl Daemon {
    /// Runs at the end of each period of observation.
    pub(super) fn observe(&mut self) {
        let now_ns = self.now_ns();
        let (mut over, mut late) = (Vec::new(), Vec::new());
        let time_limit_ns = MOVE_TIME_LIMIT.as_nanos() as u64;
        for flow in self.flows.values_mut() {
            flow.meter.add(now_ns, Sample::of(&flow.page, flow.only_end()));
            flow.failed.retain(|(_, until_ns)| *until_ns > now_ns);
            if is_over(flow) {
                over.push(flow.id);
                continue;
            }
            // The first path may wait until the application accepts the flow.
            let moving = flow.pending.as_ref().filter(|_| flow.current.is_some());
            if moving.is_some_and(|ordered| now_ns.saturating_sub(ordered.since_ns) > time_limit_ns)
            {
                late.push(flow.id);
            }
        }
        for id in over {
            let _acting = self.acting_for(id);
            self.forget(id, "a process is gone");
        }
        for id in late {
            let _acting = self.acting_for(id);
            let pending = self.flows.get_mut(&id).and_then(|flow| flow.pending.take());
            let Some(kind) = pending.as_ref().map(|pending| pending.kind) else { continue };
            let reason =
                format!("no end has said within {} s that it did", MOVE_TIME_LIMIT.as_secs());
            self.has_failed(id, kind, pending, &reason);
        }
        let ids: Vec<FlowId> = self.flows.keys().copied().collect();
        for id in ids {
            let _acting = self.acting_for(id);
            self.reconsider(id);
        }
    }

    /// Charges log lines to the user who is charged for a flow. Its ends can cause any number of
    /// decisions by what they write into its page.
    fn acting_for(&self, id: FlowId) -> Acting {
        let charge = self.flows.get(&id).and_then(|flow| flow.charge.as_ref());
        log_quota::acting(charge.map(|charge| Rc::clone(charge.holder())))
    }

    /// Moves the flow, if the policy prefers another transport and has preferred it for long
    /// enough.
    pub(super) fn reconsider(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(&id) else { return };
        // The first path is still being opened, a move is in progress, or an end is not connected.
        if flow.current.is_none() || flow.pending.is_some() || !flow.is_complete() {
            return;
        }
        let verdict = choose(&self.facts(flow), &self.policy);
        let now_ns = self.now_ns();
        let limits = &self.policy.thresholds;
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if flow.may_choose(&verdict)
            && flow.steady.observe(now_ns, flow.current, &verdict, limits)
            && !flow.failed_lately(now_ns).contains(&verdict.kind)
        {
            let pending = Pending {
                kind: verdict.kind,
                since_ns: now_ns,
                chosen_at: Some(flow.epoch),
                operator: None,
                before: None,
            };
            self.order(id, &verdict, pending);
        }
    }

    /// Sends an end the order to move.
    pub(super) fn order(&mut self, id: FlowId, verdict: &Verdict, pending: Pending) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let Some(mover) = flow.mover() else { return };
        flow.decided(verdict.kind, &verdict.reason, Outcome::Proposed);
        let epoch = pending.chosen_at;
        flow.pending = Some(pending);
        let (transport, reason) = (verdict.kind.to_string(), verdict.reason.clone());
        let what = format!("flow {id} is to move to {transport}: {reason}");
        self.event(Some(id), &what);
        let sequence = self.flows.get(&id).map(|flow| flow.orders.operator_sequence());
        self.send(mover, &ToProcess::Move { flow: id, transport, reason, sequence, epoch }, &[]);
    }

    /// Collects all facts that a choice depends on, as far as they are known.
    pub(super) fn facts(&self, flow: &Flow) -> Facts {
        let reach = match flow.local {
            true => Reach::SameHost {
                separated_by: match [&flow.ends[0].process, &flow.ends[1].process] {
                    [Some(leader), Some(follower)] => leader.separated_by(follower),
                    _ => vec!["unknown"],
                },
            },
            false => Reach::OtherHost { trusted_network: flow.trusted_network },
        };
        Facts {
            name: flow.name.clone(),
            users: [flow.ends[0].peer.uid, flow.ends[1].peer.uid],
            both_trust: flow.both_trust(),
            reach,
            protected: flow.protected,
            encryption: flow.encryption().cloned(),
            pinned: flow.pinned(),
            pinned_by: match &flow.orders.operator {
                // Within a host the origin of the order does not matter.
                Some(order) if !flow.local => order.who.clone(),
                _ => String::new(),
            },
            insisted: flow.insisted(),
            current: flow.current,
            failed: flow.failed_lately(self.now_ns()),
        }
    }
}
