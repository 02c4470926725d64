//! Demultiplexes incoming packets to connections, listeners and TIME_WAIT records. Each packet is
//! parsed and hashed here once. With several cores, [`Stack::owner`] parses and hashes it once
//! more.

use super::lifecycle::IN_TIME_WAIT;
use super::replies;
use super::table::Stage;
use super::time_wait::Verdict;
use super::{Stack, cookies};
use crate::flow::{self, Flow};
use crate::packet::Checksum;
use crate::wire::ip::{Ecn, IpHeader};
use crate::wire::tcp::{Flags, TcpHeader};
use crate::wire::{PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, WireError, checksum};
use std::net::IpAddr;

/// A segment with its parsed headers and its flow.
pub(super) struct Segment<'a> {
    pub(super) flow: Flow,
    pub(super) hash: u64,
    pub(super) header: TcpHeader,
    pub(super) ecn: Ecn,
    pub(super) data: &'a [u8],
    pub(super) checksum: Checksum,
}

/// What a four-tuple refers to.
pub(super) enum Found {
    Connection(u32),
    TimeWait(u32),
}

impl Stack {
    /// Processes one IP packet: checks it and passes it to TCP or ICMP.
    pub(super) fn take_packet(&mut self, packet: &[u8], checksum: Checksum) {
        self.shared.counters.packets_received += 1;
        let (ip, payload) = match IpHeader::parse(packet) {
            Ok(parts) => parts,
            Err(error) => return self.count_malformed(error),
        };
        match ip.protocol {
            PROTOCOL_TCP => self.take_segment(&ip, payload, checksum),
            PROTOCOL_ICMP | PROTOCOL_ICMPV6 => self.take_icmp(&ip, payload, checksum),
            _ => self.shared.counters.drop_unsupported += 1,
        }
    }

    /// Counts a packet that could not be parsed, by the kind of error.
    pub(super) fn count_malformed(&mut self, error: WireError) {
        let counters = &mut self.shared.counters;
        match error {
            WireError::Checksum => counters.drop_checksum += 1,
            WireError::Unsupported(_) => counters.drop_unsupported += 1,
            _ => counters.drop_malformed += 1,
        }
    }

    fn take_segment(&mut self, ip: &IpHeader, payload: &[u8], checksum: Checksum) {
        if checksum == Checksum::Unverified
            && !checksum::verify_tcp(ip.source, ip.destination, payload)
        {
            self.shared.counters.drop_checksum += 1;
            return;
        }
        let (header, data) = match TcpHeader::parse(payload) {
            Ok(parts) => parts,
            Err(error) => return self.count_malformed(error),
        };
        if is_mapped(ip.source) || is_mapped(ip.destination) {
            self.shared.counters.drop_malformed += 1;
            return;
        }
        let remote = (ip.source, header.source_port);
        let flow = Flow::new((ip.destination, header.destination_port), remote);
        let hash = flow.hash(self.keys.flow);
        if !self.is_mine(hash) {
            self.shared.counters.drop_other_core += 1;
            return;
        }
        let segment = Segment { flow, hash, header, ecn: ip.ecn, data, checksum };
        match self.find(&flow, hash) {
            Some(Found::Connection(index)) => self.segment_for_connection(index, &segment),
            Some(Found::TimeWait(record)) => self.segment_in_time_wait(record, &segment),
            None => self.segment_for_none(ip, &segment),
        }
    }

    /// Whether this core owns the flow with this hash.
    pub(super) fn is_mine(&self, hash: u64) -> bool {
        let steering = self.shared.config.steering;
        steering.cores == 1 || flow::owner(hash, steering.cores) == steering.core
    }

    /// Looks a four-tuple up in the flow table.
    pub(super) fn find(&self, flow: &Flow, hash: u64) -> Option<Found> {
        let found = self.flows.find(hash, |index| {
            let entered = if index & IN_TIME_WAIT == 0 {
                self.table.connection(index).map(|entry| entry.connection.flow())
            } else {
                self.time_wait.get(index & !IN_TIME_WAIT).map(|record| &record.flow)
            };
            entered == Some(flow)
        })?;
        Some(if found & IN_TIME_WAIT == 0 {
            Found::Connection(found)
        } else {
            Found::TimeWait(found & !IN_TIME_WAIT)
        })
    }

    /// Processes a segment of an existing connection, including one that is half-open.
    pub(super) fn segment_for_connection(&mut self, index: u32, segment: &Segment<'_>) {
        let Some(entry) = self.table.connection_mut(index) else { return };
        if let Stage::HalfOpen(listener) = entry.stage {
            if self.must_wait(listener, &segment.header) {
                self.shared.counters.drop_backlog += 1;
                return;
            }
            if self.cookies_are_out() && self.is_answered_for_another(index, &segment.header) {
                return self.try_cookie(listener, Some(index), segment);
            }
        }
        let Some(entry) = self.table.connection_mut(index) else { return };
        let context = &mut self.shared.context();
        entry.connection.input(&segment.header, segment.ecn, segment.data, context);
        self.update_schedule(index);
    }

