//! Between a device and the stack: which neighbour a packet goes to, and what the kernel knows of
//! that.

mod counters;
mod interface;
mod messages;
mod netlink;
mod resolver;
mod routes;
mod source;
mod watch;

pub use self::counters::InterfaceCounters;
pub use self::interface::{Arrival, Interface, OwnNetwork};
pub use self::messages::LinkState;
pub use self::routes::{Route, Routes};
pub use self::source::preferred_source;
pub use self::watch::{NeighbourChange, NetworkError, Watch};
