//! Selects one of several own addresses as the source of a connection.

use super::routes::differing_bits;
use std::net::IpAddr;

/// Selects the source address of a connection to `remote`, whose packets go to the neighbour `hop`.
/// It is `remote` itself if that is an own address (RFC 6724, rule 1), otherwise one of the same
/// scope (rule 2), otherwise the one with the longest common prefix (rule 8). For IPv4 the prefix
/// is compared with the neighbour's address, which is in the same network. `None`: there is no
/// address of the family.
pub fn preferred_source(own: &[IpAddr], remote: IpAddr, hop: IpAddr) -> Option<IpAddr> {
    let near = if remote.is_ipv4() && hop.is_ipv4() { hop } else { remote };
    own.iter().copied().filter(|address| address.is_ipv4() == remote.is_ipv4()).min_by_key(
        |&address| {
            let other_scope = is_link_local(address) != is_link_local(remote);
            (address != remote, other_scope, differing_bits(address, near))
        },
    )
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_chosen(own: &[&str], remote: &str, hop: &str, expected: &str) {
        let parse = |text: &str| text.parse::<IpAddr>().expect("an address");
        let own: Vec<IpAddr> = own.iter().map(|text| parse(text)).collect();
        let chosen = preferred_source(&own, parse(remote), parse(hop));
        assert_eq!(chosen, Some(parse(expected)));
    }

    #[test]
    fn an_own_address_connects_to_itself() {
        let own = ["10.0.0.2", "10.0.0.3", "fd00::2", "fd00::3"];
        assert_chosen(&own, "10.0.0.3", "10.0.0.3", "10.0.0.3");
        assert_chosen(&own, "fd00::3", "fd00::3", "fd00::3");
    }

    #[test]
    fn scopes_come_before_prefixes() {
        let own = ["fe80::2", "fd00::2", "2001:db8::2"];
        assert_chosen(&own, "fe80::1", "fe80::1", "fe80::2");
        assert_chosen(&own, "fd00::1", "fd00::1", "fd00::2");
        assert_chosen(&own, "2001:db9::1", "fe80::1", "2001:db8::2");
        assert_chosen(&own[..2], "2001:db9::1", "fe80::1", "fd00::2");
        assert_chosen(&own[..1], "2001:db9::1", "fe80::1", "fe80::2");
    }

    #[test]
    fn an_address_of_the_neighbours_network_is_chosen() {
        let own = ["192.168.7.2", "10.0.0.2", "10.0.0.9", "10.1.0.2"];
        assert_chosen(&own, "10.1.0.77", "10.1.0.77", "10.1.0.2");
        assert_chosen(&own, "192.168.8.1", "10.1.0.1", "10.1.0.2");
        assert_chosen(&own, "8.8.8.8", "192.168.7.1", "192.168.7.2");
        assert_eq!(
            preferred_source(
                &["10.0.0.2".parse().unwrap()],
                "fd00::1".parse().unwrap(),
                "fd00::1".parse().unwrap()
            ),
            None
        );
    }
}
