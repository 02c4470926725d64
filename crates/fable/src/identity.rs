//! Identifies flows and their ends: numbers, roles, peers, trust and access.
//!
//! The [protocol](crate::protocol) and the [orders](crate::orders) use these types.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies a flow on all hosts of a cluster. The daemon of the connecting end draws it at
/// random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FlowId(pub u64);

/// Formats the identifier as 16 hexadecimal digits.
impl fmt::Display for FlowId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// An end of a flow: the one that listened, or the one that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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

    /// Returns the peer's role.
    pub fn other(self) -> Role {
        match self {
            Role::Leader => Role::Follower,
            Role::Follower => Role::Leader,
        }
    }

    /// Returns the index of this end in arrays with one element for each end.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Whether this end trusts the other not to change a message after committing it (section 3.1.2).
/// The unsafe forms of the transports are used only if both ends declare trust.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// Messages may be read in place.
    Trusted,
    /// Messages are copied before they are read.
    #[default]
    Untrusted,
}

/// The process at an end, as the kernel reports it, or for another host its daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The host's name.
    pub host: String,
    /// The process id.
    pub pid: i32,
    /// The user id.
    pub uid: u32,
    /// The group id.
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
