//! Packs the addresses and ports of both ends of a connection, and hashes them with a key.

use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The middle of an IPv4 address that is written as an IPv6 one (RFC 4291, section 2.5.5.2).
const MAPPED: u32 = 0xffff;

/// A four-tuple in 36 bytes. IPv4 addresses are mapped into IPv6; packets with mapped addresses are
/// dropped earlier, so the two never collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    local: [u32; 4],
    remote: [u32; 4],
    /// The local port in the upper half, the remote one in the lower.
    ports: u32,
}

impl Flow {
    /// Packs the local and remote address and port of a connection.
    pub(crate) fn new(local: (IpAddr, u16), remote: (IpAddr, u16)) -> Flow {
        let ports = u32::from(local.1) << 16 | u32::from(remote.1);
        Flow { local: pack(local.0), remote: pack(remote.0), ports }
    }

    /// Whether the addresses are not IPv4-mapped.
    pub(crate) fn is_ipv6(&self) -> bool {
        self.local[2] != MAPPED || self.local[0] != 0 || self.local[1] != 0
    }

    pub(crate) fn local(&self) -> SocketAddr {
        SocketAddr::new(unpack(self.local), self.local_port())
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        SocketAddr::new(unpack(self.remote), self.remote_port())
    }

    pub(crate) fn local_address(&self) -> IpAddr {
        unpack(self.local)
    }

    pub(crate) fn remote_address(&self) -> IpAddr {
        unpack(self.remote)
    }

    pub(crate) const fn local_port(&self) -> u16 {
        (self.ports >> 16) as u16
    }

    pub(crate) const fn remote_port(&self) -> u16 {
        self.ports as u16
    }

    /// The same four-tuple with another local port.
    pub(crate) fn with_local_port(mut self, port: u16) -> Flow {
        self.ports = u32::from(port) << 16 | self.ports & 0xffff;
        self
    }

    /// Hashes the four-tuple with SipHash-1-3. Without the key an attacker cannot choose addresses
    /// that select a particular core or slot of the table. 12 bytes are hashed for IPv4, 36 for
    /// IPv6.
    pub(crate) fn hash(&self, key: Key) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
        let ends = u64::from(self.local[3]) << 32 | u64::from(self.remote[3]);
        hasher.write_u64(ends);
        hasher.write_u32(self.ports);
        if self.is_ipv6() {
            for address in [&self.local, &self.remote] {
                hasher.write_u64(u64::from(address[0]) << 32 | u64::from(address[1]));
                hasher.write_u32(address[2]);
            }
        }
        hasher.finish()
    }
}

/// The core that owns a four-tuple with this hash. The flow table uses the lower bits, this
/// function the upper ones.
pub(crate) const fn owner(hash: u64, cores: u16) -> u16 {
    (((hash >> 32) * cores as u64) >> 32) as u16
}

/// A key of SipHash.
#[derive(Clone, Copy)]
pub(crate) struct Key(pub(crate) u64, pub(crate) u64);

impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Key")
    }
}

fn pack(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(address) => [0, 0, MAPPED, address.to_bits()],
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            [(bits >> 96) as u32, (bits >> 64) as u32, (bits >> 32) as u32, bits as u32]
        }
    }
}

fn unpack(words: [u32; 4]) -> IpAddr {
    match words {
        [0, 0, MAPPED, address] => IpAddr::V4(Ipv4Addr::from_bits(address)),
        [first, second, third, fourth] => IpAddr::V6(Ipv6Addr::from_bits(
            u128::from(first) << 96
                | u128::from(second) << 64
                | u128::from(third) << 32
                | u128::from(fourth),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(local: &str, remote: &str) -> Flow {
        let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (local, remote) = (parse(local), parse(remote));
        Flow::new((local.ip(), local.port()), (remote.ip(), remote.port()))
    }

    #[test]
    fn packing_keeps_both_ends() {
        for (local, remote) in
            [("10.0.0.1:80", "192.168.7.9:40000"), ("[fd00::1]:65535", "[2001:db8::2:3]:1")]
        {
            let flow = flow(local, remote);
            assert_eq!(flow.local(), local.parse().unwrap());
            assert_eq!(flow.remote(), remote.parse().unwrap());
            assert_eq!(flow.is_ipv6(), local.starts_with('['));
        }
        assert_eq!(size_of::<Flow>(), 36);
    }

    #[test]
    fn every_part_counts_in_the_hash() {
        let key = Key(3, 4);
        let flows = [
            flow("10.0.0.1:80", "10.0.0.2:4000"),
            flow("10.0.0.2:80", "10.0.0.1:4000"),
            flow("10.0.0.1:4000", "10.0.0.2:80"),
            flow("10.0.0.1:80", "10.0.0.2:4001"),
            flow("[fd00::1]:80", "[fd00::2]:4000"),
            flow("[fd00::1:0:1]:80", "[fd00::2]:4000"),
            flow("[fd01::1]:80", "[fd00::2]:4000"),
        ];
        for (index, one) in flows.iter().enumerate() {
            for other in &flows[..index] {
                assert_ne!(one.hash(key), other.hash(key));
            }
            assert_ne!(one.hash(key), one.hash(Key(3, 5)));
        }
    }

    #[test]
    fn owners_are_spread_over_all_cores() {
        let mut owned = [0; 3];
        for port in 0..3000 {
            let hash = flow("10.0.0.1:80", "10.0.0.2:1").with_local_port(port).hash(Key(1, 2));
            owned[usize::from(owner(hash, 3))] += 1;
        }
        assert!(owned.iter().all(|&count| count > 800), "{owned:?}");
    }
}
