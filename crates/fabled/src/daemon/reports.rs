//! Handles reports of the ends: moves, failures, ends.

use fable::Kind;
use fable::protocol::{Answer, FlowId, kind_of};

use super::Daemon;
use crate::flows::{Flow, Outcome, Pending};
use crate::registry::ClientId;
use crate::text::plain;

/// The longest reason of an end that is kept.
const REASON_CHARS_MAX: usize = 200;

impl Daemon {
    /// Handles `Moved`.
    pub(super) fn moved(
        &mut self,
        id: ClientId,
        flow: FlowId,
        epoch: u32,
        transport: &str,
        pause_ns: u64,
    ) {
        let Ok(kind) = kind_of(transport) else {
            return self.expel(id, "it moved a flow to a transport that does not exist");
        };
        let (now_ns, limits) = (self.now_ns(), self.policy.thresholds.clone());
        let Some(known) = self.flows.get_mut(&flow).filter(|known| known.has(id)) else {
            return tracing::debug!(client = id.0, flow = flow.0, "moved a flow that is not its");
        };
        // The other end has already reported this epoch.
        if epoch <= known.epoch {
            return;
        }
        let first = known.epoch == 0;
        let from = known.current.replace(kind);
        known.epoch = epoch;
        known.became(kind, Outcome::InUse);
        if first {
            known.steady = crate::policy::steady::Steady::new(now_ns, &limits);
        } else {
            known.steady.moved(now_ns, from, kind, &limits);
        }
        let done = known.pending.take_if(|pending| pending.kind == kind);
        known.outdated(epoch);
        let insisted = known.insisted.filter(|_| first && !known.local);
        if let Some(insisted) = insisted {
            known.orders.insist(known.own_side(), "the application that connects", insisted);
        }
        let what = format!(
            "flow {flow} uses {kind} from epoch {epoch} on, after a pause of {pause_ns} ns"
        );
        self.event(Some(flow), &what);
        if insisted.is_some() {
            self.share_orders(flow);
        }
        if let Some((operator, request)) = done.and_then(|pending| pending.operator) {
            self.answer(operator, request, Answer::Done { what });
        }
    }

    /// Handles `MoveFailed`.
    pub(super) fn move_failed(
        &mut self,
        id: ClientId,
        flow: FlowId,
        transport: &str,
        reason: &str,
    ) {
        let Ok(kind) = kind_of(transport) else {
            return self.expel(id, "it failed to move to a transport that does not exist");
        };
        let Some(known) = self.flows.get_mut(&flow).filter(|known| known.has(id)) else {
            return tracing::debug!(client = id.0, flow = flow.0, "failed to move a foreign flow");
        };
        let pending = known.pending.take_if(|pending| pending.kind == kind);
        self.has_failed(flow, kind, pending, &plain(reason, REASON_CHARS_MAX));
    }

    /// Handles a failed move: informs the operator, restores the earlier orders, and makes the
    /// policy wait.
    pub(super) fn has_failed(
        &mut self,
        flow: FlowId,
        kind: Kind,
        pending: Option<Pending>,
        reason: &str,
    ) {
        let until_ns = self.now_ns() + self.policy.thresholds.retry_ms * 1_000_000;
        let Some(known) = self.flows.get_mut(&flow) else { return };
        known.failed.retain(|(failed, _)| *failed != kind);
        known.failed.push((kind, until_ns));
        known.became(kind, Outcome::Failed(reason.to_owned()));
        let operator = pending.as_ref().and_then(|pending| pending.operator);
        let before = pending.and_then(|pending| pending.before);
        if let Some(before) = before {
            self.take_back_order(flow, *before);
        }
        let what = format!("flow {flow} could not move to {kind}: {reason}");
        self.event(Some(flow), &what);
        if let Some((operator, request)) = operator {
            self.refuse(operator, request, what);
        }
    }

    /// Handles `Ended`.
    pub(super) fn ended(&mut self, id: ClientId, flow: FlowId, reason: &str) {
        if self.flows.get(&flow).is_some_and(|known| known.has(id)) {
            self.forget(flow, &plain(reason, REASON_CHARS_MAX));
        }
    }

    /// Removes a connection from its flows. Ends a flow without any connected end. For others, the
    /// other end will report, or the process will reconnect and announce the flow.
    pub(super) fn detach(&mut self, client: ClientId) {
        let mut over = Vec::new();
        for flow in self.flows.values_mut().filter(|flow| flow.has(client)) {
            let gone = flow.ends.iter_mut().filter(|end| end.client == Some(client));
            gone.for_each(|end| end.client = None);
            if is_over(flow) {
                over.push(flow.id);
            }
        }
        over.into_iter().for_each(|id| self.forget(id, "its process is gone"));
    }

    /// Removes a flow from the table.
    pub(super) fn forget(&mut self, flow: FlowId, why: &str) {
        let what = format!("flow {flow} has ended: {why}");
        self.event(Some(flow), &what);
        let Some(known) = self.flows.remove(&flow) else { return };
        if let Some(client) = known.maker.and_then(|id| self.clients.get_mut(&id)) {
            client.flows -= 1;
        }
        if let Some((operator, request)) = known.pending.and_then(|pending| pending.operator) {
            self.refuse(operator, request, what);
        }
    }
}

/// Returns whether no connected process has the flow any more, or one of its processes is known to
/// be dead.
pub(super) fn is_over(flow: &Flow) -> bool {
    let lost = flow.ends.iter().filter(|end| end.client.is_none());
    let dead = |process: &std::rc::Rc<crate::process::Process>| !process.is_alive();
    flow.mover().is_none() || lost.filter_map(|end| end.process.as_ref()).any(dead)
}
