//! Decides which destinations are routed through the stack's interface.

use crate::config::{Config, Ownership};
use crate::network::{NetworkError, Route, Routes, Watch};
use std::net::IpAddr;

/// The routes of the stack's interface: those of the configuration where the addresses are the
/// stack's own, otherwise the kernel's.
pub(super) struct Reach {
    own: Routes,
    kernel: Option<Watch>,
}

impl Reach {
    /// # Errors
    /// The errors of netlink, if the addresses are shared with the kernel.
    pub(super) fn new(config: &Config) -> Result<Reach, NetworkError> {
        let mut own = Routes::default();
        for &(prefix, length) in &config.addresses {
            own.add(Route { prefix, length, gateway: None, metric: 0 });
        }
        for route in &config.routes {
            own.add(*route);
        }
        let follows = config.ownership == Ownership::Shared && !config.device.interface.is_empty();
        let kernel = if follows { Some(Watch::open(&config.device.interface)?) } else { None };
        Ok(Reach { own, kernel })
    }

    /// Whether the kernel has the stack's addresses as well.
    pub(super) fn is_shared(&self) -> bool {
        self.kernel.is_some()
    }

    /// Whether packets for this address leave through the stack's interface. If the kernel cannot
    /// answer now, the destination is left to the kernel.
    pub(super) fn leads_to(&mut self, destination: IpAddr) -> bool {
        match &mut self.kernel {
            Some(watch) => watch.follow().is_ok() && watch.routes().next_hop(destination).is_some(),
            None => self.own.next_hop(destination).is_some(),
        }
    }
}
