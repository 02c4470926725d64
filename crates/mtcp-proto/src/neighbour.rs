//! Resolves IP addresses to hardware addresses: ARP and neighbour discovery as a state machine
//! without I/O.
//!
//! A [`Cache`] sends requests for the addresses that are looked up and answers requests for its own
//! ones. An entry goes through the states of RFC 4861, section 7.3.2, with two simplifications:
//! there is no delay before a probe, and ARP uses the same states.
//!
//! The cache distrusts packets, because any host on the link can send anything. An answer counts
//! only for an address that was looked up here, never for one of the cache's own addresses, and
//! never with a group's hardware address. An entry that was confirmed within the last second is not
//! replaced. An entry that an unsolicited packet has changed is probed at its next use.

mod entry;

use self::entry::{Entry, Evidence, Expiry};
use crate::time::Instant;
use crate::wire::arp::{ARP_BYTES, ArpOperation, ArpPacket};
use crate::wire::ethernet::{
    self, BROADCAST, EthernetHeader, HardwareAddress, KIND_ARP, KIND_IPV6, is_unicast,
};
use crate::wire::ip::{Ecn, IPV6_HEADER_BYTES, IpHeader};
use crate::wire::ndp::{
    NDP_BYTES_MAX, NDP_HOP_LIMIT, NdpMessage, group_hardware_address, solicited_node,
};
use crate::wire::{PROTOCOL_ICMPV6, WireError};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// The longest frame that [`Cache::output`] writes, in bytes.
pub const FRAME_BYTES_MAX: usize = ethernet::HEADER_BYTES + IPV6_HEADER_BYTES + NDP_BYTES_MAX;

/// Most frames in the send queue. Further ones are dropped; their receivers will ask again.
const QUEUE_MAX: usize = 64;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Its hardware address.
    Known(HardwareAddress),
    /// A request was sent, or too many others are pending; look it up again later.
    Pending,
    /// No host answers, or none can: the address is a group, one of the cache's own, or of a family
    /// in which the cache has no address.
    Unreachable,
}

/// Counters of a cache since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests sent, including probes.
    pub requests_sent: u64,
    /// Answers sent.
    pub answers_sent: u64,
    /// Addresses whose requests were never answered.
    pub unanswered: u64,
    /// Packets that tried to change an entry that they must not change.
    pub refused: u64,
    /// Packets of other hosts that claim one of this cache's addresses.
    pub conflicts: u64,
    /// Packets that were malformed.
    pub malformed: u64,
}

/// A frame in the send queue.
#[derive(Clone, Copy, Debug)]
enum Outgoing {
    Arp(HardwareAddress, ArpPacket),
    Ndp { link: HardwareAddress, source: Ipv6Addr, destination: Ipv6Addr, message: NdpMessage },
}

impl Outgoing {
    /// Writes the frame; returns its length.
    fn write(self, own: HardwareAddress, out: &mut [u8]) -> usize {
        let out = &mut out[..FRAME_BYTES_MAX];
        let (link, kind) = match self {
            Outgoing::Arp(link, _) => (link, KIND_ARP),
            Outgoing::Ndp { link, .. } => (link, KIND_IPV6),
        };
        EthernetHeader { destination: link, source: own, kind }.write(out);
        let packet = &mut out[ethernet::HEADER_BYTES..];
        match self {
            Outgoing::Arp(_, arp) => {
                arp.write(packet);
                ethernet::HEADER_BYTES + ARP_BYTES
            }
            Outgoing::Ndp { source, destination, message, .. } => {
                let header = IpHeader {
                    source: source.into(),
                    destination: destination.into(),
                    protocol: PROTOCOL_ICMPV6,
                    ecn: Ecn::NotCapable,
                    hop_limit: NDP_HOP_LIMIT,
                };
                let bytes = message.bytes();
                header.write(bytes, packet);
                message.write(&header, &mut packet[IPV6_HEADER_BYTES..]);
                ethernet::HEADER_BYTES + IPV6_HEADER_BYTES + bytes
            }
        }
    }
}

/// The neighbours of one interface. All calls take the time, which must not go back.
///
/// It holds a limited number of entries. A look-up has logarithmic cost, so a sender to one
/// neighbour should keep the last result, but not for more than about a second, because only
/// look-ups make the cache probe.
#[derive(Debug)]
pub struct Cache {
    hardware: HardwareAddress,
    addresses: Vec<IpAddr>,
    entries: BTreeMap<IpAddr, Entry>,
    capacity: usize,
    unresolved: usize,
    queue: VecDeque<Outgoing>,
    /// A time not later than the first deadline of an entry.
    due: Option<Instant>,
    counters: Counters,
}

