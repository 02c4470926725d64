//! Orders about a flow, from operators of this host or, through an end, from the other host. Both
//! daemons and both ends hold the same orders ([`fable::orders`]).

use fable::Kind;
use fable::orders::{Encryption, Orders};
use fable::protocol::{Answer, FlowId, Role, ToProcess, kind_of};

use super::Daemon;
use crate::flows::{Flow, Outcome, Pending};
use crate::policy::{Urgency, Verdict, best_form, permitted};
use crate::registry::ClientId;

impl Daemon {
    /// Orders a transport, or leaves the choice to the policy again.
    pub(super) fn order_by_operator(
        &mut self,
        id: ClientId,
        request: u64,
        flow: FlowId,
        transport: &str,
    ) -> Result<(), String> {
        let known = self.visible(id, flow)?;
        let who = self.operator_name(id, known);
        if transport == "auto" {
            return self.unpin(id, request, flow, &who);
        }
        let mut facts = self.facts(known);
        let kind = ordered_kind(transport, |kind| best_form(kind, &facts))?;
        let before = known.orders.clone();
        let mut orders = before.clone();
        order(&mut orders, known, &who, Some(kind));
        facts.encryption = orders.encryption().filter(|_| !known.local).cloned();
        permitted(kind, &facts, &self.policy)?;
        let current = known.current;
        if known.mover().is_none() || current.is_none() {
            return Err(format!("flow {flow} is only just being made: try again"));
        }
        self.overtake(flow, "another operator's order has overtaken this one");
        if let Some(known) = self.flows.get_mut(&flow) {
            known.orders = orders;
        }
        self.share_orders(flow);
        if current == Some(kind) {
            let what = format!("flow {flow} is on {kind} already, and stays there");
            self.event(Some(flow), &what);
            self.answer(id, request, Answer::Done { what });
            return Ok(());
        }
        let reason = format!("{who} ordered it");
        let verdict = Verdict { kind, reason, urgency: Urgency::Wanted };
        let (since_ns, before) = (self.now_ns(), Some(Box::new(before)));
        let operator = Some((id, request));
        let pending = Pending { kind, since_ns, chosen_at: None, operator, before };
        self.order(flow, &verdict, pending);
        Ok(())
    }

    fn unpin(&mut self, id: ClientId, request: u64, flow: FlowId, who: &str) -> Result<(), String> {
        self.overtake(flow, "an order for `auto` has overtaken this one");
        if let Some(known) = self.flows.get_mut(&flow) {
            let mut orders = known.orders.clone();
            order(&mut orders, known, who, None);
            known.orders = orders;
        }
        self.share_orders(flow);
        let what = format!("the policy chooses the transport of flow {flow} again");
        self.event(Some(flow), &what);
        self.answer(id, request, Answer::Done { what });
        self.reconsider(flow);
        Ok(())
    }

    /// Cancels the pending move of an earlier order.
    fn overtake(&mut self, flow: FlowId, why: &str) {
        let Some(known) = self.flows.get_mut(&flow).filter(|known| known.current.is_some()) else {
            return;
        };
        let Some(pending) = known.pending.take() else { return };
        known.became(pending.kind, Outcome::Failed(why.to_owned()));
        if let Some((operator, request)) = pending.operator {
            self.refuse(operator, request, why);
        }
    }

    /// Sends the orders to the end that executes moves, which forwards them to the other end.
    pub(super) fn share_orders(&mut self, flow: FlowId) {
        let Some(known) = self.flows.get(&flow) else { return };
        let Some(mover) = known.mover() else { return };
        let orders = known.orders.clone();
        self.send(mover, &ToProcess::Orders { flow, orders }, &[]);
    }

    /// Restores the earlier orders after an order that could not be executed.
    pub(super) fn take_back_order(&mut self, flow: FlowId, before: Orders) {
        let Some(known) = self.flows.get_mut(&flow) else { return };
        let side = known.own_side();
        let (pinned, who) = match before.operator.as_ref() {
            Some(order) => (order.transport.as_deref(), order.who.as_str()),
            None => (None, "an order that failed"),
        };
        known.orders.order(side, who, pinned.and_then(|transport| transport.parse().ok()));
        let demand = before.demand_of(side);
        if known.orders.demand_of(side).level != demand.level {
            known.orders.demand(side, &demand.who, demand.level);
        }
        self.share_orders(flow);
    }

