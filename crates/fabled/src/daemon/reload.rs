//! Reloads the policy of a running daemon.

use fable::orders::Encryption;
use fable::protocol::FlowId;

use super::Daemon;

impl Daemon {
    /// Reads the policy again and applies it. A policy with an error changes nothing.
    pub(super) fn reload_policy(&mut self) {
        match (self.read_policy)() {
            Ok(policy) => {
                self.policy = policy;
                self.apply_quotas();
            }
            Err(error) => {
                tracing::error!("the policy stays as it was: {error}");
                return self.event(None, &format!("the policy stays as it was: {error}"));
            }
        }
        self.event(None, "the policy was read again");
        let flows: Vec<FlowId> = self.flows.keys().copied().collect();
        for flow in flows {
            self.demand_by_policy(flow);
            self.reconsider(flow);
        }
    }

    /// Converts the policy's rule on encryption between hosts to this side's demand, so that the
    /// other host's daemon knows it.
    fn demand_by_policy(&mut self, id: FlowId) {
        let who = format!("the policy of {}", self.cluster.host());
        let Some(flow) = self.flows.get(&id).filter(|flow| !flow.local) else { return };
        let protects = self.policy.protects(&self.facts(flow));
        let side = flow.own_side();
        let demand = flow.orders.demand_of(side);
        let level = match (protects, demand.level) {
            (true, Encryption::Free | Encryption::Ordered) => Encryption::Protected,
            // An operator's demand stays.
            (false, Encryption::Protected) if demand.who == who => Encryption::Free,
            _ => return,
        };
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.orders.demand(side, &who, level);
        }
        self.share_orders(id);
    }
}
