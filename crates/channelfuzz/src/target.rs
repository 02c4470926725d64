//! Defines the ways on which one script is run: a driver, and the addresses of its TCP connections.

use megapipe::DriverChoice;
use std::net::Ipv4Addr;

/// The addresses of the TCP connections of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TestAddresses {
    /// The address to which the channel's listeners are bound.
    pub(crate) bound: Ipv4Addr,
    /// The address at which the peer finds them.
    pub(crate) found: Ipv4Addr,
    /// The peer's own address.
    pub(crate) peer: Ipv4Addr,
    /// The channel accepts the connections of `tcp` links itself, as lightweight sockets, and
    /// closes those that it unregisters. All ways do so, because connections of the user-level
    /// stack cannot do otherwise.
    pub(crate) is_for_stack: bool,
}

impl TestAddresses {
    /// The loopback device, with sockets that are connected before the channel has them.
    pub(crate) const LOOPBACK: TestAddresses = TestAddresses {
        bound: Ipv4Addr::LOCALHOST,
        found: Ipv4Addr::LOCALHOST,
        peer: Ipv4Addr::LOCALHOST,
        is_for_stack: false,
    };
}

/// A driver and the addresses of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TestTarget {
    pub(crate) name: &'static str,
    pub(crate) driver: DriverChoice,
    pub(crate) addresses: TestAddresses,
    /// The stack has a thread of its own, for whose answers the run waits longer.
    pub(crate) has_thread: bool,
}

impl TestTarget {
    /// Returns the way over a driver of the kernel.
    pub(crate) fn of_kernel(driver: DriverChoice) -> TestTarget {
        let name = if driver == DriverChoice::Epoll { "epoll" } else { "uring" };
        TestTarget { name, driver, addresses: TestAddresses::LOOPBACK, has_thread: false }
    }
}
