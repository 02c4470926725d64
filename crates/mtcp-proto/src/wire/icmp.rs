//! ICMP for IPv4 (RFC 792, 1122, 1191) and IPv6 (RFC 4443, 8201), as far as TCP needs it.
//!
//! Both are one message here, because TCP reacts to the same few conditions. Nothing is believed
//! yet: whether an error fits a connection is for its reader to decide (RFC 5927).

use super::checksum::Sum;
use super::ip::{self, IpHeader};
use super::{PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP};
use super::{WireError, read_u16, read_u32};
use crate::sequence::Sequence;
use std::net::SocketAddr;

/// Bytes in front of an echo's data or of a quoted packet.
pub const ICMP_HEADER_BYTES: usize = 8;

/// An error quotes so much that it fits into the smallest packet which every link takes (RFC 1812,
/// section 4.3.2.3; RFC 4443, section 2.4).
const QUOTED_BYTES_MAX_IPV4: usize = 576 - ip::IPV4_HEADER_BYTES - ICMP_HEADER_BYTES;
const QUOTED_BYTES_MAX_IPV6: usize = 1280 - ip::IPV6_HEADER_BYTES - ICMP_HEADER_BYTES;

/// A message of either family; which one, its IP header tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpMessage<'a> {
    /// A wish for an answer.
    EchoRequest(Echo<'a>),
    /// The answer.
    EchoReply(Echo<'a>),
    /// A packet was not delivered.
    Error {
        /// Why.
        cause: IcmpCause,
        /// The packet, of the same family, from its IP header on, cut off somewhere; see
        /// [`QuotedSegment`].
        quoted: &'a [u8],
    },
}

/// What an echo carries, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Who asks.
    pub identifier: u16,
    /// How often it has asked.
    pub sequence: u16,
    /// Anything.
    pub data: &'a [u8],
}

/// Why a packet was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpCause {
    /// No way to the network.
    NetworkUnreachable,
    /// The host does not answer.
    HostUnreachable,
    /// The host does not speak the protocol.
    ProtocolUnreachable,
    /// Nobody listens on the port.
    PortUnreachable,
    /// A filter forbids it.
    Prohibited,
    /// The packet was too long for a link.
    PacketTooBig {
        /// The longest packet that this link takes, in bytes; zero from a router older than
        /// RFC 1191.
        mtu: u32,
    },
    /// The hops were used up, or a fragment did not come.
    TimeExceeded,
    /// A field of the header was not understood.
    ParameterProblem,
}

impl IcmpCause {
    fn from_ipv4(kind: u8, code: u8, word: u32) -> Option<IcmpCause> {
        Some(match (kind, code) {
            (3, 0 | 6 | 11) => IcmpCause::NetworkUnreachable,
            (3, 1 | 5 | 7 | 8 | 12) => IcmpCause::HostUnreachable,
            (3, 2) => IcmpCause::ProtocolUnreachable,
            (3, 3) => IcmpCause::PortUnreachable,
            (3, 4) => IcmpCause::PacketTooBig { mtu: word & 0xffff },
            (3, 9 | 10 | 13..=15) => IcmpCause::Prohibited,
            (11, 0 | 1) => IcmpCause::TimeExceeded,
            (12, 0..=2) => IcmpCause::ParameterProblem,
            _ => return None,
        })
    }

    /// A next header that the receiver does not know is what IPv4 calls an unreachable protocol
    /// (RFC 5461, section 2.2).
    fn from_ipv6(kind: u8, code: u8, word: u32) -> Option<IcmpCause> {
        Some(match (kind, code) {
            (1, 0) => IcmpCause::NetworkUnreachable,
            (1, 2 | 3) => IcmpCause::HostUnreachable,
            (1, 4) => IcmpCause::PortUnreachable,
            (1, 1 | 5 | 6) => IcmpCause::Prohibited,
            // The code is to be ignored (RFC 4443, section 3.2).
            (2, _) => IcmpCause::PacketTooBig { mtu: word },
            (3, 0 | 1) => IcmpCause::TimeExceeded,
            (4, 1) => IcmpCause::ProtocolUnreachable,
            (4, 0 | 2 | 3) => IcmpCause::ParameterProblem,
            _ => return None,
        })
    }

