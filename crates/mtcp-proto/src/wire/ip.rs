//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers.

use super::WireError;
use std::net::IpAddr;

/// The number of TCP among protocols and next headers.
pub const PROTOCOL_TCP: u8 = 6;

/// The congestion experience bits of a packet (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The sender does not take part.
    #[default]
    NotCapable,
    /// ECT(1).
    Capable1,
    /// ECT(0), what TCP senders use.
    Capable0,
    /// A router was congested.
    Experienced,
}

/// What TCP needs to know of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The sender.
    pub source: IpAddr,
    /// The receiver, of the same family.
    pub destination: IpAddr,
    /// The transport protocol, behind any extension headers.
    pub protocol: u8,
    /// The congestion bits.
    pub ecn: Ecn,
    /// Hops that are left.
    pub hop_limit: u8,
}

impl IpHeader {
    /// Reads a header; gives it with the payload, cut to the length that the header states.
    ///
    /// # Errors
    /// [`WireError`]; fragments are unsupported, as are headers that route.
    pub fn parse(packet: &[u8]) -> Result<(IpHeader, &[u8]), WireError> {
        let _ = packet;
        todo!()
    }

    /// Bytes that [`IpHeader::write`] writes: 20 or 40.
    pub fn bytes(&self) -> usize {
        todo!()
    }

    /// Writes the header in front of `payload_bytes` of payload; never fragments (DF is set). The
    /// IPv4 header's checksum is filled in.
    ///
    /// # Panics
    /// If `out` is shorter than [`IpHeader::bytes`].
    pub fn write(&self, payload_bytes: usize, out: &mut [u8]) {
        let _ = (payload_bytes, out);
        todo!()
    }
}
