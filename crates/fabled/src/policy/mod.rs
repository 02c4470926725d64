//! Which transport suits a flow, and why: a function of facts, without I/O, clock or state.
//!
//! Section 3.1.1 of the paper leaves connection policy to the daemon; section 3.1.4 names the
//! reasons to change a transport. What may not be is decided first ([`permitted`]), what is wanted
//! second (operator, application, rules of the file), what is fast last. [`steady`] keeps the last
//! from changing its mind too often.

mod choice;
mod file;
mod network;
pub mod steady;

use fable::Kind;
use fable::Name;
use fable::orders::Demand;

pub use choice::{best_form, choose, permitted};
pub use file::{Access, DEFAULT, FileError, Policy, Reserve, Rule, Thresholds, Transports};
pub use network::{BadNetwork, Network};

/// All that a choice depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The endpoint's name, for the rules.
    pub name: Name,
    /// Leader's and follower's user.
    pub users: [u32; 2],
    /// Whether both ends said that they trust the other.
    pub both_trust: bool,
    /// Where the other end is.
    pub reach: Reach,
    /// Whether an operator or the policy demands protection beyond the host.
    pub protected: bool,
    /// The encryption that one of the sides has demanded.
    pub encryption: Option<Demand>,
    /// What an operator ordered.
    pub pinned: Option<Kind>,
    /// Who that is; empty if it is not known.
    pub pinned_by: String,
    /// What the application insisted on when it connected.
    pub insisted: Option<Kind>,
    /// What is in use; `None` before the first path.
    pub current: Option<Kind>,
    /// Transports that failed lately.
    pub failed: Vec<Kind>,
    /// Messages per second, both directions together.
    pub messages_s: f64,
}

/// Where the ends are.
#[derive(Clone, Debug, PartialEq)]
pub enum Reach {
    /// Under one kernel.
    SameHost(Placement),
    /// On two hosts.
    OtherHost {
        /// Whether all of the peer's addresses lie in networks that the policy trusts.
        trusted_network: bool,
    },
}

/// How the ends lie on one host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Where each end last ran.
    pub cpus: [Option<u32>; 2],
    /// The NUMA nodes of these CPUs.
    pub nodes: [Option<u32>; 2],
    /// Whether an end waits by a descriptor, which a spinning peer could not ring.
    pub watched: bool,
    /// CPUs that are online.
    pub cpu_count: u32,
    /// Threads that want to run, the ends of this flow included, smoothed over some seconds.
    pub runnable: f64,
    /// In what the two processes do not see the same: `network`, `pid`, `mount` namespace.
    pub separated_by: Vec<&'static str>,
}

/// A choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The transport.
    pub kind: Kind,
    /// Why, in a sentence without its full stop.
    pub reason: String,
    /// How much it matters.
    pub urgency: Urgency,
}

/// How soon a choice is to be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The present transport is not allowed: at once.
    Must,
    /// An operator, the application or a rule wants this one: at once, unless the flow is flapping.
    Wanted,
    /// It is better for now: when it has been so for a while.
    Better,
}

#[cfg(test)]
mod tests;
