//! Merges the orders about a flow, so that both ends and the daemons of both hosts hold the same
//! ones.
//!
//! Every order has a sequence number, one more than the highest that its origin knew, and the side
//! of the end from which it came. The order with the greater number wins. Of two orders with the
//! same number, which were given at the same time, the leader's wins. So both sides get the same
//! result in whatever sequence the orders arrive ([`Orders::merge`]).
//!
//! The demand that a flow between hosts be encrypted is recorded for each side separately: only the
//! side that made a demand can withdraw it.

use serde::{Deserialize, Serialize};

use crate::identity::Role;
use crate::kind::Kind;

/// The longest description of who gave an order, in characters.
const WHO_CHARS_MAX: usize = 200;

/// The longest name of a transport.
const TRANSPORT_CHARS_MAX: usize = 64;

/// The largest accepted difference between a received sequence number and the highest known one.
const AHEAD_MAX: u64 = 1 << 32;

/// One order about the transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Greater than the number of every order that its origin knew.
    pub sequence: u64,
    /// The end on whose side it was given.
    pub side: Role,
    /// Who gave it, for logs and displays: `user 0 on node7`.
    pub who: String,
    /// The transport's name; `None` leaves the choice to the policy.
    pub transport: Option<String>,
}

/// How strongly a side demands that a flow between hosts be encrypted.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Encryption {
    /// It demands nothing.
    #[default]
    Free,
    /// An operator ordered TLS on that side. Any later order of that side withdraws it.
    Ordered,
    /// It demands encryption until that side withdraws the demand.
    Protected,
}

/// The demand of one side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Greater than the number of every order that its origin knew; 0 if nothing was ever demanded.
    pub sequence: u64,
    /// The demanded level.
    pub level: Encryption,
    /// Who demanded it, for logs and displays.
    pub who: String,
}

/// All orders about a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Orders {
    /// The latest order of an operator.
    pub operator: Option<Order>,
    /// The latest transport that the application requested by itself.
    pub application: Option<Order>,
    /// The demands of the leader's and the follower's side.
    pub encryption: [Demand; 2],
}

impl Orders {
    /// Merges the newer orders of `other`. Returns true if there were any.
    pub fn merge(&mut self, other: &Orders) -> bool {
        let operator = merge_order(&mut self.operator, other.operator.as_ref());
        let application = merge_order(&mut self.application, other.application.as_ref());
        let mut changed = operator || application;
        for (own, theirs) in self.encryption.iter_mut().zip(&other.encryption) {
            let theirs = Demand { who: bounded(&theirs.who, WHO_CHARS_MAX), ..theirs.clone() };
            if key(&theirs) > key(own) {
                *own = theirs;
                changed = true;
            }
        }
        changed
    }

    /// Returns a copy with the demands of this side only: a side may send no others.
    #[must_use]
    pub fn only_demands_of(&self, side: Role) -> Orders {
        let mut orders = self.clone();
        orders.encryption[side.other().index()] = Demand::default();
        orders
    }

    /// Returns the number of the latest order of an operator; 0 if there is none.
    pub fn operator_sequence(&self) -> u64 {
        self.operator.as_ref().map_or(0, |order| order.sequence)
    }

    /// Records an operator's order.
    pub fn order(&mut self, side: Role, who: &str, transport: Option<Kind>) {
        let (sequence, who) = (self.next_sequence(), bounded(who, WHO_CHARS_MAX));
        let transport = transport.map(|kind| kind.to_string());
        self.operator = Some(Order { sequence, side, who, transport });
    }

    /// Records that the application moved to a transport by itself.
    pub fn insist(&mut self, side: Role, who: &str, kind: Kind) {
        let (sequence, who) = (self.next_sequence(), bounded(who, WHO_CHARS_MAX));
        self.application = Some(Order { sequence, side, who, transport: Some(kind.to_string()) });
    }