    /// Merges the orders that an end has sent: they come from the other end, or from before a
    /// restart of the daemon.
    pub(super) fn told_orders(&mut self, id: ClientId, flow: FlowId, mut orders: Orders) {
        let now_ns = self.now_ns();
        let Some(known) = self.flows.get_mut(&flow).filter(|known| known.has(id)) else {
            return tracing::debug!(client = id.0, flow = flow.0, "orders for a foreign flow");
        };
        // The demand of a side of this host may come only from that side's own end.
        for side in Role::BOTH {
            let end = &known.ends[side.index()];
            if end.process.is_some() && end.client != Some(id) {
                orders.encryption[side.index()] = Default::default();
            }
        }
        let (before, demanded) = (known.orders.operator.clone(), known.orders.encryption.clone());
        if !orders.is_plausible_after(&known.orders) {
            return tracing::debug!(
                client = id.0,
                flow = flow.0,
                "orders with far too high numbers"
            );
        }
        if !known.orders.merge(&orders) {
            return;
        }
        let order = known.orders.operator.clone().filter(|_| known.orders.operator != before);
        let what = match (&order, known.encryption()) {
            (Some(order), _) => {
                let transport = order.transport.as_deref().unwrap_or("auto");
                format!("{} ordered {transport}", order.who)
            }
            (None, Some(demand)) => demand.wish(),
            (None, None) => "what is ordered has changed".to_owned(),
        };
        let pinned = known.pinned();
        // If the move fails now, the later order still applies.
        if let (Some(pending), Some(_)) = (&mut known.pending, &order) {
            pending.before = None;
        }
        let is_other = |pending: &Pending| order.is_some() && Some(pending.kind) != pinned;
        if known.pending.as_ref().is_some_and(is_other) {
            self.overtake(flow, &format!("a later order has overtaken this one: {what}"));
        }
        // The daemon that received the order executes it; this one does so only if that fails.
        if let Some(known) = self.flows.get_mut(&flow)
            && let (Some(kind), Some(_), Some(_)) = (pinned, known.current, &order)
            && known.current != Some(kind)
            && known.pending.is_none()
        {
            let pending =
                Pending { kind, since_ns: now_ns, chosen_at: None, operator: None, before: None };
            known.decided(kind, &what, Outcome::Proposed);
            known.pending = Some(pending);
        }
        let is_for_daemons = order.is_some()
            || self.flows.get(&flow).is_some_and(|known| known.orders.encryption != demanded);
        self.event(Some(flow), &format!("flow {flow}: {what}"));
        // An application's order is reported before its move, which is in progress.
        if is_for_daemons {
            self.reconsider(flow);
        }
    }

    /// Describes the operator who gives an order; with the host, if the flow has two.
    fn operator_name(&self, id: ClientId, flow: &Flow) -> String {
        let uid = self.clients.get(&id).map_or(u32::MAX, |client| client.process.peer.uid);
        match flow.local {
            true => format!("user {uid}"),
            false => format!("user {uid} on {}", self.cluster.host()),
        }
    }

    /// Sets whether a flow must be encrypted between hosts.
    pub(super) fn protect(
        &mut self,
        id: ClientId,
        flow: FlowId,
        on: bool,
    ) -> Result<String, String> {
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
        let who = self.operator_name(id, known);
        if let Some(known) = self.flows.get_mut(&flow) {
            known.protected = on;
            let level = if on { Encryption::Protected } else { Encryption::Free };
            known.orders.demand(known.own_side(), &who, level);
        }
        self.share_orders(flow);
        for client in clients {
            self.send(client, &ToProcess::Protect { flow, protected: on }, &[]);
        }
        let state = if on { "must be protected" } else { "need not be protected" };
        let what = format!("flow {flow} {state} beyond this host");
        self.event(Some(flow), &what);
        self.reconsider(flow);
        Ok(what)
    }
}

/// Records an order of this host's side and its effect on encryption: an order for TLS demands
/// encryption, and any other order withdraws that demand.
fn order(orders: &mut Orders, known: &Flow, who: &str, kind: Option<Kind>) {
    let side = known.own_side();
    orders.order(side, who, kind);
    match (kind, orders.demand_of(side).level) {
        (Some(Kind::Tls), Encryption::Free) => orders.demand(side, who, Encryption::Ordered),
        (Some(Kind::Tls), _) | (_, Encryption::Free | Encryption::Protected) => {}
        (_, Encryption::Ordered) => orders.demand(side, who, Encryption::Free),
    }
}

/// Parses the transport that an operator names. A name without a form means the best permitted
/// form.
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
            Kind::MempipeFutex(_) => Kind::MempipeFutex(Form::Unsafe),
            other => other,
        };
        assert_eq!(ordered_kind("mempipe-futex", best), Ok(Kind::MempipeFutex(Form::Unsafe)));
        assert_eq!(ordered_kind("mempipe-futex-safe", best), Ok(Kind::MempipeFutex(Form::Safe)));
        assert_eq!(ordered_kind("unix", best), Ok(Kind::Unix));
        assert!(ordered_kind("pigeon", best).unwrap_err().contains("auto"));
    }
}
