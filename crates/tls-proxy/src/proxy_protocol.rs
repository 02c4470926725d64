//! Writes headers of the PROXY protocol, which tell a backend the addresses of the client's
//! connection (HAProxy's `doc/proxy-protocol.txt`, sections 2.1 and 2.2).

use std::net::{IpAddr, SocketAddr};

/// The first bytes of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2 and the commands LOCAL (no addresses) and PROXY.
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
/// The families with TCP, and the bytes of their addresses and ports.
const TCP_OVER_IPV4: (u8, u16) = (0x11, 12);
const TCP_OVER_IPV6: (u8, u16) = (0x21, 36);

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Version {
    /// A line of text.
    V1,
    /// A binary header.
    V2,
}

impl Version {
    /// Returns the header for a connection from a client to this proxy. Without the client's
    /// address it says that the address is unknown, and the backend uses that of the proxy.
    pub(crate) fn header(self, client: Option<SocketAddr>, proxy: SocketAddr) -> Vec<u8> {
        let client = client.filter(|client| client.is_ipv4() == proxy.is_ipv4());
        match self {
            Version::V1 => text_header(client, proxy).into_bytes(),
            Version::V2 => binary_header(client, proxy),
        }
    }
}

fn text_header(client: Option<SocketAddr>, proxy: SocketAddr) -> String {
    let Some(client) = client else { return "PROXY UNKNOWN\r\n".to_owned() };
    let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
    let (from, to) = (client.ip(), proxy.ip());
    format!("PROXY {family} {from} {to} {} {}\r\n", client.port(), proxy.port())
}

fn binary_header(client: Option<SocketAddr>, proxy: SocketAddr) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    let Some(client) = client else {
        header.extend([LOCAL, 0, 0, 0]);
        return header;
    };
    let (family, bytes) = if client.is_ipv4() { TCP_OVER_IPV4 } else { TCP_OVER_IPV6 };
    header.extend([PROXY, family]);
    header.extend(bytes.to_be_bytes());
    for address in [client.ip(), proxy.ip()] {
        match address {
            IpAddr::V4(address) => header.extend(address.octets()),
            IpAddr::V6(address) => header.extend(address.octets()),
        }
    }
    header.extend(client.port().to_be_bytes());
    header.extend(proxy.port().to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn headers_have_the_form_of_the_specification() {
        let (client, proxy) = (at("192.0.2.7:4660"), at("10.0.0.1:443"));
        let line = Version::V1.header(Some(client), proxy);
        assert_eq!(line, b"PROXY TCP4 192.0.2.7 10.0.0.1 4660 443\r\n");
        let (client6, proxy6) = (at("[2001:db8::7]:1"), at("[fd00::1]:443"));
        let line = Version::V1.header(Some(client6), proxy6);
        assert_eq!(line, b"PROXY TCP6 2001:db8::7 fd00::1 1 443\r\n");
        let binary = Version::V2.header(Some(client), proxy);
        let rest = [0x21, 0x11, 0, 12, 192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x34, 1, 0xbb];
        assert_eq!(binary, [&SIGNATURE[..], &rest].concat());
        let binary = Version::V2.header(Some(client6), proxy6);
        assert_eq!((binary.len(), &binary[12..16]), (52, &[0x21, 0x21, 0, 36][..]));
        assert_eq!(Version::V1.header(None, proxy), b"PROXY UNKNOWN\r\n");
        assert_eq!(Version::V2.header(None, proxy)[12..], [0x20, 0, 0, 0]);
    }
}
