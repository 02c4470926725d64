//! Named flows that pick the best transport and change it while they live.

pub mod agent;
mod control;
mod error;
pub mod flow;
mod kind;
mod memory;
mod name;
pub mod packet;
pub mod page;
pub mod protocol;
pub mod transport;

pub use error::{Error, Result, TransportError, TransportResult};
pub use flow::{Flow, FlowEvent, ReadBuffer, WriteBuffer};
pub use kind::{Form, Kind, UnknownKind};
pub use name::{BadName, Name};
