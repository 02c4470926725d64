//! Decides which transport a flow uses, and why: a function of facts, without I/O, clock or state.
//!
//! Section 3.1.1 of the paper leaves connection policy to the daemon; section 3.1.4 lists the
//! reasons to change a transport. The policy first excludes transports that are not permitted
//! ([`permitted`]), then follows explicit choices (operator, application, rules of the file), and
//! last chooses the fastest transport. [`steady`] limits how often that last choice changes.

mod choice;
mod file;
pub mod steady;
mod user;

use fable::Kind;
use fable::Name;
use fable::orders::Demand;

pub use choice::{best_form, choose, permitted};
pub use file::{Access, DEFAULT, FileError, Policy, Quota, Reserve, Rule, Thresholds, Transports};
pub use user::User;

/// All facts that a choice depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The endpoint's name, for the rules.
    pub name: Name,
    /// Leader's and follower's user.
    pub users: [u32; 2],
    /// Whether both ends have declared trust.
    pub both_trust: bool,
    /// Where the two ends are, relative to each other.
    pub reach: Reach,
    /// Whether an operator or the policy demands protection beyond the host.
    pub protected: bool,
    /// The encryption that one of the sides has demanded.
    pub encryption: Option<Demand>,
    /// The transport that an operator ordered.
    pub pinned: Option<Kind>,
    /// The operator; empty if unknown.
    pub pinned_by: String,
    /// The transport that the application requested when it connected.
    pub insisted: Option<Kind>,
    /// The transport in use; `None` before the first path.
    pub current: Option<Kind>,
    /// Transports that failed recently.
    pub failed: Vec<Kind>,
}

/// Where the two ends are, relative to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// On one host, under one kernel.
    SameHost {
        /// The namespaces that the two processes do not share: `network`, `pid`, `mount`.
        separated_by: Vec<&'static str>,
    },
    /// On two hosts.
    OtherHost {
        /// Whether all of the peer's addresses lie in networks that the policy trusts.
        trusted_network: bool,
    },
}

/// A choice, with its reason and urgency.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The transport.
    pub kind: Kind,
    /// The reason, a sentence without its full stop.
    pub reason: String,
    /// How soon the choice has to be followed.
    pub urgency: Urgency,
}

/// How soon a choice is to be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// At once: the present transport is not permitted.
    Must,
    /// At once, unless the flow is flapping: an operator, the application or a rule requests it.
    Wanted,
    /// After it has been the better choice for a while.
    Better,
}

#[cfg(test)]
mod tests;
