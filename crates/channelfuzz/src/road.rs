//! The ways on which one script is run: a driver, and where its TCP connections are.

use megapipe::DriverChoice;
use std::net::Ipv4Addr;

/// Where the TCP connections of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Road {
    /// The address to which the channel's listeners are bound.
    pub(crate) bound: Ipv4Addr,
    /// The address at which the peer finds them.
    pub(crate) found: Ipv4Addr,
    /// The peer's own address.
    pub(crate) peer: Ipv4Addr,
    /// The channel accepts the connections of `tcp` links itself, as lightweight sockets, and what
    /// it unregisters is closed: the ways have to agree on what a connection of the user-level
    /// stack can do.
    pub(crate) is_for_stack: bool,
}

impl Road {
    /// The loopback device, with sockets that are connected before the channel has them.
    pub(crate) const LOOPBACK: Road = Road {
        bound: Ipv4Addr::LOCALHOST,
        found: Ipv4Addr::LOCALHOST,
        peer: Ipv4Addr::LOCALHOST,
        is_for_stack: false,
    };
}

/// A driver and where its connections are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) driver: DriverChoice,
    pub(crate) road: Road,
    /// The stack has a thread of its own, for whose answers the run waits longer.
    pub(crate) has_thread: bool,
}

impl Way {
    /// A driver of the kernel's.
    pub(crate) fn of_kernel(driver: DriverChoice) -> Way {
        let name = if driver == DriverChoice::Epoll { "epoll" } else { "uring" };
        Way { name, driver, road: Road::LOOPBACK, has_thread: false }
    }
}
