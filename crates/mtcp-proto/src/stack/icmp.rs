//! Processes ICMP: errors about the stack's own segments (RFC 5927), and echo requests, which it
//! answers (RFC 1122, section 3.2.2.6; RFC 4443, section 4.2).

use super::Stack;
use super::demultiplex::Found;
use super::path_mtu::PathMtus;
use crate::counters::Counters;
use crate::flow::{self, Flow};
use crate::packet::{Checksum, Packet, Sink};
use crate::tcp::Failure;
use crate::wire::icmp::{Echo, IcmpCause, IcmpMessage, QuotedSegment};
use crate::wire::ip::{Ecn, IpHeader};
use std::collections::VecDeque;
use std::net::IpAddr;

/// Most waiting echo replies; further requests are not answered.
const ECHOES: usize = 32;
const HOP_LIMIT: u8 = 64;

#[derive(Debug)]
struct Answer {
    ip: IpHeader,
    identifier: u16,
    sequence: u16,
    data: Box<[u8]>,
}

/// Echo replies that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Echoes(VecDeque<Answer>);

impl Echoes {
    fn push(&mut self, request: &IpHeader, echo: &Echo<'_>) {
        if self.0.len() >= ECHOES {
            return;
        }
        let ip = IpHeader {
            source: request.destination,
            destination: request.source,
            protocol: request.protocol,
            ecn: Ecn::NotCapable,
            hop_limit: HOP_LIMIT,
        };
        let (identifier, sequence) = (echo.identifier, echo.sequence);
        self.0.push_back(Answer { ip, identifier, sequence, data: echo.data.into() });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the replies into the sink; false if the sink became full.
    pub(super) fn output(&mut self, sink: &mut dyn Sink, counters: &mut Counters) -> bool {
        while let Some(answer) = self.0.front() {
            let (identifier, sequence) = (answer.identifier, answer.sequence);
            let message = IcmpMessage::EchoReply(Echo { identifier, sequence, data: &answer.data });
            let ip_bytes = answer.ip.bytes();
            let message_bytes = message.bytes(&answer.ip);
            let bytes = ip_bytes + message_bytes;
            let Some(room) = sink.room(bytes) else { return false };
            answer.ip.write(message_bytes, &mut room[..ip_bytes]);
            message.write(&answer.ip, &mut room[ip_bytes..bytes]);
            let destination = answer.ip.destination;
            sink.commit(Packet { bytes, destination, partial_checksum: None, segment_bytes: None });
            counters.packets_sent += 1;
            self.0.pop_front();
        }
        true
    }
}

impl Stack {
    /// Processes an ICMP message: queues the reply to an echo request, or applies an error.
    pub(super) fn take_icmp(&mut self, ip: &IpHeader, payload: &[u8], checksum: Checksum) {
        if !self.is_own(ip.destination) {
            self.shared.counters.drop_not_ours += 1;
            return;
        }
        match IcmpMessage::parse(ip, payload) {
            Ok(IcmpMessage::EchoRequest(echo)) if self.can_be_source(ip, checksum) => {
                self.answer_echo(ip, &echo);
            }
            Ok(IcmpMessage::Error { cause, quoted }) => self.take_icmp_error(cause, quoted),
            Ok(_) => self.shared.counters.drop_icmp += 1,
            Err(error) => self.count_malformed(error),
        }
    }

    fn answer_echo(&mut self, ip: &IpHeader, echo: &Echo<'_>) {
        // The stack sends no fragments, so a request whose reply would exceed the MTU gets no
        // reply.
        let bytes = ip.bytes() + IcmpMessage::EchoReply(*echo).bytes(ip);
        if bytes <= usize::from(self.shared.config.mtu) {
            self.echoes.push(ip, echo);
        } else {
            self.shared.counters.drop_icmp += 1;
        }
    }

    /// Passes an error to the connection whose segment it quotes. The connection accepts it only if
    /// the segment is in flight (RFC 5927, section 4.1).
    fn take_icmp_error(&mut self, cause: IcmpCause, quoted: &[u8]) {
        let Some((index, segment)) = self.quoted_connection(quoted) else {
            self.shared.counters.drop_icmp += 1;
            return;
        };
        let Some(socket) = self.table.id(index) else { return };
        let Some(entry) = self.table.connection_mut(index) else { return };
        let connection = &mut entry.connection;
        let context = &mut self.shared.context();
        let reason = match cause {
            IcmpCause::PacketTooBig { mtu } => {
                let destination = segment.destination.ip();
                let mtu = PathMtus::plausible(destination, mtu);
                let before = connection.info(socket).maximum_segment;
                connection.path_mtu(mtu, segment.sequence, context);
                if connection.info(socket).maximum_segment < before {
                    self.path_mtus.learn(destination, mtu, self.shared.now);
                }
                return self.update_schedule(index);
            }
            IcmpCause::PortUnreachable | IcmpCause::ProtocolUnreachable => Failure::Refused,
            _ => Failure::Unreachable,
        };
        connection.unreachable(reason, segment.sequence, context);
        self.update_schedule(index);
    }

    fn quoted_connection(&self, quoted: &[u8]) -> Option<(u32, QuotedSegment)> {
        let segment = QuotedSegment::parse(quoted).ok()?;
        let (local, remote) = (segment.source, segment.destination);
        let flow = Flow::new((local.ip(), local.port()), (remote.ip(), remote.port()));
        match self.find(&flow, flow.hash(self.keys.flow))? {
            Found::Connection(index) => Some((index, segment)),
            Found::TimeWait(_) => None,
        }
    }

    /// The core that owns a packet: that of its connection, or of the connection whose segment an
    /// ICMP error quotes. `None` if any core may process it.
    pub(super) fn core_of(&self, packet: &[u8]) -> Option<u16> {
        let cores = self.shared.config.steering.cores;
        if cores == 1 {
            return None;
        }
        let (ip, payload) = IpHeader::parse(packet).ok()?;
        let flow = if ip.protocol == crate::wire::PROTOCOL_TCP {
            let &[a, b, c, d] = payload.first_chunk()?;
            let (from, to) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            Flow::new((ip.destination, to), (ip.source, from))
        } else {
            let Ok(IcmpMessage::Error { quoted, .. }) = IcmpMessage::parse(&ip, payload) else {
                return None;
            };
            let segment = QuotedSegment::parse(quoted).ok()?;
            let (local, remote): ((IpAddr, u16), (IpAddr, u16)) = (
                (segment.source.ip(), segment.source.port()),
                (segment.destination.ip(), segment.destination.port()),
            );
            Flow::new(local, remote)
        };
        Some(flow::owner(flow.hash(self.keys.flow), cores))
    }
}
