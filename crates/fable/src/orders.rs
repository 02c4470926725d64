//! What was ordered about a flow: the same on both of its ends and with the daemons of both hosts.
//!
//! Every order has a sequence number, one more than the highest that its origin knew, and says
//! which end's side it comes from. Of two orders the one with the greater number stands; of two
//! with the same number, which were given at the same time, the leader's. So both sides come to the
//! same result in whatever order they learn of them ([`Orders::merge`]).
//!
//! Whether a flow between hosts must be encrypted is not one decision but two, one for each side:
//! what a side has demanded is only lifted by that side.

use serde::{Deserialize, Serialize};

use crate::identity::Role;
use crate::kind::Kind;

/// The longest description of who ordered something, in characters.
const WHO_CHARS_MAX: usize = 200;

/// The longest name of a transport.
const TRANSPORT_CHARS_MAX: usize = 64;

/// How far the orders of others may be ahead of what is known.
const AHEAD_MAX: u64 = 1 << 32;

/// One order about the transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Greater than that of every order that its origin knew.
    pub sequence: u64,
    /// The end on whose side it was given.
    pub side: Role,
    /// Who gave it, for people: `user 0 on node7`.
    pub who: String,
    /// The transport's name; `None` leaves the choice to the policy.
    pub transport: Option<String>,
}

/// How strongly a side wants a flow between hosts to be encrypted.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Encryption {
    /// It does not care.
    #[default]
    Free,
    /// An operator ordered TLS there. Any later order of that side lifts it.
    Ordered,
    /// It must be protected until that side says otherwise.
    Protected,
}

/// What one side wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Greater than that of every order that its origin knew; 0 if nothing was ever demanded.
    pub sequence: u64,
    /// What is demanded.
    pub level: Encryption,
    /// Who demanded it, for people.
    pub who: String,
}

/// Everything that was ordered about a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Orders {
    /// The latest order of an operator.
    pub operator: Option<Order>,
    /// The latest transport that the application went to by itself.
    pub application: Option<Order>,
    /// Leader's and follower's side.
    pub encryption: [Demand; 2],
}

impl Orders {
    /// Takes over what is newer in `other`; true if that was anything.
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

    /// The same without what was demanded by sides other than this one, which alone may say so.
    #[must_use]
    pub fn only_demands_of(&self, side: Role) -> Orders {
        let mut orders = self.clone();
        orders.encryption[side.other().index()] = Demand::default();
        orders
    }

    /// The number of the latest order of an operator; 0 if there is none.
    pub fn operator_sequence(&self) -> u64 {
        self.operator.as_ref().map_or(0, |order| order.sequence)
    }

    /// Notes an operator's order.
    pub fn order(&mut self, side: Role, who: &str, transport: Option<Kind>) {
        let (sequence, who) = (self.next_sequence(), bounded(who, WHO_CHARS_MAX));
        let transport = transport.map(|kind| kind.to_string());
        self.operator = Some(Order { sequence, side, who, transport });
    }

    /// Notes that the application went to a transport by itself.
    pub fn insist(&mut self, side: Role, who: &str, kind: Kind) {
        let (sequence, who) = (self.next_sequence(), bounded(who, WHO_CHARS_MAX));
        self.application = Some(Order { sequence, side, who, transport: Some(kind.to_string()) });
    }

    /// Notes what a side wants.
    pub fn demand(&mut self, side: Role, who: &str, level: Encryption) {
        let (sequence, who) = (self.next_sequence(), bounded(who, WHO_CHARS_MAX));
        self.encryption[side.index()] = Demand { sequence, level, who };
    }

    /// What this side wants.
    pub fn demand_of(&self, side: Role) -> &Demand {
        &self.encryption[side.index()]
    }

    /// The strongest demand, if any side wants encryption.
    pub fn encryption(&self) -> Option<&Demand> {
        let demands = self.encryption.iter().filter(|demand| demand.level != Encryption::Free);
        demands.max_by_key(|demand| demand.level)
    }

    /// Whether a flow between hosts may use this transport.
    ///
    /// # Errors
    /// Who wants it to be encrypted, and what would lift that.
    pub fn check(&self, kind: Kind) -> Result<(), String> {
        match self.encryption() {
            Some(demand) if kind != Kind::Tls => Err(demand.refusal(kind)),
            _ => Ok(()),
        }
    }

    /// Whether these can come from a side that knew the others, or little more: numbers that leave
    /// no room for later orders would make the last one stand for good.
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
    /// What is demanded, and who demands it.
    pub fn wish(&self) -> String {
        match self.level {
            Encryption::Free => "no side demands encryption".to_owned(),
            Encryption::Ordered => format!("{} ordered tls", self.who),
            Encryption::Protected => {
                format!("the flow must be protected when it leaves the host: {} says so", self.who)
            }
        }
    }

    /// Why a transport that does not encrypt is refused, and what would lift that.
    pub fn refusal(&self, kind: Kind) -> String {
        let remedy = match self.level {
            Encryption::Protected => "`fable protect FLOW off`",
            _ => "`fable move FLOW auto`",
        };
        let wish = self.wish();
        format!("{kind} does not encrypt, and {wish}; {remedy} on that host lifts this")
    }
}

/// Compares in full, so that both sides agree even on what no honest origin sends: two demands of
/// one side with the same number.
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

/// Printable, and not longer than this: it comes from somewhere else and goes into logs.
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
        // The other side says that the leader's side does not care.
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
