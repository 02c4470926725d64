//! Named flows that pick the best transport and change it while they live.

mod error;
mod kind;
mod memory;
pub mod transport;

pub use error::{TransportError, TransportResult};
pub use kind::{Form, Kind, UnknownKind};
