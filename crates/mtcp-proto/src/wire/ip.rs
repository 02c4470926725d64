//! Parses and writes IPv4 (RFC 791) and IPv6 (RFC 8200) headers.

use super::{WireError, checksum, ipv6_octets, read_u16};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER_BYTES: usize = 20;
/// Bytes of an IPv6 header without extensions.
pub const IPV6_HEADER_BYTES: usize = 40;

/// The numbers of the IPv6 extension headers that are read (RFC 8200, section 4).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

/// Most extension headers that are accepted. A sender has no use for more: hop-by-hop options,
/// destination options twice, a routing header, and as many again.
const EXTENSION_HEADERS_MAX: usize = 8;

/// The ECN field of a packet (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The sender does not support ECN.
    #[default]
    NotCapable,
    /// ECT(1).
    Capable1,
    /// ECT(0), which TCP senders use.
    Capable0,
    /// A router experienced congestion.
    Experienced,
}

/// The fields of an IP header that TCP needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The sender.
    pub source: IpAddr,
    /// The receiver, of the same family.
    pub destination: IpAddr,
    /// The transport protocol, after any extension headers.
    pub protocol: u8,
    /// The ECN field.
    pub ecn: Ecn,
    /// The remaining hops.
    pub hop_limit: u8,
}

impl Ecn {
    #[inline]
    const fn from_bits(bits: u8) -> Ecn {
        match bits & 3 {
            0 => Ecn::NotCapable,
            1 => Ecn::Capable1,
            2 => Ecn::Capable0,
            _ => Ecn::Experienced,
        }
    }
}

impl IpHeader {
    /// Parses a header; returns it with the payload, cut to the length that the header states.
    ///
    /// The checksum of an IPv4 header is verified. Options of IPv4 are skipped, and so are
    /// hop-by-hop options, destination options and routing headers without remaining segments.
    ///
    /// # Errors
    /// [`WireError`]. Unsupported are fragments, headers that still route, and options of IPv6 that
    /// require to be understood (RFC 8200, section 4.2).
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(IpHeader, &[u8]), WireError> {
        match packet.first().map(|first| first >> 4) {
            Some(4) => {
                let (header, payload) = parse_ipv4(packet, true)?;
                Ok((header, &packet[payload..usize::from(read_u16(packet, 2))]))
            }
            Some(6) => parse_ipv6(packet),
            Some(_) => Err(WireError::Malformed("version")),
            None => Err(WireError::Truncated),
        }
    }

    /// Bytes that [`IpHeader::write`] writes: 20 or 40.
    #[inline]
    pub fn bytes(&self) -> usize {
        match (self.source, self.destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => IPV4_HEADER_BYTES,
            _ => IPV6_HEADER_BYTES,
        }
    }

    /// Writes the header for `payload_bytes` of payload, with DF set, so that routers do not
    /// fragment it. The checksum of an IPv4 header is computed. Addresses of two families are
    /// written as IPv6 addresses.
    ///
    /// The identification of IPv4 is zero, which is allowed for a packet that is never fragmented
    /// (RFC 6864, section 4.1).
    ///
    /// # Panics
    /// If `out` is shorter than [`IpHeader::bytes`], or the packet is longer than 65,535 bytes.
    #[inline]
    pub fn write(&self, payload_bytes: usize, out: &mut [u8]) {
        if let (IpAddr::V4(source), IpAddr::V4(destination)) = (self.source, self.destination) {
            let header: &mut [u8; IPV4_HEADER_BYTES] =
                out.first_chunk_mut().expect("room for an IPv4 header");
            self.write_ipv4(source, destination, payload_bytes, header);
        } else {
            let header: &mut [u8; IPV6_HEADER_BYTES] =
                out.first_chunk_mut().expect("room for an IPv6 header");
            self.write_ipv6(payload_bytes, header);
        }
    }

    fn write_ipv4(
        &self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        payload_bytes: usize,
        out: &mut [u8; IPV4_HEADER_BYTES],
    ) {
        const DONT_FRAGMENT: u8 = 0x40;
        let total = u16::try_from(IPV4_HEADER_BYTES + payload_bytes)
            .expect("an IPv4 packet has at most 65,535 bytes");
        *out = [0; IPV4_HEADER_BYTES];
        out[0] = 0x45;
        out[1] = self.ecn as u8;
        out[2..4].copy_from_slice(&total.to_be_bytes());
        out[6] = DONT_FRAGMENT;
        out[8] = self.hop_limit;
        out[9] = self.protocol;
        out[12..16].copy_from_slice(&source.octets());
        out[16..20].copy_from_slice(&destination.octets());
        let checksum = checksum::of(out);
        out[10..12].copy_from_slice(&checksum);
    }

    fn write_ipv6(&self, payload_bytes: usize, out: &mut [u8; IPV6_HEADER_BYTES]) {
        let payload = u16::try_from(payload_bytes)
            .expect("an IPv6 packet has at most 65,535 bytes of payload");
        out[..4].copy_from_slice(&(0x6000_0000 | (self.ecn as u32) << 20).to_be_bytes());
        out[4..6].copy_from_slice(&payload.to_be_bytes());
        out[6] = self.protocol;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&ipv6_octets(self.source));
        out[24..40].copy_from_slice(&ipv6_octets(self.destination));
    }
}