impl Cache {
    /// Creates a cache of at most `capacity` entries (at least two) for an interface with this
    /// hardware address.
    pub fn new(hardware: HardwareAddress, capacity: usize) -> Cache {
        Cache {
            hardware,
            addresses: Vec::new(),
            entries: BTreeMap::new(),
            capacity: capacity.max(2),
            unresolved: 0,
            queue: VecDeque::with_capacity(QUEUE_MAX),
            due: None,
            counters: Counters::default(),
        }
    }

    /// Sets the cache's own addresses, for which it answers requests. Without an own address of a
    /// family the cache sends no requests of that family.
    pub fn set_addresses(&mut self, addresses: &[IpAddr]) {
        self.addresses = addresses.to_vec();
        for address in addresses {
            self.remove(*address);
        }
    }

    /// Sets the hardware address of the interface, and announces it for all own addresses (RFC
    /// 5227, section 3; RFC 4861, section 7.2.6).
    pub fn set_hardware_address(&mut self, hardware: HardwareAddress) {
        self.hardware = hardware;
        for address in self.addresses.clone() {
            let announcement = match address {
                IpAddr::V4(address) => {
                    let packet = ArpPacket {
                        operation: ArpOperation::Request,
                        sender_hardware: hardware,
                        sender: address,
                        target_hardware: [0; 6],
                        target: address,
                    };
                    Outgoing::Arp(BROADCAST, packet)
                }
                IpAddr::V6(address) => Outgoing::Ndp {
                    link: group_hardware_address(ALL_NODES),
                    source: address,
                    destination: ALL_NODES,
                    message: NdpMessage::Advertisement {
                        target: address,
                        link: Some(hardware),
                        router: false,
                        solicited: false,
                        replaces: true,
                    },
                },
            };
            self.answer(announcement);
        }
    }

    /// Looks an address up and sends a request if necessary. An entry that was not confirmed for
    /// half a minute is returned and probed.
    pub fn lookup(&mut self, now: Instant, address: IpAddr) -> Lookup {
        if let Some(entry) = self.entries.get_mut(&address) {
            let found = entry.lookup(now);
            self.due = earlier(self.due, entry.deadline());
            return found;
        }
        if !self.may_be_asked(address) {
            return Lookup::Unreachable;
        }
        // So many unresolved look-ups suggest a scan; known entries are not removed to make room
        // for it.
        if self.unresolved >= self.capacity / 2 || !self.make_room() {
            return Lookup::Pending;
        }
        self.entries.insert(address, Entry::incomplete(now));
        self.unresolved += 1;
        self.due = earlier(self.due, Some(now));
        Lookup::Pending
    }

    /// Sets a permanent entry, which no packet changes and which does not age. False if the
    /// hardware address is not a unicast address, the address is one of the cache's own, or the
    /// cache is full of such entries.
    pub fn set(&mut self, address: IpAddr, hardware: HardwareAddress) -> bool {
        if !is_unicast(hardware) || self.addresses.contains(&address) {
            return false;
        }
        if !self.entries.contains_key(&address) && !self.make_room() {
            return false;
        }
        self.remove(address);
        self.entries.insert(address, Entry::permanent(hardware));
        true
    }

    /// Removes an address.
    pub fn remove(&mut self, address: IpAddr) {
        if self.entries.remove(&address).is_some_and(|entry| entry.is_unresolved()) {
            self.unresolved -= 1;
        }
    }

    /// Processes an ARP packet, which begins after the Ethernet header.
    ///
    /// # Errors
    /// [`WireError`]; the packet then has no effect.
    pub fn input_arp(&mut self, now: Instant, packet: &[u8]) -> Result<(), WireError> {
        let packet = self.note(ArpPacket::parse(packet))?;
        let sender = IpAddr::V4(packet.sender);
        if !is_unicast(packet.sender_hardware) || packet.sender_hardware == self.hardware {
            self.counters.refused += 1;
            return Ok(());
        }
        if self.addresses.contains(&sender) {
            self.counters.conflicts += 1;
            return Ok(());
        }
        let for_us = self.addresses.contains(&IpAddr::V4(packet.target));
        if !packet.sender.is_unspecified() {
            let evidence = Evidence {
                hardware: Some(packet.sender_hardware),
                answer: packet.operation == ArpOperation::Reply && for_us,
                replaces: true,
            };
            self.learn(now, sender, evidence);
        }
        if packet.operation == ArpOperation::Request && for_us {
            let answer = ArpPacket {
                operation: ArpOperation::Reply,
                sender_hardware: self.hardware,
                sender: packet.target,
                target_hardware: packet.sender_hardware,
                target: packet.sender,
            };
            self.answer(Outgoing::Arp(packet.sender_hardware, answer));
        }
        Ok(())
    }

