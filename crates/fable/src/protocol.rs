//! What processes and the name daemon say to each other.
//!
//! One message is one packet of JSON on a UNIX socket of type `SOCK_SEQPACKET`; descriptors travel
//! with it by `SCM_RIGHTS`. Both sides distrust each other's packets: too long, not JSON, unknown,
//! or with other descriptors than described here ends the connection with a reason.
//!
//! A process opens one connection, says [`ToDaemon::Hello`], and keeps it: names live as long as
//! it. When the daemon goes away, flows stay; the process connects again, says `Hello`, registers
//! its names and announces its flows.
//!
//! [`VERSION`] changes when an older side could not understand the newer one at all; it has not
//! changed yet. [`REVISION`] counts what was added since: each side says its own in the greeting
//! (none means 1), ignores fields that it does not know, and is sent messages of a later revision
//! only if it has said that it knows them:
//!
//! | revision | added |
//! | --- | --- |
//! | 1 | |
//! | 2 | `Orders` both ways; `sequence`, `epoch` in `Move`; a pidfd with `Connected`, `Incoming` |
//!
//! The control link between two ends does the same without a greeting. When the first path stands,
//! a follower of revision 2 sends a `request` for the transport `revision-2`. A leader of revision
//! 1 declines that as a transport that does not exist, which ends the matter; one of revision 2
//! answers with `revision`. From then on both send `orders` whenever theirs have changed, and a
//! `request` carries the number of the operator's order that it knows, and whether it is the
//! application that wants to move.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use crate::identity::{Access, FlowId, Peer, Role, Trust};

use crate::kind::Kind;
use crate::name::Name;
use crate::orders::Orders;
use crate::transport::TlsKeys;

/// The version that both sides must speak.
pub const VERSION: u32 = 1;

/// What this side understands of what was added to the version, see the [module](self).
pub const REVISION: u32 = 2;

/// What a side understands that says nothing of revisions.
pub(crate) fn first_revision() -> u32 {
    1
}

/// The longest packet, in bytes.
pub const PACKET_BYTES_MAX: usize = 128 * 1024;

/// The most descriptors in one packet.
pub const DESCRIPTORS_MAX: usize = 8;

/// From a process to the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ToDaemon {
    /// The first message.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The program's name, for people.
        program: String,
        /// [`REVISION`].
        #[serde(default = "first_revision")]
        revision: u32,
    },
    /// Registers a name, which must be of the `fable` scheme. Answered by `Registered` or
    /// `Refused`.
    Register {
        /// Echoed in the answer.
        request: u64,
        /// The name.
        name: Name,
        /// Who may connect.
        access: Access,
        /// Whether this end trusts those who connect.
        trust: Trust,
    },
    /// Gives a name up.
    Unregister {
        /// The name, as `Registered` gave it.
        name: Name,
    },
    /// Asks for a flow to a name of the `fable` scheme. Answered by `Connected`, `Elsewhere` or
    /// `Refused`.
    Connect {
        /// Echoed in the answer.
        request: u64,
        /// The name.
        name: Name,
        /// Whether this end trusts the other.
        trust: Trust,
        /// The transport that the application insists on; the policy chooses otherwise.
        transport: Option<String>,
    },
    /// An end has the path of a new epoch in use. Also said at once for the first epoch.
    Moved {
        /// The flow.
        flow: FlowId,
        /// From 1.
        epoch: u32,
        /// The path's transport.
        transport: String,
        /// How long this end could not send because of the move, in nanoseconds.
        pause_ns: u64,
    },
    /// What this end knows to be ordered has changed other than by the daemon's word, or the flow
    /// is announced. Since revision 2.
    Orders {
        /// The flow.
        flow: FlowId,
        /// All that is ordered.
        orders: Orders,
    },
    /// A move was refused or failed; the flow goes on as it was.
    MoveFailed {
        /// The flow.
        flow: FlowId,
        /// What was wanted.
        transport: String,
        /// Why it failed.
        reason: String,
    },
    /// Asks for the keys of a TLS path. Answered by `Keys` or `Refused`.
    GetKeys {
        /// Echoed in the answer.
        request: u64,
        /// The flow.
        flow: FlowId,
        /// This end.
        role: Role,
    },
    /// This end of a flow is closed.
    Ended {
        /// The flow.
        flow: FlowId,
        /// Why, for people: closed, peer died, ...
        reason: String,
    },
    /// A flow that existed before this connection to the daemon. Descriptors: its page.
    Announce(Announcement),
    /// An operator's question or order; the peer credentials decide whether it is allowed.
    /// Answered by `Answer` or `Refused`.
    Operate {
        /// Echoed in the answer.
        request: u64,
        /// What is wanted.
        operation: Operation,
    },
}