    /// Records a side's demand.
    pub fn demand(&mut self, side: Role, who: &str, level: Encryption) {
        let (sequence, who) = (self.next_sequence(), bounded(who, WHO_CHARS_MAX));
        self.encryption[side.index()] = Demand { sequence, level, who };
    }

    /// Returns the demand of this side.
    pub fn demand_of(&self, side: Role) -> &Demand {
        &self.encryption[side.index()]
    }

    /// Returns the strongest demand, if any side demands encryption.
    pub fn encryption(&self) -> Option<&Demand> {
        let demands = self.encryption.iter().filter(|demand| demand.level != Encryption::Free);
        demands.max_by_key(|demand| demand.level)
    }

    /// Checks whether a flow between hosts may use this transport.
    ///
    /// # Errors
    /// The reason: who demands encryption, and what would withdraw the demand.
    pub fn check(&self, kind: Kind) -> Result<(), String> {
        match self.encryption() {
            Some(demand) if kind != Kind::Tls => Err(demand.refusal(kind)),
            _ => Ok(()),
        }
    }

    /// Returns whether these orders can come from a side that knew `known`, or little more. Numbers
    /// that are too large would leave no room for later orders: the last order would stay for ever.
    pub fn is_plausible_after(&self, known: &Orders) -> bool {
        self.highest_sequence() <= known.highest_sequence().saturating_add(AHEAD_MAX)
    }

    fn next_sequence(&self) -> u64 {
        self.highest_sequence().saturating_add(1)
    }

    fn highest_sequence(&self) -> u64 {
        let orders = [&self.operator, &self.application].into_iter().flatten();
        let demands = self.encryption.iter().map(|demand| demand.sequence);
        orders.map(|order| order.sequence).chain(demands).max().unwrap_or(0)
    }
}

impl Demand {
    /// Returns a text that names the demands and their origins.
    pub fn wish(&self) -> String {
        match self.level {
            Encryption::Free => "no side demands encryption".to_owned(),
            Encryption::Ordered => format!("{} ordered tls", self.who),
            Encryption::Protected => {
                format!("the flow must be protected when it leaves the host: {} says so", self.who)
            }
        }
    }

    /// Returns the reason why a transport without encryption is refused, and what would withdraw
    /// the demand.
    pub fn refusal(&self, kind: Kind) -> String {
        let remedy = match self.level {
            Encryption::Protected => "`fable protect FLOW off`",
            _ => "`fable move FLOW auto`",
        };
        let wish = self.wish();
        format!("{kind} does not encrypt, and {wish}; {remedy} on that host lifts this")
    }
}

/// Compares in full, so that both sides agree even on two demands of one side with the same number,
/// which no correct origin sends.
fn key(demand: &Demand) -> (u64, Encryption, &str) {
    (demand.sequence, demand.level, &demand.who)
}

fn merge_order(own: &mut Option<Order>, other: Option<&Order>) -> bool {
    let key = |order: &Order| {
        let leads = order.side == Role::Leader;
        (order.sequence, leads, order.transport.clone(), order.who.clone())
    };
    let Some(other) = other else { return false };
    let other = Order {
        who: bounded(&other.who, WHO_CHARS_MAX),
        transport: other.transport.as_ref().map(|name| bounded(name, TRANSPORT_CHARS_MAX)),
        ..other.clone()
    };
    let is_newer = own.as_ref().is_none_or(|own| key(&other) > key(own));
    if is_newer {
        *own = Some(other);
    }
    is_newer
}

