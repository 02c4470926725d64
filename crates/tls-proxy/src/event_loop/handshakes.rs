//! Counts the handshakes in progress of each client address, so that one client cannot occupy all
//! connections with handshakes that it never completes.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// The bits of an IPv6 address that identify its owner: a site has a /64 network at least, and may
/// use any of its addresses.
const NETWORK_BITS: u128 = !0 << 64;

/// The handshakes of a core. It has an entry for each address with a handshake, so at most one for
/// each connection.
#[derive(Debug)]
pub(super) struct Handshakes {
    /// Most handshakes of an address; `None`: any number.
    limit: Option<u32>,
    counts: HashMap<IpAddr, u32>,
}

/// The permission for a handshake; [`Handshakes::end`] takes it back.
#[derive(Debug)]
pub(super) struct Permit(IpAddr);

impl Handshakes {
    pub(super) fn new(limit: Option<u32>) -> Handshakes {
        Handshakes { limit, counts: HashMap::new() }
    }

    /// Returns whether addresses of clients are needed.
    pub(super) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Begins a handshake. `None` if the address has as many as it may have.
    pub(super) fn begin(&mut self, client: IpAddr) -> Option<Permit> {
        let owner = owner(client);
        let count = self.counts.entry(owner).or_insert(0);
        if self.limit.is_some_and(|limit| *count >= limit) {
            return None;
        }
        *count += 1;
        Some(Permit(owner))
    }

    /// Ends a handshake.
    pub(super) fn end(&mut self, permit: Permit) {
        if let Some(count) = self.counts.get_mut(&permit.0) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&permit.0);
            }
        }
    }
}

fn owner(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) & NETWORK_BITS).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_and_each_network_of_ipv6_has_its_own_limit() {
        let mut handshakes = Handshakes::new(Some(2));
        let groups = [
            ["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1"],
            ["10.0.0.2", "10.0.0.2", "10.0.0.2"],
            ["2001:db8::1", "2001:db8::ffff:0:0:1", "2001:db8::2"],
            ["2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:1:8000::"],
        ];
        let mut permits = Vec::new();
        for group in groups {
            let mut begin = |text: &str| handshakes.begin(text.parse().expect("an address"));
            let begun = group.map(&mut begin);
            assert!(begun[2].is_none(), "{group:?}");
            permits.extend(begun.into_iter().flatten());
            assert_eq!(permits.len() % 2, 0);
        }
        assert_eq!(permits.len(), 8);
        permits.into_iter().for_each(|permit| handshakes.end(permit));
        assert!(handshakes.counts.is_empty(), "nothing is kept of those that are gone");
    }
}
