//! Parses and writes neighbour discovery (RFC 4861): solicitations and advertisements of
//! neighbours. Routers are not discovered; they are configured.

use super::PROTOCOL_ICMPV6;
use super::ethernet::{HardwareAddress, is_unicast};
use super::icmp::{covering, fill};
use super::ip::{IPV6_HEADER_BYTES, IpHeader};
use super::{WireError, read_u32};
use std::net::{IpAddr, Ipv6Addr};

/// The hop limit of all packets, which excludes packets that a router has forwarded (RFC 4861,
/// section 7.1).
pub const NDP_HOP_LIMIT: u8 = 255;

/// The longest message that [`NdpMessage::write`] writes, in bytes.
pub const NDP_BYTES_MAX: usize = NDP_BYTES + LINK_OPTION_BYTES;

const NDP_BYTES: usize = 24;
const LINK_OPTION_BYTES: usize = 8;

const ROUTER_SOLICITATION: u8 = 133;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

const ROUTER: u32 = 1 << 31;
const SOLICITED: u32 = 1 << 30;
const OVERRIDE: u32 = 1 << 29;

/// A neighbour discovery message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NdpMessage {
    /// Asks for the owner of an address.
    Solicitation {
        /// The requested address.
        target: Ipv6Addr,
        /// The hardware address of the sender.
        link: Option<HardwareAddress>,
    },
    /// Announces an address.
    Advertisement {
        /// The address.
        target: Ipv6Addr,
        /// Its hardware address.
        link: Option<HardwareAddress>,
        /// Whether the sender is a router.
        router: bool,
        /// Whether it answers a solicitation.
        solicited: bool,
        /// Whether it replaces an existing entry.
        replaces: bool,
    },
}

/// Whether an IP packet is one of neighbour discovery (including router messages), to be parsed
/// with [`NdpMessage::parse`]. Reads only two bytes.
#[inline]
pub fn is_ndp(packet: &[u8]) -> bool {
    packet.len() > IPV6_HEADER_BYTES
        && packet[0] >> 4 == 6
        && packet[6] == PROTOCOL_ICMPV6
        && (ROUTER_SOLICITATION..=REDIRECT).contains(&packet[IPV6_HEADER_BYTES])
}

/// The solicited-node multicast address of this address (RFC 4291, section 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
}

/// The hardware address of an IPv6 group (RFC 2464, section 7).
pub fn group_hardware_address(group: Ipv6Addr) -> HardwareAddress {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

impl NdpMessage {
    /// Parses the payload of a packet with this header and checks all that RFC 4861 demands in
    /// sections 7.1.1 and 7.1.2.
    ///
    /// # Errors
    /// [`WireError`]; other protocols and messages are unsupported.
    pub fn parse(header: &IpHeader, payload: &[u8]) -> Result<NdpMessage, WireError> {
        let (IpAddr::V6(source), IpAddr::V6(destination), PROTOCOL_ICMPV6) =
            (header.source, header.destination, header.protocol)
        else {
            return Err(WireError::Unsupported("protocol"));
        };
        let &kind = payload.first().ok_or(WireError::Truncated)?;
        if !matches!(kind, SOLICITATION | ADVERTISEMENT) {
            return Err(WireError::Unsupported("an ICMP message"));
        }
        let (front, options) =
            payload.split_first_chunk::<NDP_BYTES>().ok_or(WireError::Truncated)?;
        if !covering(header, payload).is_valid() {
            return Err(WireError::Checksum);
        }
        if header.hop_limit != NDP_HOP_LIMIT {
            return Err(WireError::Malformed("hop limit"));
        }
        if front[1] != 0 {
            return Err(WireError::Malformed("code"));
        }
        let target: [u8; 16] = std::array::from_fn(|index| front[8 + index]);
        let target = Ipv6Addr::from(target);
        if target.is_multicast() || target.is_unspecified() {
            return Err(WireError::Malformed("target"));
        }
        if kind == SOLICITATION {
            let link = link_option(options, 1)?;
            let probe = source.is_unspecified();
            if probe && (link.is_some() || destination != solicited_node(target)) {
                return Err(WireError::Malformed("source"));
            }
            return Ok(NdpMessage::Solicitation { target, link });
        }
        let link = link_option(options, 2)?;
        let flags = read_u32(front, 4);
        let solicited = flags & SOLICITED != 0;
        if solicited && destination.is_multicast() {
            return Err(WireError::Malformed("flags"));
        }
        Ok(NdpMessage::Advertisement {
            target,
            link,
            router: flags & ROUTER != 0,
            solicited,
            replaces: flags & OVERRIDE != 0,
        })
    }

    /// Bytes that [`NdpMessage::write`] writes.
    pub fn bytes(&self) -> usize {
        match self {
            NdpMessage::Solicitation { link: None, .. }
            | NdpMessage::Advertisement { link: None, .. } => NDP_BYTES,
            _ => NDP_BYTES_MAX,
        }
    }

    /// Writes the message that follows this header, with its checksum.
    ///
    /// # Panics
    /// If `out` is shorter than [`NdpMessage::bytes`].
    pub fn write(&self, header: &IpHeader, out: &mut [u8]) {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        let (kind, flags, target, link, link_kind) = match *self {
            NdpMessage::Solicitation { target, link } => (SOLICITATION, 0, target, link, 1),
            NdpMessage::Advertisement { target, link, router, solicited, replaces } => {
                let flags =
                    bit(router, ROUTER) | bit(solicited, SOLICITED) | bit(replaces, OVERRIDE);
                (ADVERTISEMENT, flags, target, link, 2)
            }
        };
        let out = &mut out[..self.bytes()];
        out[..4].copy_from_slice(&[kind, 0, 0, 0]);
        out[4..8].copy_from_slice(&flags.to_be_bytes());
        out[8..24].copy_from_slice(&target.octets());
        if let Some(link) = link {
            out[24..26].copy_from_slice(&[link_kind, 1]);
            out[26..32].copy_from_slice(&link);
        }
        fill(header, out);
    }
}

/// Returns the hardware address in the first option of this kind; all lengths are checked (RFC
/// 4861, section 4.6).
fn link_option(mut options: &[u8], kind: u8) -> Result<Option<HardwareAddress>, WireError> {
    let mut link = None;
    while let Some(&length) = options.get(1) {
        let bytes = usize::from(length) * 8;
        if bytes == 0 {
            return Err(WireError::Malformed("option length"));
        }
        let (option, behind) = options.split_at_checked(bytes).ok_or(WireError::Truncated)?;
        if option[0] == kind && bytes == LINK_OPTION_BYTES && link.is_none() {
            let address: HardwareAddress = std::array::from_fn(|index| option[2 + index]);
            if !is_unicast(address) {
                return Err(WireError::Malformed("link-layer address"));
            }
            link = Some(address);
        }
        options = behind;
    }
    if options.is_empty() { Ok(link) } else { Err(WireError::Truncated) }
}

#[cfg(test)]
mod tests;
