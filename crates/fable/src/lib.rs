//! Named flows that pick the best transport and change it while they live.

mod error;
mod kind;
mod memory;
mod name;
pub mod packet;
pub mod page;
mod poll;
pub mod protocol;
pub mod transport;

pub use error::{TransportError, TransportResult};
pub use kind::{Form, Kind, UnknownKind};
pub use name::{BadName, Name};
