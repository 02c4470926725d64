//! The messages between processes and the name daemon.
//!
//! One message is one packet of JSON on a UNIX socket of type `SOCK_SEQPACKET`; descriptors travel
//! with it by `SCM_RIGHTS`. Both sides check each other's packets. A packet that is too long, is
//! not JSON, has an unknown type, or has other descriptors than described here ends the connection
//! with a reason.
//!
//! A process opens one connection, sends [`ToDaemon::Hello`], and keeps it: its names exist as long
//! as the connection. When the daemon ends, flows stay; the process connects again, sends `Hello`,
//! registers its names and announces its flows.
//!
//! Both sides refuse another [`VERSION`] than their own.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use crate::identity::{Access, FlowId, Peer, Role, Trust};

use crate::kind::Kind;
use crate::name::Name;
use crate::orders::Orders;
use crate::transport::TlsKeys;

/// The protocol version, which must be the same on both sides.
pub const VERSION: u32 = 2;

/// The longest packet, in bytes.
pub const PACKET_BYTES_MAX: usize = 128 * 1024;

/// The most descriptors in one packet.
pub const DESCRIPTORS_MAX: usize = 8;

/// A message from a process to the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ToDaemon {
    /// The first message.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The program's name, for logs and displays.
        program: String,
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
        /// Whether this end trusts the processes that connect.
        trust: Trust,
    },
    /// Unregisters a name.
    Unregister {
        /// The name, as `Registered` gave it.
        name: Name,
    },
    /// Requests a flow to a name of the `fable` scheme. Answered by `Connected`, `Elsewhere` or
    /// `Refused`.
    Connect {
        /// Echoed in the answer.
        request: u64,
        /// The name.
        name: Name,
        /// Whether this end trusts the other.
        trust: Trust,
        /// The transport that the application requests; without one the policy chooses.
        transport: Option<String>,
        /// The user that must run the other end. The process checks the answer itself, too.
        owner: Option<u32>,
    },
    /// An end uses the path of a new epoch. Sent at once for the first epoch too.
    Moved {
        /// The flow.
        flow: FlowId,
        /// The epoch, from 1.
        epoch: u32,
        /// The path's transport.
        transport: String,
        /// How long this end could not send because of the move, in nanoseconds.
        pause_ns: u64,
    },
    /// The orders that this end knows have changed, and not by the daemon's message; or the flow is
    /// announced.
    Orders {
        /// The flow.
        flow: FlowId,
        /// All orders.
        orders: Orders,
    },
    /// A move was refused or failed; the flow continues on its present transport.
    MoveFailed {
        /// The flow.
        flow: FlowId,
        /// The requested transport.
        transport: String,
        /// Why it failed.
        reason: String,
    },
    /// Requests the keys of a TLS path. Answered by `Keys` or `Refused`.
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
        /// The reason, for logs: closed, peer died, ...
        reason: String,
    },
    /// Announces a flow that existed before this connection to the daemon. Descriptors: its page.
    Announce(Announcement),
    /// An operator's query or order; the peer credentials decide whether it is allowed. Answered by
    /// `Answer` or `Refused`.
    Operate {
        /// Echoed in the answer.
        request: u64,
        /// The operation.
        operation: Operation,
    },
}

/// The state of a flow that an end announces after a reconnection.
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
    /// The epoch that this end writes.
    pub epoch: u32,
    /// The transport of that epoch.
    pub transport: String,
    /// Whether this end trusts the other.
    pub trust: Trust,
    /// Whether only protected transports may be used beyond this host.
    pub protected: bool,
    /// Whether the other end is on this host, so that this daemon knows its process.
    pub local: bool,
}

