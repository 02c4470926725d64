//! Sends and receives IP packets through a device: finds routes and neighbours, and queues packets
//! that wait for a neighbour's answer. It loops back packets to the stack's own addresses.

use super::counters::InterfaceCounters;
use super::looped::Looped;
use super::resolver::{FrameClass, Knowledge, NextHop, Resolver};
use super::routes::{Route, Routes};
use super::source::preferred_source;
use super::watch::Watch;
use crate::device::{Capabilities, Device, Received, Segmentation, Transmit};
use crate::system::errno;
use mtcp_proto::wire::ethernet;
use mtcp_proto::{Checksum, Instant, Packet, Sink, SinkCapabilities, neighbour};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

/// The addresses and routes of a stack that alone has its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnNetwork {
    /// Addresses, each with the length of its network's prefix; hosts in these networks are
    /// neighbours.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Further routes, through gateways.
    pub routes: Vec<Route>,
}

/// The part of the received frames that an interface passes on.
#[derive(Debug)]
pub enum Arrival<'a> {
    /// An IP packet.
    Packet(&'a [u8], Checksum),
    /// A frame of ARP or neighbour discovery, which this interface has processed. Interfaces of the
    /// device's other queues have to [overhear](Interface::overhear) it.
    Neighbour(&'a [u8]),
}

/// Changes reported by the kernel that concern the stack.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The new addresses, if the kernel determines them.
    pub addresses: Option<Vec<IpAddr>>,
    /// The new length of the longest IP packet.
    pub mtu: Option<u16>,
}

/// Passes IP packets between a device and a stack; belongs to one thread.
///
/// Each turn consists of [`Interface::receive`], the stack's output into this [`Sink`], and
/// [`Interface::flush`].
pub struct Interface {
    device: Box<dyn Device>,
    capabilities: Capabilities,
    resolver: Option<Box<Resolver>>,
    addresses: Vec<IpAddr>,
    /// Whether the addresses are those that the kernel has on the interface.
    kernel_chooses: bool,
    /// The last MTU that the kernel has reported.
    link_mtu: Option<u32>,
    now: Instant,
    /// Length of the packet in the last room, without the link-layer header.
    room_bytes: usize,
    looped: Looped,
    counters: InterfaceCounters,
}

impl Interface {
    /// Creates an interface whose addresses only the stack has. On Ethernet it answers ARP and
    /// neighbour discovery for them, and sends its own requests. The watch, if any, is one of the
    /// link: its MTU, its hardware address, and whether it exists.
    pub fn own(device: Box<dyn Device>, network: &OwnNetwork, watch: Option<Watch>) -> Interface {
        let mut routes = Routes::default();
        for &(prefix, length) in &network.addresses {
            routes.add(Route { prefix, length, gateway: None, metric: 0 });
        }
        for route in &network.routes {
            routes.add(*route);
        }
        let addresses = without_lengths(&network.addresses);
        let mut interface = Interface::new(device, Knowledge::Own { routes, watch }, addresses);
        if let Some(resolver) = &mut interface.resolver {
            resolver.cache.set_addresses(&interface.addresses);
        }
        interface
    }

    /// Creates an interface whose addresses the kernel has as well: these, or all that it has if
    /// there are none. The kernel keeps ARP, neighbour discovery and ping; the interface watches
    /// its routes and neighbours. A device without Ethernet needs neither.
    pub fn shared(device: Box<dyn Device>, watch: Watch, addresses: Vec<IpAddr>) -> Interface {
        let kernel_chooses = addresses.is_empty();
        let addresses = if kernel_chooses { without_lengths(watch.addresses()) } else { addresses };
        let knowledge = Knowledge::Shared { watch, asked: BTreeMap::new() };
        let mut interface = Interface::new(device, knowledge, addresses);
        interface.kernel_chooses = kernel_chooses;
        if let Some(resolver) = &mut interface.resolver {
            resolver.learn_from_kernel();
        }
        interface
    }