    /// Type, code and the word behind the checksum.
    fn to_ipv4(self) -> (u8, u8, u32) {
        match self {
            IcmpCause::NetworkUnreachable => (3, 0, 0),
            IcmpCause::HostUnreachable => (3, 1, 0),
            IcmpCause::ProtocolUnreachable => (3, 2, 0),
            IcmpCause::PortUnreachable => (3, 3, 0),
            IcmpCause::PacketTooBig { mtu } => (3, 4, mtu.min(0xffff)),
            IcmpCause::Prohibited => (3, 13, 0),
            IcmpCause::TimeExceeded => (11, 0, 0),
            IcmpCause::ParameterProblem => (12, 0, 0),
        }
    }

    fn to_ipv6(self) -> (u8, u8, u32) {
        match self {
            IcmpCause::NetworkUnreachable => (1, 0, 0),
            IcmpCause::Prohibited => (1, 1, 0),
            IcmpCause::HostUnreachable => (1, 3, 0),
            IcmpCause::PortUnreachable => (1, 4, 0),
            IcmpCause::PacketTooBig { mtu } => (2, 0, mtu),
            IcmpCause::TimeExceeded => (3, 0, 0),
            IcmpCause::ParameterProblem => (4, 0, 0),
            IcmpCause::ProtocolUnreachable => (4, 1, 0),
        }
    }
}

impl IcmpMessage<'_> {
    /// Reads the payload of a packet that has this header. The checksum is verified.
    ///
    /// # Errors
    /// [`WireError`]; unsupported are other protocols, and messages that TCP has no use for, among
    /// them those of [`super::ndp`]. An error that quotes a packet of the other family is
    /// malformed.
    pub fn parse<'a>(header: &IpHeader, payload: &'a [u8]) -> Result<IcmpMessage<'a>, WireError> {
        let ipv6 = match (header.protocol, header.destination.is_ipv6()) {
            (PROTOCOL_ICMP, false) => false,
            (PROTOCOL_ICMPV6, true) => true,
            _ => return Err(WireError::Unsupported("protocol")),
        };
        let (front, behind) =
            payload.split_first_chunk::<ICMP_HEADER_BYTES>().ok_or(WireError::Truncated)?;
        if !covering(header, payload).is_valid() {
            return Err(WireError::Checksum);
        }
        let (kind, code) = (front[0], front[1]);
        let echo =
            Echo { identifier: read_u16(front, 4), sequence: read_u16(front, 6), data: behind };
        match (ipv6, kind, code) {
            (false, 8, 0) | (true, 128, 0) => return Ok(IcmpMessage::EchoRequest(echo)),
            (false, 0, 0) | (true, 129, 0) => return Ok(IcmpMessage::EchoReply(echo)),
            _ => {}
        }
        let word = read_u32(front, 4);
        let cause = if ipv6 {
            IcmpCause::from_ipv6(kind, code, word)
        } else {
            IcmpCause::from_ipv4(kind, code, word)
        };
        let cause = cause.ok_or(WireError::Unsupported("an ICMP message"))?;
        // Nobody may speak about the connections of the other family.
        let version = if ipv6 { 6 } else { 4 };
        if behind.first().ok_or(WireError::Truncated)? >> 4 != version {
            return Err(WireError::Malformed("quoted version"));
        }
        Ok(IcmpMessage::Error { cause, quoted: behind })
    }

    /// Bytes that [`IcmpMessage::write`] writes behind this header.
    pub fn bytes(&self, header: &IpHeader) -> usize {
        ICMP_HEADER_BYTES + self.behind(header).len()
    }

    /// Writes the message behind this header, with its checksum. What is quoted is cut to the
    /// length that the family allows.
    ///
    /// # Panics
    /// If `out` is shorter than [`IcmpMessage::bytes`].
    pub fn write(&self, header: &IpHeader, out: &mut [u8]) {
        let ipv6 = header.destination.is_ipv6();
        let echo_word = |echo: &Echo| u32::from(echo.identifier) << 16 | u32::from(echo.sequence);
        let (kind, code, word) = match self {
            IcmpMessage::EchoRequest(echo) => (if ipv6 { 128 } else { 8 }, 0, echo_word(echo)),
            IcmpMessage::EchoReply(echo) => (if ipv6 { 129 } else { 0 }, 0, echo_word(echo)),
            IcmpMessage::Error { cause, .. } if ipv6 => cause.to_ipv6(),
            IcmpMessage::Error { cause, .. } => cause.to_ipv4(),
        };
        let behind = self.behind(header);
        let out = &mut out[..ICMP_HEADER_BYTES + behind.len()];
        out[..4].copy_from_slice(&[kind, code, 0, 0]);
        out[4..ICMP_HEADER_BYTES].copy_from_slice(&word.to_be_bytes());
        out[ICMP_HEADER_BYTES..].copy_from_slice(behind);
        fill(header, out);
    }

    /// What follows the first eight bytes.
    fn behind(&self, header: &IpHeader) -> &[u8] {
        match self {
            IcmpMessage::EchoRequest(echo) | IcmpMessage::EchoReply(echo) => echo.data,
            IcmpMessage::Error { quoted, .. } => {
                let most = if header.destination.is_ipv6() {
                    QUOTED_BYTES_MAX_IPV6
                } else {
                    QUOTED_BYTES_MAX_IPV4
                };
                &quoted[..quoted.len().min(most)]
            }
        }
    }
}

