//! Identifies flows and their ends: numbers, roles, peers, and what they trust and allow.
//!
//! The vocabulary of the [protocol](crate::protocol) and of the [orders](crate::orders).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names a flow on all hosts of a cluster: drawn at random by the daemon of the connecting end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FlowId(pub u64);

/// As people and programs write it: 16 hexadecimal digits.
impl fmt::Display for FlowId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// Which end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The end that listened. It leads reconfigurations.
    Leader,
    /// The end that connected.
    Follower,
}

impl Role {
    /// Both ends, in the order of [`Role::index`].
    pub const BOTH: [Role; 2] = [Role::Leader, Role::Follower];

    /// The peer's role.
    pub fn other(self) -> Role {
        match self {
            Role::Leader => Role::Follower,
            Role::Follower => Role::Leader,
        }
    }

    /// The place of this end in pairs of what each end has.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Whether this end trusts the other not to change a message after committing it
/// (section 3.1.2): the unsafe forms of the transports need both ends to say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// Messages are looked at in place.
    Trusted,
    /// Messages are copied before they are looked at.
    #[default]
    Untrusted,
}

/// Who is at an end. From the kernel, or for another host from its daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The host's name.
    pub host: String,
    /// Process.
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The program's name.
    pub program: String,
}

/// Who may connect to a name. Empty lists leave it to the daemon's policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// User ids.
    pub users: Vec<u32>,
    /// Group ids; supplementary groups of a peer on this host count.
    pub groups: Vec<u32>,
}
