//! What is ordered about a flow, and how it limits the moves.

use super::{Action, Moves, Violation};
use crate::control::message::{Message, REVISION_PROBE};
use crate::kind::Kind;
use crate::orders::Orders;
use crate::protocol::{REVISION, Role};

impl Moves {
    /// What is ordered, as far as this end knows.
    pub(crate) fn orders(&self) -> &Orders {
        &self.orders
    }

    /// What the daemon says is ordered.
    pub(crate) fn adopt(&mut self, orders: &Orders) {
        if self.orders.merge(orders) {
            self.say_orders();
        }
    }

    /// The application wants to move by itself. Where an operator's order stands it may not.
    pub(crate) fn want_as_application(&mut self, kind: Kind, reason: &str) {
        let standing = self.orders.operator.as_ref().and_then(|order| {
            let transport = order.transport.as_ref()?;
            (*transport != kind.to_string()).then(|| format!("{} ordered {transport}", order.who))
        });
        if let Some(why) = standing {
            return self.fail(kind, why);
        }
        self.application_wish = Some(kind);
        self.want(kind, reason);
    }

    /// Whether the flow may use this transport.
    pub(super) fn check(&self, kind: Kind) -> Result<(), String> {
        self.rules.check(kind)?;
        if self.rules.local { Ok(()) } else { self.orders.check(kind) }
    }

    pub(super) fn check_sequence(&self, sequence: Option<u64>) -> Result<(), String> {
        match sequence {
            Some(known) if known < self.orders.operator_sequence() => {
                Err("a later order has replaced this one".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// A path stands. Notes whether the application wanted it; with the first one, a follower tells
    /// the peer what it understands.
    pub(super) fn stands(&mut self, kind: Kind) {
        let is_first = self.current.replace(kind).is_none();
        if self.application_wish.take_if(|wish| *wish == kind).is_some() {
            let who = match self.role {
                Role::Leader => "the application that listens",
                Role::Follower => "the application that connects",
            };
            self.orders.insist(self.role, who, kind);
            self.act(Action::Ordered);
            self.say_orders();
        }
        if is_first && self.role == Role::Follower {
            let (transport, reason) = (format!("{REVISION_PROBE}{REVISION}"), String::new());
            self.say(Message::Request { transport, reason, sequence: None });
        }
    }

    /// The peer has said what it understands.
    pub(super) fn met(&mut self, revision: u32) {
        self.peer_revision = revision;
        if self.orders != Orders::default() {
            self.say_orders();
        }
    }

    /// What the peer says is ordered: of the demands, only its own count.
    pub(super) fn told_orders(&mut self, orders: &Orders) -> Result<(), Violation> {
        if !orders.is_plausible_after(&self.orders) {
            return Err(Violation("orders whose numbers leave no room for later ones"));
        }
        let peer = match self.role {
            Role::Leader => Role::Follower,
            Role::Follower => Role::Leader,
        };
        if self.orders.merge(&orders.only_demands_of(peer)) {
            self.act(Action::Ordered);
        }
        Ok(())
    }

    /// Tells the peer, if it would understand it.
    fn say_orders(&mut self) {
        if self.peer_revision >= 2 {
            self.say(Message::Orders { orders: Box::new(self.orders.clone()) });
        }
    }
}
