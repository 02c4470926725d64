//! Resolves the neighbour for a packet, from the stack's own tables or from the kernel's.

mod counters;
#[doc(hidden)]
pub mod fuzzing;
mod interface;
mod looped;
mod messages;
mod netlink;
mod resolver;
mod routes;
mod source;
mod watch;

pub use self::counters::InterfaceCounters;
pub use self::interface::{Arrival, Changes, Interface, OwnNetwork};
pub use self::messages::LinkState;
pub use self::routes::{Route, Routes};
pub use self::source::preferred_source;
pub use self::watch::{NeighbourChange, NetworkError, Watch};
