//! A device with what is needed to send IP packets through it: routes, neighbours, and a place
//! where packets wait for a neighbour to answer.

use super::counters::InterfaceCounters;
use super::resolver::{Knowledge, Resolver, Sorted, Way};
use super::routes::{Route, Routes};
use super::watch::Watch;
use crate::device::{Capabilities, Device, Received, Segmentation, Transmit};
use mtcp_proto::wire::ethernet::{self, HardwareAddress};
use mtcp_proto::{Checksum, Instant, Packet, Sink, SinkCapabilities, neighbour};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

/// The addresses of a stack that owns them, and the ways out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnNetwork {
    /// Each with the length of its network's prefix; those in it are neighbours.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Further routes: gateways.
    pub routes: Vec<Route>,
}

/// What an interface hands on of the frames that came.
#[derive(Debug)]
pub enum Arrival<'a> {
    /// A packet of IP.
    Packet(&'a [u8], Checksum),
    /// A frame of ARP or neighbour discovery, which this interface has taken note of; for those of
    /// the device's other queues to [overhear](Interface::overhear).
    Neighbour(&'a [u8]),
}

/// A device that takes IP packets and gives them to a stack; it belongs to one thread.
///
/// In each turn: [`Interface::receive`], the stack's output into this [`Sink`],
/// [`Interface::flush`].
pub struct Interface<D> {
    device: D,
    capabilities: Capabilities,
    resolver: Option<Box<Resolver>>,
    now: Instant,
    /// Of the packet in the last room, without the link's header.
    room_bytes: usize,
    counters: InterfaceCounters,
}

impl<D: Device> Interface<D> {
    /// An interface whose addresses are the stack's alone: on Ethernet it answers ARP and neighbour
    /// discovery for them, and asks itself.
    pub fn own(device: D, network: &OwnNetwork) -> Interface<D> {
        let mut routes = Routes::default();
        for &(prefix, length) in &network.addresses {
            routes.add(Route { prefix, length, gateway: None, metric: 0 });
        }
        for route in &network.routes {
            routes.add(*route);
        }
        let addresses: Vec<IpAddr> =
            network.addresses.iter().map(|(address, _)| *address).collect();
        Interface::new(device, Knowledge::Own(routes), &addresses)
    }

    /// An interface whose addresses the kernel has as well: it keeps ARP, neighbour discovery and
    /// ping; its routes and neighbours are followed. A device without Ethernet needs neither.
    pub fn shared(device: D, watch: Watch) -> Interface<D> {
        let knowledge = Knowledge::Shared { watch, asked: BTreeMap::new() };
        let mut interface = Interface::new(device, knowledge, &[]);
        if let Some(resolver) = &mut interface.resolver {
            resolver.learn_from_kernel();
        }
        interface
    }

    fn new(device: D, knowledge: Knowledge, addresses: &[IpAddr]) -> Interface<D> {
        let capabilities = device.capabilities();
        let resolver = device
            .hardware_address()
            .map(|hardware| Box::new(Resolver::new(hardware, knowledge, addresses)));
        let counters = InterfaceCounters::default();
        Interface { device, capabilities, resolver, now: Instant::ZERO, room_bytes: 0, counters }
    }

    /// Hands the packets of at most `limit` frames that are there to `take`, without waiting; sends
    /// what waited for a neighbour. Gives the number of frames that came. What is done until the
    /// next call is done at this time.
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
            Sorted::Ip(packet) => take(Arrival::Packet(packet, checksum(received))),
            Sorted::Neighbour => {
                heard = true;
                take(Arrival::Neighbour(frame));
            }
            Sorted::Other => {}
        });
        if heard {
            resolver.forget_recent();
            self.release();
        }
        frames
    }

    /// Takes what another queue of the same device has heard of neighbours: an answer comes to one
    /// queue, whichever asked. A question may thus be answered by each, which does no harm.
    pub fn overhear(&mut self, now: Instant, frame: &[u8]) {
        self.now = now;
        let Some(resolver) = &mut self.resolver else { return };
        if let Sorted::Neighbour = resolver.sort(now, frame, &mut self.counters) {
            resolver.forget_recent();
            self.release();
        }
    }

    /// Sends what neighbours are to be asked or answered, and hands all frames to the system. True
    /// if the device could not take all of them.
    ///
    /// # Errors
    /// As [`Device::flush`].
    pub fn flush(&mut self) -> io::Result<bool> {
        if let Some(resolver) = &mut self.resolver {
            resolver.send_questions(self.now, &mut self.device);
            if resolver.patience_ends().is_some_and(|end| end <= self.now) {
                self.release();
            }
        }
        self.device.flush()
    }

    /// When [`Interface::receive`] and [`Interface::flush`] must be called even if nothing comes;
    /// in the past if something is due.
    pub fn deadline(&self) -> Option<Instant> {
        let resolver = self.resolver.as_deref()?;
        [resolver.questions_due(), resolver.patience_ends()].into_iter().flatten().min()
    }

    /// The neighbour that gets packets for this address; `None` if no route leads there, or the
    /// link knows no neighbours.
    pub fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        match &self.resolver.as_deref()?.knowledge {
            Knowledge::Own(routes) => routes.next_hop(destination),
            Knowledge::Shared { watch, .. } => watch.routes().next_hop(destination),
        }
    }

    /// The first `bytes` of the packet that was written into the last room and is not committed.
    pub fn written(&mut self, bytes: usize) -> Option<&[u8]> {
        let header_bytes = if self.resolver.is_some() { ethernet::HEADER_BYTES } else { 0 };
        // The same room again, because nothing was committed in between.
        let room = self.device.room(header_bytes + self.room_bytes)?;
        room.get(header_bytes..header_bytes + bytes)
    }

    /// Takes what the kernel says of the network, without waiting; true if something has changed,
    /// perhaps the addresses. Nothing happens where the stack owns its addresses.
    ///
    /// # Errors
    /// Of netlink, none of which passes.
    pub fn follow(&mut self, now: Instant) -> io::Result<bool> {
        self.now = now;
        let Some(resolver) = &mut self.resolver else { return Ok(false) };
        let Knowledge::Shared { watch, .. } = &mut resolver.knowledge else { return Ok(false) };
        let changed = watch.follow()?;
        if changed {
            resolver.learn_from_kernel();
            self.release();
        }
        Ok(changed)
    }

    /// Uses another hardware address of the device, and announces it.
    pub fn set_hardware_address(&mut self, hardware: HardwareAddress) {
        if let Some(resolver) = &mut self.resolver {
            resolver.set_hardware_address(hardware);
        }
    }

    /// What the kernel knows of the interface, where the addresses are its too. When its descriptor
    /// is readable, [`Interface::follow`] has something to do.
    pub fn watch(&self) -> Option<&Watch> {
        match &self.resolver.as_deref()?.knowledge {
            Knowledge::Own(_) => None,
            Knowledge::Shared { watch, .. } => Some(watch),
        }
    }

    /// Becomes readable or writable as [`Device::descriptor`] says.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.descriptor()
    }

    /// Arms the descriptor; false if frames are there, and the caller must not sleep.
    pub fn prepare_to_sleep(&mut self) -> bool {
        self.device.prepare_to_sleep()
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// What has been counted.
    pub fn counters(&self) -> InterfaceCounters {
        self.counters
    }

    /// What has been counted of neighbours; `None` without Ethernet.
    pub fn neighbour_counters(&self) -> Option<neighbour::Counters> {
        self.resolver.as_deref().map(|resolver| resolver.cache.counters())
    }

    /// Sends the packets whose neighbours have answered, and drops those whose do not.
    fn release(&mut self) {
        let Some(resolver) = &mut self.resolver else { return };
        for _ in 0..resolver.waiting().len() {
            let Some(waiting) = resolver.waiting().pop_front() else { break };
            if waiting.is_over(self.now) {
                self.counters.unresolved += 1;
                continue;
            }
            match resolver.way(self.now, waiting.packet.destination) {
                Way::To(hardware) => {
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
                Way::Wait => resolver.waiting().push_back(waiting),
                Way::Unresolved => self.counters.unresolved += 1,
                Way::Unroutable => self.counters.unroutable += 1,
            }
        }
    }

    /// Sends a packet in Ethernet, out of the room in which it is.
    fn commit_ethernet(&mut self, packet: &Packet) {
        let Some(resolver) = &mut self.resolver else { return };
        let way = resolver.way(self.now, packet.destination);
        if let Way::Unresolved | Way::Unroutable = way {
            self.counters.unresolved += u64::from(matches!(way, Way::Unresolved));
            self.counters.unroutable += u64::from(matches!(way, Way::Unroutable));
            return;
        }
        // The same room again, because nothing was committed in between.
        let Some(room) = self.device.room(ethernet::HEADER_BYTES + self.room_bytes) else { return };
        if let Way::To(hardware) = way {
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

impl<D: Device> Sink for Interface<D> {
    #[inline]
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities {
            checksum: self.capabilities.transmit_checksum,
            segmentation_bytes: self.capabilities.segmentation_bytes,
        }
    }

    #[inline]
    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
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

fn checksum(received: Received) -> Checksum {
    if received.checksum_verified { Checksum::Verified } else { Checksum::Unverified }
}

/// What the device needs to know of a packet that begins `link_bytes` into the frame. The frame is
/// looked at only if it is to be cut.
fn transmit(packet: &Packet, link_bytes: usize, frame: &[u8]) -> Transmit {
    /// Of the TCP header: its length in words of four bytes, in the upper half.
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

    fn send(interface: &mut Interface<MemoryDevice>, value: u8, destination: &str) {
        interface.room(60).unwrap().fill(value);
        let partial_checksum = Some(PartialChecksum { start: 40, offset: 16 });
        let destination = destination.parse().unwrap();
        interface.commit(Packet { bytes: 60, destination, partial_checksum, segment_bytes: None });
        interface.flush().unwrap();
    }

    fn receive(interface: &mut Interface<MemoryDevice>, now: Instant) -> Vec<(u8, Checksum)> {
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
        let mut left = Interface::own(left, &own("fd09::1"));
        let mut right = Interface::own(right, &own("fd09::2"));
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
        let mut near = Interface::own(near, &own("10.0.0.1"));
        let mut frame = [0; 60];
        frame[14] = 0x45;
        let ours = near.device().hardware_address().unwrap();
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
        let mut left = Interface::own(left, &own("fd09::1"));
        send(&mut left, 1, "fd09::2");
        let late = Instant::ZERO + Duration::from_secs(60);
        receive(&mut left, late);
        assert_eq!(left.counters().unresolved, 1);
    }

    #[test]
    fn the_device_learns_where_to_cut_and_to_sum() {
        let mut frame = [0; 200];
        // A TCP header of eight words behind Ethernet and IPv6.
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