    fn new(device: Box<dyn Device>, knowledge: Knowledge, addresses: Vec<IpAddr>) -> Interface {
        let link_mtu = knowledge.watch().and_then(Watch::link).map(|state| state.mtu);
        let resolver =
            device.hardware_address().map(|hardware| Box::new(Resolver::new(hardware, knowledge)));
        let mut looped = Looped::default();
        looped.set_addresses(&addresses);
        Interface {
            capabilities: device.capabilities(),
            device,
            resolver,
            addresses,
            kernel_chooses: false,
            link_mtu,
            now: Instant::ZERO,
            room_bytes: 0,
            looped,
            counters: InterfaceCounters::default(),
        }
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The longest IP packet.
    pub(crate) fn mtu(&self) -> u16 {
        self.capabilities.mtu
    }

    /// The address of the stack from which a connection to `remote` begins.
    pub(crate) fn source(&self, remote: IpAddr) -> Option<IpAddr> {
        let resolver = self.resolver.as_deref();
        let hop = resolver.and_then(|resolver| resolver.knowledge.routes().next_hop(remote));
        preferred_source(&self.addresses, remote, hop.unwrap_or(remote))
    }

    /// Receives at most `limit` available frames without waiting, and passes their packets to
    /// `take`; sends the packets that waited for a neighbour. Returns the number of frames.
    /// Everything until the next call happens at this time.
    ///
    /// # Errors
    /// As [`Device::receive`].
    pub fn receive(
        &mut self,
        now: Instant,
        limit: usize,
        take: &mut dyn FnMut(Arrival<'_>),
    ) -> io::Result<usize> {
        self.now = now;
        let counters = &mut self.counters;
        let Some(resolver) = &mut self.resolver else {
            return self.device.receive(limit, &mut |packet, received| {
                counters.packets_received += 1;
                take(Arrival::Packet(packet, checksum(received)));
            });
        };
        let mut heard = false;
        let frames = self.device.receive(limit, &mut |frame, received| match resolver
            .sort(now, frame, counters)
        {
            FrameClass::Ip(packet) => take(Arrival::Packet(packet, checksum(received))),
            FrameClass::Neighbour => {
                heard = true;
                take(Arrival::Neighbour(frame));
            }
            FrameClass::Other => {}
        });
        if heard {
            resolver.forget_recent();
            self.release();
        }
        frames
    }

    /// Takes all packets that have been looped back so far.
    pub(crate) fn take_looped(&mut self, mut take: impl FnMut(&[u8])) -> bool {
        let mut any = false;
        while self.looped.pop(&mut take) {
            any = true;
        }
        any
    }

    /// Processes a frame about neighbours that another queue of the same device has received: an
    /// answer arrives at one queue, whichever has asked. Several queues may answer a request, which
    /// does no harm.
    pub fn overhear(&mut self, now: Instant, frame: &[u8]) {
        self.now = now;
        let Some(resolver) = &mut self.resolver else { return };
        if let FrameClass::Neighbour = resolver.sort(now, frame, &mut self.counters) {
            resolver.forget_recent();
            self.release();
        }
    }

    /// Sends requests and answers about neighbours, and passes all frames to the system. True if
    /// the device could not take all of them.
    ///
    /// # Errors
    /// As [`Device::flush`].
    pub fn flush(&mut self) -> io::Result<bool> {
        if let Some(resolver) = &mut self.resolver {
            resolver.send_questions(self.now, &mut *self.device);
            if resolver.next_expiry().is_some_and(|end| end <= self.now) {
                self.release();
            }
        }
        self.device.flush()
    }

    /// When [`Interface::receive`] and [`Interface::flush`] must be called even if no frame
    /// arrives; in the past if there is work to do now.
    pub fn deadline(&self) -> Option<Instant> {
        let resolver = self.resolver.as_deref()?;
        [resolver.questions_due(), resolver.next_expiry()].into_iter().flatten().min()
    }

    /// Processes the kernel's messages about link, neighbours, routes and addresses, without
    /// waiting; `None` if there were none.
    ///
    /// # Errors
    /// The errors of netlink, which are permanent; `ENXIO` if the interface is gone.
    pub fn follow(&mut self, now: Instant) -> io::Result<Option<Changes>> {
        self.now = now;
        let Some(resolver) = &mut self.resolver else { return Ok(None) };
        if !resolver.follow()? {
            return Ok(None);
        }
        self.release();
        let Some(watch) = self.watch() else { return Ok(None) };
        let state = watch.link().ok_or_else(|| errno(libc::ENXIO))?;
        let addresses = self.kernel_chooses.then(|| without_lengths(watch.addresses()));
        let addresses = addresses.filter(|addresses| *addresses != self.addresses);
        if let Some(addresses) = &addresses {
            self.addresses.clone_from(addresses);
            self.looped.set_addresses(addresses);
        }
        let before = self.link_mtu.replace(state.mtu);
        // Packets longer than at the start may not fit into the device's memory.
        let mtu = u16::try_from(state.mtu).unwrap_or(u16::MAX).min(self.mtu());
        Ok(Some(Changes { addresses, mtu: (before != self.link_mtu).then_some(mtu) }))
    }

    fn watch(&self) -> Option<&Watch> {
        self.resolver.as_deref()?.knowledge.watch()
    }

    /// The descriptors to wait for: the device's, see [`Device::descriptor`], and that of the
    /// kernel's messages for [`Interface::follow`], if it sends any.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + use<> {
        let watch = self.watch().map(|watch| watch.descriptor().as_raw_fd());
        std::iter::once(self.device.descriptor().as_raw_fd()).chain(watch)
    }

    /// Arms the descriptor of the device; false if there are packets, and the caller must not
    /// sleep.
    pub fn prepare_to_sleep(&mut self) -> bool {
        self.looped.is_empty() && self.device.prepare_to_sleep()
    }

    /// The counters of the interface.
    pub fn counters(&self) -> InterfaceCounters {
        self.counters
    }

    /// The counters of the neighbours; `None` without Ethernet.
    pub fn neighbour_counters(&self) -> Option<neighbour::Counters> {
        self.resolver.as_deref().map(|resolver| resolver.cache.counters())
    }

    /// Adds the counters of the device and of the interface, by name.
    pub(crate) fn report(&self, counts: &mut BTreeMap<String, u64>) {
        let (device, interface) = (self.device.counters(), &self.counters);
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

    /// Sends the packets whose neighbours have answered, and drops those whose neighbours do not
    /// answer.
    fn release(&mut self) {
        let Some(resolver) = &mut self.resolver else { return };
        for _ in 0..resolver.waiting().len() {
            let Some(waiting) = resolver.waiting().pop_front() else { break };
            if waiting.is_over(self.now) {
                self.counters.unresolved += 1;
                continue;
            }
            match resolver.way(self.now, waiting.packet.destination) {
                NextHop::To(hardware) => {
                    let Some(room) = self.device.room(ethernet::HEADER_BYTES + waiting.bytes.len())
                    else {
                        resolver.waiting().push_front(waiting);
                        break;
                    };
                    room[ethernet::HEADER_BYTES..].copy_from_slice(&waiting.bytes);
                    resolver.write_header(hardware, &waiting.packet, room);
                    let frame = transmit(&waiting.packet, ethernet::HEADER_BYTES, room);
                    self.device.commit(frame);
                    self.counters.packets_sent += 1;
                }
                NextHop::Wait => resolver.waiting().push_back(waiting),
                NextHop::Unresolved => self.counters.unresolved += 1,
                NextHop::Unroutable => self.counters.unroutable += 1,
            }
        }
    }

    /// Sends a packet over Ethernet, from the room that contains it.
    fn commit_ethernet(&mut self, packet: &Packet) {
        let Some(resolver) = &mut self.resolver else { return };
        let way = resolver.way(self.now, packet.destination);
        if let NextHop::Unresolved | NextHop::Unroutable = way {
            self.counters.unresolved += u64::from(matches!(way, NextHop::Unresolved));
            self.counters.unroutable += u64::from(matches!(way, NextHop::Unroutable));
            return;
        }
        // The device returns the same room again, because nothing was committed in between.
        let Some(room) = self.device.room(ethernet::HEADER_BYTES + self.room_bytes) else { return };
        if let NextHop::To(hardware) = way {
            resolver.write_header(hardware, packet, room);
            let frame = transmit(packet, ethernet::HEADER_BYTES, room);
            self.device.commit(frame);
            self.counters.packets_sent += 1;
            return;
        }
        self.counters.waited += 1;
        let bytes = &room[ethernet::HEADER_BYTES..ethernet::HEADER_BYTES + packet.bytes];
        if !resolver.keep(self.now, *packet, bytes) {
            self.counters.unresolved += 1;
        }
    }
}

impl Sink for Interface {
    #[inline]
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities {
            checksum: self.capabilities.transmit_checksum,
            segmentation_bytes: self.capabilities.segmentation_bytes,
        }
    }

    #[inline]
    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if self.looped.is_full() {
            return None;
        }
        self.room_bytes = bytes;
        if self.resolver.is_none() {
            return self.device.room(bytes);
        }
        self.device.room(ethernet::HEADER_BYTES + bytes)?.get_mut(ethernet::HEADER_BYTES..)
    }

