//! Merges orders about a flow, and limits its moves by them.

use super::{Action, Moves, Violation};
use crate::control::message::Message;
use crate::identity::Role;
use crate::kind::Kind;
use crate::orders::Orders;

/// What the daemon knew of the flow when it requested a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Basis {
    /// The number of the latest operator's order; an end that knows a later one refuses the move.
    pub(crate) sequence: Option<u64>,
    /// The epoch that the daemon's choice is based on, if it is; an end that has moved since then
    /// ignores the choice.
    pub(crate) epoch: Option<u32>,
}

impl Moves {
    /// Returns the orders that this end knows.
    pub(crate) fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Merges the orders that the daemon has sent.
    pub(crate) fn adopt(&mut self, orders: &Orders) {
        if self.orders.merge(orders) {
            self.say_orders();
        }
    }

    /// Handles a move that the application requests. It is refused where an operator has chosen the
    /// transport.
    pub(crate) fn want_as_application(&mut self, kind: Kind, reason: &str) {
        let standing = self.orders.operator.as_ref().and_then(|order| {
            let transport = order.transport.as_ref()?;
            (*transport != kind.to_string()).then(|| format!("{} ordered {transport}", order.who))
        });
        match standing {
            Some(why) => self.fail(kind, why),
            None => self.ask(kind, reason, Basis::default(), true),
        }
    }

    /// Returns whether the flow has moved since the daemon chose. The daemon gets a report of that
    /// move and chooses again.
    pub(super) fn has_moved_since(&self, basis: Basis) -> bool {
        basis.epoch.is_some_and(|epoch| epoch < self.epoch)
    }

    /// Returns whether the next move is one that an application requested: the daemon chooses again
    /// after it.
    pub(super) fn application_is_next(&self) -> bool {
        self.next.as_ref().is_some_and(|wish| wish.by_application)
    }

    /// Checks whether the flow may use this transport.
    pub(super) fn check(&self, kind: Kind) -> Result<(), String> {
        self.rules.check(kind)?;
        if self.rules.local { Ok(()) } else { self.orders.check(kind) }
    }

    /// Checks that this end knows no later operator's order than the request's.
    pub(super) fn check_sequence(&self, sequence: Option<u64>) -> Result<(), String> {
        match sequence {
            Some(known) if known < self.orders.operator_sequence() => {
                Err("a later order has replaced this one".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Records that a side's application requested the transport, and informs the peer and the
    /// daemon. This happens before the move: a daemon that saw the flow leave a transport which the
    /// application still requests would move it back.
    pub(super) fn note_insistence(&mut self, side: Role, kind: Kind) {
        let who = match side {
            Role::Leader => "the application that listens",
            Role::Follower => "the application that connects",
        };
        self.orders.insist(side, who, kind);
        self.act(Action::Ordered);
        self.say_orders();
    }

    /// Merges the peer's orders; of its demands for encryption, only those of its own side count.
    pub(super) fn told_orders(&mut self, orders: &Orders) -> Result<(), Violation> {
        if !orders.is_plausible_after(&self.orders) {
            return Err(Violation("orders whose numbers leave no room for later ones"));
        }
        if self.orders.merge(&orders.only_demands_of(self.role.other())) {
            self.act(Action::Ordered);
        }
        Ok(())
    }

    /// Sends the orders to the peer.
    fn say_orders(&mut self) {
        self.say(Message::Orders { orders: Box::new(self.orders.clone()) });
    }
}