    /// Processes an IPv6 packet for which [`crate::wire::ndp::is_ndp`] is true.
    ///
    /// # Errors
    /// [`WireError`]; the packet then has no effect.
    pub fn input_ndp(&mut self, now: Instant, packet: &[u8]) -> Result<(), WireError> {
        let parsed = IpHeader::parse(packet)
            .and_then(|(header, payload)| Ok((header, NdpMessage::parse(&header, payload)?)));
        let (header, message) = self.note(parsed)?;
        match message {
            NdpMessage::Solicitation { target, link } => {
                self.solicited(now, header.source, target, link);
            }
            NdpMessage::Advertisement { target, link, solicited, replaces, .. } => {
                let address = IpAddr::V6(target);
                if link == Some(self.hardware) {
                    self.counters.refused += 1;
                } else if self.addresses.contains(&address) {
                    self.counters.conflicts += 1;
                } else {
                    let answer = solicited && self.addresses.contains(&header.destination);
                    self.learn(now, address, Evidence { hardware: link, answer, replaces });
                }
            }
        }
        Ok(())
    }

    /// Writes the next frame of the send queue, with its Ethernet header, and returns its length;
    /// `None` if there is none.
    ///
    /// # Panics
    /// If `out` is shorter than [`FRAME_BYTES_MAX`].
    pub fn output(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        if self.queue.is_empty() && self.due.is_some_and(|due| due <= now) {
            self.run_timers(now);
        }
        Some(self.queue.pop_front()?.write(self.hardware, out))
    }

    /// The time at which [`Cache::output`] must be called even if no packet arrives. It is in the
    /// past if a frame is ready to send, and may be too early once after an answer has made a timer
    /// unnecessary.
    pub fn deadline(&self) -> Option<Instant> {
        if self.queue.is_empty() { self.due } else { Some(Instant::ZERO) }
    }

