//! Parses headers with every length checked, and writes them without allocation.
//!
//! These functions keep no state. A function that parses never panics, whatever the bytes. A
//! function that writes needs as much room as the `bytes` method of the same header returns.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod ip;
pub mod ndp;
pub mod tcp;

use std::net::IpAddr;

/// The protocol number of ICMP for IPv4.
pub const PROTOCOL_ICMP: u8 = 1;
/// The number of TCP as a protocol and next header.
pub const PROTOCOL_TCP: u8 = 6;
/// The next-header number of ICMP for IPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;

/// The reason why bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end before the header, or before the length that it states.
    #[error("the packet is shorter than its headers say")]
    Truncated,
    /// A field has a value that no sender may write.
    #[error("the field `{0}` is malformed")]
    Malformed(&'static str),
    /// The checksum is wrong.
    #[error("the checksum is wrong")]
    Checksum,
    /// A part that this stack does not process: fragments, unknown protocols, source routes.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
}

#[inline]
fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The octets of the address; IPv4 addresses are mapped into IPv6.
fn ipv6_octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
