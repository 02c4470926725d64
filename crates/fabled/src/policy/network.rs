//! Networks in CIDR notation (RFC 4632).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::Deserialize;

/// An address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

/// The error for a text that is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no network: write one such as 10.0.0.0/8 or fd00::/8")]
pub struct BadNetwork(String);

impl Network {
    /// Returns whether the address lies in the network. IPv4 addresses mapped into IPv6 count as
    /// IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                mask4(network, self.bits) == mask4(address, self.bits)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                mask6(network, self.bits) == mask6(address, self.bits)
            }
            _ => false,
        }
    }
}

fn mask4(address: Ipv4Addr, bits: u32) -> u32 {
    address.to_bits() & u32::MAX.checked_shl(32 - bits).unwrap_or(0)
}

fn mask6(address: Ipv6Addr, bits: u32) -> u128 {
    address.to_bits() & u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Network, BadNetwork> {
        let bad = || BadNetwork(text.chars().take(64).collect());
        let (address, bits) = text.split_once('/').ok_or_else(bad)?;
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let bits: u32 = bits.parse().map_err(|_| bad())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        if bits > bits_max {
            return Err(bad());
        }
        Ok(Network { address, bits })
    }
}

impl TryFrom<String> for Network {
    type Error = BadNetwork;

    fn try_from(text: String) -> Result<Network, BadNetwork> {
        text.parse()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_contain_what_they_should() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("192.168.1.7/32", "192.168.1.7", "192.168.1.6"),
            ("0.0.0.0/0", "8.8.8.8", "::1"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("127.0.0.0/8", "::ffff:127.0.0.1", "::1"),
        ] {
            let parsed: Network = network.parse().unwrap();
            assert!(parsed.contains(inside.parse().unwrap()), "{network} {inside}");
            assert!(!parsed.contains(outside.parse().unwrap()), "{network} {outside}");
            assert_eq!(parsed.to_string(), network);
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in ["10.0.0.0", "10.0.0.0/33", "::/129", "host/8", "/8", "10.0.0.0/-1"] {
            assert!(text.parse::<Network>().unwrap_err().to_string().contains(text));
        }
    }
}