    #[inline]
    fn commit(&mut self, packet: Packet) {
        if packet.bytes > self.room_bytes {
            return;
        }
        let header_bytes = if self.resolver.is_some() { ethernet::HEADER_BYTES } else { 0 };
        if self.looped.is_own(packet.destination) {
            // The device returns the same room again, because nothing was committed in between.
            if let Some(room) = self.device.room(header_bytes + self.room_bytes) {
                self.looped.push(&room[header_bytes..header_bytes + packet.bytes]);
            }
            return;
        }
        if self.resolver.is_some() {
            return self.commit_ethernet(&packet);
        }
        let frame = if packet.segment_bytes.is_none() {
            transmit(&packet, 0, &[])
        } else {
            let Some(room) = self.device.room(self.room_bytes) else { return };
            transmit(&packet, 0, room)
        };
        self.device.commit(frame);
        self.counters.packets_sent += 1;
    }
}

fn without_lengths(addresses: &[(IpAddr, u8)]) -> Vec<IpAddr> {
    addresses.iter().map(|(address, _)| *address).collect()
}

fn checksum(received: Received) -> Checksum {
    if received.checksum_verified { Checksum::Verified } else { Checksum::Unverified }
}

/// Builds the device's instructions for a packet that begins `link_bytes` into the frame. Reads the
/// frame only if it has to be cut.
fn transmit(packet: &Packet, link_bytes: usize, frame: &[u8]) -> Transmit {
    /// Offset in the TCP header of the data offset, the header's length in words of four bytes, in
    /// the upper half of the byte.
    const DATA_OFFSET_AT: usize = 12;
    let partial_checksum = packet
        .partial_checksum
        .map(|partial| (partial.start.saturating_add(link_bytes as u16), partial.offset));
    let segmentation =
        packet.segment_bytes.zip(partial_checksum).map(|(segment_bytes, partial)| {
            let words =
                frame.get(usize::from(partial.0) + DATA_OFFSET_AT).map_or(0, |byte| byte >> 4);
            let header_bytes = partial.0.saturating_add(u16::from(words) * 4);
            let ipv6 = packet.destination.is_ipv6();
            Segmentation { segment_bytes, header_bytes, ipv6 }
        });
    Transmit { bytes: link_bytes + packet.bytes, partial_checksum, segmentation }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Link;
    use crate::device::memory::{MemoryDevice, MemoryOptions};
    use mtcp_proto::PartialChecksum;
    use std::time::Duration;

    fn own(address: &str) -> OwnNetwork {
        OwnNetwork { addresses: vec![(address.parse().unwrap(), 64)], routes: Vec::new() }
    }

    fn send(interface: &mut Interface, value: u8, destination: &str) {
        interface.room(60).unwrap().fill(value);
        let partial_checksum = Some(PartialChecksum { start: 40, offset: 16 });
        let destination = destination.parse().unwrap();
        interface.commit(Packet { bytes: 60, destination, partial_checksum, segment_bytes: None });
        interface.flush().unwrap();
    }

    fn receive(interface: &mut Interface, now: Instant) -> Vec<(u8, Checksum)> {
        let mut came = Vec::new();
        let mut take = |arrival: Arrival<'_>| {
            if let Arrival::Packet(packet, sum) = arrival {
                came.push((packet[0], sum));
            }
        };
        interface.receive(now, 64, &mut take).unwrap();
        interface.flush().unwrap();
        came
    }

    #[test]
    fn two_stacks_find_each_other_and_lose_nothing_by_it() {
        let options = MemoryOptions { link: Link::Ethernet, ..MemoryOptions::default() };
        let (left, right) = MemoryDevice::pair(options).unwrap();
        let mut left = Interface::own(Box::new(left), &own("fd09::1"), None);
        let mut right = Interface::own(Box::new(right), &own("fd09::2"), None);
        for value in 0..5 {
            send(&mut left, value, "fd09::2");
        }
        assert_eq!(left.counters().waited, 5);
        assert!(left.deadline().is_some());
        let now = Instant::from_nanos(1000);
        assert_eq!(receive(&mut right, now), [], "a question only");
        assert_eq!(receive(&mut left, now), [], "the answer, and what waited goes out");
        let came: Vec<u8> = receive(&mut right, now)
            .into_iter()
            .map(|(value, sum)| {
                assert_eq!(sum, Checksum::Verified);
                value
            })
            .collect();
        assert_eq!(came, [0, 1, 2, 3, 4], "in order");
        send(&mut left, 9, "fd09::2");
        assert_eq!(receive(&mut right, now).len(), 1, "at once");
        assert_eq!(left.counters().waited, 5);
        send(&mut left, 9, "fd10::2");
        assert_eq!(left.counters().unroutable, 1);
        assert_eq!(left.counters().packets_sent, 6);
    }

    #[test]
    fn frames_for_other_stations_and_groups_are_left_out() {
        let options = MemoryOptions { link: Link::Ethernet, ..MemoryOptions::default() };
        let (mut far, near) = MemoryDevice::pair(options).unwrap();
        let mut near = Interface::own(Box::new(near), &own("10.0.0.1"), None);
        let mut frame = [0; 60];
        frame[14] = 0x45;
        let ours = near.device.hardware_address().unwrap();
        for (destination, kind) in [
            ([2, 0, 0, 0, 0, 99], [0x08, 0x00]),
            ([0xff; 6], [0x08, 0x00]),
            (ours, [0x88, 0xb5]),
            (ours, [0x00, 0x20]),
            (ours, [0x08, 0x06]),
            (ours, [0x08, 0x00]),
        ] {
            frame[..6].copy_from_slice(&destination);
            frame[12..14].copy_from_slice(&kind);
            far.room(60).unwrap().copy_from_slice(&frame);
            far.commit(Transmit { bytes: 60, ..Transmit::default() });
        }
        far.flush().unwrap();
        assert_eq!(receive(&mut near, Instant::ZERO), [(0x45, Checksum::Unverified)]);
        let counters = near.counters();
        let drops = (counters.not_ours, counters.other_protocols, counters.neighbour_packets);
        assert_eq!(drops, (2, 2, 1));
    }

    #[test]
    fn packets_that_wait_in_vain_are_given_up() {
        let options = MemoryOptions { link: Link::Ethernet, ..MemoryOptions::default() };
        let (left, _right) = MemoryDevice::pair(options).unwrap();
        let mut left = Interface::own(Box::new(left), &own("fd09::1"), None);
        send(&mut left, 1, "fd09::2");
        let late = Instant::ZERO + Duration::from_secs(60);
        receive(&mut left, late);
        assert_eq!(left.counters().unresolved, 1);
    }

    #[test]
    fn the_device_learns_where_to_cut_and_to_sum() {
        let mut frame = [0; 200];
        // A TCP header of eight words after Ethernet and IPv6.
        frame[14 + 40 + 12] = 0x80;
        let packet = Packet {
            bytes: 186,
            destination: "fd09::2".parse().unwrap(),
            partial_checksum: Some(PartialChecksum { start: 40, offset: 16 }),
            segment_bytes: Some(50),
        };
        let segmentation =
            Segmentation { segment_bytes: 50, header_bytes: 14 + 40 + 32, ipv6: true };
        let expected = Transmit {
            bytes: 200,
            partial_checksum: Some((54, 16)),
            segmentation: Some(segmentation),
        };
        assert_eq!(transmit(&packet, 14, &frame), expected);
    }
}