/// Parses an IPv4 header; returns it with its length. If the packet is not `whole`, as within an
/// ICMP message, its checksum and its length are not checked.
#[inline]
fn parse_ipv4(packet: &[u8], whole: bool) -> Result<(IpHeader, usize), WireError> {
    const MORE_FRAGMENTS_OR_OFFSET: u16 = 0x3fff;
    let fixed: &[u8; IPV4_HEADER_BYTES] = packet.first_chunk().ok_or(WireError::Truncated)?;
    let header_bytes = usize::from(fixed[0] & 0x0f) * 4;
    if header_bytes < IPV4_HEADER_BYTES {
        return Err(WireError::Malformed("header length"));
    }
    let header = packet.get(..header_bytes).ok_or(WireError::Truncated)?;
    let total = usize::from(read_u16(fixed, 2));
    if total < header_bytes {
        return Err(WireError::Malformed("total length"));
    }
    if whole && total > packet.len() {
        return Err(WireError::Truncated);
    }
    if whole && !checksum::verify(header) {
        return Err(WireError::Checksum);
    }
    if read_u16(fixed, 6) & MORE_FRAGMENTS_OR_OFFSET != 0 {
        return Err(WireError::Unsupported("fragment"));
    }
    if header_bytes > IPV4_HEADER_BYTES {
        check_ipv4_options(&header[IPV4_HEADER_BYTES..])?;
    }
    let header = IpHeader {
        source: IpAddr::V4(Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15])),
        destination: IpAddr::V4(Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19])),
        protocol: fixed[9],
        ecn: Ecn::from_bits(fixed[1]),
        hop_limit: fixed[8],
    };
    Ok((header, header_bytes))
}

/// Checks the options of IPv4. They are for routers, but a source-routed packet may not come from
/// its source address (RFC 791, section 3.1; RFC 7126, sections 4.3 and 4.4 say why it is dropped).
fn check_ipv4_options(mut options: &[u8]) -> Result<(), WireError> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const LOOSE_SOURCE_ROUTE: u8 = 131;
    const STRICT_SOURCE_ROUTE: u8 = 137;
    while let Some(&kind) = options.first() {
        let bytes = match kind {
            END => return Ok(()),
            NO_OPERATION => 1,
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => {
                return Err(WireError::Unsupported("source route"));
            }
            _ => match options.get(1) {
                Some(&bytes) if bytes >= 2 => usize::from(bytes),
                _ => return Err(WireError::Malformed("option length")),
            },
        };
        options = options.get(bytes..).ok_or(WireError::Malformed("option length"))?;
    }
    Ok(())
}

fn parse_ipv6(packet: &[u8]) -> Result<(IpHeader, &[u8]), WireError> {
    let (mut header, rest) = parse_ipv6_fixed(packet)?;
    let payload_bytes = usize::from(read_u16(packet, 4));
    let payload = rest.get(..payload_bytes).ok_or(WireError::Truncated)?;
    let (protocol, payload) = skip_extension_headers(header.protocol, payload)?;
    header.protocol = protocol;
    Ok((header, payload))
}

/// Parses the header of a packet that may be cut off at any byte and whose checksum may be wrong.
/// Returns it with the available part of the payload.
pub(super) fn parse_quoted(packet: &[u8]) -> Result<(IpHeader, &[u8]), WireError> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let (header, payload) = parse_ipv4(packet, false)?;
            Ok((header, &packet[payload..]))
        }
        Some(6) => parse_ipv6_fixed(packet),
        Some(_) => Err(WireError::Malformed("version")),
        None => Err(WireError::Truncated),
    }
}

fn parse_ipv6_fixed(packet: &[u8]) -> Result<(IpHeader, &[u8]), WireError> {
    let (fixed, rest) =
        packet.split_first_chunk::<IPV6_HEADER_BYTES>().ok_or(WireError::Truncated)?;
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&fixed[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let header = IpHeader {
        source: address(8),
        destination: address(24),
        protocol: fixed[6],
        ecn: Ecn::from_bits(fixed[1] >> 4),
        hop_limit: fixed[7],
    };
    Ok((header, rest))
}

/// Skips the extension headers between the header and the upper layer (RFC 8200, section 4).
/// Returns the number and the bytes of the upper layer.
fn skip_extension_headers(first: u8, payload: &[u8]) -> Result<(u8, &[u8]), WireError> {
    let (mut kind, mut rest) = (first, payload);
    for place in 0..EXTENSION_HEADERS_MAX {
        if kind == HOP_BY_HOP && place > 0 {
            return Err(WireError::Malformed("next header"));
        }
        if kind == FRAGMENT {
            return Err(WireError::Unsupported("fragment"));
        }
        if !matches!(kind, HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS) {
            return Ok((kind, rest));
        }
        let &[next, length, ..] = rest else { return Err(WireError::Truncated) };
        let bytes = (usize::from(length) + 1) * 8;
        let (extension, behind) = rest.split_at_checked(bytes).ok_or(WireError::Truncated)?;
        if kind == ROUTING {
            let segments_left = extension[3];
            if segments_left != 0 {
                return Err(WireError::Unsupported("source route"));
            }
        } else {
            check_ipv6_options(&extension[2..])?;
        }
        (kind, rest) = (next, behind);
    }
    match kind {
        HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS => {
            Err(WireError::Unsupported("so many extension headers"))
        }
        _ => Ok((kind, rest)),
    }
}

/// Checks IPv6 options. The two high bits of an option's kind tell whether a receiver that does not
/// know it may skip it (RFC 8200, section 4.2). The only known option is the router alert, whose
/// bits permit that.
fn check_ipv6_options(mut options: &[u8]) -> Result<(), WireError> {
    const PAD_ONE: u8 = 0;
    while let Some(&kind) = options.first() {
        let bytes = if kind == PAD_ONE {
            1
        } else if kind >> 6 != 0 {
            return Err(WireError::Unsupported("IPv6 option"));
        } else {
            let &length = options.get(1).ok_or(WireError::Malformed("option length"))?;
            2 + usize::from(length)
        };
        options = options.get(bytes..).ok_or(WireError::Malformed("option length"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