    fn is_answered_for_another(&self, index: u32, header: &TcpHeader) -> bool {
        let entry = self.table.connection(index);
        entry.is_some_and(|entry| entry.connection.is_answered_for_another(header))
    }

    /// Whether the segment would establish a connection for which the listener has no room. The
    /// stack treats it as lost: the SYN-ACK is retransmitted, and the peer's ACK with it.
    fn must_wait(&self, listener: u32, header: &TcpHeader) -> bool {
        let establishes = header.flags.contains(Flags::ACK) && !header.flags.contains(Flags::RST);
        establishes && !self.has_room(listener)
    }

    fn has_room(&self, listener: u32) -> bool {
        let listening = self.table.listening(listener);
        listening.is_some_and(|found| !found.listener.is_full())
    }

    fn segment_in_time_wait(&mut self, record: u32, segment: &Segment<'_>) {
        let Some(found) = self.time_wait.get(record) else { return };
        match found.judge(&segment.header, segment.data.len() as u32) {
            Verdict::Ignore => {}
            Verdict::Replace(least) => {
                let local = segment.flow.local();
                let listener = self.listeners.find((local.ip(), local.port()), segment.hash);
                if let Some(listener) = listener.filter(|&listener| self.has_room(listener)) {
                    self.forget_time_wait(record);
                    self.shared.counters.time_wait_reused += 1;
                    self.take_syn(listener, segment, Some(least));
                } else {
                    self.acknowledge_in_time_wait(record, segment);
                }
            }
            Verdict::Restart => {
                let reply = found.acknowledgement(self.shared.now);
                self.time_wait.restart(record, self.shared.now);
                self.replies.push(segment.flow, reply);
            }
            Verdict::Acknowledge => self.acknowledge_in_time_wait(record, segment),
            Verdict::Forget => self.forget_time_wait(record),
        }
    }

    fn acknowledge_in_time_wait(&mut self, record: u32, segment: &Segment<'_>) {
        let Some(found) = self.time_wait.get(record) else { return };
        if self.shared.challenge_budget > 0 {
            self.shared.challenge_budget -= 1;
            self.shared.counters.challenge_acks_sent += 1;
            self.replies.push(segment.flow, found.acknowledgement(self.shared.now));
            if segment.header.flags.contains(Flags::SYN) {
                self.time_wait.ask(record);
            }
        }
    }

    fn segment_for_none(&mut self, ip: &IpHeader, segment: &Segment<'_>) {
        if !self.is_own(ip.destination) {
            self.shared.counters.drop_not_ours += 1;
            return;
        }
        let flags = segment.header.flags;
        let senseless = flags.contains(Flags::SYN.with(Flags::FIN));
        if !self.can_be_source(ip, segment.checksum) || segment.header.source_port == 0 || senseless
        {
            self.shared.counters.drop_malformed += 1;
            return;
        }
        let local = (ip.destination, segment.header.destination_port);
        let listener = self.listeners.find(local, segment.hash);
        let opening = Flags(flags.0 & (Flags::SYN.0 | Flags::ACK.0 | Flags::RST.0));
        match (listener, opening) {
            (Some(listener), Flags::SYN) => return self.take_syn(listener, segment, None),
            (Some(listener), Flags::ACK) if self.cookies_are_out() => {
                return self.try_cookie(listener, None, segment);
            }
            _ => {}
        }
        if let Some(reply) =
            replies::reset(&segment.flow, &segment.header, segment.data.len() as u32)
        {
            self.replies.push(segment.flow, reply);
        }
    }

    /// Handles an ACK that may contain a cookie. A valid cookie has precedence over a half-open
    /// connection with the same four-tuple: a copy of the SYN created it later, when cookies were
    /// no longer sent.
    fn try_cookie(&mut self, listener: u32, half_open: Option<u32>, segment: &Segment<'_>) {
        let (key, now) = (self.keys.cookie, self.shared.now);
        let Some(kept) = cookies::check(key, &segment.flow, now, &segment.header) else {
            // This segment may have overtaken the one that returns the cookie. A reset would end a
            // connection that the peer believes to be established.
            self.shared.counters.drop_bad_ack += 1;
            return;
        };
        if let Some(index) = half_open {
            self.remove(index);
        }
        self.take_cookie(listener, segment, &kept);
    }

    /// Whether an address is one of the stack's.
    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Whether the packet's source is plausible and can be answered (RFC 1122, section 3.2.1.3; RFC
    /// 9293, section 3.9.2.3). Looped packets have a source of the stack's own, and no other
    /// packets have.
    pub(super) fn can_be_source(&self, ip: &IpHeader, checksum: Checksum) -> bool {
        let source = ip.source;
        let broadcast = matches!(source, IpAddr::V4(address) if address.is_broadcast());
        let single = !(source.is_unspecified() || source.is_multicast() || broadcast);
        single && self.is_own(source) == (checksum == Checksum::Looped)
    }
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}