    /// The counters since the creation.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn note<T>(&mut self, parsed: Result<T, WireError>) -> Result<T, WireError> {
        if !matches!(parsed, Ok(_) | Err(WireError::Unsupported(_))) {
            self.counters.malformed += 1;
        }
        parsed
    }

    fn may_be_asked(&self, address: IpAddr) -> bool {
        let station = match address {
            IpAddr::V4(address) => !address.is_broadcast() && !address.is_multicast(),
            IpAddr::V6(address) => !address.is_multicast() && address.to_ipv4_mapped().is_none(),
        };
        station
            && !address.is_unspecified()
            && !address.is_loopback()
            && !self.addresses.contains(&address)
            && self.addresses.iter().any(|own| own.is_ipv6() == address.is_ipv6())
    }

    /// Removes the least recently used entry to make room; false if all are permanent.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < self.capacity {
            return true;
        }
        let oldest = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.is_permanent())
            .min_by_key(|(_, entry)| entry.used())
            .map(|(address, _)| *address);
        if let Some(address) = oldest {
            self.remove(address);
        }
        oldest.is_some()
    }

    fn learn(&mut self, now: Instant, address: IpAddr, evidence: Evidence) {
        let Some(entry) = self.entries.get_mut(&address) else { return };
        let unresolved = entry.is_unresolved();
        if !entry.learn(now, evidence) {
            self.counters.refused += 1;
        }
        self.due = earlier(self.due, entry.deadline());
        if unresolved && !entry.is_unresolved() {
            self.unresolved -= 1;
        }
    }

    /// Answers a solicitation. If the solicitation has no hardware address, the cache answers only
    /// if it knows the sender's. The sender repeats an unanswered unicast request as multicast,
    /// which has to contain the address (RFC 4861, section 4.3).
    fn solicited(
        &mut self,
        now: Instant,
        source: IpAddr,
        target: Ipv6Addr,
        link: Option<HardwareAddress>,
    ) {
        let IpAddr::V6(asker) = source else { return };
        if link == Some(self.hardware) || asker.is_multicast() {
            self.counters.refused += 1;
            return;
        }
        if self.addresses.contains(&source) {
            self.counters.conflicts += 1;
            return;
        }
        if link.is_some() {
            let evidence = Evidence { hardware: link, answer: false, replaces: true };
            self.learn(now, source, evidence);
        }
        if !self.addresses.contains(&IpAddr::V6(target)) {
            return;
        }
        // A request from the unspecified address is a test whether this address is in use: the
        // answer goes to all nodes (RFC 4861, section 7.2.4).
        let probe = asker.is_unspecified();
        let known = || self.entries.get(&source).and_then(|entry| entry.hardware());
        let (destination, link) = if probe {
            (ALL_NODES, Some(group_hardware_address(ALL_NODES)))
        } else {
            (asker, link.or_else(known))
        };
        let Some(link) = link else { return };
        let message = NdpMessage::Advertisement {
            target,
            link: Some(self.hardware),
            router: false,
            solicited: !probe,
            replaces: true,
        };
        self.answer(Outgoing::Ndp { link, source: target, destination, message });
    }

    fn answer(&mut self, answer: Outgoing) {
        if self.queue.len() < QUEUE_MAX {
            self.queue.push_back(answer);
            self.counters.answers_sent += 1;
        }
    }

    /// Queues the requests whose time has come, as many as there is room for, and removes expired
    /// entries.
    fn run_timers(&mut self, now: Instant) {
        let mut next = None;
        let mut expired = Vec::new();
        let mut questions = Vec::new();
        for (address, entry) in &mut self.entries {
            let Some(due) = entry.deadline() else { continue };
            if due <= now && questions.len() < QUEUE_MAX {
                let was_unresolved = entry.is_unresolved();
                match entry.expire(now) {
                    Expiry::Ask(hardware) => questions.push((*address, hardware)),
                    Expiry::Unanswered => self.counters.unanswered += 1,
                    Expiry::Forget => {
                        expired.push(*address);
                        continue;
                    }
                }
                self.unresolved += usize::from(entry.is_unresolved());
                self.unresolved -= usize::from(was_unresolved);
            }
            next = earlier(next, entry.deadline());
        }
        self.due = next;
        for address in expired {
            self.remove(address);
        }
        for (address, hardware) in questions {
            if let Some(question) = self.question(address, hardware) {
                self.queue.push_back(question);
                self.counters.requests_sent += 1;
            }
        }
    }

    /// Builds a request to all hosts, or a probe to one host (RFC 4861, section 7.2.2; RFC 1122,
    /// section 2.3.2.1).
    fn question(&self, address: IpAddr, hardware: Option<HardwareAddress>) -> Option<Outgoing> {
        let own = closest(&self.addresses, address)?;
        match (own, address) {
            (IpAddr::V4(sender), IpAddr::V4(target)) => {
                let packet = ArpPacket {
                    operation: ArpOperation::Request,
                    sender_hardware: self.hardware,
                    sender,
                    target_hardware: [0; 6],
                    target,
                };
                Some(Outgoing::Arp(hardware.unwrap_or(BROADCAST), packet))
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let message = NdpMessage::Solicitation { target, link: Some(self.hardware) };
                let group = solicited_node(target);
                let (link, destination) = match hardware {
                    Some(hardware) => (hardware, target),
                    None => (group_hardware_address(group), group),
                };
                Some(Outgoing::Ndp { link, source, destination, message })
            }
            _ => None,
        }
    }
}

/// The earlier of two optional moments.
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}

/// The own address with the longest common prefix, so that a request comes from an address of the
/// same network (RFC 6724, section 5, rule 8, simplified).
fn closest(addresses: &[IpAddr], to: IpAddr) -> Option<IpAddr> {
    let common = |own: &IpAddr| match (*own, to) {
        (IpAddr::V4(own), IpAddr::V4(to)) => Some((u32::from(own) ^ u32::from(to)).leading_zeros()),
        (IpAddr::V6(own), IpAddr::V6(to)) => {
            Some((u128::from(own) ^ u128::from(to)).leading_zeros())
        }
        _ => None,
    };
    addresses.iter().copied().filter(|own| common(own).is_some()).max_by_key(common)
}

#[cfg(test)]
mod tests;