/// What an end says of its flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// The flow.
    pub flow: FlowId,
    /// The endpoint's name.
    pub name: Name,
    /// Which end this is.
    pub role: Role,
    /// The other end.
    pub peer: Peer,
    /// The epoch that this end writes on.
    pub epoch: u32,
    /// Its transport.
    pub transport: String,
    /// Whether this end trusts the other.
    pub trust: Trust,
    /// Whether only protected transports may be used beyond this host.
    pub protected: bool,
    /// Whether the other end is on this host: its daemon knows the flow, too.
    pub local: bool,
}

/// What an operator wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// All names, here and in the cluster.
    Names,
    /// All flows with their counters.
    Flows,
    /// Moves a flow to a transport. The answer comes when it has moved, or failed.
    Move {
        /// The flow.
        flow: FlowId,
        /// The transport's name, or `auto` to leave the choice to the policy again.
        transport: String,
    },
    /// The decisions about a flow, with their reasons.
    Why {
        /// The flow.
        flow: FlowId,
    },
    /// Whether a flow must be protected (TLS) when it leaves the host.
    Protect {
        /// The flow.
        flow: FlowId,
        /// The new state.
        protected: bool,
    },
    /// Every event from now on; each comes as an `Answer` until the connection ends.
    Events,
}

/// From the daemon to a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ToProcess {
    /// The answer to `Hello`.
    Welcome {
        /// [`VERSION`].
        version: u32,
        /// This host's name in the cluster.
        host: String,
        /// [`REVISION`].
        #[serde(default = "first_revision")]
        revision: u32,
    },
    /// A name is registered.
    Registered {
        /// Of the question.
        request: u64,
        /// The name, with the instance that was chosen if none was given.
        name: Name,
    },
    /// The flow is made on this host. Descriptors: the control socket (`SOCK_SEQPACKET`, its other
    /// end goes to the peer), the flow's page, and since revision 2 the peer's pidfd, if the kernel
    /// gives one.
    Connected {
        /// Of the question.
        request: u64,
        /// The flow.
        flow: FlowId,
        /// The endpoint's full name.
        name: Name,
        /// Who listens.
        peer: Peer,
        /// What the leader is going to offer first.
        transport: String,
        /// Why.
        reason: String,
    },
    /// The name lives on another host: connect there over TCP, send the ticket as one line, and use
    /// that connection as control link. Descriptors: the flow's page (this end's own).
    Elsewhere {
        /// Of the question.
        request: u64,
        /// The flow.
        flow: FlowId,
        /// The endpoint's full name.
        name: Name,
        /// Who listens.
        peer: Peer,
        /// Where its daemon listens; to be tried in this order.
        addresses: Vec<SocketAddr>,
        /// What to send first, without the end of line: JSON, signed by the daemon for the other.
        ticket: String,
        /// Whether only protected transports may be used.
        protected: bool,
    },
    /// A new flow for an endpoint of this process. Descriptors: the control socket (a
    /// `SOCK_SEQPACKET` pair's end if local, else a connected TCP socket behind the ticket), the
    /// flow's page, and since revision 2 the pidfd of a peer on this host, if the kernel gives one.
    Incoming {
        /// The flow.
        flow: FlowId,
        /// The endpoint's full name.
        name: Name,
        /// Who connects.
        peer: Peer,
        /// Whether that one trusts this end.
        trust: Trust,
        /// Whether the other end is on this host.
        local: bool,
        /// Whether only protected transports may be used beyond this host.
        protected: bool,
        /// What to offer first.
        transport: String,
        /// Why.
        reason: String,
    },
    /// Move a flow to this transport, if it is not there yet. Either end may get this; a follower
    /// asks its leader. Answered by `Moved` (of a later epoch) or `MoveFailed`.
    Move {
        /// The flow.
        flow: FlowId,
        /// The transport.
        transport: String,
        /// Why, for the flow's event.
        reason: String,
        /// The number of the operator's order that the daemon knows: an end that knows a later one
        /// does not move. Since revision 2.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sequence: Option<u64>,
        /// Set if the daemon chose by itself: the epoch that it knew. A flow that has moved since
        /// stays where it is, and the `Moved` of that move is the answer. Since revision 2.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epoch: Option<u32>,
    },
    /// What is ordered about a flow has changed by the daemon's word; comes before the `Move` that
    /// follows from it. Since revision 2.
    Orders {
        /// The flow.
        flow: FlowId,
        /// All that is ordered.
        orders: Orders,
    },
    /// Whether the flow must be protected has changed; a move follows if it is needed.
    Protect {
        /// The flow.
        flow: FlowId,
        /// The new state.
        protected: bool,
    },
    /// The keys that were asked for.
    Keys {
        /// Of the question.
        request: u64,
        /// For this end of this flow.
        keys: TlsKeys,
    },
    /// The answer to an operation.
    Answer {
        /// Of the question.
        request: u64,
        /// The answer.
        answer: Answer,
    },
    /// No.
    Refused {
        /// Of the question.
        request: u64,
        /// Cause and remedy.
        reason: String,
    },
}

