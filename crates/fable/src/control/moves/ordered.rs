//! What is ordered about a flow, and how it limits the moves.

use super::{Action, Moves, Violation};
use crate::control::message::{Message, REVISION_PROBE};
use crate::identity::Role;
use crate::kind::Kind;
use crate::orders::Orders;
use crate::protocol::REVISION;

/// What the daemon knew of the flow when it wanted a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Basis {
    /// The number of the latest operator's order: an end that knows a later one refuses.
    pub(crate) sequence: Option<u64>,
    /// Since when the present path stands, if the choice depends on that: an end that has moved
    /// since stays where it is.
    pub(crate) epoch: Option<u32>,
}

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
        match standing {
            Some(why) => self.fail(kind, why),
            None => self.ask(kind, reason, Basis::default(), true),
        }
    }

    /// Whether the flow has moved since the daemon chose. That move is told to the daemon, which
    /// then chooses again.
    pub(super) fn has_moved_since(&self, basis: Basis) -> bool {
        basis.epoch.is_some_and(|epoch| epoch < self.epoch)
    }

    /// Whether an application's wish comes next: the daemon chooses again after that.
    pub(super) fn application_is_next(&self) -> bool {
        self.next.as_ref().is_some_and(|wish| wish.by_application)
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

    /// A path stands. With the first one, a follower tells the peer what it understands.
    pub(super) fn stands(&mut self, epoch: u32, kind: Kind) {
        self.epoch = epoch;
        let is_first = self.current.replace(kind).is_none();
        if is_first && self.role == Role::Follower {
            let (transport, reason) = (format!("{REVISION_PROBE}{REVISION}"), String::new());
            self.say(Message::Request { transport, reason, sequence: None, by_application: false });
        }
    }

    /// Notes that a side's application wanted the transport, and tells the peer and the daemon.
    /// That comes before the move: a daemon that saw the flow leave a transport on which the
    /// application still insists would move it back.
    pub(super) fn note_insistence(&mut self, side: Role, kind: Kind) {
        let who = match side {
            Role::Leader => "the application that listens",
            Role::Follower => "the application that connects",
        };
        self.orders.insist(side, who, kind);
        self.act(Action::Ordered);
        self.say_orders();
    }

    /// The follower's application is where it wanted to be. Leaders of revision 2 have noted that.
    pub(super) fn note_own_wish(&mut self, kind: Kind) {
        if self.application_wish.take_if(|wish| *wish == kind).is_none() {
            return;
        }
        let name = kind.to_string();
        let is_noted = self.orders.application.as_ref().is_some_and(|order| {
            order.side == self.role && order.transport.as_ref() == Some(&name)
        });
        if !is_noted {
            self.note_insistence(self.role, kind);
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
        if self.orders.merge(&orders.only_demands_of(self.role.other())) {
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
