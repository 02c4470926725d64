//! From an IP destination to a hardware address, and what is to be done with an Ethernet frame.

use super::counters::InterfaceCounters;
use super::routes::Routes;
use super::watch::{NeighbourChange, Watch};
use crate::device::{Device, Transmit};
use mtcp_proto::neighbour::{Cache, FRAME_BYTES_MAX, Lookup};
use mtcp_proto::wire::ethernet::{
    EthernetHeader, HardwareAddress, KIND_ARP, KIND_IPV4, KIND_IPV6, is_unicast,
};
use mtcp_proto::wire::ndp::is_ndp;
use mtcp_proto::{Instant, Packet};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

/// Neighbours that are remembered.
const NEIGHBOURS_MAX: usize = 4_096;
/// Destinations whose neighbour is found without a search.
const RECENT: usize = 64;
/// How long it is believed; a neighbour must be looked up now and then so that it is probed.
const RECENT_FOR: Duration = Duration::from_secs(1);
/// How often the kernel is asked for the same neighbour, at most.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Packets that wait for neighbours; TCP sends those again for which there is no place.
const WAITING_MAX: usize = 64;
/// How long they wait: a neighbour is asked three times, a second apart.
const WAITING_FOR: Duration = Duration::from_secs(4);

/// Who knows the neighbours.
pub(super) enum Knowledge {
    /// The stack: it asks and answers.
    Own(Routes),
    /// The kernel, which is listened to and told whom to ask.
    Shared { watch: Watch, asked: BTreeMap<IpAddr, Instant> },
}

/// Where a packet goes.
pub(super) enum Way {
    To(HardwareAddress),
    /// The neighbour has been asked.
    Wait,
    /// No route leads there.
    Unroutable,
    /// The neighbour does not answer.
    Unresolved,
}

/// What an Ethernet frame is.
pub(super) enum Sorted<'a> {
    /// A packet for the stack.
    Ip(&'a [u8]),
    /// It told something about neighbours.
    Neighbour,
    /// Nothing more is to be done with it.
    Other,
}

/// A packet that waits for its neighbour.
pub(super) struct Waiting {
    pub(super) packet: Packet,
    pub(super) bytes: Box<[u8]>,
    until: Instant,
}

#[derive(Clone, Copy)]
struct Recent {
    destination: IpAddr,
    hardware: HardwareAddress,
    until: Instant,
}

/// What Ethernet needs and bare IP does not.
pub(super) struct Resolver {
    hardware: HardwareAddress,
    pub(super) cache: Cache,
    pub(super) knowledge: Knowledge,
    /// By a hash of the destination.
    recent: [Option<Recent>; RECENT],
    /// Those that have waited longest come first.
    waiting: VecDeque<Waiting>,
}

impl Resolver {
    pub(super) fn new(
        hardware: HardwareAddress,
        knowledge: Knowledge,
        addresses: &[IpAddr],
    ) -> Resolver {
        let mut cache = Cache::new(hardware, NEIGHBOURS_MAX);
        cache.set_addresses(addresses);
        Resolver { hardware, cache, knowledge, recent: [None; RECENT], waiting: VecDeque::new() }
    }