/// The answer to an [`Operation`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Answer {
    /// To `Names`.
    Names {
        /// The names.
        names: Vec<NameEntry>,
        /// Whether another answer to the same question goes on with the list.
        #[serde(default)]
        more: bool,
    },
    /// To `Flows`.
    Flows {
        /// The flows.
        flows: Vec<FlowEntry>,
        /// Whether another answer to the same question goes on with the list.
        #[serde(default)]
        more: bool,
    },
    /// To `Move` and `Protect`: done.
    Done {
        /// What was done.
        what: String,
    },
    /// To `Why`.
    Why {
        /// The flow as it is.
        flow: Box<FlowEntry>,
        /// The latest decisions, oldest first.
        decisions: Vec<Decision>,
    },
    /// One event.
    Event {
        /// Seconds since 1970.
        time_s: f64,
        /// What happened, in a sentence.
        what: String,
    },
}

/// A name and who has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NameEntry {
    /// The full name.
    pub name: Name,
    /// Who has it.
    pub owner: Peer,
    /// The registration's epoch in the cluster, if there is one.
    pub epoch: Option<i64>,
    /// How many flows it has here.
    pub flows: usize,
    /// Whether its process is gone, as far as this host can know.
    #[serde(default)]
    pub is_gone: bool,
}

/// A flow and what is known of it. Rates are over the last second or so; `None` where only the
/// other host can know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlowEntry {
    /// The flow.
    pub flow: FlowId,
    /// The endpoint's name.
    pub name: Name,
    /// The end that listened.
    pub leader: Peer,
    /// The end that connected.
    pub follower: Peer,
    /// The transport in use.
    pub transport: String,
    /// Its epoch.
    pub epoch: u32,
    /// Age in seconds.
    pub age_s: f64,
    /// Messages per second from leader to follower, and back.
    pub messages_s: [f64; 2],
    /// Bytes per second from leader to follower, and back.
    pub bytes_s: [f64; 2],
    /// Messages in all, from leader to follower, and back.
    pub messages: [u64; 2],
    /// From commit to acquisition, smoothed, of messages to the leader and to the follower.
    pub latency_ns: [Option<u64>; 2],
    /// On which CPU leader and follower were last seen.
    pub cpus: [Option<u32>; 2],
    /// Whether it must be protected beyond the host.
    pub protected: bool,
    /// Whether an operator chose the transport, and the policy keeps its hands off.
    pub pinned: bool,
    /// Whether it goes to and fro between transports.
    #[serde(default)]
    pub is_flapping: bool,
    /// Whether the processes of leader and follower are gone, as far as this host can know.
    #[serde(default)]
    pub are_gone: [bool; 2],
}

/// Something that was decided about a flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// Seconds since 1970.
    pub time_s: f64,
    /// The transport that was chosen.
    pub transport: String,
    /// Why.
    pub reason: String,
    /// What became of it: `proposed`, `in use`, or why it failed.
    pub outcome: String,
}

/// A kind by its name, for messages that must not fail to parse because of a newer transport.
pub fn kind_of(name: &str) -> Result<Kind, crate::UnknownKind> {
    name.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a side of the first revision says is understood, and says that it is of that revision.
    #[test]
    fn the_first_revision_is_understood() {
        let hello = r#"{"say":"hello","version":1,"program":"old"}"#;
        let hello = serde_json::from_str(hello).unwrap();
        assert!(matches!(hello, ToDaemon::Hello { version: VERSION, revision: 1, .. }));
        let welcome = r#"{"say":"welcome","version":1,"host":"old"}"#;
        let welcome = serde_json::from_str(welcome).unwrap();
        assert!(matches!(welcome, ToProcess::Welcome { version: VERSION, revision: 1, .. }));
        let order = r#"{"say":"move","flow":7,"transport":"unix","reason":"so"}"#;
        let order = serde_json::from_str(order).unwrap();
        assert!(matches!(
            order,
            ToProcess::Move { flow: FlowId(7), sequence: None, epoch: None, .. }
        ));
    }

    /// What is said to a side of the first revision has nothing that it would stumble over: fields
    /// that it does not know it ignores, and there are no others than those.
    #[test]
    fn the_first_revision_understands_what_is_said_to_it() {
        let (transport, reason) = ("unix".to_owned(), "so".to_owned());
        let order =
            ToProcess::Move { flow: FlowId(7), transport, reason, sequence: None, epoch: None };
        assert_eq!(
            serde_json::to_string(&order).unwrap(),
            r#"{"say":"move","flow":7,"transport":"unix","reason":"so"}"#
        );
        let hello = ToDaemon::Hello { version: 1, program: "new".to_owned(), revision: REVISION };
        assert_eq!(
            serde_json::to_string(&hello).unwrap(),
            r#"{"say":"hello","version":1,"program":"new","revision":2}"#
        );
    }
}
