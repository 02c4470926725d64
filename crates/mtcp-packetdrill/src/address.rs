//! Converts socket addresses from and to bytes (ip(7), ipv6(7)), without pointers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const IPV4_BYTES: usize = size_of::<libc::sockaddr_in>();
const IPV6_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// Parses an address.
///
/// # Errors
/// `EINVAL` if it is too short, `EAFNOSUPPORT` if it is of another family.
pub(crate) fn read(bytes: &[u8]) -> Result<SocketAddr, i32> {
    let family = bytes.first_chunk().map(|family| u16::from_ne_bytes(*family));
    let port = bytes.get(2..4).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]));
    match family.map(i32::from) {
        Some(libc::AF_INET) if bytes.len() >= IPV4_BYTES => {
            let address: [u8; 4] = bytes[4..8].try_into().map_err(|_| libc::EINVAL)?;
            Ok(SocketAddr::new(Ipv4Addr::from(address).into(), port))
        }
        Some(libc::AF_INET6) if bytes.len() >= IPV6_BYTES => {
            let address: [u8; 16] = bytes[8..24].try_into().map_err(|_| libc::EINVAL)?;
            Ok(SocketAddr::new(Ipv6Addr::from(address).into(), port))
        }
        Some(libc::AF_INET | libc::AF_INET6) | None => Err(libc::EINVAL),
        Some(_) => Err(libc::EAFNOSUPPORT),
    }
}

/// Returns an address as bytes.
pub(crate) fn write(address: SocketAddr) -> Vec<u8> {
    let (family, bytes) = match address {
        SocketAddr::V4(_) => (libc::AF_INET, IPV4_BYTES),
        SocketAddr::V6(_) => (libc::AF_INET6, IPV6_BYTES),
    };
    let mut out = vec![0; bytes];
    out[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    out[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => out[4..8].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out[8..24].copy_from_slice(&ip.octets()),
    }
    out
}