    /// Says what a frame is; one about neighbours has its effect here.
    pub(super) fn sort<'a>(
        &mut self,
        now: Instant,
        frame: &'a [u8],
        counters: &mut InterfaceCounters,
    ) -> Sorted<'a> {
        let Ok((header, payload)) = EthernetHeader::parse(frame) else {
            counters.other_protocols += 1;
            return Sorted::Other;
        };
        let for_us = header.destination == self.hardware;
        let neighbours = match header.kind {
            KIND_IPV4 => false,
            KIND_IPV6 => is_ndp(payload),
            KIND_ARP => true,
            _ => {
                counters.other_protocols += 1;
                return Sorted::Other;
            }
        };
        // Questions go to groups, but no segment does (RFC 9293, section 3.9.2.3).
        if !for_us && (!neighbours || is_unicast(header.destination)) {
            counters.not_ours += 1;
            return Sorted::Other;
        }
        if !neighbours {
            counters.packets_received += 1;
            return Sorted::Ip(payload);
        }
        counters.neighbour_packets += 1;
        if matches!(self.knowledge, Knowledge::Shared { .. }) {
            return Sorted::Other;
        }
        // The cache counts what is malformed.
        let _ = if header.kind == KIND_ARP {
            self.cache.input_arp(now, payload)
        } else {
            self.cache.input_ndp(now, payload)
        };
        Sorted::Neighbour
    }

    /// The hardware address for a destination.
    pub(super) fn way(&mut self, now: Instant, destination: IpAddr) -> Way {
        match self.recent[place(destination)] {
            Some(recent) if recent.destination == destination && now < recent.until => {
                Way::To(recent.hardware)
            }
            _ => self.search(now, destination),
        }
    }

    fn search(&mut self, now: Instant, destination: IpAddr) -> Way {
        let routes = match &self.knowledge {
            Knowledge::Own(routes) => routes,
            Knowledge::Shared { watch, .. } => watch.routes(),
        };
        let Some(hop) = routes.next_hop(destination) else { return Way::Unroutable };
        let found = self.cache.lookup(now, hop);
        if found != Lookup::Unreachable {
            self.ask_kernel(now, hop);
        }
        match found {
            Lookup::Known(hardware) => {
                let until = now + RECENT_FOR;
                self.recent[place(destination)] = Some(Recent { destination, hardware, until });
                Way::To(hardware)
            }
            Lookup::Pending => Way::Wait,
            Lookup::Unreachable => Way::Unresolved,
        }
    }

    /// Tells the kernel that the neighbour is in use, where the neighbours are the kernel's: it
    /// asks for one that it does not know, and probes one that is stale. If it cannot be told,
    /// the packet waits in vain, and the next one tries again.
    fn ask_kernel(&mut self, now: Instant, hop: IpAddr) {
        let Knowledge::Shared { watch, asked } = &mut self.knowledge else { return };
        if asked.get(&hop).is_some_and(|&last| now < last + ASK_INTERVAL) {
            return;
        }
        if asked.len() >= NEIGHBOURS_MAX {
            asked.clear();
        }
        asked.insert(hop, now);
        if let Err(error) = watch.use_neighbour(hop) {
            tracing::warn!(%hop, %error, "the kernel refuses to resolve a neighbour");
        }
    }

    /// Takes over what the kernel has said; who was known before is looked up anew.
    pub(super) fn learn_from_kernel(&mut self) {
        let Knowledge::Shared { watch, .. } = &mut self.knowledge else { return };
        let addresses: Vec<IpAddr> =
            watch.addresses().iter().map(|(address, _)| *address).collect();
        // The kernel announces it and asks the neighbours.
        if let Some(hardware) = watch.link().and_then(|link| link.hardware_address) {
            self.hardware = hardware;
        }
        for change in watch.take_neighbours() {
            match change {
                NeighbourChange::Forget => self.cache = Cache::new(self.hardware, NEIGHBOURS_MAX),
                NeighbourChange::Known(address, hardware) => {
                    self.cache.set(address, hardware);
                }
                NeighbourChange::Unknown(address) => self.cache.remove(address),
            }
        }
        self.cache.set_addresses(&addresses);
        self.forget_recent();
    }

    /// Uses another hardware address; one that the stack answers for is announced.
    pub(super) fn set_hardware_address(&mut self, hardware: HardwareAddress) {
        if hardware != self.hardware {
            self.hardware = hardware;
            self.cache.set_hardware_address(hardware);
        }
    }

    /// Looks all destinations up anew, because something about neighbours has changed.
    pub(super) fn forget_recent(&mut self) {
        self.recent = [None; RECENT];
    }

    /// Writes the questions and answers about neighbours that are due.
    pub(super) fn send_questions(&mut self, now: Instant, device: &mut impl Device) {
        let own = matches!(self.knowledge, Knowledge::Own(_));
        while own && self.cache.deadline().is_some_and(|due| due <= now) {
            let Some(room) = device.room(FRAME_BYTES_MAX) else { break };
            let Some(bytes) = self.cache.output(now, room) else { break };
            device.commit(Transmit { bytes, ..Transmit::default() });
        }
    }

    pub(super) fn write_header(&self, to: HardwareAddress, packet: &Packet, frame: &mut [u8]) {
        let kind = if packet.destination.is_ipv6() { KIND_IPV6 } else { KIND_IPV4 };
        EthernetHeader { destination: to, source: self.hardware, kind }.write(frame);
    }

    /// Keeps a packet until its neighbour answers; false if too many wait.
    pub(super) fn keep(&mut self, now: Instant, packet: Packet, bytes: &[u8]) -> bool {
        if self.waiting.len() == WAITING_MAX {
            return false;
        }
        self.waiting.push_back(Waiting { packet, bytes: bytes.into(), until: now + WAITING_FOR });
        true
    }

    pub(super) fn waiting(&mut self) -> &mut VecDeque<Waiting> {
        &mut self.waiting
    }

    /// When the packet that has waited longest is dropped.
    pub(super) fn patience_ends(&self) -> Option<Instant> {
        self.waiting.front().map(|waiting| waiting.until)
    }

    /// When there are questions to be asked.
    pub(super) fn questions_due(&self) -> Option<Instant> {
        match self.knowledge {
            Knowledge::Own(_) => self.cache.deadline(),
            Knowledge::Shared { .. } => None,
        }
    }
}

impl Waiting {
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }
}

/// Where a destination is among the recent ones: neighbouring addresses do not meet.
fn place(destination: IpAddr) -> usize {
    let last = match destination {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    };
    last as usize % RECENT
}
