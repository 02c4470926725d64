//! Converts IP socket addresses from and to the kernel's structures, and between families.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of the longest IP socket address, `sockaddr_in6`.
pub const BYTES_MAX: usize = size_of::<libc::sockaddr_in6>();

/// Parses the address in `bytes`; `None` if it is cut off or of another family than IPv4 and IPv6.
pub fn parse(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    let ip: IpAddr = match family {
        libc::AF_INET if bytes.len() >= size_of::<libc::sockaddr_in>() => {
            Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[4..8]).ok()?).into()
        }
        libc::AF_INET6 if bytes.len() >= BYTES_MAX => {
            Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).ok()?).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Returns an address in the kernel's format, and its length.
pub fn to_bytes(address: SocketAddr) -> ([u8; BYTES_MAX], usize) {
    let mut bytes = [0; BYTES_MAX];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let (family, length) = match address.ip() {
        IpAddr::V4(ip) => {
            bytes[4..8].copy_from_slice(&ip.octets());
            (libc::AF_INET, size_of::<libc::sockaddr_in>())
        }
        IpAddr::V6(ip) => {
            bytes[8..24].copy_from_slice(&ip.octets());
            (libc::AF_INET6, BYTES_MAX)
        }
    };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    (bytes, length)
}

/// Converts an IPv4-mapped IPv6 address (RFC 4291, section 2.5.5.2) to IPv4; `None` if it is
/// another address.
pub fn unmapped(address: SocketAddr) -> Option<SocketAddr> {
    match address.ip() {
        IpAddr::V6(ip) => Some(SocketAddr::new(ip.to_ipv4_mapped()?.into(), address.port())),
        IpAddr::V4(_) => None,
    }
}

/// Converts an IPv4 address to an IPv4-mapped IPv6 address; others stay as they are.
pub fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_there_and_back() {
        for text in ["10.1.2.3:80", "[fd00::12]:65535", "0.0.0.0:0", "[::]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let (bytes, length) = to_bytes(address);
            assert_eq!(parse(&bytes[..length]), Some(address));
            assert_eq!(parse(&bytes[..length - 1]), None, "cut off");
            assert_eq!(unmapped(address), None);
            assert_eq!(unmapped(mapped(address)), Some(address).filter(SocketAddr::is_ipv4));
        }
        assert_eq!(parse(&[1, 0, b'/', b'x']), None, "a UNIX socket's");
        assert_eq!(parse(&[]), None);
    }
}