/// Makes a text of another process printable and cuts it to `chars_max` characters, for logs.
fn bounded(text: &str, chars_max: usize) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(chars_max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order() -> impl Strategy<Value = Option<Order>> {
        let transport = prop_oneof![Just(None), "tcp|tls|mptcp".prop_map(Some)];
        let order = (0..4_u64, any::<bool>(), "[ab]", transport).prop_map(
            |(sequence, leads, who, transport)| {
                let side = if leads { Role::Leader } else { Role::Follower };
                Order { sequence, side, who, transport }
            },
        );
        proptest::option::of(order)
    }

    fn demand() -> impl Strategy<Value = Demand> {
        let levels = [Encryption::Free, Encryption::Ordered, Encryption::Protected];
        (0..4_u64, 0..3_usize, "[ab]").prop_map(move |(sequence, level, who)| Demand {
            sequence,
            level: levels[level],
            who,
        })
    }

    fn orders() -> impl Strategy<Value = Orders> {
        (order(), order(), demand(), demand()).prop_map(|(operator, application, one, other)| {
            Orders { operator, application, encryption: [one, other] }
        })
    }

    fn merged(parts: &[&Orders]) -> Orders {
        let mut result = Orders::default();
        for part in parts {
            result.merge(part);
        }
        result
    }

    proptest! {
        #[test]
        fn both_sides_come_to_the_same_in_whatever_order_they_learn_of_it(
            one in orders(), two in orders(), three in orders(),
        ) {
            let expected = merged(&[&one, &two, &three]);
            prop_assert_eq!(&expected, &merged(&[&three, &one, &two]));
            prop_assert_eq!(&expected, &merged(&[&two, &three, &two, &one]));
            let mut again = expected.clone();
            prop_assert!(!again.merge(&one) && again == expected);
        }

        #[test]
        fn an_order_that_is_given_stands_before_all_that_was_known(known in orders()) {
            let mut orders = merged(&[&known]);
            orders.order(Role::Follower, "user 0 on b", Some(Kind::Tcp));
            prop_assert!(!orders.merge(&known));
            let standing = orders.operator.as_ref().and_then(|order| order.transport.as_deref());
            prop_assert_eq!(standing, Some("tcp"));
        }
    }

    #[test]
    fn encryption_is_lifted_by_the_side_that_demanded_it() {
        let mut orders = Orders::default();
        assert_eq!(orders.check(Kind::Tcp), Ok(()));
        orders.demand(Role::Leader, "user 0 on a", Encryption::Ordered);
        let refused = orders.check(Kind::Tcp).unwrap_err();
        assert!(refused.contains("user 0 on a ordered tls"), "{refused}");
        assert_eq!(orders.check(Kind::Tls), Ok(()));
        // The other side claims that the leader's side demands nothing.
        let mut forged = orders.clone();
        forged.demand(Role::Leader, "user 0 on b", Encryption::Free);
        assert!(!orders.merge(&forged.only_demands_of(Role::Follower)));
        orders.demand(Role::Leader, "user 0 on a", Encryption::Free);
        assert_eq!(orders.check(Kind::Tcp), Ok(()));
    }

    #[test]
    fn numbers_that_leave_no_room_are_not_believed() {
        let mut orders = Orders::default();
        orders.order(Role::Leader, "user 0 on a", None);
        let order = orders.operator.clone().unwrap();
        let far =
            Orders { operator: Some(Order { sequence: u64::MAX, ..order }), ..orders.clone() };
        assert!(!far.is_plausible_after(&orders));
        assert!(orders.is_plausible_after(&Orders::default()));
    }

    #[test]
    fn what_comes_from_elsewhere_is_cut() {
        let who = format!("\x1b[2J{}", "x".repeat(10_000));
        let order = Order { sequence: 1, side: Role::Leader, who: who.clone(), transport: None };
        let demand = Demand { sequence: 1, level: Encryption::Ordered, who };
        let other = Orders {
            operator: Some(order),
            encryption: [demand.clone(), demand],
            ..Orders::default()
        };
        let mut orders = Orders::default();
        assert!(orders.merge(&other));
        let text = format!("{orders:?}");
        assert!(text.len() < 1000 && !text.contains("u{1b}"), "{text}");
        assert!(!orders.merge(&other), "what was cut is not newer than itself");
    }
}
