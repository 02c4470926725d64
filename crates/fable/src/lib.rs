//! Named flows that pick the best transport and change it while they live.

pub mod agent;
mod channel;
mod control;
mod daemon;
mod endpoint;
mod error;
pub mod flow;
mod kind;
mod memory;
mod name;
pub mod packet;
pub mod page;
mod poll;
pub mod protocol;
pub mod transport;
mod xpoll;

pub use daemon::socket_path;
pub use endpoint::{Endpoint, EndpointOptions, Listener};
pub use error::{Error, Result, TransportError, TransportResult};
pub use flow::{Flow, FlowEvent, ReadBuffer, WriteBuffer};
pub use kind::{Form, Kind, UnknownKind};
pub use name::{BadName, Name};
pub use protocol::{Access, FlowId, Peer, Role, Trust};
pub use xpoll::{Interest, Ready, xpoll};