/// A request of an operator.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// Lists all names, here and in the cluster.
    Names,
    /// Lists all flows with their counters.
    Flows,
    /// Moves a flow to a transport. The answer follows when the move is complete or has failed.
    Move {
        /// The flow.
        flow: FlowId,
        /// The transport's name, or `auto` to leave the choice to the policy again.
        transport: String,
    },
    /// Lists the decisions about a flow, with their reasons.
    Why {
        /// The flow.
        flow: FlowId,
    },
    /// Sets whether a flow must be protected (TLS) when it leaves the host.
    Protect {
        /// The flow.
        flow: FlowId,
        /// The new state.
        protected: bool,
    },
    /// Reports every event from now on: each is an `Answer`, until the connection ends.
    Events,
    /// What each user makes the daemon hold.
    Users,
}

/// A message from the daemon to a process.
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
    },
    /// A name is registered.
    Registered {
        /// The number of the request.
        request: u64,
        /// The name, with the chosen instance if none was given.
        name: Name,
    },
    /// The flow is established on this host. Descriptors: the control socket (`SOCK_SEQPACKET`, the
    /// peer gets its other end), the flow page, and the peer's pidfd, if the kernel provides one.
    Connected {
        /// The number of the request.
        request: u64,
        /// The flow.
        flow: FlowId,
        /// The endpoint's full name.
        name: Name,
        /// The process that listens.
        peer: Peer,
        /// The transport that the leader will offer first.
        transport: String,
        /// The reason for that choice.
        reason: String,
    },
    /// The endpoint is on another host: connect to that host over TCP, send the ticket as one line,
    /// and use that connection as control link. Descriptors: the flow page of this end.
    Elsewhere {
        /// The number of the request.
        request: u64,
        /// The flow.
        flow: FlowId,
        /// The endpoint's full name.
        name: Name,
        /// The process that listens.
        peer: Peer,
        /// The addresses of its daemon, to be tried in this order.
        addresses: Vec<SocketAddr>,
        /// The ticket, without the end of line: JSON, signed by this daemon for the other.
        ticket: String,
        /// Whether only protected transports may be used.
        protected: bool,
    },
    /// A new flow for an endpoint of this process. Descriptors: the control socket (an end of a
    /// `SOCK_SEQPACKET` pair if local, else a connected TCP socket after the ticket), the flow
    /// page, and the pidfd of a peer on this host, if the kernel provides one.
    Incoming {
        /// The flow.
        flow: FlowId,
        /// The endpoint's full name.
        name: Name,
        /// The process that connects.
        peer: Peer,
        /// Whether the peer trusts this end.
        trust: Trust,
        /// Whether the other end is on this host.
        local: bool,
        /// Whether only protected transports may be used beyond this host.
        protected: bool,
        /// The transport to offer first.
        transport: String,
        /// The reason for that choice.
        reason: String,
    },
    /// Moves a flow to this transport, if it does not use it yet. Either end can get this message;
    /// a follower asks its leader. Answered by `Moved` (of a later epoch) or `MoveFailed`.
    Move {
        /// The flow.
        flow: FlowId,
        /// The transport.
        transport: String,
        /// The reason, for the flow's event.
        reason: String,
        /// The number of the operator's order that the daemon knows; an end that knows a later one
        /// does not move.
        sequence: Option<u64>,
        /// The epoch that the daemon knew, if the daemon chose by itself. A flow that has moved
        /// since then ignores the message, and the `Moved` of that move is the answer.
        epoch: Option<u32>,
    },
    /// The daemon has changed the orders of a flow; sent before the `Move` that follows from them.
    Orders {
        /// The flow.
        flow: FlowId,
        /// All orders.
        orders: Orders,
    },
    /// Whether the flow must be protected has changed; a `Move` follows if it is needed.
    Protect {
        /// The flow.
        flow: FlowId,
        /// The new state.
        protected: bool,
    },
    /// The requested keys.
    Keys {
        /// The number of the request.
        request: u64,
        /// The keys of this end of this flow.
        keys: TlsKeys,
    },
    /// The answer to an operation.
    Answer {
        /// The number of the request.
        request: u64,
        /// The answer.
        answer: Answer,
    },
    /// No: the name, or the service, belongs to another user than the `Connect` requires.
    OtherOwner {
        /// Of the question.
        request: u64,
        /// The name that was asked for.
        name: Name,
        /// Whose it is.
        owner: u32,
    },
    /// The request is refused.
    Refused {
        /// The number of the request.
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
    /// Answers `Names`.
    Names {
        /// The names.
        names: Vec<NameEntry>,
        /// Whether another answer to the same request continues the list.
        #[serde(default)]
        more: bool,
    },
    /// Answers `Flows`.
    Flows {
        /// The flows.
        flows: Vec<FlowEntry>,
        /// Whether another answer to the same request continues the list.
        #[serde(default)]
        more: bool,
    },
    /// Answers `Move` and `Protect`: the operation is complete.
    Done {
        /// A sentence that says what was done.
        what: String,
    },
    /// Answers `Why`.
    Why {
        /// The present state of the flow.
        flow: Box<FlowEntry>,
        /// The latest decisions, oldest first.
        decisions: Vec<Decision>,
    },
    /// To `Users`.
    Users {
        /// All users together, then each that has or had something. To others than operators only
        /// themselves.
        users: Vec<UserEntry>,
        /// Whether another answer to the same question goes on with the list.
        #[serde(default)]
        more: bool,
    },
    /// Reports one event.
    Event {
        /// Seconds since 1970.
        time_s: f64,
        /// A sentence that describes the event.
        what: String,
    },
}

