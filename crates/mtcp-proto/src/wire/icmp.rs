//! Parses and writes ICMP for IPv4 (RFC 792, 1122, 1191) and IPv6 (RFC 4443, 8201), as far as TCP
//! needs it.
//!
//! One type represents the messages of both families, because TCP reacts to the same few
//! conditions. The messages are not trusted: the caller decides whether an error fits a connection
//! (RFC 5927).

use super::checksum::Sum;
use super::ip::{self, IpHeader};
use super::{PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP};
use super::{WireError, read_u16, read_u32};
use crate::sequence::Sequence;
use std::net::SocketAddr;

/// Bytes before an echo's data or before a quoted packet.
pub const ICMP_HEADER_BYTES: usize = 8;

/// Most bytes that an error quotes: it fits into the smallest packet size that every link supports
/// (RFC 1812, section 4.3.2.3; RFC 4443, section 2.4).
const QUOTED_BYTES_MAX_IPV4: usize = 576 - ip::IPV4_HEADER_BYTES - ICMP_HEADER_BYTES;
const QUOTED_BYTES_MAX_IPV6: usize = 1280 - ip::IPV6_HEADER_BYTES - ICMP_HEADER_BYTES;

/// A message of either family; its IP header determines which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpMessage<'a> {
    /// Requests an echo reply.
    EchoRequest(Echo<'a>),
    /// Answers an echo request.
    EchoReply(Echo<'a>),
    /// Reports that a packet was not delivered.
    Error {
        /// The reason.
        cause: IcmpCause,
        /// The packet, of the same family, from its IP header on, possibly cut off at any byte; see
        /// [`QuotedSegment`].
        quoted: &'a [u8],
    },
}

/// The content of an echo request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Identifies the requester.
    pub identifier: u16,
    /// Number of the request.
    pub sequence: u16,
    /// Arbitrary data.
    pub data: &'a [u8],
}

/// Why a packet was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpCause {
    /// There is no route to the network.
    NetworkUnreachable,
    /// The host does not answer.
    HostUnreachable,
    /// The host does not support the protocol.
    ProtocolUnreachable,
    /// No socket listens on the port.
    PortUnreachable,
    /// A filter forbids it.
    Prohibited,
    /// The packet was too long for a link.
    PacketTooBig {
        /// The MTU of this link, in bytes; zero from a router older than RFC 1191.
        mtu: u32,
    },
    /// The hop limit was reached, or a fragment did not arrive.
    TimeExceeded,
    /// A field of the header is invalid or unknown.
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

    /// Converts type, code and word of ICMPv6. An unknown next header corresponds to IPv4's
    /// unreachable protocol (RFC 5461, section 2.2).
    fn from_ipv6(kind: u8, code: u8, word: u32) -> Option<IcmpCause> {
        Some(match (kind, code) {
            (1, 0) => IcmpCause::NetworkUnreachable,
            (1, 2 | 3) => IcmpCause::HostUnreachable,
            (1, 4) => IcmpCause::PortUnreachable,
            (1, 1 | 5 | 6) => IcmpCause::Prohibited,
            // Receivers ignore the code (RFC 4443, section 3.2).
            (2, _) => IcmpCause::PacketTooBig { mtu: word },
            (3, 0 | 1) => IcmpCause::TimeExceeded,
            (4, 1) => IcmpCause::ProtocolUnreachable,
            (4, 0 | 2 | 3) => IcmpCause::ParameterProblem,
            _ => return None,
        })
    }

    /// Returns type, code and the word after the checksum.
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
    /// Parses the payload of a packet with this header. The checksum is verified.
    ///
    /// # Errors
    /// [`WireError`]. Unsupported are other protocols, and messages that TCP does not use, among
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
        // An error may only be about a connection of its own family.
        let version = if ipv6 { 6 } else { 4 };
        if behind.first().ok_or(WireError::Truncated)? >> 4 != version {
            return Err(WireError::Malformed("quoted version"));
        }
        Ok(IcmpMessage::Error { cause, quoted: behind })
    }

    /// Bytes that [`IcmpMessage::write`] writes after this header.
    pub fn bytes(&self, header: &IpHeader) -> usize {
        ICMP_HEADER_BYTES + self.behind(header).len()
    }

    /// Writes the message that follows this header, with its checksum. The quoted packet is cut to
    /// the length that the family allows.
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

    /// The bytes after the first eight.
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

/// The sum over a message, which includes a pseudo-header only for IPv6 (RFC 4443, section 2.3).
pub(super) fn covering(header: &IpHeader, message: &[u8]) -> Sum {
    let mut sum = if header.destination.is_ipv6() {
        Sum::pseudo_header(header.source, header.destination, PROTOCOL_ICMPV6, message.len())
    } else {
        Sum::default()
    };
    sum.add(message);
    sum
}

/// Writes the checksum of a message whose checksum field is zero.
pub(super) fn fill(header: &IpHeader, message: &mut [u8]) {
    let checksum = covering(header, message).finish();
    message[2..4].copy_from_slice(&checksum);
}

/// The TCP segment that an error quotes. Errors quote at least eight bytes of it (RFC 792).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedSegment {
    /// Its sender: this stack, unless the message is forged.
    pub source: SocketAddr,
    /// Its receiver.
    pub destination: SocketAddr,
    /// Its sequence number.
    pub sequence: Sequence,
}

impl QuotedSegment {
    /// Parses a quoted packet. Routers may have changed its lengths and its checksum, so they are
    /// not checked.
    ///
    /// # Errors
    /// [`WireError`]. Unsupported are protocols other than TCP, fragments and, because this stack
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
