//! Resolves IP destinations to hardware addresses, and classifies Ethernet frames.

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
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// Most neighbours in the cache.
const NEIGHBOURS_MAX: usize = 4_096;
/// Number of cached destinations, whose neighbour is found without a search.
const RECENT: usize = 64;
/// How long such an entry is valid; a neighbour must be looked up from time to time so that it is
/// probed.
const RECENT_FOR: Duration = Duration::from_secs(1);
/// Least time between requests to the kernel for the same neighbour.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Most packets that wait for neighbours; further ones are dropped, and TCP sends them again.
const WAITING_MAX: usize = 64;
/// How long packets wait: a neighbour is asked three times, a second apart.
const WAITING_FOR: Duration = Duration::from_secs(4);

/// The source of information about neighbours.
pub(super) enum Knowledge {
    /// The stack, which sends requests and answers itself.
    Own { routes: Routes, watch: Option<Watch> },
    /// The kernel, whose messages the interface watches, and which is asked to resolve neighbours.
    Shared { watch: Watch, asked: BTreeMap<IpAddr, Instant> },
}

impl Knowledge {
    pub(super) fn watch(&self) -> Option<&Watch> {
        match self {
            Knowledge::Own { watch, .. } => watch.as_ref(),
            Knowledge::Shared { watch, .. } => Some(watch),
        }
    }

    pub(super) fn routes(&self) -> &Routes {
        match self {
            Knowledge::Own { routes, .. } => routes,
            Knowledge::Shared { watch, .. } => watch.routes(),
        }
    }
}

/// The result of looking up the next hop of a packet.
pub(super) enum NextHop {
    To(HardwareAddress),
    /// A request was sent to the neighbour.
    Wait,
    /// There is no route.
    Unroutable,
    /// The neighbour does not answer.
    Unresolved,
}