/// What a user makes the daemon hold, and how much it may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserEntry {
    /// `all`, `user UID`, or `host NAME` for the users of another host.
    pub user: String,
    /// Connections.
    pub connections: Usage,
    /// Names.
    pub names: Usage,
    /// Flows.
    pub flows: Usage,
    /// Bytes of memory.
    pub bytes: Usage,
    /// How often a limit, an owner or a reservation forbade something, a process was disconnected
    /// because it does not read, or an announcement was not believed.
    pub refused: u64,
    /// How many log lines were suppressed.
    pub suppressed: u64,
}

/// How much there is of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// How much is held.
    pub held: usize,
    /// How much may be held.
    pub limit: usize,
}

/// A name and the process that holds it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NameEntry {
    /// The full name.
    pub name: Name,
    /// The process that has it.
    pub owner: Peer,
    /// The registration's epoch in the cluster, if there is one.
    pub epoch: Option<i64>,
    /// The number of its flows on this host.
    pub flows: usize,
    /// Whether its process is gone, as far as this host knows.
    #[serde(default)]
    pub is_gone: bool,
    /// To which user the service belongs. Clients get instances of that user, and of root.
    #[serde(default)]
    pub service_owner: Option<u32>,
}

/// The state of a flow. Rates are over about the last second; `None` where only the other host
/// knows.
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
    /// The present epoch.
    pub epoch: u32,
    /// Age in seconds.
    pub age_s: f64,
    /// Messages per second from leader to follower, and back.
    pub messages_s: [f64; 2],
    /// Bytes per second from leader to follower, and back.
    pub bytes_s: [f64; 2],
    /// Total of messages from leader to follower, and back.
    pub messages: [u64; 2],
    /// Latency in nanoseconds, from commit to read, smoothed, of messages to the leader and to the
    /// follower.
    pub latency_ns: [Option<u64>; 2],
    /// The CPUs on which leader and follower last ran.
    pub cpus: [Option<u32>; 2],
    /// Whether it must be protected beyond the host.
    pub protected: bool,
    /// Whether an operator chose the transport, which the policy then does not change.
    pub pinned: bool,
    /// Whether it moves back and forth between transports.
    #[serde(default)]
    pub is_flapping: bool,
    /// Whether the processes of leader and follower are gone, as far as this host knows.
    #[serde(default)]
    pub are_gone: [bool; 2],
}

/// A decision about a flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// Seconds since 1970.
    pub time_s: f64,
    /// The transport that was chosen.
    pub transport: String,
    /// The reason.
    pub reason: String,
    /// The result: `proposed`, `in use`, or why it failed.
    pub outcome: String,
}

/// Parses a kind from its name. Messages contain names, so that a newer transport does not make a
/// message unparsable.
pub fn kind_of(name: &str) -> Result<Kind, crate::UnknownKind> {
    name.parse()
}
