//! Implements the interface of one engine: passes packets through a device of any kind and resolves
//! neighbours. It loops back packets to the stack's own addresses.

use super::looped::Looped;
use crate::device::Device;
use crate::network::{Arrival, Interface, LinkState, Watch, preferred_source};
use crate::system::errno;
use mtcp_proto::{Instant, Packet, Sink, SinkCapabilities};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

/// The device of an engine, of any kind.
type AnyDevice = Box<dyn Device>;

/// The interface of an engine, with the packets that are looped back.
pub(crate) struct Link {
    interface: Interface<AnyDevice>,
    addresses: Vec<IpAddr>,
    /// Whether the addresses are those that the kernel has on the interface.
    kernel_chooses: bool,
    /// Watches the device's interface where the addresses are the stack's own.
    watch: Option<Watch>,
    /// The last known state of the interface.
    state: Option<LinkState>,
    looped: Looped,
}

/// Changes reported by the kernel that concern the stack.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The new addresses, if the kernel determines them.
    pub(super) addresses: Option<Vec<IpAddr>>,
    /// The new length of the longest IP packet.
    pub(super) mtu: Option<u16>,
}

impl Link {
    pub(crate) fn new(
        interface: Interface<AnyDevice>,
        addresses: Vec<IpAddr>,
        kernel_chooses: bool,
    ) -> Link {
        let mut looped = Looped::default();
        looped.set_addresses(&addresses);
        let state = interface.watch().and_then(Watch::link);
        Link { interface, addresses, kernel_chooses, watch: None, state, looped }
    }

    /// Also watches the device's interface: its MTU, its hardware address, and whether it exists.
    pub(crate) fn with_watch(mut self, watch: Watch) -> Link {
        self.state = watch.link();
        self.watch = Some(watch);
        self
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The address of the stack from which a connection to `remote` begins.
    pub(super) fn source(&self, remote: IpAddr) -> Option<IpAddr> {
        let hop = self.interface.next_hop(remote).unwrap_or(remote);
        preferred_source(&self.addresses, remote, hop)
    }

    /// The longest IP packet.
    pub(crate) fn mtu(&self) -> u16 {
        self.interface.device().capabilities().mtu
    }

    pub(super) fn receive(
        &mut self,
        now: Instant,
        limit: usize,
        take: &mut dyn FnMut(Arrival<'_>),
    ) -> io::Result<usize> {
        self.interface.receive(now, limit, take)
    }

    /// Takes all packets that have been looped back so far.
    pub(super) fn take_looped(&mut self, mut take: impl FnMut(&[u8])) -> bool {
        let mut any = false;
        while self.looped.pop(&mut take) {
            any = true;
        }
        any
    }

    /// Processes a frame about neighbours that another core's queue has received.
    pub(super) fn overhear(&mut self, now: Instant, frame: &[u8]) {
        self.interface.overhear(now, frame);
    }

    /// Processes the kernel's messages about the interface, neighbours, routes and addresses.
    ///
    /// # Errors
    /// The errors of netlink; `ENXIO` if the interface is gone.
    pub(super) fn follow(&mut self, now: Instant) -> io::Result<Changes> {
        let changed = match &mut self.watch {
            Some(watch) => watch.follow()?,
            None => self.interface.follow(now)?,
        };
        let mut changes = Changes::default();
        if changed {
            changes.mtu = self.follow_link()?;
            changes.addresses = self.follow_addresses();
        }
        Ok(changes)
    }

    /// Applies the new state of the interface; returns the MTU if it has changed.
    fn follow_link(&mut self) -> io::Result<Option<u16>> {
        let own = self.watch.is_some();
        let watch = self.watch.as_ref().or(self.interface.watch());
        let Some(state) = watch.map(Watch::link) else { return Ok(None) };
        let state = state.ok_or_else(|| errno(libc::ENXIO))?;
        let before = self.state.replace(state);
        if let Some(hardware) = state.hardware_address.filter(|_| own) {
            self.interface.set_hardware_address(hardware);
        }
        let mtu = u16::try_from(state.mtu).unwrap_or(u16::MAX);
        let differs = before.is_none_or(|before| before.mtu != state.mtu);
        // Packets longer than at the start may not fit into the device's memory.
        Ok(differs.then(|| mtu.min(self.mtu())))
    }

    fn follow_addresses(&mut self) -> Option<Vec<IpAddr>> {
        let watch = self.interface.watch().filter(|_| self.kernel_chooses)?;
        let addresses: Vec<IpAddr> = watch.addresses().iter().map(|(ip, _)| *ip).collect();
        if addresses == self.addresses {
            return None;
        }
        self.addresses.clone_from(&addresses);
        self.looped.set_addresses(&addresses);
        Some(addresses)
    }

    /// Whether the kernel's messages about the network are processed.
    pub(super) fn follows(&self) -> bool {
        self.watch.is_some() || self.interface.watch().is_some()
    }

    pub(super) fn flush(&mut self) -> io::Result<bool> {
        self.interface.flush()
    }

    /// The descriptors to wait for; the device's is first.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> + use<> {
        let watch = self.watch.as_ref().or(self.interface.watch());
        let watch = watch.map(|watch| watch.descriptor().as_raw_fd());
        std::iter::once(self.interface.descriptor().as_raw_fd()).chain(watch)
    }

    pub(super) fn prepare_to_sleep(&mut self) -> bool {
        self.looped.is_empty() && self.interface.prepare_to_sleep()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.interface.deadline()
    }

    /// Adds the counters of the device and of the interface, by name.
    pub(crate) fn report(&self, counts: &mut BTreeMap<String, u64>) {
        let device = self.interface.device().counters();
        let interface = self.interface.counters();
        let all = [
            ("frames_received", device.frames_received),
            ("frames_sent", device.frames_sent),
            ("receive_drops", device.receive_drops),
            ("transmit_drops", device.transmit_drops),
            ("transmit_full", device.transmit_full),
            ("system_calls", device.system_calls),
            ("neighbour_packets", interface.neighbour_packets),
            ("other_protocols", interface.other_protocols),
            ("waited_for_neighbours", interface.waited),
            ("unresolved", interface.unresolved),
            ("unroutable", interface.unroutable),
            ("looped", self.looped.count()),
        ];
        counts.extend(all.map(|(name, count)| (name.to_owned(), count)));
    }
}

impl Sink for Link {
    #[inline]
    fn capabilities(&self) -> SinkCapabilities {
        self.interface.capabilities()
    }

    #[inline]
    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if self.looped.is_full() {
            return None;
        }
        self.interface.room(bytes)
    }

    #[inline]
    fn commit(&mut self, packet: Packet) {
        if !self.looped.is_own(packet.destination) {
            return self.interface.commit(packet);
        }
        if let Some(written) = self.interface.written(packet.bytes) {
            self.looped.push(written);
        }
    }
}