/// The kind of an Ethernet frame.
pub(super) enum FrameClass<'a> {
    /// A packet for the stack.
    Ip(&'a [u8]),
    /// A frame about neighbours, which was processed.
    Neighbour,
    /// A frame that needs no further processing.
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

/// The part of an interface that Ethernet needs and plain IP does not.
pub(super) struct Resolver {
    hardware: HardwareAddress,
    pub(super) cache: Cache,
    pub(super) knowledge: Knowledge,
    /// Indexed by a hash of the destination.
    recent: [Option<Recent>; RECENT],
    /// In the order of their waiting time, the longest first.
    waiting: VecDeque<Waiting>,
}

impl Resolver {
    pub(super) fn new(hardware: HardwareAddress, knowledge: Knowledge) -> Resolver {
        let cache = Cache::new(hardware, NEIGHBOURS_MAX);
        Resolver { hardware, cache, knowledge, recent: [None; RECENT], waiting: VecDeque::new() }
    }

    /// Classifies a frame; a frame about neighbours is processed here.
    pub(super) fn sort<'a>(
        &mut self,
        now: Instant,
        frame: &'a [u8],
        counters: &mut InterfaceCounters,
    ) -> FrameClass<'a> {
        let Ok((header, payload)) = EthernetHeader::parse(frame) else {
            counters.other_protocols += 1;
            return FrameClass::Other;
        };
        let for_us = header.destination == self.hardware;
        let neighbours = match header.kind {
            KIND_IPV4 => false,
            KIND_IPV6 => is_ndp(payload),
            KIND_ARP => true,
            _ => {
                counters.other_protocols += 1;
                return FrameClass::Other;
            }
        };
        // Requests may be sent to groups, but no segment may (RFC 9293, section 3.9.2.3).
        if !for_us && (!neighbours || is_unicast(header.destination)) {
            counters.not_ours += 1;
            return FrameClass::Other;
        }
        if !neighbours {
            counters.packets_received += 1;
            return FrameClass::Ip(payload);
        }
        counters.neighbour_packets += 1;
        if matches!(self.knowledge, Knowledge::Shared { .. }) {
            return FrameClass::Other;
        }
        // The cache counts malformed packets.
        let _ = if header.kind == KIND_ARP {
            self.cache.input_arp(now, payload)
        } else {
            self.cache.input_ndp(now, payload)
        };
        FrameClass::Neighbour
    }

    /// Looks up the hardware address for a destination.
    pub(super) fn way(&mut self, now: Instant, destination: IpAddr) -> NextHop {
        match self.recent[place(destination)] {
            Some(recent) if recent.destination == destination && now < recent.until => {
                NextHop::To(recent.hardware)
            }
            _ => self.search(now, destination),
        }
    }

    fn search(&mut self, now: Instant, destination: IpAddr) -> NextHop {
        let Some(hop) = self.knowledge.routes().next_hop(destination) else {
            return NextHop::Unroutable;
        };
        let found = self.cache.lookup(now, hop);
        if found != Lookup::Unreachable {
            self.ask_kernel(now, hop);
        }
        match found {
            Lookup::Known(hardware) => {
                let until = now + RECENT_FOR;
                self.recent[place(destination)] = Some(Recent { destination, hardware, until });
                NextHop::To(hardware)
            }
            Lookup::Pending => NextHop::Wait,
            Lookup::Unreachable => NextHop::Unresolved,
        }
    }

    /// Tells the kernel that a neighbour is in use, if the neighbours are the kernel's. The kernel
    /// then requests an unknown one and probes a stale one. If this fails, the packet is dropped
    /// after its wait, and the next packet tries again.
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

    /// Processes the kernel's messages, without waiting; true if there were any.
    pub(super) fn follow(&mut self) -> io::Result<bool> {
        let watch = match &mut self.knowledge {
            Knowledge::Own { watch: None, .. } => return Ok(false),
            Knowledge::Own { watch: Some(watch), .. } | Knowledge::Shared { watch, .. } => watch,
        };
        let changed = watch.follow()?;
        if changed {
            self.learn_from_kernel();
        }
        Ok(changed)
    }

    /// Applies the kernel's messages; destinations are looked up again.
    pub(super) fn learn_from_kernel(&mut self) {
        let link = self.knowledge.watch().and_then(Watch::link);
        let hardware = link.and_then(|link| link.hardware_address).unwrap_or(self.hardware);
        let has_moved = std::mem::replace(&mut self.hardware, hardware) != hardware;
        let Knowledge::Shared { watch, .. } = &mut self.knowledge else {
            if has_moved {
                self.cache.set_hardware_address(hardware);
            }
            return;
        };
        // The kernel announces its address and asks the neighbours.
        let addresses: Vec<IpAddr> =
            watch.addresses().iter().map(|(address, _)| *address).collect();
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

    /// Clears the cached destinations, because information about neighbours has changed.
    pub(super) fn forget_recent(&mut self) {
        self.recent = [None; RECENT];
    }

    /// Writes the waiting requests and answers about neighbours.
    pub(super) fn send_questions(&mut self, now: Instant, device: &mut dyn Device) {
        let own = matches!(self.knowledge, Knowledge::Own { .. });
        while own && self.cache.deadline().is_some_and(|due| due <= now) {
            let Some(room) = device.room(FRAME_BYTES_MAX) else { break };
            let Some(bytes) = self.cache.output(now, room) else { break };
            device.commit(Transmit { bytes, ..Transmit::default() });
        }
    }

    /// Writes the Ethernet header of a packet.
    pub(super) fn write_header(&self, to: HardwareAddress, packet: &Packet, frame: &mut [u8]) {
        let kind = if packet.destination.is_ipv6() { KIND_IPV6 } else { KIND_IPV4 };
        EthernetHeader { destination: to, source: self.hardware, kind }.write(frame);
    }

    /// Stores a packet until its neighbour answers; false if too many wait.
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

    /// When the packet with the longest wait is dropped.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.waiting.front().map(|waiting| waiting.until)
    }

    /// When the next requests have to be sent.
    pub(super) fn questions_due(&self) -> Option<Instant> {
        match self.knowledge {
            Knowledge::Own { .. } => self.cache.deadline(),
            Knowledge::Shared { .. } => None,
        }
    }
}

impl Waiting {
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }
}

/// The index of a destination among the cached ones; neighbouring addresses have different indices.
fn place(destination: IpAddr) -> usize {
    let last = match destination {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    };
    last as usize % RECENT
}