/// The sum over a message, which has a pseudo-header with IPv6 only (RFC 4443, section 2.3).
pub(super) fn covering(header: &IpHeader, message: &[u8]) -> Sum {
    let mut sum = if header.destination.is_ipv6() {
        Sum::pseudo_header(header.source, header.destination, PROTOCOL_ICMPV6, message.len())
    } else {
        Sum::default()
    };
    sum.add(message);
    sum
}

/// Fills in the checksum of a message in which it is zero.
pub(super) fn fill(header: &IpHeader, message: &mut [u8]) {
    let checksum = covering(header, message).finish();
    message[2..4].copy_from_slice(&checksum);
}

/// The TCP segment that an error is about. Errors quote at least eight bytes of it (RFC 792).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedSegment {
    /// Who sent it: this stack, unless it is a forgery.
    pub source: SocketAddr,
    /// Whom it was for.
    pub destination: SocketAddr,
    /// Its sequence number.
    pub sequence: Sequence,
}

impl QuotedSegment {
    /// Reads a quoted packet. Its lengths and its checksum may be those of before or after a
    /// router's work, so that they are not compared.
    ///
    /// # Errors
    /// [`WireError`]; unsupported are other protocols than TCP, fragments and, because this stack
    /// sends none, IPv6 extension headers.
    pub fn parse(quoted: &[u8]) -> Result<QuotedSegment, WireError> {
        let (header, behind) = ip::parse_quoted(quoted)?;
        if header.protocol != PROTOCOL_TCP {
            return Err(WireError::Unsupported("protocol"));
        }
        let front: &[u8; 8] = behind.first_chunk().ok_or(WireError::Truncated)?;
        Ok(QuotedSegment {
            source: SocketAddr::new(header.source, read_u16(front, 0)),
            destination: SocketAddr::new(header.destination, read_u16(front, 2)),
            sequence: Sequence(read_u32(front, 4)),
        })
    }
}

#[cfg(test)]
mod tests;
